/* The messages of operations: a table says how each kind is packed, and how the peers that receive
 * it call the same function. */
#include "cluster/messages.h"

#include "base/buf.h"
#include "cache/held.h"
#include "engine/batch.h"
#include "engine/prefill.h"
#include "engine/session.h"
#include "lowkey_serve.h"

#include <string.h>

enum { MAX_PAYLOAD = 1 << 30 }; /* bytes */

/* Payloads begin with these, if at all. */
struct model_args { /* then three strings: path, kernels, sidecar */
    int32_t n_threads, weights, n_ctx, n_stage;
    uint8_t no_mmap, no_repack;
};
struct session_args { /* then the recipe */
    int32_t n_ctx, n_checkpoint;
    uint64_t max_bytes, checkpoint_bytes;
    uint8_t chunked_prefill, whole, reports; /* reports: it has a progress callback */
};
struct entry_args { /* of each entry, then the tokens of all */
    int32_t session;
    uint32_t n_tok, all;
};

/* An operation that was received. */
struct received {
    struct lk_cluster *cluster;
    struct lk_message op;
    const char *payload; /* [op.n_payload] */
    lk_model *model;     /* that op.model names, or NULL; the same for sessions */
    lk_session *session, *other;
};

/* ---- packing ---- */

static void pack_text(struct lk_buf *out, const char *text) {
    if (!text) text = "";
    lk_buf_append(out, text, strlen(text) + 1);
}

static void pack_model(const struct lk_op *op, struct lk_buf *out) {
    const struct lk_open_op *open = (const struct lk_open_op *)op;
    struct model_args args;
    memset(&args, 0, sizeof args); /* with the padding */
    args.n_threads = open->opts->n_threads;
    args.weights = open->opts->weights;
    args.n_ctx = open->opts->n_ctx;
    args.n_stage = open->cluster->n_stage > 1 ? open->cluster->n_stage : 1;
    args.no_mmap = open->opts->no_mmap;
    args.no_repack = open->opts->no_repack;
    lk_buf_append(out, (const char *)&args, sizeof args);
    pack_text(out, op->path);
    pack_text(out, open->opts->kernels);
    pack_text(out, open->opts->sidecar);
}

static void pack_session(const struct lk_op *op, struct lk_buf *out) {
    struct session_args args;
    memset(&args, 0, sizeof args);
    args.n_ctx = op->opts->n_ctx;
    args.n_checkpoint = op->opts->n_checkpoint;
    args.max_bytes = op->opts->max_bytes;
    args.checkpoint_bytes = op->opts->checkpoint_bytes;
    args.chunked_prefill = op->opts->chunked_prefill;
    args.whole = op->flag;
    args.reports = op->opts->progress != NULL;
    lk_buf_append(out, (const char *)&args, sizeof args);
    pack_text(out, lk_recipe_text(op->recipe));
}

/* Tokens, then marks. */
static void pack_tokens(const struct lk_op *op, struct lk_buf *out) {
    lk_buf_append(out, (const char *)op->tok, op->n * sizeof *op->tok);
    lk_buf_append(out, (const char *)op->mark, op->n_mark * sizeof *op->mark);
}

/* Tokens, then the numbers of the sessions. */
static void pack_prefill(const struct lk_op *op, struct lk_buf *out) {
    pack_tokens(op, out);
    for (size_t i = 0; i < op->n_session; i++)
        lk_buf_append(out, (const char *)&op->sessions[i]->number, sizeof(int32_t));
}

static void pack_batch(const struct lk_op *op, struct lk_buf *out) {
    for (size_t i = 0; i < op->n_entry; i++) {
        const lk_batch_entry *entry = &op->entry[i];
        const struct entry_args args = {entry->session->number, (uint32_t)entry->n_tok, entry->all};
        lk_buf_append(out, (const char *)&args, sizeof args);
    }
    for (size_t i = 0; i < op->n_entry; i++)
        lk_buf_append(out, (const char *)op->entry[i].tok,
                      op->entry[i].n_tok * sizeof *op->entry[i].tok);
}

/* ---- reading ---- */

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
    struct model_args op;
    size_t at = sizeof op;
    if (r->op.n_payload < sizeof op) return false;
    memcpy(&op, r->payload, sizeof op);
    const char *path = next_string(r, &at), *kernels = path ? next_string(r, &at) : NULL,
               *sidecar = kernels ? next_string(r, &at) : NULL;
    if (!sidecar || lk_cluster_set_stages(r->cluster, op.n_stage, NULL)) return false;
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

/* The progress callback of sessions: repeats what peer 0 does in its own one, and returns the
 * same. */
static bool follow_callback(void *user, uint64_t done, uint64_t total) {
    struct lk_cluster *c = user;
    bool go_on = false;
    lk_err err = {0};
    (void)done, (void)total;
    if (!follow_until(c, LK_OP_GO_ON, &go_on, &err)) return go_on;
    lk_cluster_abort(c, err.msg);
    return false;
}

/* A follower's session owns its recipe. */
static bool open_session(struct received *r) {
    struct session_args op;
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
    if (status) { /* peer 0 waits for the result of lk_session_new */
        lk_cluster_agree(&r->cluster->peers, status, &err);
        return true;
    }
    status = lk_session_new_held(&r->session, r->model, recipe, &opts, op.whole, NULL);
    if (status) lk_recipe_free(recipe);
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
    return ok || r->cluster->peers.lost;
}

/* The batch for all of peer 0's batches of the model: they differ only in memory. NULL without. */
static lk_batch *batch_of(struct received *r) {
    struct lk_cluster *c = r->cluster;
    if (c->batch && c->batch->pass.model == r->model) return c->batch;
    lk_batch_free(c->batch);
    c->batch = NULL;
    return !lk_batch_new(&c->batch, r->model, NULL) ? c->batch : NULL;
}

static bool eval_batch(struct received *r) {
    const struct entry_args *op = elements(r, r->op.n, sizeof *op);
    uint64_t n = r->op.n, left = op ? (r->op.n_payload - n * sizeof *op) / sizeof(int32_t) : 0;
    if (!r->model || !op || n == 0) return false;
    lk_batch *batch = batch_of(r);
    const int32_t *tok = (const int32_t *)(op + n);
    lk_batch_entry *entry = lk_alloc(&r->cluster->ledger, LK_FOR_OTHER, n * sizeof *entry);
    bool ok = entry && batch, valid = true;
    if (!ok) lk_cluster_abort(r->cluster, "out of memory for a message of rank 0");
    for (uint64_t i = 0; ok && valid && i < n; i++) {
        lk_session *s = lk_handles_get(&r->cluster->sessions, op[i].session);
        valid = s && op[i].n_tok <= left;
        entry[i] =
            (lk_batch_entry){.session = s, .tok = tok, .n_tok = op[i].n_tok, .all = op[i].all};
        tok += valid ? op[i].n_tok : 0;
        left -= valid ? op[i].n_tok : 0;
    }
    if (ok && valid) lk_batch_eval(batch, entry, n, NULL);
    lk_release(&r->cluster->ledger, LK_FOR_OTHER, entry, n * sizeof *entry);
    return valid;
}

/* Operations on one session without a payload. Peer 0 alone has the file of a saved session. */
static bool truncate_session(struct received *r) {
    if (r->session) lk_session_truncate(r->session, r->op.n, NULL);
    return r->session != NULL;
}
static bool clear_session(struct received *r) {
    if (r->session) lk_session_clear(r->session);
    return r->session != NULL;
}
static bool reserve_session(struct received *r) {
    if (r->session) lk_session_reserve(r->session, r->op.n, NULL);
    return r->session != NULL;
}
static bool save_session(struct received *r) {
    if (r->session) lk_session_save(r->session, NULL, NULL, NULL);
    return r->session != NULL;
}
static bool load_session(struct received *r) {
    if (r->session) lk_session_load(r->session, NULL, NULL, NULL);
    return r->session != NULL;
}
static bool count_session(struct received *r) {
    if (r->session) lk_session_get_stats(r->session);
    return r->session != NULL;
}
static bool count_level(struct received *r) {
    lk_level_stats level;
    if (r->session) lk_session_get_level(r->session, r->op.n, &level);
    return r->session != NULL;
}
static bool copy_session(struct received *r) {
    if (r->session && r->other) lk_session_copy(r->session, r->other, NULL);
    return r->session && r->other;
}
static bool run_extra(struct received *r) {
    struct lk_op op = {.kind = LK_OP_EXTRA,
                       .run = r->cluster->extra,
                       .session = r->session,
                       .other = r->other,
                       .n = r->op.n};
    if (!r->session || !r->other) return false;
    if (op.run)
        lk_op_run(r->session->model, &op, NULL);
    else
        lk_cluster_abort(r->cluster, "rank 0 runs an operation that this program does not have");
    return true;
}

static const struct {
    void (*pack)(const struct lk_op *op, struct lk_buf *out); /* NULL: no payload */
    bool (*repeat)(struct received *r); /* false: the message is damaged; NULL: never repeated */
} kinds[LK_N_OP] = {
    [LK_OP_MODEL_OPEN] = {pack_model, open_model},
    [LK_OP_MODEL_FREE] = {NULL, free_model},
    [LK_OP_SESSION_NEW] = {pack_session, open_session},
    [LK_OP_SESSION_FREE] = {NULL, free_session},
    [LK_OP_SYNC] = {pack_tokens, sync_session},
    [LK_OP_EVAL] = {pack_tokens, eval_session},
    [LK_OP_TRUNCATE] = {NULL, truncate_session},
    [LK_OP_CLEAR] = {NULL, clear_session},
    [LK_OP_RESERVE] = {NULL, reserve_session},
    [LK_OP_COPY] = {NULL, copy_session},
    [LK_OP_SAVE] = {NULL, save_session},
    [LK_OP_LOAD] = {NULL, load_session},
    [LK_OP_STATS] = {NULL, count_session},
    [LK_OP_LEVEL] = {NULL, count_level},
    [LK_OP_PREFILL] = {pack_prefill, prefill},
    [LK_OP_BATCH_EVAL] = {pack_batch, eval_batch},
    [LK_OP_EXTRA] = {NULL, run_extra},
};

lk_status lk_message_send(struct lk_cluster *c, const struct lk_op *op, lk_err *err) {
    struct lk_buf payload = {0};
    struct lk_model *model = op->session ? op->session->model : op->model;
    struct lk_message m = {.magic = LK_OP_MAGIC,
                           .kind = op->kind,
                           .model = model ? model->number : 0,
                           .session = op->session ? op->session->number : 0,
                           .other = op->other ? op->other->number : 0,
                           .flag = op->flag,
                           .n = op->n_entry ? op->n_entry : op->n};
    if (kinds[op->kind].pack) kinds[op->kind].pack(op, &payload);
    lk_status status = LK_OK;
    m.n_payload = payload.len;
    if (payload.failed)
        status = lk_fail(err, LK_E_NOMEM, "out of memory for a message to the other ranks");
    bool follows = payload.len > sizeof m.payload;
    if (!follows && payload.len > 0) memcpy(m.payload, payload.at, payload.len);
    if (!status && (!lk_cluster_broadcast(c, &m, sizeof m) ||
                    (follows && !lk_cluster_broadcast(c, payload.at, payload.len))))
        status = lk_fail_lost(err);
    lk_buf_free(&payload);
    return status;
}

/* ---- messages ---- */

/* Repeat the operation `op`, whose message was received. */
static lk_status follow_one(struct lk_cluster *c, const struct lk_message *op, lk_err *err) {
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
            return lk_fail_lost(err);
        }
        r.payload = payload;
    }
    r.model = lk_handles_get(&c->models, r.op.model);
    r.session = lk_handles_get(&c->sessions, r.op.session);
    r.other = lk_handles_get(&c->sessions, r.op.other);
    bool ok = kinds[op->kind].repeat && kinds[op->kind].repeat(&r);
    lk_release(&c->ledger, LK_FOR_OTHER, payload, n);
    if (c->peers.lost) return lk_fail_lost(err);
    return ok ? LK_OK : lk_fail(err, LK_E_FORMAT, "%s", damaged);
}

/* Receive operations and repeat them, until one of the kind `end` comes. *flag: of that one. */
static lk_status follow_until(struct lk_cluster *c, enum lk_op_kind end, bool *flag, lk_err *err) {
    lk_status status = LK_OK;
    while (!status) {
        struct lk_message op;
        if (!lk_cluster_broadcast(c, &op, sizeof op)) return lk_fail_lost(err);
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
    if (c->transport.own == 0) return lk_fail(err, LK_E_ARG, "rank 0 leads; the others follow");
    lk_status status = follow_until(c, LK_OP_END, &flag, &why);
    if (status) lk_cluster_abort(c, why.msg);
    for (int32_t i = 0; i < c->sessions.n; i++) /* what peer 0 has not freed */
        if (c->sessions.at[i]) close_session(c->sessions.at[i]);
    for (int32_t i = 0; i < c->models.n; i++)
        if (c->models.at[i]) close_model(c, c->models.at[i]);
    if (!status) return LK_OK;
    return lk_fail(err, status, "%s", why.msg);
}
