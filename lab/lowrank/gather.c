/* Reading a text with a session and adding up each layer's rows as they pass. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "lowrank/statistics.h"
#include "measure/compare.h"

#include <string.h>
#include <time.h>

struct gather {
    struct lk_statistics *s;
    struct lk_session *session;
    const struct lk_hparams *hp;
    float *row;   /* [LK_EVAL_MAX][n_head_kv][d_head] as read from the cache */
    double *x;    /* [LK_EVAL_MAX][n_head][d_head] */
    int32_t *tok; /* [n_ctx] a window */
    size_t row_bytes, x_bytes, tok_bytes;
};

/* Exact rows of positions [from, n_tok) of a stream into row; returns how many. */
static int64_t read_rows(const struct gather *g, const struct lk_kv *kv, int64_t from) {
    int n_head = g->hp->n_head_kv, d = g->hp->d_head;
    int64_t at = kv->first, done = 0;
    for (int level = 0; level < kv->n_level; at += kv->fill[level].rows, level++) {
        const struct lk_level_rule *rule = &kv->rule[level];
        int64_t end = at + kv->fill[level].rows, n;
        for (int64_t pos = at > from ? at : from; pos < end; pos += n, done += n) {
            int row;
            const char *block = lk_cache_locate(kv, level, pos - at, &row, &n);
            for (int head = 0; head < n_head; head++)
                lk_codec_decode(&rule->codec, kv->side, d, rule->block_rows, NULL,
                                block + head * kv->level[level].head_bytes, row, (int)n,
                                g->row + (done * n_head + head) * d, (size_t)n_head * d);
        }
    }
    return done;
}

/* n rows from `from` [n][n_part][d_head] into moments whose groups are `heads` neighbouring parts. */
static void add_rows(const struct gather *g, struct lk_moments *m, const float *from, int64_t n,
                     int n_part, int heads) {
    int64_t stride = (int64_t)n_part * g->hp->d_head;
    for (int64_t i = 0; i < n * stride; i++) g->x[i] = from[i];
    for (int part = 0; part < n_part; part += heads)
        lk_moments_add(m, (int)((int64_t)part * g->hp->d_head / m->width),
                       g->x + (int64_t)part * g->hp->d_head, n, stride);
    lk_moments_count(m, (uint64_t)n);
}

/* All query heads of a KV head are rows of its group. */
static void add_queries(const struct gather *g, struct lk_moments *m, const float *q, int64_t n) {
    int n_head = g->hp->n_head, d = g->hp->d_head, share = n_head / g->hp->n_head_kv;
    for (int64_t i = 0; i < n * n_head * d; i++) g->x[i] = q[i];
    for (int head = 0; head < n_head; head++)
        lk_moments_add(m, head / share, g->x + (int64_t)head * d, n, (int64_t)n_head * d);
    lk_moments_count(m, (uint64_t)n * share);
}

static void see(void *user, int layer, const struct lk_attn *attn) {
    struct gather *g = user;
    struct lk_statistics *s = g->s;
    int n_head = g->hp->n_head_kv, d = g->hp->d_head;
    int64_t first = attn->k->n_tok - attn->n_tok,
            from = first < s->opts.skip ? s->opts.skip : first;
    if (from >= attn->k->n_tok) return;
    int64_t n = read_rows(g, attn->k, from);
    if (s->side[LK_BASIS_K])
        add_rows(g, &s->side[LK_BASIS_K][layer], g->row, n, n_head, s->opts.group[LK_BASIS_K]);
    if (s->side[LK_BASIS_KPRE]) {
        const struct lk_rope *rope = g->session->model->rope;
        if (rope) rope += g->hp->n_swa > 0 && g->hp->is_swa[layer];
        for (int head = 0; rope && head < n_head; head++)
            lk_rope_undo(rope, from, n, g->row + (size_t)head * d, (size_t)n_head * d);
        add_rows(g, &s->side[LK_BASIS_KPRE][layer], g->row, n, n_head,
                 s->opts.group[LK_BASIS_KPRE]);
    }
    if (s->query) add_queries(g, &s->query[layer], attn->q + (from - first) * g->hp->n_head * d, n);
    if (!s->side[LK_BASIS_V]) return;
    n = read_rows(g, attn->v, from);
    add_rows(g, &s->side[LK_BASIS_V][layer], g->row, n, n_head, s->opts.group[LK_BASIS_V]);
}

static lk_status take(struct gather *g, lk_err *err) {
    struct lk_ledger *ledger = g->s->ledger;
    const struct lk_hparams *hp = g->hp;
    g->row_bytes = (size_t)LK_EVAL_MAX * hp->n_head_kv * hp->d_head * sizeof *g->row;
    g->x_bytes = (size_t)LK_EVAL_MAX * hp->n_head * hp->d_head * sizeof *g->x;
    g->tok_bytes = (size_t)g->s->opts.n_ctx * sizeof *g->tok;
    g->row = lk_alloc(ledger, LK_FOR_SCRATCH, g->row_bytes);
    g->x = lk_alloc(ledger, LK_FOR_SCRATCH, g->x_bytes);
    g->tok = lk_alloc(ledger, LK_FOR_SCRATCH, g->tok_bytes);
    if (!g->row || !g->x || !g->tok) return lk_fail(err, LK_E_NOMEM, "no memory to gather rows");
    return LK_OK;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One window: n tokens, the first of which the model's begin token replaces. */
static lk_status read_window(struct gather *g, size_t n, size_t n_tok, lk_progress progress,
                             void *user, lk_err *err) {
    lk_session_clear(g->session);
    lk_compare_begin(g->session->model, g->tok);
    for (size_t at = 0; at < n; at += LK_EVAL_MAX) {
        size_t step = n - at < LK_EVAL_MAX ? n - at : LK_EVAL_MAX;
        lk_status status = lk_session_eval(g->session, g->tok + at, step, false, err);
        if (status != LK_OK) return status;
        if (progress && !progress(user, g->s->n_tok + at + step, n_tok))
            return lk_fail(err, LK_E_CANCELLED, "cancelled while reading the text");
    }
    return LK_OK;
}

static lk_status read_all(struct gather *g, const int32_t *tok, size_t n_tok, const char *path,
                          lk_progress progress, void *user, lk_err *err) {
    const double save_every = 10;
    struct lk_statistics *s = g->s;
    size_t begun = s->n_tok;
    double saved = now();
    while (s->n_tok < n_tok) {
        size_t left = n_tok - s->n_tok,
               n = left < (size_t)s->opts.n_ctx ? left : (size_t)s->opts.n_ctx;
        memcpy(g->tok, tok + s->n_tok, n * sizeof *tok);
        lk_status status = read_window(g, n, n_tok, progress, user, err);
        if (status != LK_OK) return status;
        s->n_tok += n;
        if (!path || s->n_tok == n_tok || now() - saved < save_every) continue;
        status = lk_statistics_save(s, path, err);
        if (status != LK_OK) return status;
        saved = now();
    }
    return path && n_tok > begun ? lk_statistics_save(s, path, err) : LK_OK;
}

lk_status lk_statistics_read(struct lk_statistics *s, struct lk_model *model, const int32_t *tok,
                             size_t n_tok, const char *path, lk_progress progress, void *user,
                             lk_err *err) {
    struct gather g = {.s = s, .hp = &model->net->hp};
    lk_recipe *recipe = NULL;
    lk_session_opts opts = {.n_ctx = s->opts.n_ctx};
    lk_status status = lk_recipe_parse(&recipe, "f16", err);
    if (status == LK_OK) status = lk_session_new(&g.session, model, recipe, &opts, err);
    if (status == LK_OK) status = take(&g, err);
    if (status == LK_OK) {
        g.session->watch = (struct lk_watch){see, &g};
        status = read_all(&g, tok, n_tok, path, progress, user, err);
    }
    lk_release(s->ledger, LK_FOR_SCRATCH, g.row, g.row_bytes);
    lk_release(s->ledger, LK_FOR_SCRATCH, g.x, g.x_bytes);
    lk_release(s->ledger, LK_FOR_SCRATCH, g.tok, g.tok_bytes);
    lk_session_free(g.session);
    lk_recipe_free(recipe);
    return status;
}
