/* A preloaded allocator that fails on purpose, for tests/lowkey/test_malloc.sh. Built as the shared
 * library libfailmalloc.so, not as a part of the tests' support library.
 *
 *   FAILMALLOC_AT=N       fail allocation N; the first is 1, without it none fails
 *   FAILMALLOC_MODE=all   also fail every allocation after it; default: only this one
 *   FAILMALLOC_FROM=main  count from main; default: from the start of the process, which includes
 *                         the initializers of libraries
 *   FAILMALLOC_COUNT=FILE write the number of allocations to FILE at exit
 *   FAILMALLOC_JANSSON=FILE  create FILE if an allocation of Jansson's fails
 *   FAILMALLOC_TRAP=1     raise SIGTRAP instead of failing, for a debugger
 *
 * Counts malloc, calloc, realloc, posix_memalign and aligned_alloc. operator new, strdup and stdio
 * use them. The counts of two runs differ by a few if the program has threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's allocator under its own names. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *ptr, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static struct {
    bool ready, all, trap, from_main;
    _Atomic bool counts;
    uint64_t at;
    _Atomic uint64_t n;
    char file[512];    /* for the count; empty: none */
    char jansson[512]; /* created if an allocation of Jansson's fails; empty: none */
} state;

static void read_settings(void) {
    const char *at = getenv("FAILMALLOC_AT"), *mode = getenv("FAILMALLOC_MODE"),
               *from = getenv("FAILMALLOC_FROM"), *file = getenv("FAILMALLOC_COUNT"),
               *jansson = getenv("FAILMALLOC_JANSSON");
    state.ready = true;
    state.at = at ? strtoull(at, NULL, 10) : 0;
    state.all = mode && strcmp(mode, "all") == 0;
    state.trap = getenv("FAILMALLOC_TRAP");
    state.from_main = from && strcmp(from, "main") == 0;
    if (file && strlen(file) < sizeof state.file) strcpy(state.file, file);
    if (jansson && strlen(jansson) < sizeof state.jansson) strcpy(state.jansson, jansson);
    state.counts = !state.from_main;
}

static void note_caller(const void *caller) {
    Dl_info info;
    if (!state.jansson[0] || !dladdr(caller, &info) || !info.dli_fname ||
        !strstr(info.dli_fname, "libjansson"))
        return;
    int file = open(state.jansson, O_WRONLY | O_CREAT, 0644);
    if (file >= 0) close(file);
    state.jansson[0] = 0; /* once is enough */
}

/* Count an allocation. True if it must fail. caller: an address in the code that allocates */
static bool count_allocation(const void *caller) {
    if (!state.ready && environ) read_settings();
    if (!state.counts) return false;
    uint64_t n = ++state.n;
    if (state.at == 0 || n < state.at || (n > state.at && !state.all)) return false;
    if (state.trap) raise(SIGTRAP);
    note_caller(caller);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) {
    return count_allocation(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    return count_allocation(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *ptr, size_t size) {
    bool fails = size > 0 && count_allocation(__builtin_return_address(0));
    return fails ? NULL : __libc_realloc(ptr, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return count_allocation(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *ptr = aligned_alloc(alignment, size);
    if (!ptr) return ENOMEM;
    *out = ptr;
    return 0;
}

/* ---- counting from main ---- */

typedef int main_fn(int argc, char **argv, char **env);
static main_fn *program_main;

static int counted_main(int argc, char **argv, char **env) {
    if (!state.ready) read_settings();
    state.counts = true;
    int status = program_main(argc, argv, env);
    state.counts = false; /* a program that counts its coverage writes it now */
    return status;
}

void exit(int status) {
    void (*end)(int status) = (void (*)(int))dlsym(RTLD_NEXT, "exit");
    state.counts = false;
    end(status);
    __builtin_unreachable();
}

int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
    __typeof__(&__libc_start_main) start =
        (__typeof__(&__libc_start_main))dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = main;
    return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void write_count(void) {
    char text[32];
    int file = state.file[0] ? open(state.file, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (file < 0) return;
    int len = snprintf(text, sizeof text, "%llu\n", (unsigned long long)state.n);
    ssize_t written = write(file, text, (size_t)len);
    (void)written;
    close(file);
}
