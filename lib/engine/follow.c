/* What ranks other than 0 do: repeat the operations that rank 0 leads (cluster.h). */
#include "engine/batch.h"
#include "engine/cluster.h"
#include "engine/prefill.h"
#include "engine/repeat_rows.h"
#include "engine/session.h"
#include "engine/session_save.h"

#include <string.h>

enum { MAX_PAYLOAD = 1 << 30 }; /* bytes */

/* An operation that was received. */
struct received {
    struct lk_cluster *cluster;
    struct lk_op op;
    const char *payload; /* [op.n_payload] */
    lk_model *model;     /* that op.model names, or NULL; the same for sessions */
    lk_session *session, *other;
};

static const char damaged[] = "a message of rank 0 is damaged";

/* The payload's first n elements of `size` bytes; NULL if it is shorter. */
static const void *elements(const struct received *r, uint64_t n, size_t size) {
    return n <= r->op.n_payload / size ? r->payload : NULL;
}

/* The zero-terminated string at *at, which moves after it; NULL if there is none. */
static const char *next_string(const struct received *r, size_t *at) {
    const char *text = r->payload + *at;
    const char *end = memchr(text, 0, r->op.n_payload - *at);
    if (end) *at = (size_t)(end - r->payload) + 1;
    return end ? text : NULL;
}

/* ---- operations; each returns false if its message is damaged ---- */

static bool open_model(struct received *r) {
    struct lk_op_model op;
    size_t at = sizeof op;
    if (r->op.n_payload < sizeof op) return false;
    memcpy(&op, r->payload, sizeof op);
    const char *path = next_string(r, &at), *kernels = path ? next_string(r, &at) : NULL,
               *sidecar = kernels ? next_string(r, &at) : NULL;
    if (!sidecar || lk_cluster_set_stages(r->cluster, op.n_stage, NULL) != LK_OK) return false;
    const lk_model_opts opts = {.n_threads = op.n_threads,
                                .weights = (lk_weights)op.weights,
                                .n_ctx = op.n_ctx,
                                .no_mmap = op.no_mmap,
                                .no_repack = op.no_repack,
                                .kernels = *kernels ? kernels : NULL,
                                .sidecar = *sidecar ? sidecar : NULL};
    lk_model_open_cluster(&r->model, path, &opts, r->cluster, NULL);
    return true;
}

static lk_status follow_until(struct lk_cluster *c, enum lk_op_kind end, bool *flag, lk_err *err);

/* The progress callback of sessions: repeats what rank 0 does in its own one, and returns the
 * same. */
static bool follow_callback(void *user, uint64_t done, uint64_t total) {
    struct lk_cluster *c = user;
    bool go_on = false;
    lk_err err = {0};
    (void)done, (void)total;
    if (follow_until(c, LK_OP_GO_ON, &go_on, &err) == LK_OK) return go_on;
    lk_cluster_abort(c, err.msg);
    return false;
}

/* A follower's session owns its recipe. */
static bool open_session(struct received *r) {
    struct lk_op_session op;
    size_t at = sizeof op;
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    if (!r->model || r->op.n_payload < sizeof op) return false;
    memcpy(&op, r->payload, sizeof op);
    const char *text = next_string(r, &at);
    if (!text) return false;
    lk_status status = lk_recipe_parse(&recipe, text, &err);
    const lk_session_opts opts = {.n_ctx = op.n_ctx,
                                  .n_checkpoint = op.n_checkpoint,
                                  .max_bytes = op.max_bytes,
                                  .checkpoint_bytes = op.checkpoint_bytes,
                                  .chunked_prefill = op.chunked_prefill,
                                  .progress = op.reports ? follow_callback : NULL,
                                  .user = r->cluster};
    if (status != LK_OK) { /* rank 0 waits for the result of lk_session_new */
        lk_cluster_agree(r->cluster, status, &err);
        return true;
    }
    status = lk_session_new_on_ranks(&r->session, r->model, recipe, &opts, op.whole, NULL);
    if (status != LK_OK) lk_recipe_free(recipe);
    return true;
}

/* A session and its recipe, which is open_session's. */
static void close_session(lk_session *s) {
    lk_recipe *recipe = (lk_recipe *)s->recipe;
    lk_session_free(s);
    lk_recipe_free(recipe);
}

static bool free_session(struct received *r) {
    if (r->session) close_session(r->session);
    return r->session != NULL;
}

static void close_model(struct lk_cluster *c, lk_model *model) {
    if (c->batch && c->batch->pass.model == model) {
        lk_batch_free(c->batch);
        c->batch = NULL;
    }
    lk_model_free(model);
}

static bool free_model(struct received *r) {
    struct lk_cluster *c = r->cluster;
    bool used = false;
    for (int32_t i = 0; i < c->sessions.n; i++) {
        const lk_session *s = c->sessions.at[i];
        used = used || (s && s->model == r->model);
    }
    if (!r->model || used) return false;
    close_model(c, r->model);
    return true;
}

static bool sync_session(struct received *r) {
    uint64_t n_tok = r->op.n, size = n_tok * sizeof(int32_t);
    const int32_t *tok = elements(r, n_tok, sizeof *tok);
    if (!r->session || !tok || (r->op.n_payload - size) % sizeof(size_t)) return false;
    size_t n_mark = (r->op.n_payload - size) / sizeof(size_t);
    size_t *mark = lk_alloc(&r->cluster->ledger, LK_FOR_OTHER, (n_mark + 1) * sizeof *mark);
    if (!mark) {
        lk_cluster_abort(r->cluster, "out of memory for a message of rank 0");
        return true;
    }
    memcpy(mark, r->payload + size, n_mark * sizeof *mark); /* it may be unaligned */
    lk_session_sync_marked(r->session, tok, n_tok, mark, n_mark, NULL, NULL);
    lk_release(&r->cluster->ledger, LK_FOR_OTHER, mark, (n_mark + 1) * sizeof *mark);
    return true;
}

static bool eval_session(struct received *r) {
    const int32_t *tok = elements(r, r->op.n, sizeof *tok);
    if (!r->session || !tok) return false;
    lk_session_eval(r->session, tok, r->op.n, r->op.flag, NULL);
    return true;
}

static bool prefill(struct received *r) {
    uint64_t n_tok = r->op.n, n = (r->op.n_payload - n_tok * sizeof(int32_t)) / sizeof(int32_t);
    const int32_t *tok = elements(r, n_tok, sizeof *tok);
    if (!tok || n == 0) return false;
    struct lk_session **session = lk_alloc(&r->cluster->ledger, LK_FOR_OTHER, n * sizeof *session);
    bool ok = session != NULL;
    if (!session) lk_cluster_abort(r->cluster, "out of memory for a message of rank 0");
    for (uint64_t i = 0; ok && i < n; i++) {
        session[i] = lk_handles_get(&r->cluster->sessions, tok[n_tok + i]);
        ok = session[i] && session[i]->model == r->model;
    }
    if (ok) lk_prefill_all(session, n, tok, n_tok, NULL);
    lk_release(&r->cluster->ledger, LK_FOR_OTHER, session, n * sizeof *session);
    return ok || r->cluster->lost;
}

/* The batch for all of rank 0's batches of the model: they differ only in memory. NULL without. */
static lk_batch *batch_of(struct received *r) {
    struct lk_cluster *c = r->cluster;
    if (c->batch && c->batch->pass.model == r->model) return c->batch;
    lk_batch_free(c->batch);
    c->batch = NULL;
    return lk_batch_new(&c->batch, r->model, NULL) == LK_OK ? c->batch : NULL;
}

static bool eval_batch(struct received *r) {
    const struct lk_op_item *op = elements(r, r->op.n, sizeof *op);
    uint64_t n = r->op.n, left = op ? (r->op.n_payload - n * sizeof *op) / sizeof(int32_t) : 0;
    if (!r->model || !op || n == 0) return false;
    lk_batch *batch = batch_of(r);
    const int32_t *tok = (const int32_t *)(op + n);
    lk_batch_item *item = lk_alloc(&r->cluster->ledger, LK_FOR_OTHER, n * sizeof *item);
    bool ok = item && batch, valid = true;
    if (!ok) lk_cluster_abort(r->cluster, "out of memory for a message of rank 0");
    for (uint64_t i = 0; ok && valid && i < n; i++) {
        lk_session *s = lk_handles_get(&r->cluster->sessions, op[i].session);
        valid = s && op[i].n_tok <= left;
        item[i] = (lk_batch_item){.session = s, .tok = tok, .n_tok = op[i].n_tok, .all = op[i].all};
        tok += valid ? op[i].n_tok : 0;
        left -= valid ? op[i].n_tok : 0;
    }
    if (ok && valid) lk_batch_eval(batch, item, n, NULL);
    lk_release(&r->cluster->ledger, LK_FOR_OTHER, item, n * sizeof *item);
    return valid;
}

/* Operations on one session without a payload. */
static bool change_session(struct received *r) {
    lk_level_stats level;
    if (!r->session) return false;
    switch (r->op.kind) {
    case LK_OP_TRUNCATE: lk_session_truncate(r->session, r->op.n, NULL); return true;
    case LK_OP_CLEAR: lk_session_clear(r->session); return true;
    case LK_OP_RESERVE: lk_session_reserve(r->session, r->op.n, NULL); return true;
    case LK_OP_SAVE: lk_session_send_rows(r->session); return true;
    case LK_OP_LOAD: lk_session_receive_saved(r->session); return true;
    case LK_OP_STATS: lk_session_get_stats(r->session); return true;
    case LK_OP_LEVEL: lk_session_get_level(r->session, r->op.n, &level); return true;
    case LK_OP_COPY:
        if (r->other) lk_session_copy(r->session, r->other, NULL);
        return r->other != NULL;
    case LK_OP_REPEAT:
        if (r->other) lk_repeat_rows(r->session, r->other, r->op.n, NULL);
        return r->other != NULL;
    default: return false;
    }
}

static bool repeat_operation(struct received *r) {
    switch (r->op.kind) {
    case LK_OP_MODEL_OPEN: return open_model(r);
    case LK_OP_MODEL_FREE: return free_model(r);
    case LK_OP_SESSION_NEW: return open_session(r);
    case LK_OP_SESSION_FREE: return free_session(r);
    case LK_OP_SYNC: return sync_session(r);
    case LK_OP_EVAL: return eval_session(r);
    case LK_OP_PREFILL: return prefill(r);
    case LK_OP_BATCH_EVAL: return eval_batch(r);
    default: return change_session(r);
    }
}

/* ---- messages ---- */

/* Repeat the operation `op`, whose message was received. */
static lk_status follow_one(struct lk_cluster *c, const struct lk_op *op, lk_err *err) {
    struct received r = {.cluster = c, .op = *op};
    char *payload = NULL;
    size_t n = r.op.n_payload;
    r.payload = r.op.payload;
    if (n > sizeof r.op.payload) {
        payload = lk_alloc(&c->ledger, LK_FOR_OTHER, n);
        if (!payload)
            return lk_fail(err, LK_E_NOMEM, "out of memory for a message of %zu bytes", n);
        if (!lk_cluster_broadcast(c, payload, n)) {
            lk_release(&c->ledger, LK_FOR_OTHER, payload, n);
            return lk_cluster_fail_lost(err);
        }
        r.payload = payload;
    }
    r.model = lk_handles_get(&c->models, r.op.model);
    r.session = lk_handles_get(&c->sessions, r.op.session);
    r.other = lk_handles_get(&c->sessions, r.op.other);
    bool ok = repeat_operation(&r);
    lk_release(&c->ledger, LK_FOR_OTHER, payload, n);
    if (c->lost) return lk_cluster_fail_lost(err);
    return ok ? LK_OK : lk_fail(err, LK_E_FORMAT, "%s", damaged);
}

/* Receive operations and repeat them, until one of the kind `end` comes. *flag: of that one. */
static lk_status follow_until(struct lk_cluster *c, enum lk_op_kind end, bool *flag, lk_err *err) {
    lk_status status = LK_OK;
    while (status == LK_OK) {
        struct lk_op op;
        if (!lk_cluster_broadcast(c, &op, sizeof op)) return lk_cluster_fail_lost(err);
        if (op.magic != LK_OP_MAGIC || op.kind >= LK_N_OP || op.n_payload > MAX_PAYLOAD)
            return lk_fail(err, LK_E_FORMAT, "%s", damaged);
        *flag = op.flag;
        if (op.kind == end) return LK_OK;
        status = follow_one(c, &op, err);
    }
    return status;
}

lk_status lk_cluster_follow(lk_cluster *c, lk_err *err) {
    bool flag;
    lk_err why = {0};
    if (c->ranks.rank == 0) return lk_fail(err, LK_E_ARG, "rank 0 leads; the others follow");
    lk_status status = follow_until(c, LK_OP_END, &flag, &why);
    if (status != LK_OK) lk_cluster_abort(c, why.msg);
    for (int32_t i = 0; i < c->sessions.n; i++) /* what rank 0 has not freed */
        if (c->sessions.at[i]) close_session(c->sessions.at[i]);
    for (int32_t i = 0; i < c->models.n; i++)
        if (c->models.at[i]) close_model(c, c->models.at[i]);
    if (status == LK_OK) return LK_OK;
    return lk_fail(err, status, "%s", why.msg);
}
