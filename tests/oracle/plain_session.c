/* The plain session: attention, one query at a time, over a list of rows. */
#include "plain_session.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a query may attend to: one KV head's K and V of one token. */
struct seen_row {
    int pos;
    bool shift; /* its distance counts held rows only: a sink */
    const double *k, *v;
    double *score; /* where its weight is added, or NULL */
    bool largest;  /* the score is the largest weight, not the sum */
};

/* All q, k, v of some tokens in one layer, and the hidden states. */
struct tokens {
    int n, first;      /* tokens, position of the first */
    int at;            /* tokens of the evaluation before them */
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
        take_row(c->set, layer, LK_K, t->at + i, k, n_kv, &error[LK_K], &power[LK_K]);
        take_row(c->set, layer, LK_V, t->at + i, v, n_kv, &error[LK_V], &power[LK_V]);
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

/* Attention of a query head from the weights of the rows: out [d_head]. max: as weigh returned
 * it. */
static void attend(const struct plain_cache *c, int layer, int head, const double *q,
                   const struct seen_row *row, int n, const double *weight, double max, bool scored,
                   bool states, double *out) {
    int d = c->set->model->d_head;
    const float *sinks = c->set->model->layer[layer].sinks;
    double sum = sinks ? exp(sinks[head] - max) : 0;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < n; i++) {
        sum += weight[i];
        for (int k = 0; k < d; k++) out[k] += weight[i] * row[i].v[k];
    }
    for (int i = 0; scored && i < n; i++)
        if (row[i].score && weight[i] >= FLT_MIN) { /* as floats */
            double w = weight[i] / sum;
            *row[i].score = row[i].largest ? fmax(*row[i].score, w) : *row[i].score + w;
        }
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

/* All queries of a layer. rows: [n_head_kv][n_row]. */
static void attend_all(const struct plain_cache *c, int layer, struct tokens *t,
                       struct seen_row *rows, int n_row, bool states) {
    const struct plain_model *m = c->set->model;
    int d = m->d_head, group = m->n_head / m->n_head_kv;
    bool last = last_only(c, layer);
    double *weight = malloc((size_t)group * n_row * sizeof *weight), q[group][d], max[group];
    for (int i = 0; last && i < m->n_head_kv * n_row; i++)
        if (rows[i].score) *rows[i].score = 0;
    for (int i = 0; i < t->n; i++)
        for (int kv = 0; kv < m->n_head_kv; kv++) {
            const struct seen_row *row = rows + (size_t)kv * n_row;
            size_t at = ((size_t)i * m->n_head + (size_t)kv * group) * d;
            int pos = t->first + i;
            for (int h = 0; h < group; h++) {
                disturb_query(c->set, t->q + at + h * d, q[h]);
                max[h] = weigh(c, layer, kv * group + h, pos, q[h], row, n_row,
                               weight + (size_t)h * n_row);
            }
            for (int h = 0; h < group; h++)
                attend(c, layer, kv * group + h, q[h], row, n_row, weight + (size_t)h * n_row,
                       max[h], !last || i == t->n - 1, states, t->attn + at + h * d);
        }
    free(weight);
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
    int d = c->set->model->d_head, n = 0;
    const double **v = calloc((size_t)end, sizeof *v);
    for (int i = 0; i < l->kv[LK_V].n_level; i++) {
        const struct plain_level *level = &l->kv[LK_V].level[i];
        for (int r = 0; r < level->n; r++) {
            const struct plain_row *row = level->row[r];
            v[row->pos[head]] = row->seen + head * d;
        }
    }
    for (int i = 0; i < l->kv[LK_K].n_level; i++)
        for (int r = 0; r < l->kv[LK_K].level[i].n; r++) {
            const struct plain_row *row = l->kv[LK_K].level[i].row[r];
            int pos = row->pos[head];
            if (!v[pos]) { /* only in a sliding-window layer, if no query sees it any more */
                if (!plain_is_swa(c->set->model, layer)) c->set->worst_row = INFINITY;
                continue;
            }
            out[n++] =
                (struct seen_row){.pos = pos,
                                  .shift = l->kv[LK_K].level[i].shift,
                                  .k = row->seen + head * d,
                                  .v = v[pos],
                                  .score = plain_replays(c, layer) ? NULL : &row->score[head]};
        }
    free(v);
    return n;
}

void plain_eval(struct plain_cache *c, const int32_t *tok, int n, double *logits) {
    const struct plain_model *m = c->set->model;
    int w = m->n_head_kv * m->d_head, n_tok = c->n_tok + n, end = c->n_tok + n;
    struct tokens t = new_tokens(m, tok, n, c->n_tok);
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
        attend_all(c, layer, &t, rows, n_row, true);
        finish_layer(c, layer, &t);
        plain_cache_age(c, layer, n_tok);
    }
    for (int i = 0; i < n; i++)
        plain_logits(m, t.x + (size_t)i * m->n_embd, logits + (size_t)i * m->n_vocab);
    c->n_tok = n_tok;
    free(rows);
    free_tokens(&t);
}

/* ---- prompts ---- */

/* A prompt and its replay: chunks of 512 tokens that follow it. */
struct prompt {
    struct tokens part[4]; /* the prompt itself, then the chunks */
    int n_part;
};

static struct prompt new_prompt(const struct plain_cache *c, const int32_t *tok, int n) {
    const struct plain_setting *set = c->set;
    struct prompt p = {.part = {new_tokens(set->model, tok, n, 0)}, .n_part = 1};
    int32_t chunk[512];
    bool replays = false;
    for (int layer = 0; layer < set->model->n_layer; layer++) replays |= plain_replays(c, layer);
    for (int done = 0, at = n, len; replays && done < n; at += len) {
        int from = done > 8 ? done - 8 : 0;
        for (len = 0; len < set->n_request; len++) chunk[len] = set->request[len];
        for (done = from; len < 512 && done < n;) chunk[len++] = tok[done++];
        p.part[p.n_part] = new_tokens(set->model, chunk, len, n);
        p.part[p.n_part++].at = at;
    }
    return p;
}

/* K and V of a part as they are stored, as rows that may be attended to. score: [n][n_head_kv], or
 * NULL. rows: [n_head_kv][n_row], from row `at` on. */
static void add_rows(const struct plain_model *m, struct tokens *t, double *score, bool largest,
                     struct seen_row *rows, int n_row, int at) {
    int d = m->d_head, w = m->n_head_kv * d;
    for (size_t i = 0; i < (size_t)t->n * w; i++) {
        t->k[i] = plain_f16((float)t->k[i]);
        t->v[i] = plain_f16((float)t->v[i]);
    }
    for (int h = 0; h < m->n_head_kv; h++)
        for (int i = 0; i < t->n; i++)
            rows[(size_t)h * n_row + at + i] =
                (struct seen_row){.pos = t->first + i,
                                  .k = t->k + (size_t)i * w + h * d,
                                  .v = t->v + (size_t)i * w + h * d,
                                  .score = score ? score + i * m->n_head_kv + h : NULL,
                                  .largest = largest};
}

void plain_prompt(struct plain_cache *c, const int32_t *tok, int n, double *logits) {
    const struct plain_model *m = c->set->model;
    struct prompt p = new_prompt(c, tok, n);
    struct tokens *own = &p.part[0];
    struct seen_row *rows = calloc((size_t)m->n_head_kv * (n + 512), sizeof *rows);
    double *score = malloc((size_t)n * m->n_head_kv * sizeof *score);
    for (int layer = 0; layer < m->n_layer; layer++) {
        bool replays = plain_replays(c, layer);
        make_qkv(c, layer, own);
        plain_observe(c, layer, own->q, n < 512 ? n : 512); /* the first chunk */
        memset(score, 0, (size_t)n * m->n_head_kv * sizeof *score);
        add_rows(m, own, replays ? NULL : score, false, rows, n, 0);
        attend_all(c, layer, own, rows, n, false);
        finish_layer(c, layer, own);
        for (int i = 1; i < p.n_part; i++) {
            struct tokens *t = &p.part[i];
            make_qkv(c, layer, t);
            add_rows(m, own, replays ? score : NULL, true, rows, n + t->n, 0);
            add_rows(m, t, NULL, true, rows, n + t->n, n);
            attend_all(c, layer, t, rows, n + t->n, false);
            finish_layer(c, layer, t);
        }
        plain_cache_prompt(c, layer, n, own->k, own->v, score);
    }
    plain_logits(m, own->x + (size_t)(n - 1) * m->n_embd, logits);
    c->n_tok = n;
    free(score);
    free(rows);
    for (int i = 0; i < p.n_part; i++) free_tokens(&p.part[i]);
}
