/* A layer of an exact prefill (prefill.h). */
#ifndef LK_ENGINE_PREFILL_LAYER_H
#define LK_ENGINE_PREFILL_LAYER_H

#include "engine/prefill_state.h"

/* Make p->job and p->exact those of a layer, or of the layer whose rows it attends to, and find
 * memory for its rows. A planned checkpoint without memory, in any process, is dropped. The result
 * is that of all processes. */
lk_status lk_prefill_prepare_layer(struct lk_prefill *p, int layer, lk_err *err);

/* Make p->exact what it is after the layers before p->layer: of a prefill that was loaded. */
void lk_prefill_choose_layers(struct lk_prefill *p);

/* Tokens [at, at + n) through `layer`: prepare finds all memory, and compute replaces p->x, or
 * computes p->graph.logits. Neither does anything in a process without the layer. compute: LK_E_IO
 * if a process is lost; LK_E_NOMEM if ggml cannot start, which ends all. */
lk_status lk_prefill_prepare_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err);
lk_status lk_prefill_compute_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err);

/* After lk_prefill_prepare_layer: make the layer's rows in p->s those of `from`, an f16 cache of
 * p->n_tok tokens, with the channel statistics of `calibrated`. LK_E_NOMEM. */
lk_status lk_prefill_recode_layer(struct lk_prefill *p, const struct lk_cache *from,
                                  const struct lk_cache *calibrated, lk_err *err);

#endif
