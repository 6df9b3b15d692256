/* The cache of one session: for each layer two streams (K and V) of rows in levels of coded blocks.
 *
 *   lk_cache_prepare   makes sure that the coming rows will find memory: the one place that can fail
 *   lk_cache_append    new rows enter the newest level (or the sinks)
 *   lk_cache_age    rows that are old enough are re-encoded into older levels
 *
 *   lk_cache_alloc_prompt, _fill   instead of all three: a whole prompt, each row coded once, where it would age to
 *
 * append and settle work on one stream, so different streams may be worked on by different threads. Only
 * in a layer whose streams have slots, settling works on both, once both have the same tokens. */
#ifndef LK_CACHE_CACHE_H
#define LK_CACHE_CACHE_H

#include "cache/evict.h"
#include "cache/level.h"
#include "cache/pool.h"
#include "cache/rope.h"
#include "kernels/kernels.h"
#include "sidecar/basis.h"

struct lk_cache_shape {
    int n_layer, n_head_kv, d_head;
    int n_swa;             /* window of sliding-window layers; 0: none */
    const uint8_t *is_swa; /* [n_layer] or NULL; borrowed for the cache's life */
    const struct lk_basis *const
        *basis; /* [LK_N_BASIS] of [n_layer] or NULL, or NULL: no sidecar; borrowed */
    /* [2] of layers with full attention, of sliding ones; NULL: K is not rotated; borrowed */
    const struct lk_rope *rope;
    int64_t n_ctx;                    /* longest context that the model was trained for */
    const struct lk_kernels *kernels; /* what will score keys; NULL: any */
};

struct lk_level {
    void **block; /* [n_block] in order of position, room for cap */
    int64_t n_block, cap;
    size_t head_bytes, block_bytes, scale_bytes; /* of a part, a block, a block's scales */
    int n_part, d_part,
        n_head; /* parts of a block, their channels, KV heads of a part (project.h) */
    const struct lk_basis *basis; /* parts are latents in this basis; NULL: rows of one head each */
    const struct lk_rope *rope;   /* latents are of rows before this rotation; NULL: as they are */
    struct lk_k_up *k_up;         /* [n_head_kv] for latents of K before RoPE (unfold.h), or NULL */
};

/* What rows, or latents, are divided by before a rotation. */
struct lk_equalizer {
    float *sigma; /* [n_part][stride], or NULL where unused */
    float *query; /* [n_part][stride] sum of q^2 until sigma is taken; K with sigma only */
    int n_part, stride;
    bool calibrated;
};

struct lk_kv {
    enum lk_side side;
    int n_level, n_swa;
    struct lk_level_rule rule[LK_MAX_KV_LEVEL];
    struct lk_fill fill[LK_MAX_KV_LEVEL];
    struct lk_level level[LK_MAX_KV_LEVEL];
    int64_t first, n_tok;             /* rows of index [first, n_tok) are held, first were let go */
    struct lk_equalizer equalizer[2]; /* of rows, of latents */
    const struct lk_evict *evict;     /* of the layer, where a level has a limit; else NULL */
    float *rows;    /* [LK_MAX_MOVE][n_head_kv][d_head] scratch, shared by a side's streams */
    float *latents; /* the same again, for rows that are projected */
};

/* The equaliser of a level, and what its codec takes for one part: NULL where it is not used. */
static inline struct lk_equalizer *lk_equalizer_of(struct lk_kv *kv, int level) {
    return &kv->equalizer[kv->level[level].basis != NULL];
}

static inline const float *lk_sigma_of(const struct lk_kv *kv, int level, int part) {
    const struct lk_equalizer *equalizer = &kv->equalizer[kv->level[level].basis != NULL];
    return kv->rule[level].codec.sigma ? equalizer->sigma + (size_t)part * equalizer->stride : NULL;
}

enum {
    LK_MAX_MOVE = 128,     /* rows re-encoded at a time; a multiple of every codec's block_rows */
    LK_OBSERVE_ROWS = 512, /* of a prompt, at most, that channel statistics come from */
};

struct lk_cache {
    struct lk_ledger *ledger;
    struct lk_cache_shape shape;
    const struct lk_kernels *kernels; /* codes rows */
    struct lk_pool pool;
    struct lk_kv (*kv)[2];  /* [n_layer][K, V] */
    struct lk_evict *evict; /* [n_layer] */
    struct lk_evict_hook leave;
    float *rows[2];
    int64_t reserved; /* single tokens for which prepare has already found memory */
};

/* An empty cache; `ledger` is borrowed. LK_E_UNSUPPORTED where a codec cannot hold such heads.
 * *out is owned: lk_cache_free. */
lk_status lk_cache_new(struct lk_cache **out, const struct lk_recipe *recipe,
                       const struct lk_cache_shape *shape, struct lk_ledger *ledger, lk_err *err);
void lk_cache_free(struct lk_cache *cache);

/* Forget every token. */
void lk_cache_clear(struct lk_cache *cache);

/* Find memory for n_new more tokens in layers [layer0, layer1), so that appending and settling them,
 * in portions of at most `portion`, takes nothing from the system. */
lk_status lk_cache_prepare(struct lk_cache *cache, int layer0, int layer1, int64_t n_new,
                           int64_t portion, lk_err *err);

/* The same for n_new tokens that will come singly: until they have come, steps of one token need no
 * lk_cache_prepare, and blocks that become free wait for those that will be needed. */
lk_status lk_cache_reserve(struct lk_cache *cache, int64_t n_new, lk_err *err);

/* Append n rows to a stream. x: [n][n_head_kv][d_head]. */
lk_status lk_cache_append(struct lk_cache *cache, int layer, enum lk_side side, const float *x,
                          int64_t n, lk_err *err);
lk_status lk_cache_age(struct lk_cache *cache, int layer, enum lk_side side, lk_err *err);

/* Tell a layer which queries read it: q [n_tok][n_head][d_head]. Before sigma is taken, their power in
 * each channel is remembered (see lk_calibrate); afterwards this does nothing. */
void lk_cache_observe(struct lk_cache *cache, int layer, const float *q, int n_tok, int n_head);

/* A prompt's n_tok rows in the empty streams of a layer. lay takes their blocks and sets the streams'
 * counts to what appending and settling them at once would leave; then fill codes the rows of one head of
 * one side (with a group's first head its latents), in any order and by any threads. exact: one level of f16 rows, of positions 0 to n_tok - 1.
 * Channel statistics are taken from the first LK_OBSERVE_ROWS rows behind the sinks and from queries
 * observed before fill.
 * When lay fails, the cache has to be cleared. */
lk_status lk_cache_alloc_prompt(struct lk_cache *cache, int layer, int64_t n_tok, lk_err *err);
void lk_cache_encode_prompt(struct lk_cache *cache, int layer, enum lk_side side, int head,
                            const struct lk_kv *exact);

/* Take the blocks that the counts of a layer's streams, which have none yet, say they hold. When it fails,
 * the cache has to be cleared. */
lk_status lk_cache_take_blocks(struct lk_cache *cache, int layer, lk_err *err);

/* Give spare blocks back. */
void lk_cache_trim(struct lk_cache *cache);

/* Forget the newest tokens until n_tok remain: true if they all lie where rows can be taken back
 * singly; false leaves the cache as it is. The first one only says which. */
bool lk_cache_cuts_back(const struct lk_cache *cache, int64_t n_tok);
bool lk_cache_truncate(struct lk_cache *cache, int64_t n_tok);

/* Make `to` hold what `from` does; both have the same recipe and shape, and ledgers with the same `common`.
 * They hold the same blocks from then on, and either writes to a copy of a block where it writes to one at all.
 * What was reserved for `from` is not any more. After a failure `to` is empty. */
lk_status lk_cache_copy(struct lk_cache *to, struct lk_cache *from, lk_err *err);

/* Room for n_block blocks in a level's table; false where there is no memory. */
bool lk_cache_has_room(struct lk_cache *cache, struct lk_level *level, int64_t n_block);

/* A level's block to write to: a copy in its place where other caches hold it, too. NULL without memory. */
void *lk_cache_writable_block(struct lk_cache *cache, struct lk_level *level, int64_t block);

/* The block that holds row `at` of a level (at counts from the level's oldest row); *row: its index
 * in the block; *n: rows of the level that follow in this block, the row itself included. */
const void *lk_cache_locate(const struct lk_kv *kv, int level, int64_t at, int *row, int64_t *n);

/* Position of that row's token. In a level without a limit positions follow each other and are the same
 * for all heads. */
int64_t lk_cache_position(const struct lk_kv *kv, int level, int64_t at, int head);

/* Bytes by what they hold; their sum is what the ledger says, borrowed bytes included. */
struct lk_cache_bytes {
    uint64_t code, scale, exact, padding;
};
struct lk_cache_bytes lk_cache_count(const struct lk_cache *cache);

/* Bytes of full blocks that rows neither leave nor are replaced in: what caches go on sharing, whatever comes. */
uint64_t lk_cache_immutable_bytes(const struct lk_cache *cache);

/* What an f16 cache would hold for n_tok tokens: no blocks, no padding. */
uint64_t lk_cache_f16_bytes(const struct lk_cache_shape *shape, int64_t n_tok);

/* The widest part of any level, and the highest rank of V's latents: what attention needs scratch for. */
struct lk_cache_widths {
    int part, latent;
};
struct lk_cache_widths lk_cache_measure(const struct lk_cache *cache);

/* Bytes of scratch while policies choose among a prompt's n_tok rows: weights that rows get, and ranks. 0 where none does. */
struct lk_evict_scratch {
    size_t attn_scores, order;
};
struct lk_evict_scratch lk_evict_scratch(const struct lk_cache *cache, int64_t n_tok);

/* What this shape and recipe will need for n_tok tokens, by the same arithmetic, without rows. */
struct lk_cache_needs {
    uint64_t cache;                 /* bytes held then */
    uint64_t scratch;               /* of the cache's own */
    struct lk_evict_scratch choice; /* while a prompt of so many is read */
    struct lk_cache_widths width;
};
lk_status lk_cache_estimate(const struct lk_recipe *recipe, const struct lk_cache_shape *shape,
                            int64_t n_tok, struct lk_cache_needs *out, lk_err *err);

#endif
