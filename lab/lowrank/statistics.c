/* Statistics of a text: memory, checks, the file, and collecting. */
#include "lowrank/statistics.h"

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/hash.h"
#include "lowkey_lab.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Empty moments for every layer. */
static lk_status moments_by_layer_new(struct lk_statistics *s, struct lk_moments **out, int n_group,
                                      int width, lk_err *err) {
    *out = lk_alloc(s->ledger, LK_FOR_SCRATCH, s->n_layer * sizeof **out);
    lk_status status = *out ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for statistics");
    for (int layer = 0; !status && layer < s->n_layer; layer++)
        status = lk_moments_new(&(*out)[layer], n_group, width, s->ledger, err);
    return status;
}

static void moments_by_layer_free(struct lk_statistics *s, struct lk_moments *side) {
    for (int layer = 0; side && layer < s->n_layer; layer++)
        lk_moments_free(&side[layer], s->ledger);
    lk_release(s->ledger, LK_FOR_SCRATCH, side, s->n_layer * sizeof *side);
}

lk_status lk_statistics_check(const struct lk_hparams *hp, const struct lk_statistics_opts *opts,
                              size_t n_tok, lk_err *err) {
    for (int side = 0; side < LK_N_BASIS; side++) {
        int group = opts->group[side];
        if (group < 0 || (group > 0 && hp->n_head_kv % group != 0))
            return lk_fail(err, LK_E_ARG,
                           "groups of %d heads do not divide the model's %d KV heads", group,
                           hp->n_head_kv);
    }
    if (opts->group[LK_BASIS_KPRE] && hp->rope_mode < 0)
        return lk_fail(err, LK_E_ARG,
                       "this model does not rotate its keys: it has no keys before RoPE");
    if (opts->n_ctx < 2 || opts->n_ctx > hp->n_ctx_train)
        return lk_fail(err, LK_E_ARG,
                       "windows must have between 2 and %d tokens, the trained length, not %d",
                       hp->n_ctx_train, opts->n_ctx);
    if (opts->n_skip < 0 || opts->n_skip >= opts->n_ctx)
        return lk_fail(err, LK_E_ARG, "cannot skip %d tokens of windows of %d", opts->n_skip,
                       opts->n_ctx);
    /* Fewer rows than channels span no space: every basis would look perfect. */
    size_t n_min = 4 * (size_t)hp->n_head_kv * hp->d_head;
    if (n_tok < n_min)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu tokens; calibrating this model needs at least %zu", n_tok,
                       n_min);
    return LK_OK;
}

lk_status lk_statistics_new(struct lk_statistics **out, const struct lk_model *model,
                            const struct lk_statistics_opts *opts, const int32_t *tok, size_t n_tok,
                            struct lk_ledger *ledger, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    lk_status status = lk_statistics_check(hp, opts, n_tok, err);
    if (status) return status;
    struct lk_statistics *s = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for statistics");
    *s = (struct lk_statistics){.ledger = ledger,
                                .opts = *opts,
                                .n_text = n_tok,
                                .n_layer = hp->n_layer,
                                .n_head = hp->n_head,
                                .n_head_kv = hp->n_head_kv,
                                .d_head = hp->d_head};
    s->key = lk_fnv1a(LK_FNV1A_INIT, &model->net->fingerprint, sizeof model->net->fingerprint);
    s->key = lk_fnv1a(s->key, opts->group, sizeof opts->group);
    const int32_t numbers[] = {opts->queries, opts->n_ctx, opts->n_skip};
    s->key = lk_fnv1a(lk_fnv1a(s->key, numbers, sizeof numbers), tok, n_tok * sizeof *tok);
    if (opts->scored) s->key = lk_fnv1a(s->key, &opts->scored, sizeof opts->scored);
    for (int side = 0; !status && side < LK_N_BASIS; side++) {
        int group = opts->group[side];
        if (group > 0)
            status = moments_by_layer_new(s, &s->side[side], hp->n_head_kv / group,
                                          group * hp->d_head, err);
    }
    if (!status && opts->queries)
        status = moments_by_layer_new(s, &s->query, hp->n_head_kv, hp->d_head, err);
    if (status)
        lk_statistics_free(s);
    else
        *out = s;
    return status;
}

void lk_statistics_free(struct lk_statistics *s) {
    if (!s) return;
    for (int side = 0; side < LK_N_BASIS; side++) moments_by_layer_free(s, s->side[side]);
    moments_by_layer_free(s, s->query);
    lk_release(s->ledger, LK_FOR_SCRATCH, s, sizeof *s);
}

/* ---- the file ----
 *
 * Magic, key, n_tok, the moments of all sides and layers, hash of everything after the magic. */

static const char magic[8] = "LKSTAT1";

/* Read or write the moments of all sides and layers, and the queries' last. */
static bool transfer_moments(const struct lk_statistics *s, FILE *file, bool write,
                             uint64_t *hash) {
    for (int side = 0; side <= LK_N_BASIS; side++) {
        struct lk_moments *m = side < LK_N_BASIS ? s->side[side] : s->query;
        for (int layer = 0; m && layer < s->n_layer; layer++)
            if (!(write ? lk_moments_write(&m[layer], file, hash)
                        : lk_moments_read(&m[layer], file, hash)))
                return false;
    }
    return true;
}

static bool write_statistics(const struct lk_statistics *s, FILE *file) {
    const uint64_t head[] = {s->key, s->n_tok};
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, head, sizeof head);
    return fwrite(magic, sizeof magic, 1, file) == 1 && fwrite(head, sizeof head, 1, file) == 1 &&
           transfer_moments(s, file, true, &hash) && fwrite(&hash, sizeof hash, 1, file) == 1;
}

lk_status lk_statistics_save(const struct lk_statistics *s, const char *path, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status) return status;
    if (!write_statistics(s, f.file))
        status =
            lk_fail(err, LK_E_IO, "cannot write the statistics to %s; is the disk full?", path);
    return lk_atomic_file_close(&f, status, err);
}

lk_status lk_statistics_load(struct lk_statistics *s, const char *path, lk_err *err) {
    char start[sizeof magic];
    uint64_t head[2] = {0}, hash, end;
    FILE *file;
    lk_status status = lk_open_if_there(&file, path, err);
    if (status || !file) return status;
    bool whole = fread(start, sizeof start, 1, file) == 1 &&
                 memcmp(start, magic, sizeof magic) == 0 && fread(head, sizeof head, 1, file) == 1;
    if (whole && head[0] != s->key) {
        fclose(file);
        return lk_fail(err, LK_E_ARG,
                       "%s holds statistics of another model, text or options; delete it or choose "
                       "another output",
                       path);
    }
    hash = lk_fnv1a(LK_FNV1A_INIT, head, sizeof head);
    whole = whole && transfer_moments(s, file, false, &hash) &&
            fread(&end, sizeof end, 1, file) == 1 && end == hash && fgetc(file) == EOF &&
            head[1] > 0 && head[1] <= s->n_text;
    if (ferror(file)) status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    fclose(file);
    if (status) return status;
    if (!whole)
        return lk_fail(err, LK_E_FORMAT,
                       "the statistics in %s are damaged; delete the file and start again", path);
    s->n_tok = head[1];
    return LK_OK;
}

/* ---- collecting ---- */

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
    if (s->query && s->opts.scored) weigh_rows(g, &s->query[layer], n);
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
        if (status) return status;
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
        if (status) return status;
        s->n_tok += n;
        if (!path || s->n_tok == n_tok || lk_now() - last_save < save_seconds) continue;
        status = lk_statistics_save(s, path, err);
        if (status) return status;
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
    if (!status) status = lk_session_new(&g.session, model, recipe, &opts, err);
    if (!status) status = collector_alloc(&g, err);
    if (!status) {
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
