/* Evaluates a text with a session and adds up each layer's rows as they pass. */
#include "lowrank/collect.h"

#include "base/clock.h"
#include "lowkey_lab.h"

#include <math.h>
#include <string.h>

struct collector {
    struct lk_statistics *s;
    struct lk_session *session;
    const struct lk_hparams *hp;
    float *row;   /* [LK_EVAL_MAX][n_head_kv][d_head] as read from the cache */
    double *x;    /* [LK_EVAL_MAX][n_head][d_head] */
    double *root; /* [LK_EVAL_MAX][n_head_kv] roots of the weights of V's rows, if they have any */
    int32_t *tok; /* [n_ctx] the current window */
    size_t row_bytes, x_bytes, root_bytes, tok_bytes;
    lk_progress progress; /* may be NULL */
    void *user;
};

/* Read the exact rows of positions [from, n_tok) into g->row; returns their number. */
static int64_t read_new_rows(const struct collector *g, const struct lk_kv *kv, int64_t from) {
    int n_head = g->hp->n_head_kv, d = g->hp->d_head;
    if (from < kv->first) from = kv->first;
    for (int head = 0; head < n_head; head++)
        lk_kv_read_positions(kv, from, kv->n_tok, head, &lk_kernels_reference, g->row + head * d,
                             (size_t)n_head * d);
    return kv->n_tok - from;
}

/* Add n rows `from` [n][n_part][d_head] to moments whose groups are `heads` adjacent parts. root
 * [n][n_part]: a factor of each part, or NULL. */
static void add_rows(const struct collector *g, struct lk_moments *m, const float *from,
                     const double *root, int64_t n, int n_part, int heads) {
    int64_t stride = (int64_t)n_part * g->hp->d_head;
    for (int64_t i = 0; i < n * stride; i++)
        g->x[i] = root ? root[i / g->hp->d_head] * from[i] : from[i];
    for (int part = 0; part < n_part; part += heads)
        lk_moments_add(m, (int)((int64_t)part * g->hp->d_head / m->width),
                       g->x + (int64_t)part * g->hp->d_head, n, stride);
    lk_moments_count(m, (uint64_t)n);
}

/* Add queries q [n][n_head][d_head]: all query heads of a KV head are rows of its group. */
static void add_queries(const struct collector *g, struct lk_moments *m, const float *q,
                        int64_t n) {
    int n_head = g->hp->n_head, d = g->hp->d_head, share = n_head / g->hp->n_head_kv;
    for (int64_t i = 0; i < n * n_head * d; i++) g->x[i] = q[i];
    for (int head = 0; head < n_head; head++)
        lk_moments_add(m, head / share, g->x + (int64_t)head * d, n, (int64_t)n_head * d);
    lk_moments_count(m, (uint64_t)n * share);
}

/* Set g->root for n rows of K in g->row, from the queries' moments m. */
static void weigh_rows(const struct collector *g, const struct lk_moments *m, int64_t n) {
    int n_head = g->hp->n_head_kv, d = g->hp->d_head;
    for (int64_t i = 0; i < n * n_head; i++) {
        const float *k = g->row + i * d;
        const double *second = m->second + i % n_head * d * d; /* the lower triangle */
        double square = 0;
        for (int a = 0; a < d; a++) {
            double sum = 0;
            for (int b = 0; b < a; b++) sum += second[(size_t)a * d + b] * k[b];
            square += k[a] * (2 * sum + second[(size_t)a * d + a] * k[a]);
        }
        g->root[i] = sqrt(square > 0 ? square / (double)m->n : 0);
    }
}

/* lk_watch callback: add the newest rows and queries of one layer. */
static void add_layer_rows(void *user, int layer, const struct lk_attn *attn) {
    struct collector *g = user;
    struct lk_statistics *s = g->s;
    int n_head = g->hp->n_head_kv, d = g->hp->d_head;
    int64_t first = attn->k->n_tok - attn->n_tok,
            from = first < s->opts.n_skip ? s->opts.n_skip : first;
    if (from >= attn->k->n_tok) return;
    int64_t n = attn->k->n_tok - from;
    if (s->query) add_queries(g, &s->query[layer], attn->q + (from - first) * g->hp->n_head * d, n);
    n = read_new_rows(g, attn->k, from);
    if (s->opts.scored) weigh_rows(g, &s->query[layer], n);
    if (s->side[LK_BASIS_K])
        add_rows(g, &s->side[LK_BASIS_K][layer], g->row, NULL, n, n_head,
                 s->opts.group[LK_BASIS_K]);
    if (s->side[LK_BASIS_KPRE]) {
        const struct lk_rope *rope = lk_cache_rope(&g->session->cache->shape, layer);
        for (int head = 0; rope && head < n_head; head++)
            lk_rope_unrotate(rope, from, n, g->row + (size_t)head * d, (size_t)n_head * d);
        add_rows(g, &s->side[LK_BASIS_KPRE][layer], g->row, NULL, n, n_head,
                 s->opts.group[LK_BASIS_KPRE]);
    }
    if (!s->side[LK_BASIS_V]) return;
    n = read_new_rows(g, attn->v, from);
    add_rows(g, &s->side[LK_BASIS_V][layer], g->row, s->opts.scored ? g->root : NULL, n, n_head,
             s->opts.group[LK_BASIS_V]);
}

static lk_status collector_alloc(struct collector *g, lk_err *err) {
    struct lk_ledger *ledger = g->s->ledger;
    const struct lk_hparams *hp = g->hp;
    g->row_bytes = (size_t)LK_EVAL_MAX * hp->n_head_kv * hp->d_head * sizeof *g->row;
    g->x_bytes = (size_t)LK_EVAL_MAX * hp->n_head * hp->d_head * sizeof *g->x;
    g->root_bytes = (size_t)LK_EVAL_MAX * hp->n_head_kv * sizeof *g->root;
    g->tok_bytes = (size_t)g->s->opts.n_ctx * sizeof *g->tok;
    g->row = lk_alloc(ledger, LK_FOR_SCRATCH, g->row_bytes);
    g->x = lk_alloc(ledger, LK_FOR_SCRATCH, g->x_bytes);
    g->root = lk_alloc(ledger, LK_FOR_SCRATCH, g->root_bytes);
    g->tok = lk_alloc(ledger, LK_FOR_SCRATCH, g->tok_bytes);
    if (!g->row || !g->x || !g->root || !g->tok)
        return lk_fail(err, LK_E_NOMEM, "no memory to collect rows");
    return LK_OK;
}

/* Evaluate one window of n tokens, whose first token is replaced by the begin-of-sequence token. */
static lk_status eval_window(struct collector *g, size_t n, size_t n_tok, lk_err *err) {
    lk_session_clear(g->session);
    lk_compare_set_bos(g->session->model, g->tok);
    for (size_t at = 0; at < n; at += LK_EVAL_MAX) {
        size_t step = n - at < LK_EVAL_MAX ? n - at : LK_EVAL_MAX;
        lk_status status = lk_session_eval(g->session, g->tok + at, step, false, err);
        if (status != LK_OK) return status;
        if (g->progress && !g->progress(g->user, g->s->n_tok + at + step, n_tok))
            return lk_fail(err, LK_E_CANCELLED, "cancelled while evaluating the text");
    }
    return LK_OK;
}

static lk_status eval_text(struct collector *g, const int32_t *tok, size_t n_tok, const char *path,
                           lk_err *err) {
    const double save_seconds = 10;
    struct lk_statistics *s = g->s;
    size_t n_before = s->n_tok;
    double last_save = lk_now();
    while (s->n_tok < n_tok) {
        size_t left = n_tok - s->n_tok,
               n = left < (size_t)s->opts.n_ctx ? left : (size_t)s->opts.n_ctx;
        memcpy(g->tok, tok + s->n_tok, n * sizeof *tok);
        lk_status status = eval_window(g, n, n_tok, err);
        if (status != LK_OK) return status;
        s->n_tok += n;
        if (!path || s->n_tok == n_tok || lk_now() - last_save < save_seconds) continue;
        status = lk_statistics_save(s, path, err);
        if (status != LK_OK) return status;
        last_save = lk_now();
    }
    return path && n_tok > n_before ? lk_statistics_save(s, path, err) : LK_OK;
}

lk_status lk_statistics_collect(struct lk_statistics *s, struct lk_model *model, const int32_t *tok,
                                size_t n_tok, const char *path, lk_progress progress, void *user,
                                lk_err *err) {
    struct collector g = {.s = s, .hp = &model->net->hp, .progress = progress, .user = user};
    lk_recipe *recipe = NULL;
    lk_session_opts opts = {.n_ctx = s->opts.n_ctx};
    lk_status status = lk_recipe_parse(&recipe, "f16", err);
    if (status == LK_OK) status = lk_session_new(&g.session, model, recipe, &opts, err);
    if (status == LK_OK) status = collector_alloc(&g, err);
    if (status == LK_OK) {
        g.session->watch = (struct lk_watch){.on_attention = add_layer_rows, .user = &g};
        status = eval_text(&g, tok, n_tok, path, err);
    }
    lk_release(s->ledger, LK_FOR_SCRATCH, g.row, g.row_bytes);
    lk_release(s->ledger, LK_FOR_SCRATCH, g.x, g.x_bytes);
    lk_release(s->ledger, LK_FOR_SCRATCH, g.root, g.root_bytes);
    lk_release(s->ledger, LK_FOR_SCRATCH, g.tok, g.tok_bytes);
    lk_session_free(g.session);
    lk_recipe_free(recipe);
    return status;
}
