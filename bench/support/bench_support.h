/* What the benchmarks have in common. They are programs for us: what goes wrong ends them with a message. */
#ifndef LK_BENCH_H
#define LK_BENCH_H

#include "lowkey.h"

/* Seconds of a clock that only goes forward. */
double bench_now(void);

/* End the program with the message where `status` is an error. */
void bench_check(lk_status status, const lk_err *err);

/* For qsort: doubles, the smallest first. */
int bench_by_size(const void *a, const void *b);

/* A file's bytes, *len of them, or NULL where it cannot be read; owned, to be freed. */
char *bench_read_file(const char *path, size_t *len);

/* A new empty file in the folder for temporary ones (TMPDIR), its path in `path`. The program ends where there is none. */
enum { BENCH_PATH = 1024 };
void bench_temporary(char path[BENCH_PATH]);

/* Tokens of the first `most` bytes of a text, *n of them; owned, lk_tokens_free. */
int32_t *bench_read_tokens(const lk_model *model, const char *path, size_t most, size_t *n);

#endif
