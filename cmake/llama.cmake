# llama.cpp and ggml, from a source tree or from an installed CMake package, as one target:
#
#   lowkey_llama       the target to link with
#   LK_LLAMA_STATIC    true if the libraries are static archives
#   LK_LLAMA_TARGETS   the libraries, in link order
#   LK_SYSTEM_LIBS     system libraries to link after them

enable_language(CXX) # llama.cpp is C++; all sources of lowkey are C11
find_package(Threads REQUIRED)
set(LK_SYSTEM_LIBS m ${CMAKE_DL_LIBS} stdc++)
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_SYSTEM_NAME STREQUAL "Linux") # by zig, with libc++
  set(LK_SYSTEM_LIBS c++)
  if(WIN32)
    list(APPEND LK_SYSTEM_LIBS psapi api-ms-win-core-synch-l1-2-0 ws2_32)
  endif()
endif()

if(LOWKEY_LLAMA_DIR)
  if(NOT EXISTS ${LOWKEY_LLAMA_DIR}/include/llama.h)
    message(FATAL_ERROR "LOWKEY_LLAMA_DIR=${LOWKEY_LLAMA_DIR} is not a llama.cpp source tree: it has no include/llama.h")
  endif()
  # lowkey has its own thread pool and uses only the libraries. docs/dependencies.md explains why
  # LLAMA_BUILD_COMMON is off.
  foreach(off GGML_OPENMP GGML_CCACHE LLAMA_OPENSSL LLAMA_BUILD_COMMON LLAMA_BUILD_TOOLS LLAMA_BUILD_TESTS
              LLAMA_BUILD_EXAMPLES LLAMA_BUILD_SERVER LLAMA_BUILD_APP)
    set(${off} OFF CACHE BOOL "" FORCE)
  endforeach()
  set(lk_shared ${BUILD_SHARED_LIBS})
  set(lk_c_flags ${CMAKE_C_FLAGS})
  set(lk_cxx_flags ${CMAKE_CXX_FLAGS})
  set(BUILD_SHARED_LIBS OFF)
  # As in scripts/deps. With ggml_alloc.h, failed allocations throw exceptions (lib/base/cxx_call.h).
  set(lk_alloc " -include \"${CMAKE_CURRENT_LIST_DIR}/ggml_alloc.h\"")
  string(APPEND CMAKE_C_FLAGS " -fexceptions${lk_alloc}")
  string(APPEND CMAKE_CXX_FLAGS " -include \"${CMAKE_CURRENT_LIST_DIR}/gcc_amx.h\"${lk_alloc}")
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  add_subdirectory(${LOWKEY_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)
  set(BUILD_SHARED_LIBS ${lk_shared})
  set(CMAKE_C_FLAGS ${lk_c_flags})
  set(CMAKE_CXX_FLAGS ${lk_cxx_flags})
  set(LK_LLAMA_TARGETS llama ggml ggml-cpu ggml-base)
  set(LK_LLAMA_STATIC ON)
else()
  find_package(llama QUIET)
  if(NOT llama_FOUND AND LOWKEY_PYTHON) # pip cannot run scripts/deps first
    message(STATUS "llama.cpp was not found: building it with scripts/deps, which takes minutes, once")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/deps OUTPUT_VARIABLE lk_prefix OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
    find_package(llama QUIET PATHS ${lk_prefix} NO_DEFAULT_PATH)
  endif()
  if(NOT llama_FOUND)
    message(FATAL_ERROR "llama.cpp was not found. Run scripts/build, or configure with "
                        "-DCMAKE_PREFIX_PATH=\"$(scripts/deps | tail -n 1)\"")
  endif()
  message(STATUS "Found llama.cpp: ${llama_DIR}")
  get_target_property(lk_backends ggml::all INTERFACE_LINK_LIBRARIES)
  set(LK_LLAMA_TARGETS llama ggml::ggml ${lk_backends} ggml::ggml-base)
  get_target_property(lk_location llama IMPORTED_LOCATION)
  string(REGEX MATCH "\\.a$" LK_LLAMA_STATIC "${lk_location}")
  # The package does not export the system libraries that its archives need.
  set_property(TARGET ggml::ggml-base APPEND PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads ${LK_SYSTEM_LIBS})
  if(LK_LLAMA_STATIC AND TARGET ggml::ggml-cuda) # nor CUDA's
    find_package(CUDAToolkit REQUIRED)
    set_property(TARGET ggml::ggml-cuda APPEND PROPERTY INTERFACE_LINK_LIBRARIES CUDA::cudart_static CUDA::cublas)
  endif()
endif()

add_library(lowkey_llama INTERFACE)
target_link_libraries(lowkey_llama INTERFACE ${LK_LLAMA_TARGETS} Threads::Threads ${LK_SYSTEM_LIBS})
