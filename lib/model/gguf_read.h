/* Opening a GGUF file, checking it, and reading typed values of its keys. A missing or wrong value
 * is an error and never an abort. */
#ifndef LK_MODEL_GGUF_READ_H
#define LK_MODEL_GGUF_READ_H

#include "base/err.h"
#include "base/ledger.h"

#include <stdbool.h>

/* A file mapped into memory, read-only. */

struct lk_mapping {
    uint8_t *data; /* page-aligned */
    size_t size;
};

/* The whole file, which must be regular and not empty. Errors: LK_E_IO, LK_E_FORMAT. */
lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err);
void lk_mapping_close(struct lk_mapping *map);

/* Tell the system that the whole pages inside [data, data + size) are no longer needed, because
 * they were copied. */
void lk_mapping_drop_pages(const struct lk_mapping *map, const void *data, size_t size);

/* Ask for huge pages for memory that has not been written yet. A no-op if the system has none. */
void lk_advise_huge_pages(void *data, size_t size);

struct gguf_context;

struct lk_gguf_reader {
    struct gguf_context *gguf;
    char arch[32];
    bool header_only; /* set by the caller of lk_gguf_open: only data of small tensors is needed */
};

/* The path of another part of a split model: "NAME-00002-of-00003.gguf" with the number `part`.
 * False if the path has not this form, or the new one does not fit. */
bool lk_gguf_part_path(const char *path, int part, char *out, size_t cap);

enum lk_need { LK_OPTIONAL, LK_REQUIRED };

/* Map `path`, check it (lk_gguf_check) and parse it, so that ggml reads the very bytes that were
 * checked. Whatever the result, the caller frees r->gguf if it is not NULL and closes *map.
 * A part of a model that is split into several files opens all of them: *map is a copy of the whole
 * model in memory. Errors: LK_E_IO, LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_gguf_open(struct lk_mapping *map, struct lk_gguf_reader *r, const char *path,
                       struct lk_ledger *ledger, lk_err *err);

/* In all functions below, a key that starts with '.' belongs to the architecture: ".block_count" is
 * "llama.block_count". If an optional key is absent, *out keeps its value. */

/* The value must lie in [lo, hi]. A value given per layer is accepted if all layers agree. */
lk_status lk_gguf_read_int(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                           int64_t lo, int64_t hi, int32_t *out, lk_err *err);
/* The same for n layers that need not agree: out[i] is element i of a list of n, or the one
 * value. */
lk_status lk_gguf_read_layers(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                              int64_t lo, int64_t hi, int n, int32_t *out, lk_err *err);
/* The value must be finite. */
lk_status lk_gguf_read_float(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                             float *out, lk_err *err);
lk_status lk_gguf_read_bool(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                            bool *out, lk_err *err);
/* *out is borrowed until the gguf_context is freed. */
lk_status lk_gguf_read_str(const struct lk_gguf_reader *r, const char *key, enum lk_need need,
                           const char **out, lk_err *err);

/* Index of a key, -1 if absent. */
int64_t lk_gguf_find_key(const struct lk_gguf_reader *r, const char *key);

/* Check the raw bytes of a file before ggml reads them, because ggml aborts on many kinds of
 * damage. LK_OK if every count, length, type, shape and offset in data[0..size) is valid, no name
 * occurs twice and the data of each tensor lies inside the file. Otherwise LK_E_FORMAT,
 * LK_E_UNSUPPORTED or LK_E_NOMEM. */
lk_status lk_gguf_check(const uint8_t *data, size_t size, struct lk_ledger *ledger, lk_err *err);

/* ---- names ----
 *
 * A hash set of byte strings borrowed from a file, to find duplicates. */

struct lk_strset {
    struct lk_strset_slot *slot; /* [n_slot] */
    size_t n_slot;
    struct lk_ledger *ledger;
};

/* Allocate room for `n` strings. False if out of memory. */
bool lk_strset_alloc(struct lk_strset *set, struct lk_ledger *ledger, size_t n);
void lk_strset_free(struct lk_strset *set);

/* Add text[0..len). False if the set already has it. */
bool lk_strset_add(struct lk_strset *set, const char *text, size_t len);
bool lk_strset_has(const struct lk_strset *set, const char *text, size_t len);

#endif
