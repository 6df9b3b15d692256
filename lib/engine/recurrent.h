/* The states of a session's recurrent layers (hybrid models, kernels/recurrence.h). Unlike a cache
 * they have a constant size, and cannot be cut back: a session goes back to a checkpoint, or within
 * a pass of drafts. */
#ifndef LK_ENGINE_RECURRENT_H
#define LK_ENGINE_RECURRENT_H

#include "base/ledger.h"
#include "cache/cache_save.h"
#include "engine/graph.h"
#include "engine/model.h"

struct lk_layer_job;
struct lk_repeated_layer;
struct lk_session;

/* Bytes of the states that are held here; 0: the model has none. In a saved session the states of
 * all layers follow each other. */
size_t lk_recurrent_bytes(const struct lk_hparams *hp);
size_t lk_recurrent_saved_bytes(const struct lk_hparams *hp);

/* Bytes of the state of one layer. */
size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp);

/* The state of layer `layer`, which is recurrent and held, in states [lk_recurrent_bytes]. */
float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer);

/* Save the states of all layers; restore those that are held here. All processes call these
 * functions. Without recurrent layers they do nothing. */
void lk_recurrent_write(const struct lk_model *model, const float *states,
                        struct lk_saving *saving);
void lk_recurrent_restore(const struct lk_net *net, float *states, struct lk_restoring *from);

/* Are saved states, which may be unaligned, finite numbers? */
bool lk_recurrent_check(const struct lk_hparams *hp, const void *states);

/* ---- drafts ----
 *
 * Going back within a pass of drafts, for recurrent layers.
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

/* Zeroed: no pass of drafts yet. */
struct lk_recurrent_drafts {
    float *before;                   /* states, lk_recurrent_bytes */
    float *input;                    /* of these layers */
    int n_cap;                       /* tokens whose inputs fit */
    int n_keep;                      /* tokens that are repeated */
    struct lk_repeated_layer *layer; /* [recurrent layers that are held] */
    struct lk_graph graph;           /* repeats up to n_cap tokens */
};

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

/* Nodes of a recurrent layer in the graph of a pass (pass.h): every sequence goes on from its
 * session's state. The result has the shape [n_tok][n_v_head * d_state]. */
struct ggml_tensor *lk_recurrence_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                        const struct lk_qkv *pre);

#endif
