# LOWKEY_CORE: what cmake/llama.cmake defines, without llama.cpp. On a CPU that has half floats of its own
# (codec/half.h) the core needs no other library.

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  message(FATAL_ERROR "LOWKEY_CORE is for AArch64: elsewhere half floats are ggml's")
endif()
find_package(Threads REQUIRED)
set(LK_SYSTEM_LIBS m)
set(LK_LLAMA_STATIC OFF)
set(LK_LLAMA_TARGETS "")
add_library(lowkey_llama INTERFACE)
target_link_libraries(lowkey_llama INTERFACE Threads::Threads ${LK_SYSTEM_LIBS})
foreach(off LOWKEY_PROGRAM LOWKEY_EXAMPLES LOWKEY_BENCH LOWKEY_FUZZ)
  set(${off} OFF)
endforeach()
