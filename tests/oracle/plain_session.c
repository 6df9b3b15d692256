/* The plain session: attention, one query at a time, over a list of rows. */
#include "plain_session.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a query may attend to: one KV head's K and V of one token. */
struct seen_row {
    int pos;
    bool shift; /* its distance counts held rows only: a sink, or kept by a shift */
    const double *k, *v;
    double *score; /* where its weight is added, or NULL */
    int tile;      /* number of the whole tile of V that it is in; -1: none */
};

/* All q, k, v of some tokens in one layer, and the hidden states. */
struct tokens {
    int n, first;      /* tokens, position of the first */
    double *x;         /* [n][n_embd] */
    double *q, *k, *v; /* [n][n_head][d_head], [n][n_head_kv][d_head] */
    double *attn;      /* [n][n_head][d_head] */
};

static struct tokens new_tokens(const struct plain_model *m, const int32_t *tok, int n, int first) {
    size_t width = (size_t)n * m->d_head, n_q = width * m->n_head, n_kv = width * m->n_head_kv;
    struct tokens t = {.n = n,
                       .first = first,
                       .x = malloc((size_t)n * m->n_embd * sizeof *t.x),
                       .q = malloc(n_q * sizeof *t.q),
                       .k = malloc(n_kv * sizeof *t.k),
                       .v = malloc(n_kv * sizeof *t.v),
                       .attn = malloc(n_q * sizeof *t.attn)};
    for (int i = 0; i < n; i++) plain_embed(m, tok[i], first + i, t.x + (size_t)i * m->n_embd);
    return t;
}

static void free_tokens(struct tokens *t) {
    free(t->x);
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->attn);
}

/* x [n] becomes the engine's row, which must be the same up to rounding. */
static void take_row(struct plain_setting *set, int layer, int side, int i, double *x, int n,
                     double *error, double *power) {
    const struct plain_engine *engine = &set->engine;
    const float *row = engine->row ? engine->row(engine->user, layer, side, i) : NULL;
    for (int c = 0; row && c < n; c++) {
        *error += (x[c] - row[c]) * (x[c] - row[c]);
        *power += x[c] * x[c];
        if (set->adopts) x[c] = row[c];
    }
}

static void make_qkv(struct plain_cache *c, int layer, struct tokens *t) {
    const struct plain_model *m = c->set->model;
    int n_q = m->n_head * m->d_head, n_kv = m->n_head_kv * m->d_head;
    double error[2] = {0}, power[2] = {1e-30, 1e-30};
    for (int i = 0; i < t->n; i++) {
        double *k = t->k + (size_t)i * n_kv, *v = t->v + (size_t)i * n_kv;
        plain_qkv(m, layer, t->x + (size_t)i * m->n_embd, t->first + i, t->q + (size_t)i * n_q, k,
                  v);
        take_row(c->set, layer, LK_K, i, k, n_kv, &error[LK_K], &power[LK_K]);
        take_row(c->set, layer, LK_V, i, v, n_kv, &error[LK_V], &power[LK_V]);
    }
    for (int side = 0; side < 2; side++) {
        if (!(error[side] / power[side] > c->set->worst_row)) continue;
        c->set->worst_row = error[side] / power[side];
        c->set->worst_layer = layer;
    }
}

/* Weights of the rows for a query head: weight [n], relative to the largest, which is returned. */
static double weigh(const struct plain_cache *c, int layer, int head, int pos, const double *q,
                    const struct seen_row *row, int n, double *weight) {
    const struct plain_model *m = c->set->model;
    int d = m->d_head, first = c->layer[layer].kv[LK_K].first;
    double shifted[d], max = -INFINITY;
    memcpy(shifted, q, (size_t)d * sizeof *q);
    plain_rotate(m, layer, -first, 1, shifted);
    for (int i = 0; i < n; i++) {
        bool seen = row[i].pos <= pos && !(plain_is_swa(m, layer) && row[i].pos <= pos - m->n_swa);
        double dot = 0, distance = pos - row[i].pos - (row[i].shift ? first : 0);
        for (int k = 0; k < d; k++) dot += (row[i].shift ? shifted : q)[k] * row[i].k[k];
        double score = dot * m->attn_scale, cap = m->attn_softcap;
        if (cap > 0) score = cap * tanh(score / cap);
        weight[i] = seen ? score - plain_slope(m, head) * distance : -INFINITY;
        max = fmax(max, weight[i]);
    }
    for (int i = 0; i < n; i++) weight[i] = exp(weight[i] - max);
    return max;
}

/* The rule of attention/skip.h for up to four query heads of a KV head: skipped [n] is set for rows
 * of tiles that all of them leave out. weight [n_head][n]; the token's own row is row `own`, and it
 * sees rows from `first` on; a tile starts at row `grid`. */
static void skip_tiles(double share, const struct seen_row *row, int n, int first, int own,
                       int grid, const double *weight, int n_head, bool *skipped) {
    enum { MIN_TILES = 4 };
    int before = (first - grid) % LK_TILE; /* rows of the first tile that are not seen */
    if (before < 0) before += LK_TILE;
    int n_tile = (own - first + before) / LK_TILE + 1;
    for (int t = 0, end; t < n; t = end) {
        for (end = t + 1; row[t].tile >= 0 && end < n && row[end].tile == row[t].tile;) end++;
        bool read =
            share == 0 || n_tile < MIN_TILES || row[t].tile < 0 || t < first || end > own + 1;
        for (int h = 0; h < n_head && !read; h++) {
            double all = 0, sum = 0;
            for (int i = first; i <= own; i++) all += weight[(size_t)h * n + i];
            for (int i = t; i < end; i++) sum += weight[(size_t)h * n + i];
            read = sum >= share / n_tile * all;
        }
        for (int i = t; i < end; i++) skipped[i] = !read;
    }
}

/* Attention of a query head from the weights of the rows: out [d_head]. max: as weigh returned
 * it. */
static void attend(const struct plain_cache *c, int layer, int head, const double *q,
                   const struct seen_row *row, int n, const double *weight, double max,
                   const bool *skipped, bool scored, bool states, double *out) {
    int d = c->set->model->d_head;
    const float *sinks = c->set->model->layer[layer].sinks;
    double sum = sinks ? exp(sinks[head] - max) : 0, all = sum;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < n; i++) {
        all += weight[i];
        if (skipped[i]) continue;
        sum += weight[i];
        for (int k = 0; k < d; k++) out[k] += weight[i] * row[i].v[k];
    }
    for (int i = 0; scored && i < n; i++)
        if (row[i].score && weight[i] >= FLT_MIN) *row[i].score += weight[i] / all; /* as floats */
    if (states) plain_absorb_attend(c, layer, head, q, max, &sum, out);
    for (int k = 0; k < d; k++) out[k] /= sum;
}

static bool last_only(const struct plain_cache *c, int layer) {
    const struct plain_kv *kv = &c->layer[layer].kv[LK_K];
    for (int i = 0; i < kv->n_level; i++)
        if (kv->level[i].policy.kind == LK_POLICY_TOVA) return true;
    return false;
}

/* A query [d_head] as fast kernels see it, rounded to 8 bits: here off by at most as much. */
static void disturb_query(struct plain_setting *set, const double *q, double *out) {
    int d = set->model->d_head;
    double max = 0;
    for (int k = 0; k < d; k++) max = fmax(max, fabs(q[k]));
    for (int k = 0; k < d; k++)
        out[k] = q[k] + (set->query_noise ? max / 127 * (random_uniform(&set->random) - 0.5) : 0);
}

/* Index of the first row of the largest level's first block. */
static int grid_of(const struct plain_kv *kv) {
    int before = 0, most = -1, grid = 0;
    for (int i = 0; i < kv->n_level; before += kv->level[i].n, i++)
        if (kv->level[i].n > most) most = kv->level[i].n, grid = before - kv->level[i].skip;
    return grid;
}

/* All queries of a layer. rows: [n_head_kv][n_row]. skip: the share of attention that is given up
 * at most. */
static void attend_all(const struct plain_cache *c, int layer, struct tokens *t,
                       struct seen_row *rows, int n_row, bool states, double skip) {
    enum { TOGETHER = 4 }; /* query heads that share what is read */
    const struct plain_model *m = c->set->model;
    int d = m->d_head, group = m->n_head / m->n_head_kv;
    int n_part = (group + TOGETHER - 1) / TOGETHER, grid = grid_of(&c->layer[layer].kv[LK_K]);
    bool last = last_only(c, layer), swa = plain_is_swa(m, layer);
    double *weight = malloc((size_t)group * n_row * sizeof *weight), q[group][d], max[group];
    bool *skipped = malloc((size_t)n_row * sizeof *skipped);
    for (int i = 0; last && i < m->n_head_kv * n_row; i++)
        if (rows[i].score) *rows[i].score = 0;
    for (int i = 0; i < t->n; i++)
        for (int kv = 0; kv < m->n_head_kv; kv++) {
            const struct seen_row *row = rows + (size_t)kv * n_row;
            size_t at = ((size_t)i * m->n_head + (size_t)kv * group) * d;
            int pos = t->first + i, own = n_row - t->n + i, first = 0;
            while (swa && row[first].pos <= pos - m->n_swa) first++;
            for (int h = 0; h < group; h++) {
                disturb_query(c->set, t->q + at + h * d, q[h]);
                max[h] = weigh(c, layer, kv * group + h, pos, q[h], row, n_row,
                               weight + (size_t)h * n_row);
            }
            for (int part = 0, h = 0; part < n_part; part++) {
                int end = group * (part + 1) / n_part;
                skip_tiles(skip, row, n_row, first, own, grid, weight + (size_t)h * n_row, end - h,
                           skipped);
                for (; h < end; h++)
                    attend(c, layer, kv * group + h, q[h], row, n_row, weight + (size_t)h * n_row,
                           max[h], skipped, !last || i == t->n - 1, states, t->attn + at + h * d);
            }
        }
    free(weight);
    free(skipped);
}

static void finish_layer(const struct plain_cache *c, int layer, struct tokens *t) {
    const struct plain_model *m = c->set->model;
    for (int i = 0; i < t->n; i++)
        plain_post(m, layer, t->attn + (size_t)i * m->n_head * m->d_head,
                   t->x + (size_t)i * m->n_embd);
}

/* What the account holds for a KV head. K and V belong together if they have the same position. */
static int list_rows(const struct plain_cache *c, int layer, int head, int end,
                     struct seen_row *out) {
    const struct plain_layer_cache *l = &c->layer[layer];
    int d = c->set->model->d_head, n = 0, n_tile = 0, before = 0, grid = grid_of(&l->kv[LK_K]);
    const double **v = calloc((size_t)end, sizeof *v);
    int *tile = malloc((size_t)end * sizeof *tile);
    for (int i = 0; i < l->kv[LK_V].n_level; i++) {
        const struct plain_level *level = &l->kv[LK_V].level[i];
        for (int r = 0; r < level->n; r++) {
            const struct plain_row *row = level->row[r];
            int start = r - (level->skip + r) % LK_TILE; /* of its tile */
            bool whole =
                start >= 0 && start + LK_TILE <= level->n && (before + start - grid) % LK_TILE == 0;
            v[row->pos[head]] = row->seen + head * d;
            tile[row->pos[head]] = whole ? n_tile + (level->skip + r) / LK_TILE : -1;
        }
        before += level->n;
        n_tile += (level->skip + level->n) / LK_TILE + 1;
    }
    for (int i = 0; i < l->kv[LK_K].n_level; i++)
        for (int r = 0; r < l->kv[LK_K].level[i].n; r++) {
            const struct plain_row *row = l->kv[LK_K].level[i].row[r];
            int pos = row->pos[head];
            if (!v[pos]) { /* only in a sliding-window layer, if no query sees it any more */
                if (!plain_is_swa(c->set->model, layer)) c->set->worst_row = INFINITY;
                continue;
            }
            out[n++] = (struct seen_row){.pos = pos,
                                         .shift = l->kv[LK_K].level[i].shift || pos < c->n_kept,
                                         .k = row->seen + head * d,
                                         .v = v[pos],
                                         .score = &row->score[head],
                                         .tile = tile[pos]};
        }
    free(v);
    free(tile);
    return n;
}

void plain_eval(struct plain_cache *c, const int32_t *tok, int n, double *logits) {
    enum { DECODE_TOKENS = 4 }; /* calls of more tokens read everything */
    const struct plain_model *m = c->set->model;
    int w = m->n_head_kv * m->d_head, n_tok = c->n_tok + n, end = plain_end(c) + n;
    struct tokens t = new_tokens(m, tok, n, plain_end(c));
    struct seen_row *rows = malloc((size_t)m->n_head_kv * end * sizeof *rows);
    for (int layer = 0; layer < m->n_layer; layer++) {
        int n_row = 0;
        make_qkv(c, layer, &t);
        plain_observe(c, layer, t.q, n);
        for (int i = 0; i < n; i++) {
            plain_cache_append(c, layer, LK_K, t.first + i, t.k + (size_t)i * w);
            plain_cache_append(c, layer, LK_V, t.first + i, t.v + (size_t)i * w);
        }
        if (c->set->recipe->eager) plain_cache_encode(c, layer, n_tok);
        for (int h = 0; h < m->n_head_kv; h++)
            n_row = list_rows(c, layer, h, end, rows + (size_t)h * n_row);
        double skip = n <= DECODE_TOKENS ? c->set->recipe->skip_v : 0;
        attend_all(c, layer, &t, rows, n_row, true, skip);
        finish_layer(c, layer, &t);
        plain_cache_age(c, layer, n_tok);
    }
    for (int i = 0; i < n; i++)
        plain_logits(m, t.x + (size_t)i * m->n_embd, logits + (size_t)i * m->n_vocab);
    c->n_tok = n_tok;
    free(rows);
    free_tokens(&t);
}

void plain_prompt(struct plain_cache *c, const int32_t *tok, int n, double *logits) {
    const struct plain_model *m = c->set->model;
    int d = m->d_head, w = m->n_head_kv * d;
    struct tokens t = new_tokens(m, tok, n, 0);
    struct seen_row *rows = calloc((size_t)m->n_head_kv * n, sizeof *rows);
    double *score = malloc((size_t)n * m->n_head_kv * sizeof *score);
    for (int layer = 0; layer < m->n_layer; layer++) {
        make_qkv(c, layer, &t);
        plain_observe(c, layer, t.q, n < 512 ? n : 512); /* the first chunk */
        for (size_t i = 0; i < (size_t)n * w; i++) {
            t.k[i] = plain_f16((float)t.k[i]);
            t.v[i] = plain_f16((float)t.v[i]);
        }
        memset(score, 0, (size_t)n * m->n_head_kv * sizeof *score);
        for (int h = 0; h < m->n_head_kv; h++)
            for (int i = 0; i < n; i++)
                rows[(size_t)h * n + i] = (struct seen_row){.pos = i,
                                                            .k = t.k + (size_t)i * w + h * d,
                                                            .v = t.v + (size_t)i * w + h * d,
                                                            .score = score + i * m->n_head_kv + h};
        attend_all(c, layer, &t, rows, n, false, 0);
        finish_layer(c, layer, &t);
        plain_cache_prompt(c, layer, n, t.k, t.v, score);
    }
    plain_logits(m, t.x + (size_t)(n - 1) * m->n_embd, logits);
    c->n_tok = n;
    free(score);
    free(rows);
    free_tokens(&t);
}
