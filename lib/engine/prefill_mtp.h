/* The layer that predicts further tokens (model/mtp.h), in an exact prefill. */
#ifndef LK_ENGINE_PREFILL_MTP_H
#define LK_ENGINE_PREFILL_MTP_H

#include "engine/prefill_layer.h"

/* Compute its rows, after all other layers, and the hidden states that it needs for the next token
 * of the session and of the planned checkpoints. */
lk_status lk_prefill_mtp(struct lk_prefill *p, lk_err *err);

#endif
