# Warnings, sanitizers and fuzzing.

set(LK_WARNINGS -Wall -Wextra)
if(LOWKEY_WERROR)
  list(APPEND LK_WARNINGS -Werror)
endif()

if(LOWKEY_SANITIZE)
  add_compile_options(-fsanitize=${LOWKEY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOWKEY_SANITIZE})
endif()

if(LOWKEY_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "LOWKEY_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # An engine that is given comes with its sanitizers in CFLAGS and CXXFLAGS.
  set(LOWKEY_FUZZ_ENGINE "" CACHE STRING "The fuzzing engine to link with (default: clang's, with ASan and UBSan)")
  if(NOT LOWKEY_FUZZ_ENGINE)
    add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=address,undefined)
  endif()
  # Do not instrument the kernels: clang would need minutes for each file. Their control flow and indices do not
  # depend on input data, and the tests check them with gcc's sanitizers.
  set(LK_KERNEL_OPTIONS -fno-sanitize=fuzzer-no-link,address,undefined)
endif()
