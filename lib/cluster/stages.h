/* Stages: the layers of a model, divided over peers that compute one after another.
 *
 *     layer   | 0 ... first[1] - 1 | first[1] ... first[2] - 1 | ... | first[n - 1] ... |
 *     stage             0                        1                           n - 1
 *
 * Stage 0 also embeds the tokens, and the last one computes the logits. What layers need of the
 * tokens themselves (struct lk_family.token_input) every stage has. */
#ifndef LK_CLUSTER_STAGES_H
#define LK_CLUSTER_STAGES_H

#include "base/ledger.h"
#include "model/net.h"

enum { LK_MAX_STAGES = 64 };

struct lk_stages {
    int32_t own, n;                   /* this process has stage `own` of n */
    int32_t first[LK_MAX_STAGES + 1]; /* layers [first[i], first[i + 1]) are those of stage i */
};

/* The stage of a layer. */
static inline int lk_stages_of(const struct lk_stages *s, int layer) {
    int stage = 0;
    while (stage + 1 < s->n && layer >= s->first[stage + 1]) stage++;
    return stage;
}

/* Choose the layers of stage `own` of n (struct lk_layer_choice; user: struct lk_stages), and set
 * `first`. Each stage has about the same bytes of weights, without tables.
 *
 * LK_E_UNSUPPORTED if there are too many stages: each has a layer, and layers that attend to the K
 * and V of an earlier one are on its stage. LK_E_NOMEM. */
lk_status lk_stages_choose(const struct lk_hparams *hp, const uint64_t *bytes, void *user,
                           int32_t *first, int32_t *end, lk_err *err);

#endif
