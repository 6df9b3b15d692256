/* Calls from C into libraries that throw C++ exceptions: libllama and gguf. */
#ifndef LK_BASE_CXX_CALL_H
#define LK_BASE_CXX_CALL_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Run fn(arg) and convert a C++ exception that it throws: std::bad_alloc and std::length_error to
 * LK_E_NOMEM, any other to LK_E_FORMAT with its text. What fn had allocated by then may leak, so fn
 * should do nothing but call the library. */
lk_status lk_cxx_call(void (*fn)(void *arg), void *arg, lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
