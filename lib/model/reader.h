/* Typed values of a checked GGUF file. A missing or wrong value is an error, never an abort. */
#ifndef LK_MODEL_READER_H
#define LK_MODEL_READER_H

#include "base/err.h"

struct gguf_context;

struct lk_reader {
    struct gguf_context *gguf;
    char arch[32];
};

enum lk_need { LK_OPTIONAL, LK_REQUIRED };

/* A key that begins with '.' belongs to the architecture: ".block_count" is "llama.block_count".
 * Where an optional key is absent, *out keeps its value. An integer must lie in [lo, hi]; one that the
 * file gives per layer is accepted if all layers agree. */
lk_status lk_read_int(const struct lk_reader *r, const char *key, enum lk_need need, int64_t lo,
                      int64_t hi, int32_t *out, lk_err *err);
lk_status lk_read_float(const struct lk_reader *r, const char *key, enum lk_need need, float *out,
                        lk_err *err);
lk_status lk_read_bool(const struct lk_reader *r, const char *key, enum lk_need need, bool *out,
                       lk_err *err);

/* *out is borrowed until the gguf_context goes. */
lk_status lk_read_text(const struct lk_reader *r, const char *key, enum lk_need need,
                       const char **out, lk_err *err);

/* Index of a key, -1 if absent. */
int64_t lk_read_find(const struct lk_reader *r, const char *key);

#endif
