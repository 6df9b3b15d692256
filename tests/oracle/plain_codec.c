/* The account's rows in a level: projection into a basis, quantization, reconstruction. */
#include "plain_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where a part lies in a row. */
static int part_offset(const struct plain_cache *c, const struct plain_level *level, int part) {
    return part * level->n_head * c->set->model->d_head;
}

static double noisy(struct plain_setting *set, double x) {
    return set->noise > 0 ? x * (1 + set->noise * random_gauss(&set->random)) : x;
}

/* z = down (x - mean), for all groups; K before RoPE is rotated back first. */
static void project(const struct plain_cache *c, int layer, const struct plain_level *level,
                    struct plain_row *row) {
    const struct plain_model *m = c->set->model;
    const struct plain_basis *b = level->basis;
    int d = m->d_head, n = m->n_head_kv * d;
    double x[n], z[n];
    memcpy(x, row->x, sizeof x);
    memset(z, 0, sizeof z);
    for (int h = 0; level->pre && h < m->n_head_kv; h++)
        plain_rotate(m, layer, -row->pos[h], 1 / m->rope_magnitude[plain_is_swa(m, layer)],
                     x + h * d);
    for (int g = 0; g < b->n_group; g++)
        for (int j = 0; j < level->rank[g]; j++)
            for (int i = 0; i < b->width; i++) {
                double mean = b->mean ? b->mean[g * b->width + i] : 0;
                z[g * b->width + j] += b->down[((size_t)g * b->n_comp + j) * b->width + i] *
                                       (x[g * b->width + i] - mean);
            }
    memcpy(row->x, z, sizeof z);
    row->latent = true;
}

/* seen = mean + up^T z, rotated to the position if the latents are of K before RoPE. */
static void reconstruct(const struct plain_cache *c, int layer, const struct plain_level *level,
                        struct plain_row *row) {
    const struct plain_model *m = c->set->model;
    const struct plain_basis *b = level->basis;
    int n = m->n_head_kv * m->d_head;
    if (!b) {
        memcpy(row->seen, row->x, (size_t)n * sizeof *row->x);
        return;
    }
    for (int g = 0; g < b->n_group; g++)
        for (int i = 0; i < b->width; i++) {
            double sum = b->mean ? b->mean[g * b->width + i] : 0;
            for (int j = 0; j < level->rank[g]; j++)
                sum += b->up[((size_t)g * b->n_comp + j) * b->width + i] * row->x[g * b->width + j];
            row->seen[g * b->width + i] = sum;
        }
    for (int h = 0; level->pre && h < m->n_head_kv; h++)
        plain_rotate(m, layer, row->pos[h], m->rope_magnitude[plain_is_swa(m, layer)],
                     row->seen + h * m->d_head);
}

static struct lk_part part_of(const struct plain_cache *c, int layer, int side,
                              const struct plain_level *level, int part) {
    const struct plain_engine *engine = &c->set->engine;
    struct lk_part p = {.codec = &level->of_part[part],
                        .side = (enum lk_side)side,
                        .d_head = level->rank[part],
                        .block_rows = level->block_rows};
    if (level->codec.sigma)
        p.sigma = engine->sigma(engine->user, layer, side, level->basis != NULL, part);
    return p;
}

static double distance(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

/* Rows that an eager recipe has encoded become the engine's, which must be as near to the numbers
 * before [n][d] as the account's own: the numbers of both differ by rounding, so the excess is at
 * most that difference. If they were quantized before, a number near a border may have fallen on
 * different sides in the engine, which no longer has it: some 1e-2 of a row's power (as in
 * check_evicted). */
static void take_encoded(struct plain_cache *c, int layer, int side,
                         const struct plain_level *level, int part, struct plain_row **row, int n,
                         const double *before) {
    struct plain_setting *set = c->set;
    int index = (int)(level - c->layer[layer].kv[side].level), d = level->rank[part],
        at = part_offset(c, level, part);
    double error = 0, power = 1e-30;
    for (int t = 0; t < n; t++, before += d) {
        const float *stored =
            set->engine.stored(set->engine.user, layer, side, index, row[t]->pos[0]);
        double theirs[d], *ours = row[t]->x + at;
        for (int i = 0; i < d; i++) theirs[i] = stored ? stored[at + i] : ours[i];
        double excess = distance(theirs, before, d) - distance(ours, before, d);
        double row_power = 1e-30;
        for (int i = 0; i < d; i++) row_power += before[i] * before[i];
        if (excess > 0 && !(row[t]->coded && excess * excess <= 0.1 * row_power))
            error += excess * excess;
        power += row_power;
        memcpy(ours, theirs, (size_t)d * sizeof *ours);
    }
    if (error / power > set->worst_row) set->worst_row = error / power, set->worst_layer = layer;
}

/* Quantize one part of n rows that are packed together, or one after the other. */
static void quantize(struct plain_cache *c, int layer, int side, struct plain_level *level,
                     int part, struct plain_row **row, int n) {
    int d = level->rank[part], at = part_offset(c, level, part);
    if (level->codec.coding == LK_F16) {
        for (int t = 0; t < n; t++)
            for (int i = 0; i < d; i++) row[t]->x[at + i] = plain_f16((float)row[t]->x[at + i]);
        return;
    }
    struct lk_part p = part_of(c, layer, side, level, part);
    bool alone = lk_codec_row_wise(p.codec, p.side);
    int step = alone ? 1 : level->block_rows;
    size_t bytes = lk_codec_head_bytes(p.codec, p.side, d, level->block_rows);
    char *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    float *x = malloc((size_t)step * d * sizeof *x);
    for (int t = 0; t + step <= n; t += step) {
        memset(block, 0, bytes);
        for (int i = 0; i < step * d; i++)
            x[i] = (float)noisy(c->set, row[t + i / d]->x[at + i % d]);
        lk_codec_encode(&p, block, 0, step, x, (size_t)d);
        lk_codec_decode(&p, block, 0, step, x, (size_t)d);
        for (int i = 0; i < step * d; i++) row[t + i / d]->x[at + i % d] = x[i];
        if (alone || level->policy.kind == LK_POLICY_NONE) continue;
        char **kept = &level->block[(level->n_block + t / step) * level->n_part + part];
        *kept = aligned_alloc(64, (bytes + 63) / 64 * 64);
        memcpy(*kept, block, bytes);
    }
    free(x);
    free(block);
}

struct plain_row *plain_projected(const struct plain_cache *c, int layer,
                                  const struct plain_level *level, const struct plain_row *row) {
    struct plain_row *copy = plain_copy_row(c, row);
    if (level->basis && !copy->latent) project(c, layer, level, copy);
    return copy;
}

void plain_store(struct plain_cache *c, int layer, int side, struct plain_level *level,
                 struct plain_row **row, int n) {
    bool keeps_blocks = level->policy.kind != LK_POLICY_NONE && level->codec.coding != LK_F16 &&
                        !lk_codec_row_wise(&level->codec, (enum lk_side)side);
    int n_block = keeps_blocks ? n / level->block_rows : 0;
    if (n_block > 0)
        level->block = realloc(level->block, (size_t)(level->n_block + n_block) * level->n_part *
                                                 sizeof *level->block);
    for (int t = 0; level->basis && t < n; t++)
        if (!row[t]->latent) project(c, layer, level, row[t]);
    bool early = c->set->recipe->eager && c->set->adopts && c->set->noise == 0;
    for (int part = 0; part < level->n_part; part++) {
        int d = level->rank[part], at = part_offset(c, level, part);
        double *before = malloc(((size_t)n * d + 1) * sizeof *before);
        for (int t = 0; t < n; t++)
            memcpy(before + (size_t)t * d, row[t]->x + at, (size_t)d * sizeof *before);
        quantize(c, layer, side, level, part, row, n);
        if (early && c->set->engine.stored)
            take_encoded(c, layer, side, level, part, row, n, before);
        free(before);
    }
    for (int t = 0; t < n; t++) row[t]->coded |= level->codec.coding != LK_F16;
    for (int t = 0; t < n; t++) reconstruct(c, layer, level, row[t]);
    level->n_block += n_block;
}

/* One part of x, quantized alone, or against what its block shares. */
static void quantize_again(struct plain_cache *c, int layer, int side, struct plain_level *level,
                           int at, int part, double *x) {
    int d = level->rank[part];
    if (level->codec.coding == LK_F16) {
        for (int i = 0; i < d; i++) x[i] = plain_f16((float)x[i]);
        return;
    }
    struct lk_part p = part_of(c, layer, side, level, part);
    size_t bytes = lk_codec_head_bytes(p.codec, p.side, d, level->block_rows);
    char *alone = NULL, *block = NULL;
    int row = at % level->block_rows;
    float y[LK_MAX_D_HEAD];
    for (int i = 0; i < d; i++) y[i] = (float)x[i];
    if (level->block) {
        block = level->block[at / level->block_rows * level->n_part + part];
        lk_codec_replace(&p, block, row, y);
    } else {
        block = alone = aligned_alloc(64, (bytes + 63) / 64 * 64);
        memset(block, 0, bytes);
        lk_codec_encode(&p, block, row, 1, y, (size_t)d);
    }
    lk_codec_decode(&p, block, row, 1, y, (size_t)d);
    for (int i = 0; i < d; i++) x[i] = y[i];
    free(alone);
}

void plain_replace(struct plain_cache *c, int layer, int side, struct plain_level *level, int at,
                   int head, int unit, const struct plain_row *from) {
    struct plain_row *to = level->row[at], *row = plain_projected(c, layer, level, from);
    int d = c->set->model->d_head;
    for (int part = head / level->n_head; part * level->n_head < head + unit; part++) {
        double *x = row->x + part_offset(c, level, part);
        quantize_again(c, layer, side, level, at, part, x);
    }
    reconstruct(c, layer, level, row);
    for (int h = head; h < head + unit; h++) {
        to->pos[h] = from->pos[h];
        to->score[h] = from->score[h];
        memcpy(to->x + h * d, row->x + h * d, (size_t)d * sizeof *row->x);
        memcpy(to->seen + h * d, row->seen + h * d, (size_t)d * sizeof *row->x);
    }
    plain_free_row(row);
}
