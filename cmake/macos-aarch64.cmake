# Toolchain file: cross-compile for macOS on arm64 with zig. The result is linked with the system's libraries that zig
# describes, without frameworks. It cannot be run here.

set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
set(CMAKE_INSTALL_NAME_TOOL true CACHE FILEPATH "") # only shared libraries need it
set(CMAKE_OSX_SYSROOT / CACHE PATH "")
foreach(off GGML_METAL GGML_ACCELERATE GGML_BLAS)
  set(${off} OFF CACHE BOOL "")
endforeach()
