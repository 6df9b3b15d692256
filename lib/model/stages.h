/* Stages: the layers of a model, divided over processes that compute one after another.
 *
 *     layer   | 0 ... first[1] - 1 | first[1] ... first[2] - 1 | ... | first[n - 1] ... |
 *     stage             0                        1                           n - 1
 *
 * Stage 0 also embeds the tokens, and the last one computes the logits. What layers need of the
 * tokens themselves (struct lk_family.token_input) every stage has. */
#ifndef LK_MODEL_STAGES_H
#define LK_MODEL_STAGES_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LK_MAX_STAGES = 64 };

struct lk_stages {
    int32_t own, n;                       /* this process is stage `own` of n */
    int32_t first[LK_MAX_STAGES + 1];     /* layers [first[i], first[i + 1]) are those of stage i */
    int32_t cached[LK_MAX_STAGES + 1];    /* the same, counted among the layers with a cache, */
    int32_t recurrent[LK_MAX_STAGES + 1]; /* and among recurrent layers */
};

static inline bool lk_stages_holds(const struct lk_stages *s, int layer) {
    return layer >= s->first[s->own] && layer < s->first[s->own + 1];
}
static inline bool lk_stages_is_last(const struct lk_stages *s) { return s->own == s->n - 1; }

struct lk_net;
struct lk_loader;

/* Divide the layers of a model whose tensors are bound, as the loader's options say: each stage has
 * about the same bytes of weights, without tables. The result depends on the file only. Tensors of
 * other stages are not loaded. Also sets the net's matrix_bytes and table_bytes.
 *
 * LK_E_UNSUPPORTED if there are too many stages: each has a layer, and layers that attend to the K
 * and V of an earlier one are on its stage. LK_E_NOMEM. */
lk_status lk_stages_divide(struct lk_net *net, struct lk_loader *ld, lk_err *err);

#endif
