/* Rows of drafts: how many fit into a pass, and dropping them. */
#include "cache/draft_rows.h"

#include "cache/cache.h"
#include "cache/equalizer.h"

#include <string.h>

const char *lk_cache_refuses_drafts(const struct lk_cache *cache) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->evict && kv->evict->needs_scores)
            return "the recipe evicts by attention scores, and what drafts add to these cannot be "
                   "taken back";
        if (kv->rule[kv->n_level - 1].batch == 1)
            return "the recipe encodes or evicts a row after every token, so drafts could not be "
                   "dropped again";
    }
    return NULL;
}

/* Do rows move or leave when n more have arrived in the newest level? */
static bool moves_rows(const struct lk_kv *kv, int64_t n) {
    struct lk_level_count count[LK_MAX_KV_LEVEL];
    int64_t n_tok = kv->n_tok + n;
    int from, batch;
    memcpy(count, kv->count, sizeof count);
    count[kv->n_level - 1].rows += n;
    if (lk_level_next_move(kv->rule, count, kv->n_level, n_tok, &from, &batch)) return true;
    for (int i = 0; kv->n_swa > 0 && i < kv->n_level; i++) {
        if (lk_level_droppable(&kv->rule[i], &count[i], kv->first, n_tok, kv->n_swa)) return true;
        if (count[i].rows) break;
    }
    return false;
}

/* The maximum number of rows, at most n, that can arrive without moving others. More rows never
 * move fewer. */
static int64_t rows_that_fit(const struct lk_kv *kv, int64_t n) {
    int64_t fit = 0, moving = n + 1;
    if (kv->n_tok < (int64_t)lk_level_sinks(kv->rule, kv->n_level)) return 0;
    if (n > 0 && !moves_rows(kv, n)) return n;
    while (moving - fit > 1) {
        int64_t middle = fit + (moving - fit) / 2;
        if (moves_rows(kv, middle))
            moving = middle;
        else
            fit = middle;
    }
    return fit;
}

int64_t lk_cache_draftable(const struct lk_cache *cache, int64_t n) {
    if (n > LK_DRAFT_TOKENS) n = LK_DRAFT_TOKENS;
    for (int k = 0; k < lk_cache_n_kv(cache) && n > 0; k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->evict && kv->evict->needs_scores) return 0;
        n = rows_that_fit(kv, n);
    }
    return n;
}

lk_status lk_cache_prepare_drafts(struct lk_cache *cache, lk_err *err) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int i = 0; i < 2; i++)
            if (!lk_equalizer_record(&cache->kv[layer][LK_K].equalizer[i], LK_DRAFT_TOKENS,
                                     cache->ledger))
                return lk_fail(err, LK_E_NOMEM, "no memory for drafts");
    return LK_OK;
}

void lk_cache_drop_drafts(struct lk_cache *cache, int64_t n_keep, int64_t n_drop) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int i = 0; i < 2; i++)
            lk_equalizer_go_back(&cache->kv[layer][LK_K].equalizer[i], (int)n_keep - 1);
    lk_cache_drop_newest(cache, n_drop);
    if (cache->pool.keep_free) cache->reserved += n_drop;
}
