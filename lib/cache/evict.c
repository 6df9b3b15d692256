/* Eviction state of a layer: positions and scores of the rows it holds. */
#include "cache/evict.h"

#include "codec/codec.h"

#include <string.h>

/* Grow an array of n_head 32-bit numbers per row to at least n rows. */
static bool grow_rows(struct lk_evict *evict, struct lk_ledger *ledger, void **array, int64_t *cap,
                      int64_t n) {
    if (n <= *cap) return true;
    int64_t new_cap = n + n / 8 + LK_TILE;
    size_t row = evict->n_head * sizeof(int32_t);
    if (!lk_grow(ledger, LK_FOR_CACHE, array, *cap * row, new_cap * row)) return false;
    *cap = new_cap;
    return true;
}

bool lk_evict_reserve(struct lk_evict *evict, struct lk_ledger *ledger, int64_t n) {
    return grow_rows(evict, ledger, (void **)&evict->pos, &evict->cap_pos, n) &&
           (!evict->needs_scores ||
            grow_rows(evict, ledger, (void **)&evict->score, &evict->cap_score, n));
}

void lk_evict_append(struct lk_evict *evict, int64_t n, int64_t pos) {
    for (int64_t i = evict->n; i < evict->n + n; i++, pos++)
        for (int h = 0; h < evict->n_head; h++) evict->pos[i * evict->n_head + h] = (int32_t)pos;
    float score = evict->adds_scores ? 0 : LK_NOT_REPLAYED;
    for (int64_t i = 0; evict->needs_scores && i < n * evict->n_head; i++)
        evict->score[evict->n * evict->n_head + i] = score;
    evict->n += n;
}

size_t lk_evict_bytes(const struct lk_evict *evict, int64_t n) {
    return (size_t)n * evict->n_head *
           (sizeof *evict->pos + (evict->needs_scores ? sizeof *evict->score : 0));
}

void lk_evict_copy(struct lk_evict *to, const struct lk_evict *from) {
    size_t n = from->n * from->n_head;
    to->n = from->n;
    if (n == 0) return;
    memcpy(to->pos, from->pos, n * sizeof *to->pos);
    if (from->needs_scores) memcpy(to->score, from->score, n * sizeof *to->score);
}

void lk_evict_free(struct lk_evict *evict, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_CACHE, evict->pos,
               evict->cap_pos * evict->n_head * sizeof *evict->pos);
    lk_release(ledger, LK_FOR_CACHE, evict->score,
               evict->cap_score * evict->n_head * sizeof *evict->score);
    evict->pos = NULL;
    evict->score = NULL;
    evict->n = evict->cap_pos = evict->cap_score = 0;
}
