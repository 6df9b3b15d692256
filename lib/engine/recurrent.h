/* The states of a session's recurrent layers (hybrid models, kernels/recurrence.h). Unlike a cache
 * they have a constant size, and cannot be cut back: a session goes back to a checkpoint, or within
 * a pass of drafts. A state is in RAM, session->recurrent, unless the model's device computes the
 * layer's recurrence (recurrent_device.h). */
#ifndef LK_ENGINE_RECURRENT_H
#define LK_ENGINE_RECURRENT_H

#include "base/ledger.h"
#include "cache/cache_save.h"
#include "engine/graph.h"
#include "engine/model.h"
#include "engine/recurrent_device.h"

struct lk_layer_job;
struct lk_repeated_layer;
struct lk_session;

/* Bytes of the states that are held here; 0: the model has none. In a saved session the states of
 * all layers follow each other. */
size_t lk_recurrent_bytes(const struct lk_hparams *hp);
size_t lk_recurrent_saved_bytes(const struct lk_hparams *hp);

/* Bytes of session->recurrent: of the layers that are not on a device. */
size_t lk_recurrent_ram_bytes(const struct lk_net *net);

/* Bytes of the state of one layer. */
size_t lk_recurrent_layer_bytes(const struct lk_hparams *hp);

/* The state of layer `layer`, which is recurrent and held, in states [lk_recurrent_bytes], or in
 * session->recurrent if it is there. */
float *lk_recurrent_state(const struct lk_hparams *hp, float *states, int layer);

/* Memory of a new session's states, which are zero. LK_E_NOMEM, LK_E_IO. */
lk_status lk_recurrent_new(struct lk_session *session, lk_err *err);
void lk_recurrent_free(struct lk_session *session);

/* Make the states zero. */
void lk_recurrent_clear(struct lk_session *session);

/* Copy the states of all layers that are held here, or of one, to states [lk_recurrent_bytes], or
 * back, or to another session. Without recurrent layers nothing happens. LK_E_IO: of the device;
 * the target is undefined. */
lk_status lk_recurrent_get(const struct lk_session *session, float *states, lk_err *err);
lk_status lk_recurrent_get_layer(const struct lk_session *session, int layer, float *states,
                                 lk_err *err);
lk_status lk_recurrent_set(struct lk_session *session, const float *states, lk_err *err);
lk_status lk_recurrent_copy(struct lk_session *session, const struct lk_session *from, lk_err *err);

/* Save the states of all layers; restore those that are held here. All processes call these
 * functions. Without recurrent layers they do nothing. */
void lk_recurrent_write(const struct lk_model *model, const float *states,
                        struct lk_saving *saving);
void lk_recurrent_restore(const struct lk_net *net, float *states, struct lk_restoring *from);

/* The same for a session's own states. LK_E_NOMEM, LK_E_IO. */
lk_status lk_recurrent_save(const struct lk_session *session, struct lk_saving *saving,
                            lk_err *err);
lk_status lk_recurrent_load(struct lk_session *session, struct lk_restoring *from, lk_err *err);

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
    float *before;                   /* states, lk_recurrent_ram_bytes */
    float *input;                    /* of these layers */
    int n_cap;                       /* tokens whose inputs fit */
    int n_keep;                      /* tokens that are repeated */
    struct lk_repeated_layer *layer; /* [recurrent layers in RAM] */
    struct lk_graph graph;           /* repeats up to n_cap tokens */
};

/* At most so many bytes of RAM are needed for passes of n_tok tokens; 0: the model has no recurrent
 * layers. */
uint64_t lk_recurrent_drafts_bytes(const struct lk_net *net, int n_tok);

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

/* Nodes on the CPU of a recurrent layer in the graph of a pass (pass.h): every sequence goes on
 * from its session's state. The result has the shape [n_tok][n_v_head * d_state]. */
struct ggml_tensor *lk_recurrence_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                        const struct lk_qkv *pre);

#endif
