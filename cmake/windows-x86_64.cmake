# Toolchain file: cross-compile for Windows x64 with zig. Programs run in wine.

set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
set(CMAKE_RC_COMPILER $ENV{LOWKEY_SYSROOT}/bin/rc)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
# ggml's products are compiled for one kind of CPU; lowkey's own kernels are chosen when the program starts.
foreach(feature SSE42 AVX AVX2 FMA F16C BMI2)
  set(GGML_${feature} ON CACHE BOOL "")
endforeach()
