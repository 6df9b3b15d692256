/* How many tokens to draft: as many as make the most tokens per second.
 *
 * With n drafts that are right with probability p each, if the ones before are, a pass keeps
 *
 *     1 + p + p^2 + ... + p^n  tokens in  T(other + 1 + n)  seconds
 *
 * p is counted for each kind of draft, T(rows) is measured. Drafting itself takes no time.
 * Evidence fades, so that drafts are tried again after they did not pay for some time. */
#ifndef LK_ENGINE_DRAFTER_H
#define LK_ENGINE_DRAFTER_H

#include "base/err.h"
#include "base/ledger.h"

#include <stddef.h>
#include <stdint.h>

enum {
    LK_DRAFT_KINDS = 5, /* kinds of drafts, which are right with different probabilities */
    LK_PACE_SIZES = 11, /* passes of 1, 2, 4, ... 1024 rows */
};

struct lk_draft_pace {
    struct lk_draft_evidence {
        double n_right, n; /* drafts that were right, of all that were judged; both fade */
    } kind[LK_DRAFT_KINDS];
    double seconds[LK_PACE_SIZES];    /* of a pass of 2^i rows; 0: not measured lately */
    uint64_t measured[LK_PACE_SIZES]; /* pass of the last measurement */
    uint64_t n_pass;
};

/* The number of drafts of that kind, at most max, for a pass with n_other rows of other sessions.
 * These may have to wait for at most half as long again because of the drafts. */
size_t lk_draft_pace_choose(struct lk_draft_pace *pace, int kind, size_t max, size_t n_other);

/* A pass took so long. */
void lk_draft_pace_measure(struct lk_draft_pace *pace, size_t n_row, double seconds);

/* Of n drafts of that kind the first n_right were right. */
void lk_draft_pace_judge(struct lk_draft_pace *pace, int kind, size_t n, size_t n_right);

/* ---- n-grams of a text ----
 *
 * Where the last tokens of a text occurred before. Drafts by lookup are what followed there.
 *
 * Each table maps the n-grams of one length to the position after their newest occurrence. It has
 * room for twice as many entries as the text has tokens, so that adding a token and looking up take
 * a few probes. Entries are compared with the text itself, which the caller holds. */

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

/* ---- drafts from the text ----
 *
 * Drafts from the text: the tokens that followed the last n-gram when it occurred before ("prompt
 * lookup decoding", Saxena 2023). The pace is kept for each length of the match. They cost
 * nothing. */

struct lk_session;

struct lk_draft_lookup {
    struct lk_ngram_index index;
    uint64_t n_cut; /* of the session when its tokens were added */
};

#endif
