/* The states of a session's recurrent layers (hybrid models, kernels/recurrence.h). Unlike a cache
 * they have a constant size, and cannot be cut back: a session goes back to a checkpoint, or within
 * a pass of drafts (recurrent_drafts.h). */
#ifndef LK_ENGINE_RECURRENT_H
#define LK_ENGINE_RECURRENT_H

#include "base/ledger.h"
#include "cache/cache_save.h"
#include "engine/model.h"

/* Bytes of the states that are held here; 0: the model has none. In a saved session the states of
 * all layers follow each other. */
size_t lk_recurrent_bytes(const struct lk_hparams *hp);
size_t lk_recurrent_saved_bytes(const struct lk_hparams *hp);

/* Bytes of the state of one layer. */
size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp);

/* The state of layer `layer`, which is recurrent and held, in states [lk_recurrent_bytes]. */
float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer);

/* The weights of layer `layer` that its recurrence needs. */
struct lk_recurrence_weights lk_recurrent_weights(const struct lk_net *net, int layer);

/* Save the states of all layers; restore those that are held here. All processes call these
 * functions. Without recurrent layers they do nothing. */
void lk_recurrent_write(const struct lk_model *model, const float *states,
                        struct lk_saving *saving);
void lk_recurrent_restore(const struct lk_net *net, float *states, struct lk_restoring *from);

/* Are saved states, which may be unaligned, finite numbers? */
bool lk_recurrent_check(const struct lk_hparams *hp, const void *states);

#endif
