/* Attention of new queries over everything a layer's cache holds, written once for all codecs.
 *
 * The work is divided into items: (KV heads, tile of their queries, range of positions). Any thread
 * can process any item in any order. Each item leaves a partial softmax, and a combine pass joins
 * the ranges:
 *
 *     item:     m = max s, l = sum exp(s - m), acc = sum exp(s - m) v      over its range
 *     combine:  out = sum_r exp(m_r - M) acc_r / sum_r exp(m_r - M) l_r,   M = max m_r
 *
 * An item processes its positions in chunks: scores of a chunk from the tiles of K, online softmax,
 * weighted sum of the tiles of V. K and V may be divided into levels differently.
 *
 * If rows were evicted, "position" means a row's index (cache/level.h). Only what depends on
 * distance uses true positions. */
#ifndef LK_ATTENTION_ATTENTION_H
#define LK_ATTENTION_ATTENTION_H

#include "attention/attn_weights.h"
#include "cache/cache.h"
#include "kernels/kernels.h"

#include <math.h>

/* Maximum number of queries of an item; positions of a chunk, unless the kernels prefer more; what
 * a partial has besides its vector (attn_item.h); calls of more tokens than LK_DECODE_TOKENS read
 * everything (read.h). */
enum { LK_ATTN_QUERIES = 128, LK_ATTN_CHUNK = 256, LK_ATTN_SUMS = 2, LK_DECODE_TOKENS = 4 };

/* What one thread read of the tiles that can be left out (read.h), of all KV heads, added up over
 * calls. */
struct lk_read_count {
    _Alignas(64) int64_t n_tile, n_tile_read;
};

struct lk_attn {
    const struct lk_kv *k, *v;
    const struct lk_kernels *kernels;
    int n_head, n_head_kv, d_head;
    int d_rope;     /* channels of K with latent attention (model/hparams.h), else 0 */
    int n_tok;      /* tokens of the queries: the newest n_tok positions of K and V */
    bool is_prompt; /* K and V are the exact rows of a prompt, from position 0 on */
    int n_thread;
    int thread_offset; /* the thread that gets the first item, modulo the number of threads;
                          spreads many small calls over the threads */
    float scale;       /* of q.k */
    float alibi_max_bias;
    float softcap;       /* scores become cap * tanh(score / cap) after scaling; 0: no cap */
    const float *sink;   /* [n_head] scores in the softmax whose value is 0; NULL: none */
    float read;          /* share of the tiles that decoding reads (read.h); 0: all */
    float *read_scratch; /* [n_thread][read_floats] */
    size_t read_floats;  /* lk_read_floats() */
    struct lk_read_count *read_count; /* [n_thread], added to; NULL: do not count */
    const struct lk_rope *rope;       /* of the layer, for rows that shift; NULL: no rotation */
    const float *q;                   /* [n_tok][n_head][d_head + d_rope] */
    float *out;                       /* [n_tok][n_head][d_head] */
    /* [n_tok][n_head][d_head + 2]: acc, m and l (above) of what is attended to besides rows, read
     * by combine; or NULL */
    const float *extra_partial;
    float *partial;      /* lk_attn_partial_floats() floats */
    bool restored;       /* partials have V's latents turned back to rows already, as devices do */
    size_t range_stride; /* floats between the partials of two ranges; 0: they are adjacent */
    float *scratch;      /* [n_thread] of lk_attn_scratch_floats() floats */
};

/* Memory for any call with up to n_tok tokens and n_thread threads. With levels of latents, d_head
 * of the partials is that of the heads plus V's highest rank, and d_head of the scratch is the
 * widest part (lk_cache_max_widths). */
size_t lk_attn_partial_floats(int n_head, int n_head_kv, int d_head, int n_tok, int n_thread);
size_t lk_attn_scratch_floats(int d_head);

/* Process thread ith's items of nth threads (nth <= n_thread). */
void lk_attn_items(const struct lk_attn *attn, int ith, int nth);

/* After a barrier of the caller: combine the items' partials. n_range: lk_attn_ranges() of the
 * items. The rows of K and V are not accessed, so they may change meanwhile. */
void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth);

/* Let the head's sink take part in a softmax with the maximum score *max and the sum *sum. The call
 * has sinks. */
static inline void lk_attn_add_sink(const struct lk_attn *attn, int head, float *max, float *sum) {
    float joint = fmaxf(*max, attn->sink[head]);
    *sum = *sum * expf(*max - joint) + expf(attn->sink[head] - joint);
    *max = joint;
}

/* The partials of several ranges as those of one. If the rows are divided, each process
 * joins its ranges, and what all have joined is combined like ranges (attn->partial,
 * attn->range_stride). to: [n_tok][n_head][lk_attn_joined_floats]: acc, m and l. After a
 * barrier of the caller. */
void lk_attn_join(const struct lk_attn *attn, int n_range, float *to, int ith, int nth);
static inline size_t lk_attn_joined_floats(int d_head, int latent) {
    return (size_t)d_head + latent + LK_ATTN_SUMS;
}

/* Number of ranges of the items of a call over k and v. Reads only the numbers in `attn`. */
int lk_attn_ranges(const struct lk_attn *attn, const struct lk_kv *k, const struct lk_kv *v);

#endif
