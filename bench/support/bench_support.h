/* Common code of the benchmarks. Benchmarks are developer programs: an error ends the program with
 * a message. */
#ifndef LK_BENCH_SUPPORT_H
#define LK_BENCH_SUPPORT_H

#include "base/clock.h"
#include "lowkey.h"

/* End the program with the message if `status` is an error. */
void bench_check(lk_status status, const lk_err *err);

/* qsort comparison of doubles, increasing. */
int bench_compare_doubles(const void *a, const void *b);

/* The contents of a file, *len bytes; NULL if it cannot be read. Owned: free. */
char *bench_read_file(const char *path, size_t *len);

/* Create an empty file in the folder for temporary files (TMPDIR); `path` receives its name. */
enum { BENCH_PATH = 1024 };
void bench_temp_file(char path[BENCH_PATH]);

/* Tokens of the first max_bytes bytes of a text file, *n of them. Owned: lk_tokens_free. */
int32_t *bench_read_tokens(const lk_model *model, const char *path, size_t max_bytes, size_t *n);

#endif
