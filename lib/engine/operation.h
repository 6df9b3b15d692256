/* Operations: the functions of the interface that change a model or a session, or that need what
 * other processes hold.
 *
 *     one process   lk_session_eval -> lk_op_run -> op.run
 *     a cluster     lk_session_eval -> lk_op_run -> lk_peers.run: send, op.run, agree
 *
 * A cluster (lib/cluster) gives the model an lk_peers: what the engine asks of the other processes.
 * The engine calls the functions below. Without peers they do nothing and succeed.
 *
 * A step that can fail on one process alone, by lack of memory, is a preparation. All processes
 * agree on its result before the next exchange, and computing needs no more memory. Operations
 * within an operation send nothing, because all processes come to them by themselves. */
#ifndef LK_ENGINE_OPERATION_H
#define LK_ENGINE_OPERATION_H

#include "base/err.h"
#include "cache/cache_save.h"
#include "engine/model.h"
#include "lowkey_serve.h"

struct lk_pass;
struct lk_seq;

enum lk_op_kind {
    LK_OP_END,
    LK_OP_MODEL_OPEN,
    LK_OP_MODEL_FREE,
    LK_OP_SESSION_NEW,
    LK_OP_SESSION_FREE,
    LK_OP_SYNC,
    LK_OP_EVAL,
    LK_OP_TRUNCATE,
    LK_OP_CLEAR,
    LK_OP_RESERVE,
    LK_OP_COPY,
    LK_OP_SAVE,
    LK_OP_LOAD,
    LK_OP_STATS,
    LK_OP_LEVEL,
    LK_OP_PREFILL,
    LK_OP_BATCH_EVAL,
    LK_OP_EXTRA, /* of the program: on a session, another one and n */
    LK_OP_GO_ON, /* after a progress callback */
    LK_N_OP
};

/* A call: the arguments that its kind has, all borrowed. */
struct lk_op {
    enum lk_op_kind kind;
    lk_status (*run)(struct lk_op *op, lk_err *err); /* in this process */
    struct lk_model *model;
    struct lk_session *session, *other;
    struct lk_session *const *sessions; /* [n_session] */
    size_t n_session;
    lk_batch *batch;
    lk_batch_entry *entry; /* [n_entry] */
    size_t n_entry;
    const int32_t *tok; /* [n]; or n alone: of tokens, or the number of a level */
    size_t n;
    const size_t *mark; /* [n_mark] */
    size_t n_mark;
    bool flag; /* eval: logits of all tokens; new session: every process holds all rows */
    const char *path;
    lk_sampler *sampler;
    const lk_recipe *recipe;
    const lk_session_opts *opts;
    lk_session **created;
    size_t *n_reused;
    uint64_t *sum; /* [n_sum] become sums over all processes, except within another operation */
    size_t n_sum;
    int32_t part_of; /* part: what this process had of sum[0]; -1: the most that one had */
    uint64_t part;
};

/* The other processes that compute with a model. n: bytes, or floats of x. */
struct lk_peers {
    struct lk_save_link *link; /* for rows on their way to and from files */
    bool lost;                 /* one of them is lost: no exchange is possible any more */
    lk_status (*run)(struct lk_peers *, struct lk_op *, lk_err *);
    bool (*is_in_op)(struct lk_peers *); /* is this thread in an operation? */
    lk_status (*agree)(struct lk_peers *, lk_status, lk_err *);
    bool (*report)(struct lk_peers *, lk_progress, void *user, uint64_t done, uint64_t total);
    uint64_t (*sum)(struct lk_peers *, uint64_t n, bool *ok);
    void (*abort)(struct lk_peers *, const char *why);
    lk_status (*agree_on_entries)(struct lk_peers *, struct lk_pass *, lk_batch_entry *, size_t n,
                                  lk_status, lk_err *);
    void (*agree_on_nodes)(struct lk_peers *, struct lk_seq *, size_t n);
    bool (*gather)(struct lk_peers *, const struct lk_model *, const void *own, size_t n,
                   void *all);
    bool (*receive)(struct lk_peers *, const struct lk_model *, float *x, size_t n);
    bool (*send)(struct lk_peers *, const struct lk_model *, const float *x, size_t n);
    bool (*logits)(struct lk_peers *, const struct lk_model *, float *x, size_t n);
};

static inline lk_status lk_op_run(const struct lk_model *model, struct lk_op *op, lk_err *err) {
    return model->peers ? model->peers->run(model->peers, op, err) : op->run(op, err);
}

/* The result of a step on all processes: that of the first one that failed, with its message, or
 * LK_OK. err: of this one's status. */
static inline lk_status lk_agree(const struct lk_model *model, lk_status status, lk_err *err) {
    lk_status all = model->peers ? model->peers->agree(model->peers, status, err) : status;
    return all ? all : status;
}

/* Is it true on all processes? */
static inline bool lk_agree_all(const struct lk_model *model, bool ok) {
    return !lk_agree(model, ok ? LK_OK : LK_E_NOMEM, NULL);
}

/* Call the progress callback of an operation; NULL: none. Returns what it has returned on the
 * process that leads, on all of them, or false if one is lost. */
static inline bool lk_report(const struct lk_model *model, lk_progress progress, void *user,
                             uint64_t done, uint64_t total) {
    if (!progress) return true;
    return model->peers ? model->peers->report(model->peers, progress, user, done, total)
                        : progress(user, done, total);
}

static inline bool lk_is_lost(const struct lk_model *model) {
    return model->peers && model->peers->lost;
}
static inline lk_status lk_fail_lost(lk_err *err) {
    return lk_fail(err, LK_E_IO, "a rank of the cluster was lost; start the run again");
}

/* LK_E_ARG outside of an operation if there are peers: they would not come along. */
static inline lk_status lk_check_alone(const struct lk_model *model, lk_err *err) {
    if (!model->peers || model->peers->is_in_op(model->peers)) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "this works in one process only; open the model without a cluster");
}

/* End all processes: this one cannot go on, and the others wait for it. */
static inline void lk_abort(const struct lk_model *model, const char *why) {
    if (model->peers) model->peers->abort(model->peers, why);
}

/* ---- files: process 0 has them (cache/cache_save.h) ---- */

static inline struct lk_save_link *lk_save_link_of(const struct lk_model *model) {
    return model->peers ? model->peers->link : NULL;
}
static inline bool lk_has_files(const struct lk_model *model) {
    return !model->peers || model->peers->link->own == 0;
}

/* n bytes of process 0 to all. False if one is lost. */
static inline bool lk_broadcast(const struct lk_model *model, void *data, size_t n) {
    struct lk_save_link *link = lk_save_link_of(model);
    return !link || link->broadcast(link, 0, data, n);
}

/* The sum of n over all processes. *ok becomes false if one is lost. */
static inline uint64_t lk_sum(const struct lk_model *model, uint64_t n, bool *ok) {
    return model->peers ? model->peers->sum(model->peers, n, ok) : n;
}

/* ---- a pass; false if a process is lost ---- */

/* Build the pass of the entries that failed nowhere. status: of lk_batch_build here. */
static inline lk_status lk_agree_on_entries(struct lk_pass *pass, const struct lk_model *model,
                                            lk_batch_entry *entry, size_t n, lk_status status,
                                            lk_err *err) {
    struct lk_peers *peers = model->peers;
    return peers ? peers->agree_on_entries(peers, pass, entry, n, status, err) : status;
}

/* Mark sequences as failed if their nodes failed elsewhere. */
static inline void lk_agree_on_nodes(const struct lk_model *model, struct lk_seq *seq, size_t n) {
    if (model->peers) model->peers->agree_on_nodes(model->peers, seq, n);
}

/* The hook of a graph: the n bytes `own` of each process that divides the layer's rows, in their
 * order, into all. Only in operations, because others do not come to this node. */
static inline bool lk_gather(const struct lk_model *model, const void *own, size_t n, void *all) {
    return !lk_check_alone(model, NULL) && model->peers->gather(model->peers, model, own, n, all);
}

/* Exchanges between the stages that divide the layers: receive the hidden states x [n] of the first
 * layer held here, send those of the last one, and collect logits x [n] in process 0. */
static inline bool lk_receive_hidden(const struct lk_model *model, float *x, size_t n) {
    return !model->peers || model->peers->receive(model->peers, model, x, n);
}
static inline bool lk_send_hidden(const struct lk_model *model, const float *x, size_t n) {
    return !model->peers || model->peers->send(model->peers, model, x, n);
}
static inline bool lk_bring_logits(const struct lk_model *model, float *x, size_t n) {
    return !model->peers || model->peers->logits(model->peers, model, x, n);
}

#endif
