/* Included before each source of ggml and libllama (scripts/deps, cmake/llama.cmake), whose C files
 * are compiled with -fexceptions. They use some results of malloc without a check, and abort on
 * others. With this header, a failed allocation throws a C++ exception if the thread is inside
 * lk_cxx_call (lib/base/cxx_call.h). Otherwise they get NULL as before.
 *
 * Both symbols are weak, so the libraries also link without lowkey. */
#ifndef LK_GGML_ALLOC_H
#define LK_GGML_ALLOC_H

#ifdef __cplusplus
#include <cstdlib> /* before the macros below */
extern "C" {
#endif

#include <errno.h>
#include <stdlib.h>
#ifdef __SSE2__
#include <mm_malloc.h> /* declares posix_memalign */
#endif

/* Throws, or returns if the thread is outside of lk_cxx_call. */
extern void lk_ggml_no_memory(void) __attribute__((weak));

/* Exists if the libraries were compiled so that exceptions can pass through them. */
__attribute__((weak)) char lk_ggml_unwinds;

static inline void *lk_ggml_checked(void *ptr, size_t size) {
    if (!ptr && size > 0 && lk_ggml_no_memory) lk_ggml_no_memory();
    return ptr;
}

static inline void *lk_ggml_malloc(size_t size) { return lk_ggml_checked(malloc(size), size); }

static inline void *lk_ggml_calloc(size_t n, size_t size) {
    return lk_ggml_checked(calloc(n, size), n * size);
}

static inline void *lk_ggml_realloc(void *ptr, size_t size) {
    return lk_ggml_checked(realloc(ptr, size), size);
}

/* ggml checks its large buffers. Its error path frees what it has; an exception would leak it. */
static inline int lk_ggml_memalign(void **out, size_t alignment, size_t size) {
    int error = posix_memalign(out, alignment, size);
    if (error) errno = error;
    if (error && size <= 1 << 20) lk_ggml_checked(NULL, size);
    return error;
}

#ifdef __cplusplus
}
#endif

/* Only calls are replaced: ggml has variables with these names. */
#define malloc(size) lk_ggml_malloc(size)
#define calloc(n, size) lk_ggml_calloc(n, size)
#define realloc(ptr, size) lk_ggml_realloc(ptr, size)
#define posix_memalign(out, alignment, size) lk_ggml_memalign(out, alignment, size)

#endif
