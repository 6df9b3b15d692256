/* Common code of the benchmarks. */
#define _DEFAULT_SOURCE /* mkstemp */
#include "bench_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void bench_check(lk_status status, const lk_err *err) {
    if (!status) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

int bench_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

char *bench_read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    rewind(f);
    if (text && fread(text, 1, (size_t)size, f) != (size_t)size) {
        free(text);
        text = NULL;
    }
    fclose(f);
    *len = text ? (size_t)size : 0;
    return text;
}

int32_t *bench_read_tokens(const lk_model *model, const char *path, size_t max_bytes, size_t *n) {
    size_t len;
    lk_err err = {0};
    int32_t *tok;
    char *text = bench_read_file(path, &len);
    if (!text) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    if (len > max_bytes) {
        len = max_bytes;
        while (len > 0 && (text[len] & 0xC0) == 0x80) len--; /* to the start of a character */
    }
    bench_check(lk_tokenize(model, text, len, LK_TOKENIZE_BEGIN, 0, &tok, n, &err), &err);
    free(text);
    return tok;
}

void bench_temp_file(char path[BENCH_PATH]) {
    const char *dir = getenv("TMPDIR");
    snprintf(path, BENCH_PATH, "%s/lowkey-bench-XXXXXX", dir && *dir ? dir : "/tmp");
    int file = mkstemp(path);
    if (file >= 0 && close(file) == 0) return;
    fprintf(stderr, "cannot create the temporary file %s: set TMPDIR\n", path);
    exit(1);
}
