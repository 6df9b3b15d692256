/* Included before each source of ggml and libllama that zig compiles, before ggml_alloc.h, whose
 * macros must not change the headers of libc++, and which calls a function that Windows does not
 * have: ggml itself allocates by _aligned_malloc there. */
#ifndef LK_GGML_ZIG_H
#define LK_GGML_ZIG_H

#ifdef __cplusplus
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <locale>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>
#endif

#ifdef _WIN32
#include <errno.h>
#include <stddef.h>

static inline int posix_memalign(void **out, size_t alignment, size_t size) {
    (void)alignment, (void)size;
    *out = NULL;
    return ENOMEM;
}
#endif

#endif
