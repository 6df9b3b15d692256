# Device modules: shared objects that lowkey loads when a device is named (lib/device/modules.h).
#
#   LOWKEY_CUDA          build liblowkey-cuda.so; needs nvcc
#   LOWKEY_NVCC          the compiler; found in the path, in CUDA_HOME, or in /usr/local/cuda
#   LOWKEY_CUDA_ARCH     architectures: machine code for each of these, and PTX of the first one for all later cards
#
# The emulated module is the same sources as C++, for tests.

option(LOWKEY_CUDA "Build the module for NVIDIA GPUs (needs nvcc)" OFF)
set(LOWKEY_CUDA_ARCH "80;90a;120" CACHE STRING "CUDA architectures to compile for, the oldest first")
find_program(LOWKEY_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)

file(GLOB LK_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/cuda/*.cu)
set(LK_CUDA_HOST_SOURCES lib/base/err.c lib/device/moves.c lib/codec/rot.c lib/codec/hadamard.c lib/codec/bitplanes.c)
list(TRANSFORM LK_CUDA_HOST_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
set(LK_CUDA_RUNTIME ${PROJECT_SOURCE_DIR}/lib/cuda/runtime_cuda.cu)

if(LOWKEY_CUDA)
  if(NOT LOWKEY_NVCC)
    message(FATAL_ERROR "LOWKEY_CUDA needs nvcc: install the CUDA toolkit, or set LOWKEY_NVCC to its path")
  endif()
  set(lk_gencode "")
  foreach(arch IN LISTS LOWKEY_CUDA_ARCH)
    if(lk_gencode)
      list(APPEND lk_gencode -gencode=arch=compute_${arch},code=sm_${arch})
    else()
      list(APPEND lk_gencode "-gencode=arch=compute_${arch},code=[sm_${arch},compute_${arch}]")
    endif()
  endforeach()
  set(lk_nvcc ${LOWKEY_NVCC} -ccbin ${CMAKE_CXX_COMPILER})
  set(lk_objects "")
  foreach(source IN LISTS LK_CUDA_SOURCES LK_CUDA_HOST_SOURCES)
    get_filename_component(name ${source} NAME)
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    set(options -Xcompiler=-fPIC,-fvisibility=hidden)
    if(source MATCHES "\\.cu$")
      list(APPEND options -std=c++17 --expt-relaxed-constexpr ${lk_gencode})
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${lk_nvcc} -O3 ${options} -DLOWKEY_VERSION=\"${PROJECT_VERSION}\" -I${PROJECT_SOURCE_DIR}/lib
        -I${PROJECT_SOURCE_DIR}/include -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name} for CUDA" VERBATIM)
    list(APPEND lk_objects ${object})
  endforeach()
  set(LK_CUDA_MODULE ${PROJECT_BINARY_DIR}/liblowkey-cuda.so)
  add_custom_command(OUTPUT ${LK_CUDA_MODULE}
    COMMAND ${lk_nvcc} -shared -Xlinker=--no-undefined -cudart static ${lk_objects} -o ${LK_CUDA_MODULE}
    DEPENDS ${lk_objects} COMMENT "Linking liblowkey-cuda.so" VERBATIM)
  add_custom_target(lowkey_cuda ALL DEPENDS ${LK_CUDA_MODULE})
  install(PROGRAMS ${LK_CUDA_MODULE} DESTINATION ${CMAKE_INSTALL_LIBDIR}/lowkey)
endif()

# lk_emulated(target): how C++ sources that emulate a GPU's warps are compiled. A lane's value is an array of 32, so
# instrumented or well optimized code of unrolled kernels takes minutes to compile. Products are rounded as on the GPU.
# `#pragma unroll` is for nvcc: gcc does not know it, and clang warns of each loop that -O1 leaves rolled.
function(lk_emulated target)
  set(level -O1)
  if(LOWKEY_SANITIZE)
    set(level -O0)
  endif()
  target_compile_features(${target} PRIVATE cxx_std_17)
  set(options ${level} -ffp-contract=off -fno-var-tracking -Wno-unknown-pragmas)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    list(APPEND options -Wno-pass-failed)
  endif()
  if(LOWKEY_FUZZ) # no target fuzzes them
    list(APPEND options -fno-sanitize=all)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
endfunction()

if(LOWKEY_TESTS AND NOT LOWKEY_CORE AND NOT WIN32 AND NOT APPLE)
  set(sources ${LK_CUDA_SOURCES})
  list(REMOVE_ITEM sources ${LK_CUDA_RUNTIME})
  set_source_files_properties(${sources} PROPERTIES LANGUAGE CXX)
  add_library(lowkey_emulated MODULE ${sources} ${PROJECT_SOURCE_DIR}/lib/cuda/runtime_emulated.cpp ${LK_CUDA_HOST_SOURCES})
  lk_emulated(lowkey_emulated)
  target_include_directories(lowkey_emulated PRIVATE ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(lowkey_emulated PRIVATE ${LK_WARNINGS} -fvisibility=hidden)
  target_compile_definitions(lowkey_emulated PRIVATE LOWKEY_VERSION="${PROJECT_VERSION}")
  target_link_libraries(lowkey_emulated PRIVATE Threads::Threads m)
  if(NOT LOWKEY_SANITIZE)
    target_link_options(lowkey_emulated PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(lowkey_emulated PROPERTIES OUTPUT_NAME lowkey-emulated
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/modules)
endif()
