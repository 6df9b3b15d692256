/* The states of a session whose recipe says `absorb`: what its policy lets go is summed up in them, and
 * every query attends to them besides the rows that are left (absorb/less.h). */
#ifndef LK_ENGINE_ABSORB_H
#define LK_ENGINE_ABSORB_H

#include "absorb/less.h"
#include "attention/attention.h"
#include "sidecar/sidecar.h"

struct lk_absorb {
    struct lk_ledger *ledger;
    int n_layer;
    struct lk_less_shape shape;
    struct lk_less_maps *maps; /* [n_layer], of the sidecar or with `random` */
    float *random; /* [n_feature][d_head] where the recipe says `absorb performer`, or NULL */
    float *state;  /* [n_layer][n_head_kv] of lk_less_state_floats() */
    float *more;   /* [cap][n_head][d_head + 2] for lk_attn, of the layer at hand */
    int cap;       /* tokens */
};

/* States for a model with n_layer layers, n_head query heads and `shape`'s other heads, empty, by the networks
 * of `sidecar`, borrowed as `kern` is as long as they are. LK_E_ARG where it has none, LK_E_FORMAT where those
 * of a layer are missing or do not fit, LK_E_NOMEM. *out is owned. */
lk_status lk_absorb_new(struct lk_absorb **out, const struct lk_sidecar *sidecar, int n_head,
                        const struct lk_kernels *kernels, struct lk_ledger *ledger, lk_err *err);

/* The same by random features (absorb/performer.h), as many as LESS's networks have in the paper, of attention with
 * `scale`. Of the shape the numbers of heads and d_head are read. LK_E_NOMEM. */
lk_status lk_absorb_new_random(struct lk_absorb **out, const struct lk_less_shape *heads,
                               float scale, int n_layer, struct lk_ledger *ledger, lk_err *err);
void lk_absorb_free(struct lk_absorb *absorb);

/* Bytes that such states take, without making them; errors as lk_absorb_new where the sidecar has no networks
 * or others. */
lk_status lk_absorb_estimate(const struct lk_sidecar *sidecar, int n_head, uint64_t *bytes,
                             lk_err *err);
uint64_t lk_absorb_estimate_random(const struct lk_less_shape *heads, int n_layer);

/* Forget everything; make `to` hold what `from` does (of the same model and sidecar). */
void lk_absorb_clear(struct lk_absorb *absorb);
void lk_absorb_copy(struct lk_absorb *to, const struct lk_absorb *from);

/* Room for calls of up to n_tok tokens. */
lk_status lk_absorb_reserve(struct lk_absorb *absorb, int n_tok, lk_err *err);

/* A row of a KV head leaves a layer; k, v [d_head]. Different heads may leave from different threads. As
 * struct lk_evict_hook wants it, the absorb being `user`. */
void lk_absorb_row(void *user, int layer, int head, const float *k, const float *v);

/* What queries q [n_tok][n_head][d_head] get from a layer's states, into absorb->more; thread ith of nth
 * does its share. There is room. */
void lk_absorb_read(struct lk_absorb *absorb, int layer, const float *q, int n_tok, int ith,
                    int nth);

/* Bytes of the states, and of the networks, which lie in the sidecar. */
size_t lk_absorb_state_bytes(const struct lk_absorb *absorb);
size_t lk_absorb_map_bytes(const struct lk_absorb *absorb);

#endif
