/* Decoding that reads the tiles or chunks that promise the most attention, and no others.
 *
 * A tile of K in codec rot holds the mean of its LK_TILE rows, and rotation spreads what is left of
 * a row evenly over its channels. So the scores of a tile's rows are about Gaussian: for query q,
 *
 *     mean      scale <q, mean>
 *     variance  scale^2 |q|^2 s,    s = mean over the rows of (row scale / unit)^2
 *     log of the sum of exp(score)  ~  log LK_TILE + mean + variance / 2
 *
 * That is the page score of UNIQUE (mean and deviation of the keys of a page; 2026), with the
 * weight of the deviation that a Gaussian gives it. It costs the bytes of the mean and of the
 * scales, 128 of a tile's 1,472 with best-3 and 64 channels.
 *
 * The rows of K in codec f16 can have landmarks (codec/f16.h): chunks of LK_LANDMARK_ROWS rows are
 * scored by <q, landmark>, and the `outliers` chunks of a KV head whose closeness is smallest are
 * read in addition. That is the choice of ShadowKV (Sun et al. 2024, sections 4.1 and 4.2), with
 * all of K at full rank, and outliers found among the chunks there are, not once after the prompt.
 *
 * A unit is a tile or a chunk. For each token and KV head, a unit's score is its largest estimated
 * share of the attention of a query head; outliers do not take part. The best `share` of the units
 * are read, K and V. Rows outside of units are always read: the newest LK_READ_NEWEST, sinks and
 * exact windows, levels with a policy, latents, and layers with a sliding window.
 *
 * The rule is for decoding. Calls of more than LK_DECODE_TOKENS tokens, as for prompts, read
 * everything: their tokens share what is read, and would need almost all of it. */
#ifndef LK_ATTENTION_READ_H
#define LK_ATTENTION_READ_H

#include "attention/attn_item.h"
#include "attention/partition.h"

enum {
    LK_READ_NEWEST = 64,
};

/* Units of one level of K and one level of V that may be left out, in order of position. */
struct lk_read_zone {
    int level, n_unit, first; /* first: index of its first unit among those of all zones */
    bool kept;                /* as in struct lk_kv_span, of K */
    int unit_rows;            /* LK_TILE or LK_LANDMARK_ROWS */
    int64_t pos, end;         /* positions of its rows */
    int v_level;              /* level of V that holds them */
    int64_t k_row, v_row;     /* the first row in the blocks of K's level, and of V's */
};

/* What one token reads. */
struct lk_read {
    struct lk_read_zone zone[2 * LK_MAX_KV_LEVEL + 2];
    int n_zone, n_unit; /* n_unit: in all zones */
    int n_chosen;       /* units that are read, for each KV head, n_outlier of them outliers */
    int n_outlier;
    int64_t n_row;    /* rows that are read, for each KV head */
    float *score;     /* [queries][n_unit] estimated logs of weights, not scaled */
    float *share;     /* [n_unit] largest share among the queries of a KV head */
    float *distance;  /* [KV heads][n_unit] 1 - closeness of chunks */
    uint8_t *chosen;  /* [KV heads][n_unit] 1: is read */
    uint8_t *outlier; /* [n_unit] of a KV head */
    uint16_t *rows;   /* chosen chunks of K and of V, LK_ATTN_CHUNK rows each */
};

/* Floats of scratch per thread (struct lk_attn) for contexts of up to n_ctx tokens; 0 if the recipe
 * reads everything. */
size_t lk_read_floats(const struct lk_recipe *recipe, int64_t n_ctx, int n_head, int n_head_kv,
                      int d_head);

/* Whether the call is to read a share of its tiles. */
bool lk_read_applies(const struct lk_attn *attn);

/* Find the units that the token of the item's queries may leave out, and how many it reads. */
void lk_read_find(const struct lk_attn_item *item, struct lk_read *out);

/* Choose the units for the item's KV heads. Its queries are those of one token. ith: thread */
void lk_read_choose(struct lk_attn_item *item, int ith, struct lk_read *read);

/* Attend to rows [from, to) of the n_row rows that one of these KV heads, the i-th, reads. The
 * item's queries are those of this head. */
void lk_read_attend(struct lk_attn_item *item, const struct lk_read *read, int i, int64_t from,
                    int64_t to);

#endif
