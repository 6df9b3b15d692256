/* The states of recurrent layers. */
#include "engine/recurrent.h"

#include <math.h>
#include <string.h>

enum { LINE = 16 }; /* floats of a cache line */

/* In whole cache lines, as the ledger counts them. */
static size_t layer_floats(const struct lk_hparams *hp) {
    return (lk_recurrence_state_floats(&hp->recurrence) + LINE - 1) / LINE * LINE;
}

size_t lk_recurrent_bytes(const struct lk_hparams *hp) {
    size_t n_layer = (size_t)(hp->held_recurrent[1] - hp->held_recurrent[0]),
           n = n_layer * lk_recurrent_layer_bytes(hp) / sizeof(float);
    if (hp->n_recurrent > 0 && n == 0) n = LINE; /* a session without states is another kind */
    return n * sizeof(float);
}

size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp) {
    return hp->n_recurrent > 0 ? layer_floats(hp) * sizeof(float) : 0;
}

size_t lk_recurrent_saved_bytes(const struct lk_hparams *hp) {
    bool all = hp->held_recurrent[1] - hp->held_recurrent[0] == hp->n_recurrent;
    return all ? lk_recurrent_bytes(hp) : (size_t)hp->n_recurrent * lk_recurrent_layer_bytes(hp);
}

float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer) {
    return states + (size_t)(hp->index[layer] - hp->held_recurrent[0]) * layer_floats(hp);
}

struct lk_recurrence_weights lk_recurrent_weights(const struct lk_net *net, int layer) {
    const struct lk_layer *l = &net->layer[layer];
    return (struct lk_recurrence_weights){.conv = l->conv->data,
                                          .conv_b = l->conv_b ? l->conv_b->data : NULL,
                                          .skip = l->skip ? l->skip->data : NULL};
}

void lk_recurrent_write(const struct lk_model *model, const float *states,
                        struct lk_saving *saving) {
    const struct lk_hparams *hp = &model->net->hp;
    for (int layer = 0; layer < hp->n_layer; layer++) {
        if (!hp->is_recurrent[layer]) continue;
        const float *state =
            lk_net_has(model->net, layer) ? lk_recurrent_state(hp, (float *)states, layer) : NULL;
        lk_saving_put(saving, model->holder ? model->holder[layer] : 0, state,
                      lk_recurrent_layer_bytes(hp));
    }
}

void lk_recurrent_restore(const struct lk_net *net, float *states, struct lk_restoring *from) {
    const struct lk_hparams *hp = &net->hp;
    size_t layer = lk_recurrent_layer_bytes(hp), all = lk_recurrent_saved_bytes(hp),
           before = (size_t)hp->held_recurrent[0] * layer,
           n = (size_t)hp->held_recurrent[1] * layer - before;
    lk_restoring_get(from, NULL, before);
    lk_restoring_get(from, states, n);
    lk_restoring_get(from, NULL, all - before - n);
}

bool lk_recurrent_check(const struct lk_hparams *hp, const void *states) {
    for (size_t at = 0; at < lk_recurrent_saved_bytes(hp); at += sizeof(float)) {
        float value;
        memcpy(&value, (const char *)states + at, sizeof value);
        if (!isfinite(value)) return false;
    }
    return true;
}
