/* The states of recurrent layers that the model's device computes (model/recurrence_nodes.h): in
 * the memory of the device, for each session. They count in the ledger of the session's device
 * memory. Checkpoints and saved sessions have them in RAM, in the form of kernels/recurrence.h.
 *
 * Nodes name this memory, so a graph belongs to the sessions that it was built for (pass.h).
 *
 * A pass of drafts keeps copies of the states before it and of the recurrence's inputs. If tokens
 * are dropped, the recurrence of the others is computed again from these copies. */
#ifndef LK_ENGINE_RECURRENT_DEVICE_H
#define LK_ENGINE_RECURRENT_DEVICE_H

#include "engine/graph.h"

struct lk_layer_job;
struct lk_session;

/* Two tensors on the device. */
struct lk_recurrent_memory {
    struct ggml_context *ctx;
    char *headers; /* of the tensors */
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *t[2];
    size_t size;     /* bytes there, as entered in the ledger */
    uint64_t number; /* no other memory of the model's sessions has had it; 0: there is none */
};

/* Zeroed if the device computes no recurrent layers. */
struct lk_recurrent_device {
    struct lk_recurrent_memory now;    /* t: states [layers][floats of a state], and a zero */
    struct lk_recurrent_memory before; /* the pass of drafts. t: states, inputs [layers][floats] */
    float *staging;                    /* a layer's state on its way */
    bool is_old;           /* the tokens were dropped: states are zero, whatever the memory holds */
    struct lk_graph graph; /* repeats the recurrence of n_repeat tokens of the last pass */
    int n_repeat;
};

/* Bytes of a session's states there, at most. */
uint64_t lk_recurrent_there_bytes(const struct lk_net *net);

/* Memory of a new session. LK_E_NOMEM, LK_E_IO. */
lk_status lk_recurrent_there_new(struct lk_session *session, lk_err *err);
void lk_recurrent_there_free(struct lk_session *session);

/* Before a pass: if the states are zero, so is the memory afterwards. LK_E_IO. */
lk_status lk_recurrent_there_prepare(struct lk_session *session, lk_err *err);

/* The state of a layer there, to or from RAM; of all layers, to another session. LK_E_IO. */
lk_status lk_recurrent_there_get(const struct lk_session *session, int layer, float *state,
                                 lk_err *err);
lk_status lk_recurrent_there_set(struct lk_session *session, int layer, const float *state,
                                 lk_err *err);
lk_status lk_recurrent_there_copy(struct lk_session *session, const struct lk_session *from,
                                  lk_err *err);

/* Memory for passes of drafts. The last pass can still be repeated. LK_E_NOMEM, LK_E_IO. */
lk_status lk_recurrent_there_reserve(struct lk_session *session, lk_err *err);

/* Make the states those after the first n_tok > 0 tokens of the last pass. LK_E_NOMEM, LK_E_IO: the
 * states are undefined. */
lk_status lk_recurrent_there_repeat(struct lk_session *session, int n_tok, lk_err *err);

/* What a graph of the session's pass names: equal numbers, the same memory. */
uint64_t lk_recurrent_there_number(const struct lk_session *session, bool drafts);

/* Nodes of a layer for rows [row, row + n_tok) of `pre`, which are the session's newest tokens:
 * output [n_tok][n_v_head * d_value]. */
struct ggml_tensor *lk_recurrent_there_nodes(struct lk_graph *graph, struct lk_session *session,
                                             int layer, const struct lk_qkv *pre, int row,
                                             int n_tok, bool drafts);

/* The same for all sequences of a pass. */
struct ggml_tensor *lk_recurrence_there_pass(struct lk_graph *graph, struct lk_layer_job *job,
                                             const struct lk_qkv *pre);

#endif
