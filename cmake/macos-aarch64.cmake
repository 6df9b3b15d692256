# Toolchain file: cross-compile for macOS on arm64 with zig. LOWKEY_SYSROOT is the folder that packaging/zig_root.py makes.
# The result is linked with the system's libraries that zig describes, without frameworks. It cannot be run here.

set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_C_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang)
set(CMAKE_CXX_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang++)
set(CMAKE_AR $ENV{LOWKEY_SYSROOT}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB $ENV{LOWKEY_SYSROOT}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_INSTALL_NAME_TOOL true CACHE FILEPATH "") # only shared libraries need it
set(CMAKE_OSX_SYSROOT / CACHE PATH "")
set(ENV{PKG_CONFIG_LIBDIR} $ENV{LOWKEY_SYSROOT}/pkgconfig)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(LK_XXHASH_INCLUDE $ENV{LOWKEY_SYSROOT}/include CACHE PATH "")
foreach(off GGML_METAL GGML_ACCELERATE GGML_BLAS)
  set(${off} OFF CACHE BOOL "")
endforeach()
