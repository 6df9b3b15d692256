/* Included before each source of the tests for Windows: functions of POSIX that tests call. */
#ifndef LK_SUPPORT_WINDOWS_H
#define LK_SUPPORT_WINDOWS_H

#ifndef __cplusplus

#include <direct.h>
#include <io.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Blocks of aligned_alloc, which Windows frees by another function: at most 64 at a time, in one
 * table for all files. */
__attribute__((selectany)) void *lk_test_aligned[64];

static inline void *lk_test_aligned_alloc(size_t alignment, size_t size) {
    int i = 0;
    while (i < 64 && lk_test_aligned[i]) i++;
    return i < 64 ? lk_test_aligned[i] = _aligned_malloc(size, alignment) : NULL;
}
#define aligned_alloc(alignment, size) lk_test_aligned_alloc(alignment, size)

static inline void lk_test_free(void *ptr) {
    for (int i = 0; i < 64; i++)
        if (ptr && lk_test_aligned[i] == ptr) {
            lk_test_aligned[i] = NULL;
            _aligned_free(ptr);
            return;
        }
    free(ptr);
}
#define free(ptr) lk_test_free(ptr)

static inline int lk_test_mkdir(const char *path, int mode) {
    (void)mode;
    return _mkdir(path);
}
#define mkdir(path, mode) lk_test_mkdir(path, mode)

static inline int setenv(const char *name, const char *value, int overwrite) {
    if (!overwrite && getenv(name)) return 0;
    return _putenv_s(name, value);
}

/* Processor time: clock() of Windows counts while other programs run. */
static inline clock_t lk_test_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (clock_t)((double)CLOCKS_PER_SEC * ((double)t.tv_sec + (double)t.tv_nsec / 1e9));
}
#define clock() lk_test_clock()

static inline char *stpcpy(char *to, const char *from) {
    size_t n = strlen(from);
    return (char *)memcpy(to, from, n + 1) + n;
}

static inline int unsetenv(const char *name) { return _putenv_s(name, ""); }

#endif

#endif
