/* The nodes of recurrent layers in the graph of a pass (pass.h). */
#ifndef LK_ENGINE_RECURRENT_NODES_H
#define LK_ENGINE_RECURRENT_NODES_H

#include "engine/session_state.h"

/* The states that a sequence goes on from. */
static inline float *lk_states_before(const struct lk_seq *seq) {
    return seq->drafts ? seq->session->drafts.before : seq->session->recurrent;
}

/* Nodes of a recurrent layer: every sequence goes on from its session's state. The result has the
 * shape [n_tok][n_v_head * d_state]. */
struct ggml_tensor *lk_recurrence_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                        const struct lk_qkv *pre);

#endif
