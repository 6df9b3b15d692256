# Toolchain file: cross-compile for Windows x64 with zig. LOWKEY_SYSROOT is the folder that packaging/zig_root.py makes.
# Programs run in wine.

set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang)
set(CMAKE_CXX_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang++)
set(CMAKE_AR $ENV{LOWKEY_SYSROOT}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB $ENV{LOWKEY_SYSROOT}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_RC_COMPILER $ENV{LOWKEY_SYSROOT}/bin/rc)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
set(ENV{PKG_CONFIG_LIBDIR} $ENV{LOWKEY_SYSROOT}/pkgconfig)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(LK_XXHASH_INCLUDE $ENV{LOWKEY_SYSROOT}/include CACHE PATH "")
# ggml's products are compiled for one kind of CPU; lowkey's own kernels are chosen when the program starts.
foreach(feature SSE42 AVX AVX2 FMA F16C BMI2)
  set(GGML_${feature} ON CACHE BOOL "")
endforeach()
