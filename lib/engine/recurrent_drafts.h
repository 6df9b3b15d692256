/* Going back within a pass of drafts, for recurrent layers.
 *
 * A state cannot be cut back. So a pass of drafts leaves the states before it as they are, writes
 * those after it to other memory, and keeps the inputs of the recurrence. If only the first n
 * tokens remain, the recurrence alone is repeated for them:
 *
 *     before --- the pass: all tokens ---> session.recurrent
 *     before --- repeated: n tokens -----> session.recurrent
 *
 * It is computed by the same functions from the same numbers, so dropped drafts change no bit. The
 * inputs of a layer, f32:
 *
 *   | projections [n_cap][channels] | decay [n_cap][n_v_head] | beta [n_cap][n_v_head] |
 *
 * without decay and beta if the layers are convolutions. */
#ifndef LK_ENGINE_RECURRENT_DRAFTS_H
#define LK_ENGINE_RECURRENT_DRAFTS_H

#include "engine/graph.h"

struct lk_session;
struct lk_repeated_layer;

/* Zeroed: no pass of drafts yet. */
struct lk_recurrent_drafts {
    float *before;                   /* states, lk_recurrent_bytes */
    float *input;                    /* of these layers */
    int n_cap;                       /* tokens whose inputs fit */
    int n_keep;                      /* tokens that are repeated */
    struct lk_repeated_layer *layer; /* [recurrent layers that are held] */
    struct lk_graph graph;           /* repeats up to n_cap tokens */
};

/* What a recurrent layer gets from the tokens of a pass. */
struct lk_recurrent_input {
    float *mixed, *decay, *beta; /* the last two are NULL if the layers are convolutions */
};

/* The inputs of layer `layer`, which is recurrent. */
struct lk_recurrent_input lk_recurrent_input(const struct lk_recurrent_drafts *drafts,
                                             const struct lk_hparams *hp, int layer);

/* At most so many bytes are needed for passes of n_tok tokens; 0: the model has no recurrent
 * layers. */
uint64_t lk_recurrent_drafts_bytes(const struct lk_hparams *hp, int n_tok);

/* Memory for a pass of n_tok tokens of a session with recurrent layers. The last pass can still be
 * repeated. LK_E_NOMEM. */
lk_status lk_recurrent_drafts_reserve(struct lk_session *session, int n_tok, lk_err *err);

/* Let a pass of drafts begin: the session's states become those before it. The pass writes
 * session->recurrent and the inputs. */
void lk_recurrent_drafts_begin(struct lk_session *session);

/* Make the states those after the first n_tok > 0 tokens of the last pass. LK_E_NOMEM: the states
 * are undefined. */
lk_status lk_recurrent_drafts_repeat(struct lk_session *session, int n_tok, lk_err *err);

void lk_recurrent_drafts_free(struct lk_session *session);

#endif
