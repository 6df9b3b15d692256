/* An item of attention: some queries over a range of positions, and their scores.
 *
 * Queries are [q0, q0 + n_each) of each of the KV heads [head_kv, head_kv + n_head_kv), one head's
 * after the other's. Queries of a KV head are ordered [token][query head of the KV head]. Levels
 * with one head per part are read head by head. A tile of latents is read once for all heads that
 * share it. */
#ifndef LK_ATTENTION_ATTN_ITEM_H
#define LK_ATTENTION_ATTN_ITEM_H

#include "attention/attention.h"
#include "attention/score_pre.h"

#include <stdint.h>

enum {
    LK_SCORE_PAD = LK_TILE, /* room for what kernels write past the rows of a tile */
};

struct lk_attn_scratch {
    /* [queries][PAD + chunk + PAD]: LK_ATTN_QUERIES with LK_ATTN_CHUNK, half as many with longer
     * chunks */
    float *score;
    float *tile;     /* [LK_ATTN_QUERIES][LK_TILE] */
    float *query;    /* [LK_ATTN_QUERIES][d] in a level's domain, see lk_attn_item_vector */
    float *prepared; /* memory of struct lk_queries, for each part */
    float *acc;      /* [LK_MAX_KV_LEVEL][LK_ATTN_QUERIES][d] in the levels' domains */
    float *max;      /* [LK_ATTN_QUERIES] largest scaled score */
    float *sum;      /* [LK_ATTN_QUERIES] of exponentials */
    float *mean; /* [LK_ATTN_QUERIES] weight of the rows whose mean is stored apart (V's latents) */
};

struct lk_attn_item {
    const struct lk_attn *attn;
    struct lk_attn_scratch mem;
    int d; /* channels of the widest part: room for a query or a sum in mem */
    int head_kv, n_head_kv, q0, n_each, n_q;
    int chunk;       /* positions of a chunk */
    size_t stride;   /* floats between the scores of two queries */
    int query_level; /* level for which `queries` are prepared; -1: none */
    struct lk_queries queries[LK_ATTN_QUERIES]; /* of each part that the item has heads of */
    struct lk_pre_queries pre;                  /* for latents of K before RoPE */
    bool used[LK_MAX_KV_LEVEL];                 /* levels of V that have something in mem.acc */
    int64_t n_tile, n_tile_read; /* tiles that can be left out, and how many of them are read */
};

/* Floats of scratch per thread. d: channels of the widest part. A multiple of 16. */
size_t lk_attn_item_floats(int d);

/* An item in the scratch of thread ith, without queries. */
struct lk_attn_item lk_attn_item_new(const struct lk_attn *attn, int ith);

/* Set the item's queries and start with empty sums. chunk: longer than LK_ATTN_CHUNK only for at
 * most LK_ATTN_QUERIES / 2 queries. */
void lk_attn_item_set(struct lk_attn_item *item, int head_kv, int n_head_kv, int q0, int n_each,
                      int chunk);

/* KV head of query i of the item. */
static inline int lk_attn_item_head(const struct lk_attn_item *item, int i) {
    return item->head_kv + i / item->n_each;
}

/* Position of query i's token. */
static inline int64_t lk_attn_item_position(const struct lk_attn_item *item, int i) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv;
    return attn->k->n_tok - attn->n_tok + (item->q0 + i % item->n_each) / group;
}

/* Queries of the item for the KV heads of part `part` of a level: [*first, *first + returned). */
int lk_attn_item_part(const struct lk_attn_item *item, const struct lk_level *level, int part,
                      int *first);

/* Start of query i's vector in a level's domain, in an array of LK_ATTN_QUERIES x d floats. Vectors
 * of one part are contiguous, which kernels require. Each part has room for the widest. */
static inline size_t lk_attn_item_vector(const struct lk_attn_item *item,
                                         const struct lk_level *level, int i) {
    if (!level->part) return (size_t)i * level->d_part;
    int first, part = lk_attn_item_head(item, i) / level->n_head;
    lk_attn_item_part(item, level, part, &first);
    return (size_t)first * item->d + (size_t)(i - first) * level->part[part].d;
}

/* Transform the item's queries into the domain of a level of K that does not hold latents before
 * RoPE, unless they are already: item->queries, part by part. */
void lk_attn_item_prepare(struct lk_attn_item *item, int level);

/* Scores q.k of all queries over positions [a, b), not scaled: position pos of query i is
 * mem.score[i * stride + LK_SCORE_PAD + (pos - a)]. At most a chunk. */
void lk_attn_item_score(struct lk_attn_item *item, int64_t a, int64_t b);

/* The scores of query i over those positions of [a, b) that it sees, capped, with ALiBi's bias.
 * Call it once for the scores of a chunk. *lo: the first of them, counted from a; *n: how many. */
float *lk_attn_item_visible(const struct lk_attn_item *item, int i, int64_t a, int64_t b, int *lo,
                            int *n);

/* The partial of (range, query q of a KV head): d_head floats of acc, n_latent floats of V's
 * latents, then max and sum. n_latent: lk_attn_v_rank. */
float *lk_attn_partial_of(const struct lk_attn *attn, int n_latent, int range, int head_kv, int q);

/* ---- runs ----
 *
 * Rows of a level in the kernels' layout (kernels/kernels.h, struct lk_rows).
 *
 * A run is a sequence of rows that one kernel call processes. It starts with a tile, or lies within
 * one tile: before or after whole tiles.
 *
 * The blocks of a run hold the rows of all parts. While they are processed, part after part, the
 * blocks that lie a chunk (attention.h) further are prefetched in the order of memory. */

enum { LK_RUN_BLOCKS = LK_MAX_KERNEL_CHUNK / LK_TILE + 1 };

struct lk_run {
    /* Set by the caller. */
    const struct lk_kv *kv;
    int level, first_part, end_part; /* parts [first_part, end_part) are read, in this order */
    int max_rows;                    /* rows of a run, at most LK_MAX_KERNEL_CHUNK */
    int chunk;                       /* rows of a chunk */
    bool is_prompt;                  /* exact rows of a prompt (struct lk_attn) */
    bool whole_tiles;                /* runs end with a tile, unless they lie within one */

    /* Set by lk_run_find. */
    int64_t block; /* block of the tile that the first row is in */
    int n_block;   /* blocks of the run */
    int n_ahead;   /* blocks to prefetch meanwhile */
    int row0;      /* that tile's first row in its block */
    int tile_row;  /* the first row in that tile; if > 0, the run ends in the tile */
    int n;         /* rows */
    void *at[LK_RUN_BLOCKS], *ahead[LK_RUN_BLOCKS]; /* the addresses of these blocks */
};

/* Find the run that starts at row `at` of the level's rows [at, end), counted from the oldest. All
 * of its blocks are held here. */
void lk_run_find(struct lk_run *run, int64_t at, int64_t end);

/* Number of the run's first tile in its level's blocks. */
static inline int64_t lk_run_tile(const struct lk_run *run) {
    return run->block * (run->kv->rule[run->level].block_rows / LK_TILE) + run->row0 / LK_TILE;
}

/* The run's rows of one part, preceded by the rows before them in their first tile. */
struct lk_rows lk_run_rows(const struct lk_run *run, int part);

/* What some models do to the scores q.k, before they are scaled for the softmax. Callers decide
 * whether a call has a soft cap or ALiBi (struct lk_attn), because most have neither. */

struct lk_attn;

/* Soft cap of n scores, as in Gemma 2: cap * tanh(score / cap). attn->softcap > 0. */
void lk_softcap_scores(const struct lk_attn *attn, float *s, int n);

/* ALiBi (Press et al. 2022): slope of a head, as the reference implementations choose it for any
 * number of heads. */
float lk_alibi_slope(int head, int n_head, float max_bias);

#endif
