/* Tables of n-grams with open addressing. */
#include "engine/ngram_index.h"

#include "base/hash.h"

#include <string.h>

/* No text, however it was made, costs more probes per token. */
enum { MAX_PROBES = 64 };

static size_t count_slots(size_t n_ctx) {
    size_t n = MAX_PROBES;
    while (n < 2 * n_ctx) n *= 2;
    return n;
}

uint64_t lk_ngram_index_bytes(size_t n_ctx) {
    return (uint64_t)LK_N_NGRAM * count_slots(n_ctx) * sizeof(uint32_t);
}

bool lk_ngram_index_init(struct lk_ngram_index *index, size_t n_ctx, struct lk_ledger *ledger) {
    *index = (struct lk_ngram_index){.n_slot = count_slots(n_ctx)};
    for (int i = 0; i < LK_N_NGRAM; i++) {
        index->table[i] = lk_alloc(ledger, LK_FOR_OTHER, index->n_slot * sizeof(uint32_t));
        if (index->table[i]) continue;
        lk_ngram_index_free(index, ledger);
        return false;
    }
    return true;
}

void lk_ngram_index_free(struct lk_ngram_index *index, struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_NGRAM; i++)
        lk_release(ledger, LK_FOR_OTHER, index->table[i], index->n_slot * sizeof(uint32_t));
    *index = (struct lk_ngram_index){0};
}

void lk_ngram_index_clear(struct lk_ngram_index *index) {
    for (int i = 0; i < LK_N_NGRAM; i++)
        memset(index->table[i], 0, index->n_slot * sizeof(uint32_t));
    index->n_tok = 0;
}

/* The slot of an n-gram in a table: the one that has it, or an empty one. If the search takes too
 * long, *found is false and the slot is the first one. */
static size_t find_slot(const struct lk_ngram_index *index, const int32_t *tok,
                        const int32_t *ngram, int n, bool *found) {
    const uint32_t *table = index->table[n - LK_NGRAM_MIN];
    size_t mask = index->n_slot - 1;
    uint64_t hash = 0;
    for (int i = 0; i < n; i++)
        hash = lk_splitmix64((hash ^ (uint32_t)ngram[i]) + lk_splitmix64_step);
    size_t first = (size_t)hash & mask;
    *found = false;
    for (size_t i = 0; i < MAX_PROBES; i++) {
        size_t slot = (first + i) & mask;
        if (table[slot] == 0) return slot;
        *found = memcmp(tok + table[slot] - n, ngram, n * sizeof *ngram) == 0;
        if (*found) return slot;
    }
    return first;
}

void lk_ngram_index_extend(struct lk_ngram_index *index, const int32_t *tok, size_t n_tok) {
    bool found;
    for (size_t pos = index->n_tok; pos < n_tok; pos++)
        for (int n = LK_NGRAM_MIN; n <= LK_NGRAM_MAX && (size_t)n <= pos; n++)
            index->table[n - LK_NGRAM_MIN][find_slot(index, tok, tok + pos - n, n, &found)] =
                (uint32_t)pos;
    index->n_tok = n_tok;
}

int lk_ngram_index_find(const struct lk_ngram_index *index, const int32_t *tok, int32_t next,
                        int32_t *out, size_t max) {
    size_t n_tok = index->n_tok;
    for (int n = LK_NGRAM_MAX; n >= LK_NGRAM_MIN; n--) {
        int32_t ngram[LK_NGRAM_MAX];
        bool found;
        if ((size_t)n > n_tok + 1) continue;
        memcpy(ngram, tok + n_tok + 1 - n, (n - 1) * sizeof *ngram);
        ngram[n - 1] = next;
        size_t pos = index->table[n - LK_NGRAM_MIN][find_slot(index, tok, ngram, n, &found)];
        if (!found) continue;
        const size_t end = pos; /* of the earlier occurrence */
        for (size_t i = 0; i < max; i++, pos++)
            out[i] = pos < n_tok ? tok[pos] : pos == n_tok ? next : out[pos - n_tok - 1];
        size_t same = (size_t)n;
        while (same < LK_NGRAM_MATCH && same < end && tok[end - 1 - same] == tok[n_tok - same])
            same++;
        return (int)same;
    }
    return 0;
}
