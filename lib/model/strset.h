/* A hash set of byte strings borrowed from a file, to find duplicates. */
#ifndef LK_MODEL_STRSET_H
#define LK_MODEL_STRSET_H

#include "base/ledger.h"

#include <stdbool.h>

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
