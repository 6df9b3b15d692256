# LOWKEY_CORE: used instead of cmake/llama.cmake. Builds only codecs, kernels, recipes, cache and attention, which
# need neither llama.cpp nor C++.

find_package(Threads REQUIRED)
set(LK_SYSTEM_LIBS m)
set(LK_LLAMA_STATIC OFF)
set(LK_LLAMA_TARGETS "")
add_library(lowkey_llama INTERFACE)
target_link_libraries(lowkey_llama INTERFACE Threads::Threads ${LK_SYSTEM_LIBS})
foreach(off LOWKEY_PROGRAM LOWKEY_EXAMPLES LOWKEY_BENCH LOWKEY_FUZZ)
  set(${off} OFF)
endforeach()

# Line numbers are enough: full debug information takes a third of the build time.
add_compile_options(-g1)
