/* Operations: the functions of the interface that change a model or a session, or that need what
 * other processes hold.
 *
 *     one process   lk_session_eval -> lk_op_run -> op.run
 *     a cluster     lk_session_eval -> lk_op_run -> lk_peers.run: send, op.run, agree
 *
 * A cluster (lib/cluster) gives the model an lk_peers: what the engine asks of the other processes.
 * Without one, the functions below do nothing and succeed. A step that can fail, by lack of memory,
 * on one process alone is agreed on before the next exchange. Operations within an operation send
 * nothing, because all processes come to them by themselves. */
#ifndef LK_ENGINE_OPERATION_H
#define LK_ENGINE_OPERATION_H

#include "base/err.h"
#include "lowkey_cluster.h"
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
    LK_OP_REPEAT,
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

/* The other processes that compute with a model. */
struct lk_peers {
    const lk_ranks *exchange; /* for rows on their way to and from files */
    bool lost;                /* one of them is lost: no exchange is possible any more */
    lk_status (*run)(struct lk_peers *, struct lk_op *, lk_err *);
    bool (*is_in_op)(struct lk_peers *); /* is this thread in an operation? */
    lk_status (*agree)(struct lk_peers *, lk_status, lk_err *);
    bool (*report)(struct lk_peers *, lk_progress, void *user, uint64_t done, uint64_t total);
    bool (*broadcast)(struct lk_peers *, void *data, size_t n);
    uint64_t (*sum)(struct lk_peers *, uint64_t n, bool *ok);
    void (*abort)(struct lk_peers *, const char *why); /* end all: this one cannot go on */
    /* A pass: of entries that failed nowhere, of partial attention, and of failures in nodes. */
    lk_status (*agree_on_entries)(struct lk_peers *, struct lk_pass *, lk_batch_entry *, size_t n,
                                  lk_status, lk_err *);
    bool (*gather)(struct lk_peers *, int n_stage, const void *own, size_t n, void *all);
    void (*agree_on_nodes)(struct lk_peers *, struct lk_seq *, size_t n);
    /* Hidden states from the stage before and to the next one, and logits from the last one. */
    bool (*receive)(struct lk_peers *, int n_stage, float *x, size_t n);
    bool (*send)(struct lk_peers *, int n_stage, const float *x, size_t n);
    bool (*logits)(struct lk_peers *, int n_stage, const float *from, float *to, size_t n);
};

static inline lk_status lk_op_run(struct lk_peers *peers, struct lk_op *op, lk_err *err) {
    return peers ? peers->run(peers, op, err) : op->run(op, err);
}

/* The result of a step on all processes: that of the first one that failed, with its message, or
 * LK_OK. err: of this one's status. */
static inline lk_status lk_agree(struct lk_peers *peers, lk_status status, lk_err *err) {
    return peers ? peers->agree(peers, status, err) : status;
}

/* Is it true on all processes? */
static inline bool lk_agree_all(struct lk_peers *peers, bool ok) {
    return peers ? !peers->agree(peers, ok ? LK_OK : LK_E_NOMEM, NULL) : ok;
}

/* Call the progress callback of an operation; NULL: none. Returns what it has returned on the
 * process that leads, on all of them, or false if one is lost. */
static inline bool lk_report(struct lk_peers *peers, lk_progress progress, void *user,
                             uint64_t done, uint64_t total) {
    if (!progress) return true;
    return peers ? peers->report(peers, progress, user, done, total) : progress(user, done, total);
}

static inline lk_status lk_fail_lost(lk_err *err) {
    return lk_fail(err, LK_E_IO, "a rank of the cluster was lost; start the run again");
}

/* LK_E_ARG with peers outside of an operation: they would not come along. */
static inline lk_status lk_check_alone(struct lk_peers *peers, lk_err *err) {
    if (!peers || peers->is_in_op(peers)) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "this works in one process only; open the model without a cluster");
}

#endif
