/* The states of recurrent layers. */
#include "engine/recurrent.h"

#include <math.h>
#include <string.h>

/* In whole cache lines, as the ledger counts them. */
static size_t layer_floats(const struct lk_hparams *hp) {
    return (lk_recurrence_state_floats(&hp->recurrence) + 15) / 16 * 16;
}

size_t lk_recurrent_bytes(const struct lk_hparams *hp) {
    if (hp->n_recurrent == 0) return 0;
    return (size_t)hp->n_recurrent * layer_floats(hp) * sizeof(float);
}

size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp) {
    return layer_floats(hp) * sizeof(float);
}

float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer) {
    return states + (size_t)hp->index[layer] * layer_floats(hp);
}

bool lk_recurrent_check(const struct lk_hparams *hp, const void *states) {
    for (size_t at = 0; at < lk_recurrent_bytes(hp); at += sizeof(float)) {
        float value;
        memcpy(&value, (const char *)states + at, sizeof value);
        if (!isfinite(value)) return false;
    }
    return true;
}
