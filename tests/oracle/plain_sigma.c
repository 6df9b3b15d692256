/* Channel statistics of the account (cache/equalizer.h): what rows, or latents, are divided by
 * before a codec rotates them. */
#include "plain_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The widest level of a kind that is equalized, NULL if there is none. */
static const struct plain_level *widest(const struct plain_kv *kv, bool latents) {
    const struct plain_level *best = NULL;
    for (int i = 0; i < kv->n_level; i++) {
        const struct plain_level *level = &kv->level[i];
        if (!level->codec.sigma || (level->basis != NULL) != latents) continue;
        if (!best || level->d_part > best->d_part) best = level;
    }
    return best;
}

void plain_sigma_init(struct plain_cache *c) {
    for (int i = 0; i < c->set->model->n_layer; i++)
        for (int side = 0; side < 2; side++)
            for (int latents = 0; latents < 2; latents++) {
                struct plain_kv *kv = &c->layer[i].kv[side];
                const struct plain_level *level = widest(kv, latents);
                if (!level) continue;
                struct plain_sigma *s = &kv->sigma[latents];
                s->n = level->d_part;
                s->n_part = level->n_part;
                s->power = calloc((size_t)s->n * s->n_part, sizeof *s->power);
            }
}

void plain_sigma_clear(struct plain_kv *kv) {
    for (int i = 0; i < 2; i++) {
        struct plain_sigma *s = &kv->sigma[i];
        s->known = false;
        if (s->power) memset(s->power, 0, (size_t)s->n * s->n_part * sizeof *s->power);
    }
}

void plain_sigma_copy(struct plain_kv *to, const struct plain_kv *from) {
    for (int i = 0; i < 2; i++) {
        const struct plain_sigma *s = &from->sigma[i];
        to->sigma[i].known = s->known;
        if (s->power)
            memcpy(to->sigma[i].power, s->power, (size_t)s->n * s->n_part * sizeof *s->power);
    }
}

/* Queries of a KV head in the domain of K's latents: up q. The parts' powers are summed over all
 * tokens for rows, and over about 32 tokens of a call for latents. */
void plain_observe(struct plain_cache *c, int layer, const double *q, int n) {
    const struct plain_model *m = c->set->model;
    struct plain_kv *kv = &c->layer[layer].kv[LK_K];
    struct plain_sigma *rows = &kv->sigma[0], *latents = &kv->sigma[1];
    const struct plain_level *level = widest(kv, true);
    int d = m->d_head, group = m->n_head / m->n_head_kv;
    for (int t = 0; t < n; t++)
        for (int h = 0; h < m->n_head; h++, q += d) {
            int head = h / group;
            for (int i = 0; rows->power && !rows->known && i < d; i++)
                rows->power[head * d + i] += q[i] * q[i];
            if (!latents->power || latents->known || t % (n / 32 + 1)) continue;
            const struct plain_basis *b = level->basis;
            int part = head / level->n_head, at = head % level->n_head * d;
            for (int j = 0; j < level->rank[part]; j++) {
                double sum = 0;
                for (int i = 0; i < d; i++)
                    sum += b->up[((size_t)part * b->n_comp + j) * b->width + at + i] * q[i];
                latents->power[part * latents->n + j] += sum * sum;
            }
        }
}

/* x [n] is at least a small part of its largest number. */
static void clamp_below(double *x, int n) {
    double max = 0;
    for (int i = 0; i < n; i++) max = fmax(max, x[i]);
    for (int i = 0; i < n; i++) x[i] = fmax(x[i], max > 0 ? max * 1e-6 : 1);
}

/* Compare one part's statistics with the engine's. */
static void compare(struct plain_cache *c, int layer, int side, bool latents, int part,
                    const double *sigma, int n) {
    const struct plain_engine *engine = &c->set->engine;
    const float *theirs = engine->sigma(engine->user, layer, side, latents, part);
    for (int i = 0; i < n; i++)
        c->set->worst_sigma = fmax(c->set->worst_sigma, fabs(theirs[i] / sigma[i] - 1));
}

void plain_calibrate(struct plain_cache *c, int layer, int side, const struct plain_level *to,
                     struct plain_row *const *row, int n) {
    bool latents = to->basis != NULL;
    struct plain_kv *kv = &c->layer[layer].kv[side];
    struct plain_sigma *s = &kv->sigma[latents];
    const struct plain_level *level = widest(kv, latents);
    int n_tile = n / 32, group = to->n_head * c->set->model->d_head;
    if (!to->codec.sigma || s->known) return;
    s->known = true;
    struct plain_row **x = malloc((size_t)n_tile * 32 * sizeof *x + 1);
    for (int t = 0; t < n_tile * 32; t++) x[t] = plain_projected(c, layer, level, row[t]);
    double *sigma = malloc((size_t)s->n * sizeof *sigma);
    for (int part = 0; part < s->n_part; part++) {
        int n_channel = level->rank[part];
        for (int i = 0; i < n_channel; i++) {
            sigma[i] = 0;
            for (int tile = 0; tile < n_tile; tile++) {
                double mean = 0, sum = 0;
                for (int t = 0; t < 32; t++) mean += x[tile * 32 + t]->x[part * group + i] / 32;
                for (int t = 0; t < 32; t++)
                    sum += pow(x[tile * 32 + t]->x[part * group + i] - mean, 2);
                sigma[i] += sum / (32 * n_tile);
            }
        }
        double *power = s->power + part * s->n;
        clamp_below(sigma, n_channel);
        if (side == LK_K) clamp_below(power, n_channel);
        for (int i = 0; i < n_channel; i++)
            sigma[i] = pow(side == LK_K ? sigma[i] / power[i] : sigma[i], 0.25);
        compare(c, layer, side, latents, part, sigma, n_channel);
    }
    for (int t = 0; t < n_tile * 32; t++) plain_free_row(x[t]);
    free(sigma);
    free(x);
}
