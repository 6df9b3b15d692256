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
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
  # Kernels branch on no input and index by none, and clang takes minutes for each with these; tests watch them with gcc's.
  set(LK_KERNEL_OPTIONS -fno-sanitize=fuzzer-no-link,address,undefined)
endif()
