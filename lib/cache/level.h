/* Levels: how rows age, as arithmetic on counts alone.
 *
 * A stream is one side (K or V) of one layer. Its rows lie in levels, oldest first:
 *
 *     position   first                                              n_tok
 *                | sink | body ........................ | recent | newest |
 *
 * Rows enter the newest level and leave a level from its front, in batches, into the next older one.
 * Where that one has a limit and no room, as many rows are gone for good as came. Rows are counted by
 * index then: [first, n_tok) holds those that are left, the newest at n_tok - 1, and `first` is the
 * number of those that went. Heads may keep different rows (cache/slots.h), but as many.
 * The cache moves real rows by these rules, and planning and reserving follow them without rows, so
 * that what is planned is what happens. */
#ifndef LK_CACHE_LEVEL_H
#define LK_CACHE_LEVEL_H

#include "recipe/recipe.h"

enum {
    LK_MAX_KV_LEVEL = LK_MAX_LEVEL + 1, /* a recipe's levels and the staging level */
    LK_CALIBRATE_ROWS = 256,            /* rows seen before channel statistics are taken */
};

/* What a level is, fixed when a stream is made. */
struct lk_level_rule {
    struct lk_codec codec;
    int spec;       /* index of the recipe's level; n_level for the staging level */
    int block_rows; /* rows of one block */
    int batch;      /* rows that leave at once; 0: none ever leave (sinks, the oldest level) */
    int coming;     /* rows that come at once from the newer level */
    uint32_t keep;  /* rows that stay behind */
    float percent;  /* rows that stay behind, in per cent of the tokens seen */
    int wait;       /* rows the newer level has before it gives the first, for channel statistics */
    bool shift;     /* sinks whose distance counts held rows only (cache/rope.h) */
    struct lk_limit
        limit; /* rows it has room for, a multiple of `coming` with per cent and without */
};

/* How full it is. Blocks hold rows [skip, skip + rows). */
struct lk_fill {
    int64_t rows;
    int32_t skip; /* rows already gone from the first block */
};

/* The levels of one stream. `swa`: a sliding-window layer, which has no use for sinks. n_ctx: the longest
 * context that the model was trained for. out: [LK_MAX_KV_LEVEL]; returns their number. */
int lk_level_rules(const struct lk_recipe *recipe, int layer, int n_layer, enum lk_side side,
                   bool swa, int64_t n_ctx, struct lk_level_rule *out);

/* Sinks a stream has room for: rows below this position go to level 0 and stay. 0 without sinks. */
uint32_t lk_level_sinks(const struct lk_level_rule *rule, int n_level);

/* The next batch that has to move: from level *from to *from - 1, *n rows. False when all is settled.
 * n_tok: tokens seen, these rows included. */
bool lk_level_next_move(const struct lk_level_rule *rule, const struct lk_fill *fill, int n_level,
                        int64_t n_tok, int *from, int *n);

/* Of n rows that come to a level when n_tok tokens are seen, those for which it has room. */
int64_t lk_level_room(const struct lk_level_rule *rule, const struct lk_fill *fill, int64_t n_tok,
                      int64_t n);

/* Blocks that hold a level's rows. */
int64_t lk_level_blocks(const struct lk_level_rule *rule, const struct lk_fill *fill);

/* Remove n rows from the front; add n at the back. */
void lk_level_take(const struct lk_level_rule *rule, struct lk_fill *fill, int64_t n);
void lk_level_put(struct lk_fill *fill, int64_t n);

/* Append n_new rows to a stream of n_tok tokens and let it settle, on counts alone. fill: [n_level],
 * updated. most: [n_level], raised to the most blocks each level held on the way; may be NULL.
 * n_swa > 0: rows that no later query of a sliding-window layer can see are dropped, and *first
 * (position of the oldest row) follows. */
void lk_level_advance(const struct lk_level_rule *rule, struct lk_fill *fill, int n_level,
                      int64_t n_tok, int64_t n_new, int n_swa, int64_t *first, int64_t *most);

/* Rows that may be dropped whole-block-wise from the oldest level of a sliding-window stream whose
 * oldest row is at `first`, before the token at position n_tok is read. */
int64_t lk_level_droppable(const struct lk_level_rule *rule, const struct lk_fill *fill,
                           int64_t first, int64_t n_tok, int n_swa);

#endif
