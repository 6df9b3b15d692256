/* The sums that a session keeps of evicted rows if its recipe says `absorb`. Every query attends to
 * them in addition to the rows that are left (absorb/less.h). */
#ifndef LK_ENGINE_ABSORB_H
#define LK_ENGINE_ABSORB_H

#include "absorb/less.h"
#include "attention/attention.h"
#include "base/buf.h"
#include "sidecar/sidecar.h"

struct lk_absorb {
    struct lk_ledger *ledger;
    int n_layer;
    struct lk_less_shape shape;
    uint64_t sidecar;          /* fingerprint of the networks' sidecar */
    struct lk_less_maps *maps; /* [n_layer] the sidecar's networks */
    float *state;              /* [n_layer][n_head_kv] of lk_less_state_floats() */
    float *partial; /* [cap][n_head][d_head + 2] of the current layer, in lk_attn's layout */
    int cap;        /* tokens */
    struct lk_absorb_device *there; /* the sums on a device (absorb_device.h); NULL: in RAM only */
};

/* Empty states for `absorb less`, with the networks of `sidecar`, for a model with n_head query
 * heads. `sidecar` and `kernels` are borrowed until lk_absorb_free. *out is owned: lk_absorb_free.
 * LK_E_ARG if the sidecar has no networks, LK_E_FORMAT if a layer's networks are missing or have
 * the wrong shape, LK_E_NOMEM. */
lk_status lk_absorb_new(struct lk_absorb **out, const struct lk_sidecar *sidecar, int n_head,
                        const struct lk_kernels *kernels, struct lk_ledger *ledger, lk_err *err);

void lk_absorb_free(struct lk_absorb *absorb);

/* Bytes of the states that lk_absorb_new would allocate, and on a device (absorb_device.h): of
 * states and rows that wait, and of the networks, which sessions share. Errors as lk_absorb_new. */
struct lk_absorb_bytes {
    uint64_t states, there, networks_there;
};
lk_status lk_absorb_estimate(const struct lk_sidecar *sidecar, int n_head,
                             struct lk_absorb_bytes *bytes, lk_err *err);

/* Empty the states. */
void lk_absorb_clear(struct lk_absorb *absorb);

/* Copy the states. Both are of the same model and sidecar. */
void lk_absorb_copy(struct lk_absorb *to, struct lk_absorb *from);

/* All states, of lk_absorb_state_bytes(): to write to a buffer, and to read from one. */
void lk_absorb_get(struct lk_absorb *absorb, void *to);
void lk_absorb_set(struct lk_absorb *absorb, const void *from);

/* Saving and loading. Saved states are f32 [n_layer][n_head_kv][n_feature][d_head + 1], of
 * lk_absorb_saved_bytes() bytes (absorb/less.h draws one head's). Check them before restoring them:
 * numbers must be finite, and sums of features not negative. Data may be unaligned. */
size_t lk_absorb_saved_bytes(const struct lk_absorb *absorb);
bool lk_absorb_write(struct lk_absorb *absorb, const struct lk_writer *writer);
bool lk_absorb_check(const struct lk_absorb *absorb, const void *states);
void lk_absorb_restore(struct lk_absorb *absorb, const void *states);

/* Room for lk_absorb_attend with up to n_tok tokens. LK_E_NOMEM. */
lk_status lk_absorb_reserve(struct lk_absorb *absorb, int n_tok, lk_err *err);

/* Add an evicted row, k and v [d_head], to the state of its KV head. Different heads may be added
 * from different threads. It has the signature of struct lk_evict_hook; `user` is the struct
 * lk_absorb. */
void lk_absorb_row(void *user, int layer, int head, const float *k, const float *v);

/* For inspection. Features [n_feature] of a key of KV head `head`. Features phi [n_feature] of a
 * query of query head `head`, and the state's part of its attention (lk_less_read). */
void lk_absorb_key_features(const struct lk_absorb *absorb, int layer, int head, const float *k,
                            float *psi);
void lk_absorb_query(const struct lk_absorb *absorb, int layer, int head, const float *q,
                     float *phi, float *mean, float *log_sum);

/* Attention of queries q [n_tok][n_head][d_head] to a layer's states, into absorb->partial. Thread
 * ith of nth does its share. Memory was reserved. */
void lk_absorb_attend(struct lk_absorb *absorb, int layer, const float *q, int n_tok, int ith,
                      int nth);

/* Bytes of the states, and of the networks, which belong to the sidecar. */
size_t lk_absorb_state_bytes(const struct lk_absorb *absorb);
size_t lk_absorb_map_bytes(const struct lk_absorb *absorb);

#endif
