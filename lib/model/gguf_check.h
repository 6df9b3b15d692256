/* Checks that a file is a complete, consistent GGUF file. The check runs on the raw bytes before
 * ggml reads them, because ggml aborts on many kinds of damage. */
#ifndef LK_MODEL_GGUF_CHECK_H
#define LK_MODEL_GGUF_CHECK_H

#include "base/err.h"
#include "base/ledger.h"

#include <stdbool.h>

/* LK_OK if every count, length, type, shape and offset in data[0..size) is valid, no name occurs
 * twice and the data of each tensor lies inside the file. Otherwise LK_E_FORMAT, LK_E_UNSUPPORTED
 * or LK_E_NOMEM. */
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
