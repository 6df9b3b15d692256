/* RoPE undone: keys as they were before their positions were rotated into them.
 *
 * The angles are ggml's own: a row with 1 in each pair's first place is rotated by it, at every position,
 * which gives m cos and m sin of each pair, m being YaRN's magnitude. */
#ifndef LK_ENGINE_ROTATION_H
#define LK_ENGINE_ROTATION_H

#include "engine/engine.h"

struct lk_rotation {
    int    n_rot, d_head;
    bool   halves;   /* pairs are (i, i + n_rot / 2), not (2 i, 2 i + 1)             */
    size_t n_pos;
    float *turn;     /* [n_pos][n_rot / 2][m cos, m sin]; NULL: the model does not rotate */
    struct lk_ledger *ledger;
};

/* Angles of `layer` for positions 0 to n_pos - 1. Layers that slide may have others than those that do not. */
lk_status lk_rotation_new(struct lk_rotation *rotation, struct lk_model *model, int layer, size_t n_pos, struct lk_ledger *ledger, lk_err *err);
void      lk_rotation_free(struct lk_rotation *rotation);

/* Undo the rotation to position `pos` of one head's key x [d_head], in place. */
void lk_rotation_undo(const struct lk_rotation *rotation, size_t pos, float *x);

/* Give a model with a sidecar the ropes that caches need. */
lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err);

#endif
