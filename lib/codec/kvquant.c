/* Codec kvquant. Formulas and layout are in kvquant.h. */
#include "codec/kvquant.h"

#include "codec/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_OUT = (LK_MAX_D_HEAD + 50) / 100 };

static int kvquant_block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return LK_KVQUANT_ROWS;
}

static bool kvquant_row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return false;
}

static const char *kvquant_reject_reason(const struct lk_codec *codec, enum lk_side side,
                                         int d_head) {
    (void)side, (void)d_head;
    return codec->bits < 2 || codec->bits > 4 ? "kvquant must have 2 to 4 bits" : NULL;
}

static size_t kvquant_scale_bytes(const struct lk_part *part) {
    int n_vector = lk_kvquant_vectors(part->side, part->d_head),
        n_out = lk_kvquant_outliers(part->side, part->d_head);
    return LK_KVQUANT_LEVELS + sizeof(uint16_t) * (2 * n_vector + 2 * n_vector * n_out);
}

static size_t kvquant_head_bytes(const struct lk_part *part) {
    return LK_KVQUANT_ROWS / LK_TILE * lk_bitplanes_bytes(part->codec->bits, part->d_head) +
           kvquant_scale_bytes(part);
}

static void kvquant_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)side;
    snprintf(buf, cap, "kvquant%d", codec->bits);
}

/* ---- vectors ---- */

/* Indices of the n_end smallest values of x [n], in order; with sign -1 of the largest. */
static void find_ends(const float *x, int n, float sign, int n_end, int *end) {
    bool taken[LK_MAX_D_HEAD] = {false};
    for (int k = 0; k < n_end; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || sign * x[i] < sign * x[best])) best = i;
        end[k] = best;
        taken[best] = true;
    }
}

/* Mark the n_out outliers of x [n], n_out < n. Sets the range of the other values. */
static void mark_outliers(const float *x, int n, int n_out, bool *out, float *lo, float *hi) {
    int low[MAX_OUT + 1], high[MAX_OUT + 1], n_low = 0;
    find_ends(x, n, 1, n_out + 1, low);
    find_ends(x, n, -1, n_out + 1, high);
    for (int k = 1; k <= n_out; k++)
        if (x[high[n_out - k]] - x[low[k]] < x[high[n_out - n_low]] - x[low[n_low]]) n_low = k;
    memset(out, 0, n * sizeof *out);
    for (int k = 0; k < n_low; k++) out[low[k]] = true;
    /* Values at both ends may be the same ones if a vector is short. */
    for (int k = 0, left = n_out - n_low; left > 0; k++)
        if (!out[high[k]]) {
            out[high[k]] = true;
            left--;
        }
    *lo = x[low[n_low]];
    *hi = x[high[n_out - n_low]];
}

/* Store the outliers and the range of vector v of a block. Sets u [length] to round(255 u), 0 for
 * outliers, and counts the values that are not outliers. */
static void normalize_vector(const struct lk_kvquant_block *b, int v, const float *x, uint8_t *u,
                             uint32_t count[256]) {
    uint16_t *value = (uint16_t *)b->outlier + v * b->n_out,
             *index = (uint16_t *)b->index + v * b->n_out;
    uint16_t *range = (uint16_t *)b->range + v, *min = (uint16_t *)b->min + v;
    bool out[LK_MAX_D_HEAD];
    float lo, hi;
    int k = 0;
    mark_outliers(x, b->length, b->n_out, out, &lo, &hi);
    *range = lk_f32_to_f16(fmaxf(hi - lo, 0) + 0.0f); /* + 0: never -0 */
    *min = lk_f32_to_f16(lo + 0.0f);
    float stored = lk_f16_to_f32(*range), from = lk_f16_to_f32(*min);
    float inverse = stored > 0 ? 255 / stored : 0;
    for (int i = 0; i < b->length; i++) {
        u[i] = 0;
        if (out[i]) {
            value[k] = lk_f32_to_f16(x[i]);
            index[k++] = (uint16_t)i;
        } else {
            u[i] = (uint8_t)lk_round_half_away(fminf(fmaxf((x[i] - from) * inverse, 0), 255));
            count[u[i]]++;
        }
    }
}

/* ---- levels ---- */

/* k-means in one dimension (Lloyd 1982) from uniform levels, on count [256] values of each u. A
 * level without values stays where it is. level: [n_level], rising */
static void find_levels(const uint32_t *count, int n_level, uint8_t *level) {
    enum { MAX_STEPS = 50 };
    for (int k = 0; k < n_level; k++) level[k] = (uint8_t)(255 * k / (n_level - 1));
    bool moved = true;
    for (int step = 0; moved && step < MAX_STEPS; step++) {
        moved = false;
        for (int k = 0, u = 0; k < n_level; k++) {
            int end = k + 1 < n_level ? (level[k] + level[k + 1]) / 2 + 1 : 256;
            uint32_t n = 0, sum = 0;
            for (; u < end; u++) {
                n += count[u];
                sum += count[u] * (uint32_t)u;
            }
            uint8_t center = n ? (uint8_t)((sum + n / 2) / n) : level[k];
            moved |= center != level[k];
            level[k] = center;
        }
    }
}

/* code[u] = the level nearest to u, the lower one of two equally near. */
static void find_codes(const uint8_t *level, int n_level, uint8_t code[256]) {
    for (int u = 0, k = 0; u < 256; u++) {
        while (k + 1 < n_level && 2 * u > level[k] + level[k + 1]) k++;
        code[u] = (uint8_t)k;
    }
}

/* ---- blocks ---- */

static void kvquant_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                           size_t stride) {
    struct lk_kvquant_block b = lk_kvquant_arrays(part, head);
    int d = part->d_head, bits = part->codec->bits;
    uint8_t row[LK_KVQUANT_ROWS][LK_MAX_D_HEAD], u[LK_MAX_D_HEAD], code_of[256];
    uint8_t *level = (uint8_t *)b.level;
    uint32_t count[256] = {0};
    float vector[LK_MAX_D_HEAD];
    (void)row0, (void)n; /* a whole block */
    for (int v = 0; v < b.n_vector; v++) {
        for (int i = 0; i < b.length; i++)
            vector[i] = lk_clamp_finite(part->side == LK_K ? x[i * stride + v] : x[v * stride + i]);
        normalize_vector(&b, v, vector, part->side == LK_K ? u : row[v], count);
        for (int i = 0; part->side == LK_K && i < b.length; i++) row[i][v] = u[i];
    }
    memset(level, 0, LK_KVQUANT_LEVELS);
    find_levels(count, 1 << bits, level);
    find_codes(level, 1 << bits, code_of);
    for (int t = 0; t < LK_KVQUANT_ROWS; t++) {
        for (int c = 0; c < d; c++) row[t][c] = code_of[row[t][c]];
        void *tile = (void *)lk_kvquant_tile(part->codec, head, d, t);
        lk_bitplanes_pack_row(part->side, bits, d, tile, t % LK_TILE, row[t]);
    }
}

/* Put the outliers that are in row t, as K stores them, into x. */
static void restore_row_of_k(const struct lk_kvquant_block *b, int t, float *x) {
    for (int v = 0; v < b->n_vector; v++)
        for (int k = v * b->n_out; k < (v + 1) * b->n_out; k++)
            if (b->index[k] == t) x[v] = lk_f16_to_f32(b->outlier[k]);
}

static void restore_row_of_v(const struct lk_kvquant_block *b, int t, float *x) {
    for (int k = t * b->n_out; k < (t + 1) * b->n_out; k++)
        if (b->index[k] < b->length) x[b->index[k]] = lk_f16_to_f32(b->outlier[k]);
}

static void kvquant_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                           size_t stride) {
    struct lk_kvquant_block b = lk_kvquant_arrays(part, head);
    int d = part->d_head, bits = part->codec->bits;
    uint8_t code[LK_MAX_D_HEAD];
    float range[LK_MAX_D_HEAD], min[LK_MAX_D_HEAD];
    for (int v = 0; v < b.n_vector; v++) {
        range[v] = lk_f16_to_f32(b.range[v]) * (1.0f / 255);
        min[v] = lk_f16_to_f32(b.min[v]);
    }
    for (int t = row0; t < row0 + n; t++, x += stride) {
        const void *tile = lk_kvquant_tile(part->codec, head, d, t);
        lk_bitplanes_unpack_row(part->side, bits, d, tile, t % LK_TILE, code);
        for (int c = 0; c < d; c++) {
            int v = part->side == LK_K ? c : t;
            x[c] = min[v] + range[v] * (float)b.level[code[c]];
        }
        if (part->side == LK_K)
            restore_row_of_k(&b, t, x);
        else
            restore_row_of_v(&b, t, x);
    }
}

const struct lk_codec_ops lk_kvquant_ops = {
    .block_rows = kvquant_block_rows,
    .row_wise = kvquant_row_wise,
    .reject_reason = kvquant_reject_reason,
    .head_bytes = kvquant_head_bytes,
    .scale_bytes = kvquant_scale_bytes,
    .print = kvquant_print,
    .encode = kvquant_encode,
    .decode = kvquant_decode,
};
