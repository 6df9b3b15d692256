/* A set of byte strings that are borrowed from a file, to find duplicates. */
#ifndef LK_MODEL_STRSET_H
#define LK_MODEL_STRSET_H

#include "base/ledger.h"

#include <stdbool.h>

struct lk_strset {
    struct lk_strset_slot *slot; /* [n_slot] */
    size_t n_slot;
    struct lk_ledger *ledger;
};

/* Room for `n` strings; false when memory is refused. */
bool lk_strset_init(struct lk_strset *set, struct lk_ledger *ledger, size_t n);
void lk_strset_free(struct lk_strset *set);

/* Add text[0..len); false when it was there already. */
bool lk_strset_add(struct lk_strset *set, const char *text, size_t len);
bool lk_strset_has(const struct lk_strset *set, const char *text, size_t len);

#endif
