/* A recipe's cache as a projection and a straight-through error. */
#include "training/lora_cache.h"

#include "cache/project.h"

#include <math.h>
#include <string.h>

static size_t row_width(const struct lk_lora_cache *c) {
    return lk_cache_width(&c->cache->shape, LK_V);
}

/* ---- projections ---- */

/* p [n_row][n_row] of zeros += up^T down of all groups, c = mean - p mean. */
static void fill_projection(const struct lk_level *level, size_t n_row, float *p, float *c) {
    const struct lk_basis *b = level->basis;
    float down_buf[LK_MAX_D_HEAD], up_buf[LK_MAX_D_HEAD];
    for (int g = 0; g < b->n_group; g++) {
        size_t first = (size_t)g * b->width;
        for (int j = 0; j < lk_level_part_channels(level, g); j++) {
            const float *down = lk_basis_row(b, LK_BASIS_DOWN, g, j, 0, b->width, down_buf),
                        *up = lk_basis_row(b, LK_BASIS_UP, g, j, 0, b->width, up_buf);
            for (int o = 0; o < b->width; o++)
                for (int i = 0; i < b->width; i++)
                    p[(first + o) * n_row + first + i] += up[o] * down[i];
        }
    }
    for (size_t o = 0; b->mean && o < n_row; o++) {
        double sum = b->mean[o];
        for (size_t i = 0; i < n_row; i++) sum -= (double)p[o * n_row + i] * b->mean[i];
        c[o] = (float)sum;
    }
}

static lk_status open_side(struct lk_lora_cache *c, const struct lk_kv *kv,
                           struct lk_lora_side *side, lk_err *err) {
    size_t n_row = row_width(c);
    side->n_sink = (int)lk_level_sinks(kv->rule, kv->n_level);
    side->body = side->n_sink > 0;
    const struct lk_level *level = &kv->level[side->body];
    const struct lk_codec *codec = &kv->rule[side->body].codec;
    bool coded = codec->coding != LK_F16;
    side->lossy = coded || level->basis;
    side->pre = level->rope != NULL;
    c->coded = c->coded || coded;
    if (!level->basis) return LK_OK;
    side->p = lk_alloc(c->ledger, LK_FOR_SCRATCH, n_row * n_row * sizeof *side->p);
    side->c = lk_alloc(c->ledger, LK_FOR_SCRATCH, n_row * sizeof *side->c);
    if (!side->p || !side->c)
        return lk_fail(err, LK_E_NOMEM, "no memory for the projections of %d layers",
                       c->cache->shape.n_layer);
    fill_projection(level, n_row, side->p, side->c);
    return LK_OK;
}

/* ---- opening ---- */

static lk_status check_recipe(const struct lk_recipe *recipe, const struct lk_model *model,
                              lk_err *err) {
    bool evicts = recipe->absorbs, shifts = false;
    for (int i = 0; i < recipe->n_level; i++) {
        evicts = evicts || recipe->level[i].limit.policy.kind != LK_POLICY_NONE;
        shifts = shifts || recipe->level[i].shift;
    }
    for (int i = 0; i < recipe->n_override; i++)
        evicts = evicts || recipe->override[i].limit.policy.kind != LK_POLICY_NONE;
    if (evicts || shifts || recipe->read > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "adapters are trained for recipes that keep and read every row; without "
                       "'keep', 'none', 'absorb', 'shift' and 'read'");
    if (model->net->hp.n_swa > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "adapters cannot be trained for models with sliding windows");
    return LK_OK;
}

/* 8 bits have a ten-thousandth of the error of 2 bits. */
static bool is_nearly_exact(const struct lk_codec *codec) {
    return codec->coding == LK_F16 || codec->coding == LK_INT8 ||
           (codec->coding == LK_ROT && codec->bits == 8);
}

/* Newest rows of n_ctx that count as exact, on average, a query's own included: levels of f16 or
 * 8-bit rows that are newer than the body, and rows that wait for the body's next batch. */
static int exact_rows(const struct lk_kv *kv, int body, bool eager, int n_ctx) {
    double n = eager ? 0 : 1;
    for (int i = body + 1; i < kv->n_level; i++) {
        const struct lk_level_rule *r = &kv->rule[i];
        if (!is_nearly_exact(&r->codec) || kv->level[i].basis) continue;
        n += r->keep + r->percent / 100 * n_ctx + (eager ? 0 : r->batch / 2.0);
    }
    return n < n_ctx ? (int)n : n_ctx;
}

lk_status lk_lora_cache_new(struct lk_lora_cache **out, struct lk_model *model,
                            const struct lk_recipe *recipe, int n_ctx, struct lk_ledger *ledger,
                            lk_err *err) {
    lk_status status = check_recipe(recipe, model, err);
    if (status) return status;
    struct lk_lora_cache *c = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    *c = (struct lk_lora_cache){.model = model, .ledger = ledger};
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    status = lk_cache_new(&c->cache, recipe, &shape, ledger, err);
    if (!status) {
        c->side = lk_alloc(ledger, LK_FOR_SCRATCH, (size_t)shape.n_layer * sizeof *c->side);
        c->rows = lk_alloc(ledger, LK_FOR_SCRATCH, LK_MAX_MOVE * row_width(c) * sizeof *c->rows);
        if (!c->side || !c->rows) status = lk_fail(err, LK_E_NOMEM, "no memory to train");
    }
    for (int i = 0; !status && i < lk_cache_n_kv(c->cache); i++)
        status = open_side(c, lk_cache_kv(c->cache, i), &c->side[i / 2][i % 2], err);
    if (!status) {
        const struct lk_kv *k = lk_cache_kv(c->cache, 0), *v = lk_cache_kv(c->cache, 1);
        int of_k = exact_rows(k, c->side[0][LK_K].body, recipe->eager, n_ctx),
            of_v = exact_rows(v, c->side[0][LK_V].body, recipe->eager, n_ctx);
        c->n_sink = c->side[0][LK_K].n_sink;
        c->n_exact = of_k < of_v ? of_k : of_v;
        *out = c;
    } else {
        lk_lora_cache_free(c);
    }
    return status;
}

void lk_lora_cache_free(struct lk_lora_cache *c) {
    if (!c) return;
    struct lk_ledger *ledger = c->ledger;
    if (c->cache) {
        size_t n_row = row_width(c), n_layer = (size_t)c->cache->shape.n_layer;
        for (size_t i = 0; c->side && i < 2 * n_layer; i++) {
            struct lk_lora_side *side = &c->side[i / 2][i % 2];
            lk_release(ledger, LK_FOR_SCRATCH, side->p, n_row * n_row * sizeof *side->p);
            lk_release(ledger, LK_FOR_SCRATCH, side->c, n_row * sizeof *side->c);
        }
        lk_release(ledger, LK_FOR_SCRATCH, c->side, n_layer * sizeof *c->side);
        lk_release(ledger, LK_FOR_SCRATCH, c->rows, LK_MAX_MOVE * n_row * sizeof *c->rows);
    }
    lk_cache_free(c->cache);
    lk_release(ledger, LK_FOR_SCRATCH, c, sizeof *c);
}

/* ---- rows ---- */

void lk_lora_cache_start(struct lk_lora_cache *c) { lk_cache_clear(c->cache); }

/* Rows of the window that are in the body. */
static int64_t body_rows(const struct lk_lora_cache *c, int layer) {
    int64_t n = INT64_MAX;
    for (int side = 0; side < 2; side++) {
        const struct lk_lora_side *s = &c->side[layer][side];
        int64_t rows = c->cache->kv[layer][side].count[s->body].rows + s->n_sink;
        if (rows < n) n = rows;
    }
    return n;
}

/* Append the window's rows, and then rows of it again until all of the window are in the body. */
static lk_status append_window(struct lk_lora_cache *c, int layer, const float *q,
                               const float *const x[2], int n, lk_err *err) {
    const struct lk_hparams *hp = &c->model->net->hp;
    size_t n_row = row_width(c), n_query = (size_t)hp->n_head * hp->d_head;
    int64_t limit = 8 * (int64_t)n + 4096;
    lk_status status = LK_OK;
    for (int64_t done = 0; !status && body_rows(c, layer) < n;) {
        int n_new = done < n && n - done < LK_MAX_MOVE ? (int)(n - done) : LK_MAX_MOVE;
        if (done > limit)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "the recipe keeps windows of %d tokens exact; make the windows longer",
                           n);
        status = lk_cache_prepare(c->cache, layer, layer + 1, n_new, LK_MAX_MOVE, err);
        for (int side = 0; !status && side < 2; side++) {
            for (int i = 0; i < n_new; i++)
                memcpy(c->rows + i * n_row, x[side] + (size_t)((done + i) % n) * n_row,
                       n_row * sizeof *c->rows);
            status = lk_cache_append(c->cache, layer, (enum lk_side)side, c->rows, n_new, err);
        }
        if (!status && done < n)
            lk_cache_observe(c->cache, layer, q + (size_t)done * n_query, n_new, hp->n_head);
        for (int side = 0; !status && side < 2; side++)
            status = lk_cache_age(c->cache, layer, (enum lk_side)side, err);
        done += n_new;
    }
    return status;
}

/* The first n rows of a level for one KV head, as attention sees them: x, n_row floats apart. */
static void read_head(const struct lk_lora_cache *c, const struct lk_kv *kv, int level, int n,
                      int head, float *x) {
    size_t n_row = row_width(c);
    for (int at = 0; at < n; at += LK_TILE) {
        struct lk_row_range range = {kv, level, at, n - at < LK_TILE ? n - at : LK_TILE};
        lk_kv_read(&range, head / kv->level[level].n_head, c->model->kernels, c->rows, n_row);
        for (int i = 0; i < range.n; i++)
            lk_project_restore_head(kv, level, at + i, head, c->cache->shape.d_head,
                                    c->rows + i * n_row, x + (at + i) * n_row);
    }
}

lk_status lk_lora_cache_read(struct lk_lora_cache *c, int layer, const float *q, const float *k,
                             const float *v, int n, float *out, lk_err *err) {
    const float *const x[2] = {k, v};
    size_t n_row = row_width(c);
    int d = c->cache->shape.d_head;
    lk_status status = append_window(c, layer, q, x, n, err);
    for (int side = 0; !status && side < 2; side++) {
        const struct lk_lora_side *s = &c->side[layer][side];
        const struct lk_kv *kv = &c->cache->kv[layer][side];
        float *to = out + (size_t)side * n * n_row;
        int n_sink = s->n_sink < n ? s->n_sink : n;
        memcpy(to, x[side], (size_t)n_sink * n_row * sizeof *to);
        for (int head = 0; head < c->cache->shape.n_head_kv; head++)
            read_head(c, kv, s->body, n - n_sink, head, to + n_sink * n_row + (size_t)head * d);
    }
    return status;
}

void lk_lora_cache_mask(const struct lk_lora_cache *c, int n, float *mask) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            bool seen = j <= i, exact = j < c->n_sink || i - j < c->n_exact;
            mask[(size_t)i * 2 * n + j] = seen && exact ? 0 : -INFINITY;
            mask[(size_t)i * 2 * n + n + j] = seen && !exact ? 0 : -INFINITY;
        }
}
