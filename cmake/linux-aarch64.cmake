# Toolchain file: cross-compile for AArch64 Linux with Debian's g++-aarch64-linux-gnu, or $CC and $CXX. Programs run in
# qemu-user. $LOWKEY_SYSROOT is the folder with the libraries of the target, which scripts/cross makes.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
if(NOT DEFINED ENV{CC})
  set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
  set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
endif()
set(CMAKE_SYSROOT $ENV{LOWKEY_SYSROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L $ENV{LOWKEY_SYSROOT})
# ggml's products are compiled for one kind of CPU: here for dot products, which lowkey's own kernels need, too.
set(GGML_CPU_ARM_ARCH armv8.2-a+dotprod CACHE STRING "")
