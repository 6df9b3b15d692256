/* Attention of new queries over everything a layer's cache holds, written once for all codecs.
 *
 * The work is cut into items, (KV heads, tile of their queries, range of positions), which any thread
 * may do in any order; each leaves a partial softmax, and a combine pass joins the ranges:
 *
 *     item:     m = max s, l = sum exp(s - m), acc = sum exp(s - m) v      over its range
 *     combine:  out = sum_r exp(m_r - M) acc_r / sum_r exp(m_r - M) l_r,   M = max m_r
 *
 * Inside an item the positions go by in chunks: scores of a chunk from the K stream's tiles, online
 * softmax, weighted sum from the V stream's tiles. K and V may be cut into levels differently.
 *
 * Where rows were let go, "position" means a row's index (cache/level.h); what depends on distance asks
 * for true positions. */
#ifndef LK_ATTENTION_ATTENTION_H
#define LK_ATTENTION_ATTENTION_H

#include "cache/cache.h"
#include "kernels/kernels.h"

/* Queries of an item, at most; positions of a chunk, where kernels do not want more. */
enum { LK_ATTN_QUERIES = 64, LK_ATTN_CHUNK = 256 };

struct lk_attn {
    const struct lk_kv *k, *v;
    const struct lk_kernels *kernels;
    int n_head, n_head_kv, d_head;
    int n_tok; /* queries' tokens, the newest n_tok positions of the streams */
    int n_thread;
    int turn;    /* the first item is this thread's, counted round; spreads many small calls */
    float scale; /* of q.k */
    float alibi_max_bias;
    const struct lk_rope *rope; /* for sinks that shift; may be NULL where none do */
    const float *q;             /* [n_tok][n_head][d_head] */
    float *out;                 /* [n_tok][n_head][d_head] */
    const float *more; /* [n_tok][n_head][d_head + 2] acc, m and l (above) of what is attended to
                                besides rows, read by combine; or NULL */
    float *partial;    /* lk_attn_partial_floats() floats */
    float *scratch;    /* [n_thread] of lk_attn_scratch_floats() floats */
};

/* Memory for any call with up to n_tok tokens and n_thread threads. With levels of latents, d_head of the
 * partials is that of heads plus V's highest rank, and of the scratch the widest part. */
size_t lk_attn_partial_floats(int n_head, int n_head_kv, int d_head, int n_tok, int n_thread);
size_t lk_attn_scratch_floats(int d_head);

/* Thread ith of nth (nth <= n_thread): first all threads do the items, then, after a barrier that
 * the caller provides, all threads combine. combine does not look at what the streams hold, which may change
 * meanwhile, and is told the number of ranges that the items had. */
void lk_attn_items(const struct lk_attn *attn, int ith, int nth);
void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth);

/* Ranges that the items of a call over these streams have; of attn only the numbers are read. */
int lk_attn_ranges(const struct lk_attn *attn, const struct lk_kv *k, const struct lk_kv *v);

/* Between items and combine: add to heard [k->n_tok - k->first][n_head_kv], by index, the weight that each
 * row got from the call's queries, summed over them and over the query heads of a KV head. last: from the
 * newest token's alone, and what stood there is forgotten. Weights are those of rows alone, without `more`. */
void lk_attn_accumulate_scores(const struct lk_attn *attn, int n_range, bool last,
                               float *attn_scores, int ith, int nth);

/* For inspection: the distribution itself that token `tok` of the call attends with, by the same kernels.
 * weight: [n_head][k->n_tok] by position, 0 where rows were let go; rows sum to 1. One thread, in the first one's scratch. */
void lk_attn_weights(const struct lk_attn *attn, int tok, float *weight);

/* Slope of ALiBi for a head, as the reference implementations choose it for any number of heads. */
float lk_alibi_slope(int head, int n_head, float max_bias);

#endif
