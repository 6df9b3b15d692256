/* Rows between levels: the steps that aging consists of, each on K or V of one layer, and eviction,
 * which moves K and V of a layer together into a level with a limit. */
#ifndef LK_CACHE_MOVE_H
#define LK_CACHE_MOVE_H

#include "base/err.h"
#include "cache/kv.h"

struct lk_cache;

/* Rows that are encoded into blocks of a level of K or V of one layer: float rows, or rows of a
 * newer level as they are held. A move names its blocks, so it stays valid while counts change. */
enum {
    LK_MOVE_BLOCKS = LK_MAX_MOVE / LK_TILE + 1,
    LK_LIST_MOVES = 256, /* moves of a list, at most */
};

struct lk_move {
    const struct lk_kv *kv;
    const float *x; /* [n][n_head][d_head] rows of all heads, or NULL: rows of the blocks `from` */
    size_t half_stride; /* not 0: x has f16 numbers, so many from row to row. Only on a device that
                           takes commands */
    uint64_t out; /* float rows in the memory of a device, instead of the blocks `to`; 0: blocks */
    int from, to; /* levels */
    int n;        /* rows, at most LK_MAX_MOVE */
    int first_part, end_part; /* parts of `to` that receive them; of `from` that go `out` */
    bool replaces;            /* one row, in place of another one of a full block */
    int from_row, to_row;     /* the first row's index in the first of these blocks: */
    lk_block from_block[LK_MOVE_BLOCKS], to_block[LK_MOVE_BLOCKS];
    int64_t pos; /* position of the first row; positions are consecutive */
};

/* A list of moves, made from counts alone and executed at once: counts say that the rows have moved
 * when the list still has to run. Blocks that rows have left are freed after it has run.
 *
 * Moves of one kv are executed in the order of the list. */
struct lk_moves {
    struct lk_cache *cache;
    float *scratch;       /* lk_moves_scratch_floats, of the thread that runs the list */
    struct lk_move *move; /* [n], room for cap */
    int n, cap;
    lk_block *gone; /* [n_gone] to be freed, room for cap_gone */
    int n_gone, cap_gone;
};

/* A list in the memory of its user, whatever the number of moves: it runs when it is full. */
struct lk_short_list {
    struct lk_moves moves;
    struct lk_move move[16];
    lk_block gone[64];
};
struct lk_moves *lk_moves_start(struct lk_short_list *list, struct lk_cache *cache, float *scratch);

/* The same with room for the moves of all layers in a step, which a device executes at once. */
struct lk_long_list {
    struct lk_moves moves;
    struct lk_move move[LK_LIST_MOVES];
    lk_block gone[LK_LIST_MOVES];
};
struct lk_moves *lk_moves_start_long(struct lk_long_list *list, struct lk_cache *cache,
                                     float *scratch);

/* Floats of scratch to execute moves of a cache whose widest part has d channels. */
static inline size_t lk_moves_scratch_floats(int d) { return (size_t)2 * LK_MAX_MOVE * d; }

/* Execute the moves of the list, on the cache's device or here, and free what its rows have left.
 * The list is empty then. */
void lk_moves_run(struct lk_moves *list);

/* Execute one move on the CPU. scratch: lk_moves_scratch_floats(d) for parts of at most d
 * channels. */
void lk_move_execute(const struct lk_move *move, const struct lk_kernels *kernels, float *scratch,
                     int d);

/* Add a move whose blocks are the caller's choice. */
void lk_moves_add(struct lk_moves *list, const struct lk_move *move);

/* Compute channel statistics from the rows of level `from` if the next older level needs them and
 * they are not there yet. Rows of other shares are dropped when no statistics are missing. */
void lk_moves_calibrate(struct lk_moves *list, struct lk_kv *kv, int from);

/* How many of the oldest n rows of a level can move together: those of one share
 * (cache/held.h). */
int lk_move_rows(const struct lk_kv *kv, int from, int n);

/* Offset of a part in a row of all heads, in floats. Parts never have more channels than their
 * heads. */
static inline size_t lk_move_offset(const struct lk_kv *kv, const struct lk_level *level,
                                    int part) {
    return (size_t)part * level->n_head * kv->d_head;
}

/* Append n rows after a level's newest row: x [n][n_head][d_head] from position pos on. False
 * without memory. Rows of blocks that are not held here are counted only, and x is not read. */
bool lk_moves_append(struct lk_moves *list, struct lk_kv *kv, int level, const float *x, int64_t n,
                     int64_t pos);

/* Move the oldest n rows of level `from` to level from - 1, after its newest row. False without
 * memory. */
bool lk_moves_age(struct lk_moves *list, struct lk_kv *kv, int from, int64_t n);

/* Drop a level's oldest n rows, and blocks that become empty. */
void lk_moves_drop(struct lk_moves *list, struct lk_kv *kv, int level, int64_t n);

/* ---- eviction: moves rows into levels with a limit, replaces and drops what does not fit ---- */

/* Age K and V of a layer that evicts (lk_cache_age). Does nothing until both have the same tokens.
 * LK_E_NOMEM. */
lk_status lk_evict_age(struct lk_moves *list, int layer, lk_err *err);

/* Choose which rows of a prompt a head keeps, and the other heads of its unit with the unit's first
 * head. Called after lk_cache_alloc_prompt and before lk_cache_encode_prompt, for each head, by any
 * thread. attn_scores: [n_tok][n_head] as
 * lk_policy_needed_scores says, or NULL if the policy needs none. exact: K and V as in
 * lk_cache_encode_prompt. order: [n_tok] scratch of this head. */
void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_scored_row *order);

#endif
