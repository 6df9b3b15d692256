/* Where the last tokens of a text occurred before. Drafts by lookup are what followed there.
 *
 * Each table maps the n-grams of one length to the position after their newest occurrence. It has
 * room for twice as many entries as the text has tokens, so that adding a token and looking up take
 * a few probes. Entries are compared with the text itself, which the caller holds. */
#ifndef LK_ENGINE_NGRAM_INDEX_H
#define LK_ENGINE_NGRAM_INDEX_H

#include "base/ledger.h"

enum {
    LK_NGRAM_MIN = 2,
    LK_NGRAM_MAX = 4,
    LK_N_NGRAM = LK_NGRAM_MAX - LK_NGRAM_MIN + 1,
    LK_NGRAM_MATCH = 16, /* maximum number of tokens that are compared */
};

struct lk_ngram_index {
    uint32_t *table[LK_N_NGRAM]; /* [n_slot] position after an n-gram; 0: empty */
    size_t n_slot;               /* a power of two */
    size_t n_tok;                /* tokens of the text that are in the index */
};

/* Bytes of an index for texts of n_ctx tokens. */
uint64_t lk_ngram_index_bytes(size_t n_ctx);

/* An empty index for texts of up to n_ctx tokens. False without memory. */
bool lk_ngram_index_init(struct lk_ngram_index *index, size_t n_ctx, struct lk_ledger *ledger);
void lk_ngram_index_free(struct lk_ngram_index *index, struct lk_ledger *ledger);

/* Forget the text. */
void lk_ngram_index_clear(struct lk_ngram_index *index);

/* Add the tokens of the text tok [n_tok] that are new. */
void lk_ngram_index_extend(struct lk_ngram_index *index, const int32_t *tok, size_t n_tok);

/* Find the newest earlier occurrence of the last 4, 3 or 2 tokens of the text tok [index->n_tok]
 * with `next` after it, and write what followed to out [max]. An occurrence that reaches the end of
 * the text is continued with the tokens found so far. Returns the number of last tokens that are
 * the same there, 2 to LK_NGRAM_MATCH; 0: none occurred before, and nothing was written. */
int lk_ngram_index_find(const struct lk_ngram_index *index, const int32_t *tok, int32_t next,
                        int32_t *out, size_t max);

#endif
