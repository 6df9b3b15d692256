/* Sums of evicted rows (absorb.h) on the device that has a session's rows. Rows that a step evicts
 * are added to the sums there, and queries attend to them there.
 *
 * The sums are also in RAM, and one of the two copies may be older: it is brought up to date when
 * it is needed. Prompts, checkpoints, saved sessions, and hooks of programs work on the copy in
 * RAM; steps work on the other one. The networks are there once for all sessions of a model. */
#ifndef LK_ENGINE_ABSORB_DEVICE_H
#define LK_ENGINE_ABSORB_DEVICE_H

#include "engine/absorb.h"
#include "engine/model.h"

struct lk_device_less;

struct lk_absorb_device {
    struct lk_device *device;
    struct lk_ledger *ledger; /* counts all but the networks */
    struct lk_model *model;
    struct lk_cache *cache;
    struct lk_less_copy *networks;
    uint64_t at; /* [bytes] one after another: states, rows of K, of V, their features */
    size_t bytes, state_bytes;
    struct lk_device_less *command; /* [n_layer]; n_row: rows that wait, or 0 */
    struct lk_evict_room room;
    _Atomic bool here, there; /* which copies of the sums are up to date; at least one */
};

/* Networks of a sidecar in the memory of a device. */
struct lk_less_copy {
    struct lk_less_copy *next;
    struct lk_device *device;
    uint64_t sidecar; /* fingerprint */
    uint64_t at;      /* [bytes] */
    size_t bytes;
    int n_user; /* sessions */
};

/* Set what sums of a model with such networks take of a device. */
void lk_absorb_estimate_there(const struct lk_less_shape *shape, int n_layer,
                              struct lk_absorb_bytes *bytes);

/* Keep the sums of a session of `model` on the device that has the rows of `cache`, and let its
 * evicted rows go there. Nothing happens with a device that `uses_host`. LK_E_NOMEM; statuses of
 * the device. */
lk_status lk_absorb_use_device(struct lk_absorb *absorb, struct lk_model *model,
                               struct lk_cache *cache, lk_err *err);
void lk_absorb_leave_device(struct lk_absorb *absorb);

/* Bring the sums in RAM up to date; `changes`: those on the device become old. Faults are noted in
 * the cache (lk_arena_note). */
void lk_absorb_fetch(struct lk_absorb *absorb, bool changes);

/* Attention to the sums of a layer on the device, as lk_absorb_attend: one command for each of n
 * sequences whose networks are of one sidecar. q and partial are addresses there. */
struct lk_absorb_call {
    struct lk_absorb *absorb;
    int layer, n_tok;
    uint64_t q, partial;
};
enum { LK_ABSORB_CALLS = 64 }; /* n, at most */
lk_status lk_absorb_attend_there(const struct lk_absorb_call *call, size_t n);

#endif
