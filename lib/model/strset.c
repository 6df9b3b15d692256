/* A hash set with open addressing. It never grows. */
#include "model/strset.h"

#include <string.h>

struct lk_strset_slot {
    const char *text; /* NULL: free */
    size_t len;
};

bool lk_strset_alloc(struct lk_strset *set, struct lk_ledger *ledger, size_t n) {
    set->ledger = ledger;
    set->n_slot = 16;
    while (set->n_slot < 2 * n) set->n_slot *= 2; /* at most half full: short probes */
    set->slot = lk_alloc(ledger, LK_FOR_OTHER, set->n_slot * sizeof *set->slot);
    return set->slot != NULL;
}

void lk_strset_free(struct lk_strset *set) {
    lk_release(set->ledger, LK_FOR_OTHER, set->slot, set->n_slot * sizeof *set->slot);
    set->slot = NULL;
}

/* The slot that holds the text, or the free slot to put it in. */
static struct lk_strset_slot *find_slot(const struct lk_strset *set, const char *text, size_t len) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    size_t at = (size_t)(hash ^ hash >> 32) & (set->n_slot - 1);
    for (;; at = (at + 1) & (set->n_slot - 1)) {
        struct lk_strset_slot *slot = &set->slot[at];
        if (!slot->text) return slot;
        if (slot->len == len && memcmp(slot->text, text, len) == 0) return slot;
    }
}

bool lk_strset_add(struct lk_strset *set, const char *text, size_t len) {
    struct lk_strset_slot *slot = find_slot(set, text, len);
    if (slot->text) return false;
    slot->text = text;
    slot->len = len;
    return true;
}

bool lk_strset_has(const struct lk_strset *set, const char *text, size_t len) {
    return find_slot(set, text, len)->text != NULL;
}
