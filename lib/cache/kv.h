/* K or V of one layer: levels of encoded blocks, and how to find and decode their rows.
 *
 * A block of a level holds block_rows consecutive tokens, part after part:
 *
 *     block: | part 0: head_bytes | part 1 | ... | part n_part - 1 |
 *
 * In most levels a part is one KV head with rows of d_head channels. Heads may have codecs of
 * different bits. In a level of latents a part is a group of n_head KV heads with one latent per
 * token (cache/project.h). Groups may have different ranks. Parts then differ in channels and
 * bytes. */
#ifndef LK_CACHE_KV_H
#define LK_CACHE_KV_H

#include "base/err.h"
#include "base/ledger.h"
#include "cache/evict.h"
#include "cache/held.h"
#include "cache/level.h"
#include "cache/pool.h"
#include "cache/rope.h"
#include "codec/ops.h"
#include "kernels/kernels.h"
#include "sidecar/basis.h"

enum { LK_MAX_MOVE = 128 }; /* rows moved at a time; a multiple of every codec's block_rows */

/* What the cache must know about the model. Pointers are borrowed for the life of the cache. */
struct lk_cache_shape {
    int n_layer, n_head_kv, d_head;
    int d_rope; /* latent attention: channels of K, and V's d_head channels are keys too; 0: K has
                   as many as V */
    int n_swa;  /* window of sliding-window layers; 0: none */
    int n_head_kv_swa, d_head_swa; /* of these layers; 0: as in the others */
    const uint8_t *is_swa;         /* [n_layer] or NULL */
    /* [LK_N_BASIS] of [n_layer] or NULL; NULL without a sidecar */
    const struct lk_basis *const *basis;
    /* What caches of the model share of these bases. NULL: the cache shares with none. */
    struct lk_latent_store *latents;
    /* [2]: of layers with full attention, of sliding-window layers; NULL: K is not rotated */
    const struct lk_rope *rope;
    const uint8_t *no_rope;           /* [n_layer] layers whose K is not rotated, or NULL */
    int64_t n_ctx;                    /* longest context that the model was trained for */
    int64_t n_pos;                    /* positions that a session may have; 0: n_ctx */
    int n_head;                       /* query heads; 0: unknown. For choosing kernels */
    struct lk_place place;            /* what is held here */
    struct lk_device *device;         /* that has the blocks; NULL: the memory of the process */
    struct lk_ledger *device_ledger;  /* counts what is there */
    const struct lk_kernels *kernels; /* the kernels that will score keys; NULL: any */
};

/* KV heads of a layer, and channels of each in K or V. */
static inline int lk_cache_n_head(const struct lk_cache_shape *shape, int layer) {
    bool swa = shape->n_head_kv_swa && shape->is_swa && shape->is_swa[layer];
    return swa ? shape->n_head_kv_swa : shape->n_head_kv;
}
static inline int lk_cache_d_head(const struct lk_cache_shape *shape, int layer,
                                  enum lk_side side) {
    bool swa = shape->d_head_swa && shape->is_swa && shape->is_swa[layer];
    if (side == LK_K && shape->d_rope > 0) return shape->d_rope;
    return swa ? shape->d_head_swa : shape->d_head;
}

/* Channels of the widest row of K or V: all KV heads. */
static inline size_t lk_cache_width(const struct lk_cache_shape *shape, enum lk_side side) {
    size_t d = side == LK_K && shape->d_rope > 0 ? (size_t)shape->d_rope : (size_t)shape->d_head;
    size_t full = shape->n_head_kv * d,
           swa = shape->is_swa ? (size_t)shape->n_head_kv_swa * shape->d_head_swa : 0;
    return full > swa ? full : swa;
}

/* The rotation of a layer's K, or NULL. */
static inline const struct lk_rope *lk_cache_rope(const struct lk_cache_shape *shape, int layer) {
    if (!shape->rope || (shape->no_rope && shape->no_rope[layer])) return NULL;
    return &shape->rope[shape->is_swa && shape->is_swa[layer]];
}

/* One part of a block. */
struct lk_part_layout {
    int d;         /* channels */
    size_t offset; /* bytes from the start of the block */
};

/* What a device's fast kernel for latents reads of a layer (device/commands.h), and for which level
 * of K and of V. */
struct lk_fast_latents {
    int kernel; /* its number + 1; 0: none fits */
    int level[2];
    bool post; /* of rotated keys */
    uint64_t k_up, k_mean, v_up, v_mean, k_part, v_part, rope, fine, coarse;
    const struct lk_there *content[2]; /* that they are parts of (latent_there.h) */
};

/* A level's basis in the memory of a device: addresses of the numbers of struct lk_basis, and of
 * the speeds of the level's rotation, double [n_pair]. 0: there are none. */
struct lk_basis_there {
    uint64_t down, up, down_scale, up_scale, mean, speed;
};

struct lk_level {
    lk_block *block; /* [n_block] in order of position, room for cap; 0: not held here */
    int64_t n_block, cap;
    size_t head_bytes;            /* bytes of a part; of the widest, if parts differ */
    size_t block_bytes;           /* bytes of a block */
    size_t scale_bytes;           /* bytes of a block's scales, zero points and means */
    int n_part;                   /* parts of a block */
    int d_part;                   /* channels of a part; of the widest, if parts differ */
    int n_head;                   /* KV heads of a part */
    struct lk_part_layout *part;  /* [n_part] owned; NULL: all parts are equal */
    const struct lk_basis *basis; /* the parts are latents in this basis; NULL: heads' rows */
    const struct lk_rope *rope;   /* latents of K before this rotation; NULL: rows as scored */
    bool shares_basis;            /* `basis` is a copy of a store (cache/latent_levels.h) */
    struct lk_k_up *k_up; /* [n_head_kv] for latents of K before RoPE (latent_levels.h), or NULL */
    struct lk_basis_there there;    /* the basis on the cache's device, */
    const struct lk_there *content; /* and what it is a part of (latent_there.h); NULL: not there */
};

/* Channels of a part, and bytes from the start of a block to it. */
static inline int lk_level_part_channels(const struct lk_level *level, int part) {
    return level->part ? level->part[part].d : level->d_part;
}
static inline size_t lk_level_part_offset(const struct lk_level *level, int part) {
    return level->part ? level->part[part].offset : (size_t)part * level->head_bytes;
}

/* Channel statistics: what rows, or latents, are divided by before a codec rotates them
 * (cache/equalizer.h). */
struct lk_equalizer {
    float *sigma;       /* [n_part][stride], NULL if unused */
    float *query_power; /* [n_part][stride] sum of q^2 until calibration; only for K with sigma */
    float *recorded;    /* [n_recorded] of query_power, after each token of a pass (cache.h) */
    int n_recorded;
    int n_part, stride; /* stride: channels of the widest part */
    bool calibrated;    /* sigma is valid */
};

struct lk_kv {
    enum lk_side side;
    int n_head, d_head; /* KV heads of a row, and channels of each */
    int n_level, n_swa;
    const struct lk_arena *arena; /* of the levels' blocks */
    struct lk_level_rule rule[LK_MAX_KV_LEVEL];
    struct lk_level_count count[LK_MAX_KV_LEVEL];
    struct lk_level level[LK_MAX_KV_LEVEL];
    int64_t first, n_tok; /* rows of index [first, n_tok) are held; `first` rows were evicted */
    struct lk_equalizer equalizer[2]; /* of rows, of latents */
    struct lk_fast_latents fast;      /* of K */
    uint64_t sigma_at[2];             /* room for their sigma on the cache's device; 0: none */
    const struct lk_evict *evict;     /* of the layer, if a level has a limit; else NULL */
    struct lk_share share;            /* the rows to attend to here (cache/held.h) */
    bool has_all_rows;                /* until channel statistics exist, all rows are held here */
    bool is_elsewhere;                /* rows are counted, not stored */
    int holder;                       /* number of the process that has share 0 */
    float *rows; /* [LK_MAX_MOVE][n_head][d_head] scratch, shared by all layers */
    float *out;  /* scratch of the same size: rows as another level stores them */
    char *copy;  /* of a block of a device, shared by all layers; NULL: the blocks are here */
};

/* Does a call attend to a share of the rows only? */
static inline bool lk_kv_is_divided(const struct lk_kv *kv) { return kv->share.n > 1; }

/* Channels of a row: all KV heads. */
static inline size_t lk_kv_width(const struct lk_kv *kv) { return (size_t)kv->n_head * kv->d_head; }

/* Rows [at, at + n) of a level, counted from its oldest row. */
struct lk_row_range {
    const struct lk_kv *kv;
    int level;
    int64_t at, n;
};

static inline const struct lk_equalizer *lk_kv_equalizer(const struct lk_kv *kv, int level) {
    return &kv->equalizer[kv->level[level].basis != NULL];
}

/* sigma of one part, as the level's codec expects it: NULL if the codec does not use it. */
static inline const float *lk_kv_sigma(const struct lk_kv *kv, int level, int part) {
    const struct lk_equalizer *equalizer = lk_kv_equalizer(kv, level);
    return kv->rule[level].codec.sigma ? equalizer->sigma + (size_t)part * equalizer->stride : NULL;
}

/* One part of a level, described for its codec. */
static inline struct lk_part lk_kv_part(const struct lk_kv *kv, int level, int part) {
    return (struct lk_part){.codec = lk_level_codec(&kv->rule[level], part),
                            .side = kv->side,
                            .d_head = lk_level_part_channels(&kv->level[level], part),
                            .block_rows = kv->rule[level].block_rows,
                            .sigma = lk_kv_sigma(kv, level, part)};
}

/* Block b of a level: its address, in the memory of the cache's device if it has one; NULL if it is
 * not held here. */
static inline char *lk_kv_block(const struct lk_kv *kv, int level, int64_t b) {
    return lk_block_address(kv->arena, kv->level[level].block[b]);
}

/* Components that the levels read of a basis. */
int lk_kv_components(const struct lk_kv *kv, const struct lk_basis *basis);

/* Have some rotated levels of heads' rows channel statistics, and some none? */
bool lk_kv_mixes_sigma(const struct lk_kv *kv);

/* Block b of a level for reading by the CPU: itself, or a copy of a device's block until the next
 * call for this side. NULL if it is not held here. */
const char *lk_kv_fetch(const struct lk_kv *kv, int level, int64_t b);

/* The block that holds row `at` of a level, counted from the level's oldest row; NULL if it
 * is not held here. *row: its index in the block. *n: number of the level's rows in this block from
 * there on. */
char *lk_kv_locate(const struct lk_kv *kv, int level, int64_t at, int *row, int64_t *n);

/* Position of that row's token: what RoPE rotated its K by. In a level without a limit positions
 * are consecutive and the same for all heads. */
int64_t lk_kv_position(const struct lk_kv *kv, int level, int64_t at, int head);

/* The positions of [a, b) that one level holds, by index (cache/level.h). */
struct lk_kv_span {
    int level;
    int64_t first;    /* the level's first position */
    int64_t pos, end; /* [pos, end): those in [a, b); at least one */
};

/* Iterate over the levels that hold positions of [a, b), oldest first:
 *
 *     for (struct lk_kv_span s = lk_kv_spans(kv); lk_kv_next_span(kv, a, b, &s);) */
static inline struct lk_kv_span lk_kv_spans(const struct lk_kv *kv) {
    return (struct lk_kv_span){.level = -1, .first = kv->first};
}
bool lk_kv_next_span(const struct lk_kv *kv, int64_t a, int64_t b, struct lk_kv_span *span);

/* Decode one part of the rows into x [n], rows `stride` floats apart: heads' rows or latents, as
 * the level holds them. */
void lk_kv_read(const struct lk_row_range *range, int part, const struct lk_kernels *kernels,
                float *x, size_t stride);

/* Like lk_kv_read, for positions [a, b) of a head, whichever levels hold them. Positions that no
 * level holds are left out. Every level holds rows, not latents, and no policy moved them. */
void lk_kv_read_positions(const struct lk_kv *kv, int64_t a, int64_t b, int head,
                          const struct lk_kernels *kernels, float *x, size_t stride);

/* Set the layout fields of `level` by its rule; its basis is the sidecar's whole one. LK_E_ARG if
 * the recipe asks for a basis or a rank that the sidecar does not have, LK_E_FORMAT if the sidecar
 * does not match the model, LK_E_UNSUPPORTED if the codec cannot store such parts, LK_E_NOMEM.
 * Free with lk_level_layout_free, also after a failure. */
lk_status lk_level_layout(struct lk_level *level, const struct lk_level_rule *rule,
                          const struct lk_cache_shape *shape, int layer, enum lk_side side,
                          struct lk_ledger *ledger, lk_err *err);
void lk_level_layout_free(struct lk_level *level, struct lk_ledger *ledger);

#endif
