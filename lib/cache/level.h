/* Levels: how rows age, as arithmetic on counts alone.
 *
 * The K or V rows of one layer are divided into levels, oldest first:
 *
 *     position   first                                              n_tok
 *                | sink | body ........................ | recent | newest |
 *
 * Rows enter the newest level. They leave a level from its front, in batches, into the next older
 * one. If that level has a limit and no room, as many rows are evicted as arrive. Rows are then
 * counted by index: the held rows are [first, n_tok), the newest is n_tok - 1, and `first` is the
 * number of evicted rows. Heads may hold different rows (cache/evict.h), but the same number.
 *
 * The cache moves real rows by these rules. Planning and reserving follow the same rules without
 * rows, so a plan predicts exactly what the cache will do. */
#ifndef LK_CACHE_LEVEL_H
#define LK_CACHE_LEVEL_H

#include "recipe/recipe.h"

enum {
    LK_MAX_KV_LEVEL = LK_MAX_LEVEL + 1, /* a recipe's levels and the staging level */
    LK_CALIBRATE_ROWS = 256,            /* rows to collect before channel statistics are computed */
};

/* The rules of a level. They do not change during the life of a cache. */
struct lk_level_rule {
    struct lk_codec codec; /* of all heads but those named in `other` */
    int n_other;
    struct {
        uint64_t heads; /* bit h: KV head h */
        struct lk_codec codec;
    } other[LK_MAX_HEAD_CODECS]; /* they differ from `codec` in bits and codebooks only */
    int spec;                    /* index of the recipe's level; n_level for the staging level */
    int block_rows;              /* rows of one block */
    int batch;             /* rows that leave at a time; 0: none ever leave (sinks, oldest level) */
    int batch_in;          /* rows that arrive from the newer level at a time */
    uint32_t keep;         /* rows that stay when a batch leaves */
    float percent;         /* the same, in per cent of the tokens seen */
    int calibrate_rows;    /* rows that the newer level holds before it passes on its first batch */
    bool shift;            /* sinks: distances count held rows only (cache/rope.h) */
    struct lk_limit limit; /* maximum number of rows, in tokens and per cent; n_tok is rounded up to
                              a multiple of batch_in */
};

/* The codec of a part: of a KV head, or of latents. */
const struct lk_codec *lk_level_codec(const struct lk_level_rule *rule, int part);

/* How full a level is. Its rows are rows [skip, skip + rows) of its blocks. */
struct lk_level_count {
    int64_t rows;
    int32_t skip; /* rows already removed from the first block */
};

/* Kinds of layers. One with a sliding window has no sinks. K of latent attention is the rotary part
 * only, whose channels have few but large values: codecs other than f16 and int8 become rot8. */
enum { LK_RULES_SLIDING = 1, LK_RULES_FINE_K = 2 };

/* Rules of the levels of K or V of one layer. `kind`: a set of the above. n_ctx: the longest
 * context that the model was trained for. out: [LK_MAX_KV_LEVEL]. Returns the number of levels. */
int lk_level_rules(const struct lk_recipe *recipe, int layer, int n_layer, enum lk_side side,
                   unsigned kind, int64_t n_ctx, struct lk_level_rule *out);

/* Number of sinks: rows below this position go to level 0 and stay there. 0 without sinks. */
uint32_t lk_level_sinks(const struct lk_level_rule *rule, int n_level);

/* Find the next batch that has to move: *n rows from level *from to level *from - 1. False if no
 * batch has to move. n_tok: tokens seen, these rows included. */
bool lk_level_next_move(const struct lk_level_rule *rule, const struct lk_level_count *count,
                        int n_level, int64_t n_tok, int *from, int *n);

/* How many of n arriving rows fit into a level after n_tok tokens. */
int64_t lk_level_room(const struct lk_level_rule *rule, const struct lk_level_count *count,
                      int64_t n_tok, int64_t n);

/* Blocks needed for a level's rows. */
int64_t lk_level_blocks(const struct lk_level_rule *rule, const struct lk_level_count *count);

/* Remove n rows from the front. */
void lk_level_remove(const struct lk_level_rule *rule, struct lk_level_count *count, int64_t n);

/* Append n_new rows to n_tok rows and age them, on counts alone. count: [n_level], updated.
 * max_blocks: [n_level], raised to the maximum number of blocks that each level held on the way,
 * or NULL. n_swa > 0: rows that no later query of a sliding-window layer can see are dropped.
 * *first, the position of the oldest row, is updated. */
void lk_level_advance(const struct lk_level_rule *rule, struct lk_level_count *count, int n_level,
                      int64_t n_tok, int64_t n_new, int n_swa, int64_t *first, int64_t *max_blocks);

/* Rows that can be dropped, in whole blocks, from the oldest level of a sliding-window layer
 * before the token at position n_tok is evaluated. first: position of the oldest row. */
int64_t lk_level_droppable(const struct lk_level_rule *rule, const struct lk_level_count *count,
                           int64_t first, int64_t n_tok, int n_swa);

#endif
