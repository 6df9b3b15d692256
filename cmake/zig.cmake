# Part of the toolchain files for systems that zig compiles for. LOWKEY_SYSROOT is the folder that packaging/zig_root.py
# makes.

set(CMAKE_C_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang)
set(CMAKE_CXX_COMPILER $ENV{LOWKEY_SYSROOT}/bin/clang++)
set(CMAKE_AR $ENV{LOWKEY_SYSROOT}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB $ENV{LOWKEY_SYSROOT}/bin/ranlib CACHE FILEPATH "")
set(ENV{PKG_CONFIG_LIBDIR} $ENV{LOWKEY_SYSROOT}/pkgconfig)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(LK_XXHASH_INCLUDE $ENV{LOWKEY_SYSROOT}/include CACHE PATH "")
