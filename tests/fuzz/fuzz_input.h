/* What several fuzz targets need: files in memory, and tiny models. Failures abort. */
#ifndef LK_TESTS_FUZZ_INPUT_H
#define LK_TESTS_FUZZ_INPUT_H

#include "lowkey.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file in memory, and a path that opens it. */
struct fuzz_file {
    int fd;
    char path[64];
};

static inline struct fuzz_file fuzz_file_new(void) {
    struct fuzz_file f = {.fd = memfd_create("fuzz", 0)};
    if (f.fd < 0) abort();
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    return f;
}

static inline void fuzz_file_set(const struct fuzz_file *f, const uint8_t *data, size_t size) {
    if (ftruncate(f->fd, 0) != 0) abort();
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(f->fd, data + done, size - done, (off_t)done);
        if (n <= 0) abort();
        done += (size_t)n;
    }
}

/* data[0..size) as a string, which ends at its first zero. Free it with free(). */
static inline char *fuzz_string(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    if (size) memcpy(text, data, size);
    text[size] = 0;
    return text;
}

/* An error has one line of text. */
static inline void fuzz_check_error(const lk_err *err) {
    if (err->code == LK_OK || !err->msg[0] || strchr(err->msg, '\n')) abort();
}

#endif
