/* The states of a session's recurrent layers (hybrid models, kernels/recurrence.h). Unlike a cache
 * they have a constant size, and cannot be cut back: a session goes back to a checkpoint. */
#ifndef LK_ENGINE_RECURRENT_H
#define LK_ENGINE_RECURRENT_H

#include "base/ledger.h"
#include "model/hparams.h"

/* Bytes of the states of all recurrent layers; 0: the model has none. */
size_t lk_recurrent_bytes(const struct lk_hparams *hp);

/* Bytes of the state of one of them. */
size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp);

/* The state of layer `layer`, which is recurrent, in states [lk_recurrent_bytes]. */
float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer);

/* Are saved states, which may be unaligned, finite numbers? */
bool lk_recurrent_check(const struct lk_hparams *hp, const void *states);

#endif
