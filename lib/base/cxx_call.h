/* Calls from C into libraries that throw C++ exceptions: libllama, gguf and ggml.
 *
 * ggml aborts or uses NULL if malloc fails. It is compiled with cmake/ggml_alloc.h, which throws
 * instead, but only on threads inside of these functions, so never on ggml's own threads. An
 * installed llama.cpp is compiled without that header: only its C++ exceptions are caught then. */
#ifndef LK_BASE_CXX_CALL_H
#define LK_BASE_CXX_CALL_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Run fn(arg) and convert a C++ exception that it throws: std::bad_alloc and std::length_error to
 * LK_E_NOMEM, any other to LK_E_FORMAT with its text. A failing GGML_ASSERT throws as well. What fn
 * had allocated by then may leak, so fn should do little but call the library. It must not compute
 * a graph: ggml's other threads would wait for the thread that threw. */
lk_status lk_cxx_call(void (*fn)(void *arg), void *arg, lk_err *err);

/* Like lk_cxx_call, for functions that compute graphs: a failing GGML_ASSERT aborts, because other
 * threads take part. ggml allocates only before they start. */
lk_status lk_cxx_compute(void (*fn)(void *arg), void *arg, lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
