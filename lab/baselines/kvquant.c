/* KVQuant ( Hooper et al. 2024): K per channel, V per token, non-uniform levels of 2
 * to 4 bits, and about 1 % of the values kept apart as outliers (sections 3.1, 3.3 and 3.4).
 *
 * A vector is one channel of K over the LK_KVQUANT_ROWS rows of a block, or one row of V. Of a
 * vector of n values, max(1, round(n / 100)) are outliers: the largest and the smallest ones, as
 * many of each as leaves the smallest range to the others. An outlier is stored as its index and an
 * f16 value.
 *
 *   u = round(255 (x - min) / range)       of a vector's other values, 0 to 255
 *   code = the index of the level nearest to u, x ~ min + range * level[code] / 255
 *
 * The levels of a block are the centers that k-means finds for all u of the block. The paper
 * computes them offline, per layer, and weights each value by Fisher information; scales and
 * thresholds of K are offline there, too. Here a block has its own: it needs no sidecar and no
 * calibration text, fits the rows at hand, and costs 2^bits bytes per block, next to which the
 * scales of 4 bytes per vector are what counts.
 *
 *   head: | tile 0 | ... | tile LK_KVQUANT_ROWS / LK_TILE - 1 |    codes, bitplanes.h
 *         | level: u8 [2^bits], padded to 16 |
 *         | range: f16 [n_vector] | min: f16 [n_vector] |
 *         | outlier value: f16 [n_vector][n_out] | outlier index: u16 [n_vector][n_out] |
 *
 * K before RoPE, as in the paper, is a recipe: 'latent100%(pre)+kvquant3' quantizes the channels
 * of the sidecar's basis. Encodes whole blocks only. */
#include "baselines/baselines.h"
#include "codec/bitplanes.h"
#include "codec/f16.h"
#include "codec/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LEVELS = 16 };

/* Vectors of a block, values of a vector, and outliers among them. */
static int kvquant_vectors(enum lk_side side, int d_head) {
    return side == LK_K ? d_head : LK_KVQUANT_ROWS;
}
static int kvquant_length(enum lk_side side, int d_head) {
    return side == LK_K ? LK_KVQUANT_ROWS : d_head;
}
static int kvquant_outliers(enum lk_side side, int d_head) {
    int n = (kvquant_length(side, d_head) + 50) / 100;
    return n > 1 ? n : 1;
}

/* The arrays of a block. */
struct kvquant_block {
    const uint8_t *level;                          /* [2^bits] */
    const uint16_t *range, *min, *outlier, *index; /* [n_vector], [n_vector][n_out] */
    int n_vector, length, n_out;
};

static struct kvquant_block kvquant_arrays(const lk_codec_shape *shape, const void *head) {
    enum lk_side side = lk_shape_side(shape);
    int d = shape->n_channel;
    struct kvquant_block b = {.n_vector = kvquant_vectors(side, d),
                              .length = kvquant_length(side, d),
                              .n_out = kvquant_outliers(side, d)};
    b.level = (const uint8_t *)head +
              LK_KVQUANT_ROWS / LK_TILE * lk_bitplanes_bytes(shape->param.bits, d);
    b.range = (const uint16_t *)(b.level + MAX_LEVELS);
    b.min = b.range + b.n_vector;
    b.outlier = b.min + b.n_vector;
    b.index = b.outlier + b.n_vector * b.n_out;
    return b;
}

/* The tile of codes that holds row `row` of a block. */
static const void *kvquant_tile(const lk_codec_shape *shape, const void *head, int d_head,
                                int row) {
    return (const char *)head + row / LK_TILE * lk_bitplanes_bytes(shape->param.bits, d_head);
}

enum { MAX_OUT = (LK_MAX_D_HEAD + 50) / 100 };

static size_t kvquant_scale_bytes(const lk_codec_shape *shape) {
    int n_vector = kvquant_vectors(lk_shape_side(shape), shape->n_channel),
        n_out = kvquant_outliers(lk_shape_side(shape), shape->n_channel);
    return MAX_LEVELS + sizeof(uint16_t) * (2 * n_vector + 2 * n_vector * n_out);
}

static size_t kvquant_head_bytes(const lk_codec_shape *shape) {
    return LK_KVQUANT_ROWS / LK_TILE * lk_bitplanes_bytes(shape->param.bits, shape->n_channel) +
           kvquant_scale_bytes(shape);
}

static bool kvquant_parse(const char *word, lk_codec_param *param) {
    return lk_parse_bits(word, "kvquant", 2, 4, param);
}

static void kvquant_print(const lk_codec_param *param, char *buf, size_t cap) {
    snprintf(buf, cap, "kvquant%d", param->bits);
}

/* ---- vectors ---- */

/* Indices of the n_end smallest values of x [n], in order; with sign -1 of the largest. */
static void find_ends(const float *x, int n, float sign, int n_end, int *end) {
    bool taken[LK_MAX_D_HEAD] = {false};
    for (int k = 0; k < n_end; k++) {
        int best = 0;
        while (taken[best]) best++;
        for (int i = best + 1; i < n; i++)
            if (!taken[i] && sign * x[i] < sign * x[best]) best = i;
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
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.ArraySubscript): n_out + 1 are found */
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
static void normalize_vector(const struct kvquant_block *b, int v, const float *x, uint8_t *u,
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

static void kvquant_encode(const lk_codec_shape *shape, void *head, int32_t row0, int32_t n,
                           const float *x, size_t stride) {
    struct kvquant_block b = kvquant_arrays(shape, head);
    int d = shape->n_channel, bits = shape->param.bits;
    uint8_t row[LK_KVQUANT_ROWS][LK_MAX_D_HEAD], u[LK_MAX_D_HEAD], code_of[256];
    uint8_t *level = (uint8_t *)b.level;
    uint32_t count[256] = {0};
    float vector[LK_MAX_D_HEAD];
    (void)row0, (void)n; /* a whole block */
    for (int v = 0; v < b.n_vector; v++) {
        for (int i = 0; i < b.length; i++)
            vector[i] = lk_clamp_finite(lk_shape_side(shape) == LK_K ? x[i * stride + v]
                                                                     : x[v * stride + i]);
        normalize_vector(&b, v, vector, lk_shape_side(shape) == LK_K ? u : row[v], count);
        for (int i = 0; lk_shape_side(shape) == LK_K && i < b.length; i++) row[i][v] = u[i];
    }
    memset(level, 0, MAX_LEVELS);
    find_levels(count, 1 << bits, level);
    find_codes(level, 1 << bits, code_of);
    for (int t = 0; t < LK_KVQUANT_ROWS; t++) {
        for (int c = 0; c < d; c++) row[t][c] = code_of[row[t][c]];
        void *tile = (void *)kvquant_tile(shape, head, d, t);
        lk_bitplanes_pack_row(lk_shape_side(shape), bits, d, tile, t % LK_TILE, row[t]);
    }
}

/* Put the outliers that are in row t, as K stores them, into x. */
static void restore_row_of_k(const struct kvquant_block *b, int t, float *x) {
    for (int v = 0; v < b->n_vector; v++)
        for (int k = v * b->n_out; k < (v + 1) * b->n_out; k++)
            if (b->index[k] == t) x[v] = lk_f16_to_f32(b->outlier[k]);
}

static void restore_row_of_v(const struct kvquant_block *b, int t, float *x) {
    for (int k = t * b->n_out; k < (t + 1) * b->n_out; k++)
        if (b->index[k] < b->length) x[b->index[k]] = lk_f16_to_f32(b->outlier[k]);
}

static void kvquant_decode(const lk_codec_shape *shape, const void *head, int32_t row0, int32_t n,
                           float *x, size_t stride) {
    struct kvquant_block b = kvquant_arrays(shape, head);
    int d = shape->n_channel, bits = shape->param.bits;
    uint8_t code[LK_MAX_D_HEAD];
    float range[LK_MAX_D_HEAD], min[LK_MAX_D_HEAD];
    for (int v = 0; v < b.n_vector; v++) {
        range[v] = lk_f16_to_f32(b.range[v]) * (1.0f / 255);
        min[v] = lk_f16_to_f32(b.min[v]);
    }
    for (int t = row0; t < row0 + n; t++, x += stride) {
        const void *tile = kvquant_tile(shape, head, d, t);
        lk_bitplanes_unpack_row(lk_shape_side(shape), bits, d, tile, t % LK_TILE, code);
        for (int c = 0; c < d; c++) {
            int v = lk_shape_side(shape) == LK_K ? c : t;
            x[c] = min[v] + range[v] * (float)b.level[code[c]];
        }
        if (lk_shape_side(shape) == LK_K)
            restore_row_of_k(&b, t, x);
        else
            restore_row_of_v(&b, t, x);
    }
}

static const lk_preset presets[] = {
    {"kvquant-3", "sink 1: f16; body: kvquant3",
     "KVQuant at 3 bits: levels by k-means, 1 % outliers, the first token exact; K after RoPE",
     NULL, 0}};

const lk_codec_ops lk_kvquant_ops = {
    .name = "kvquant",
    .words = "kvquant2 to kvquant4",
    .example = "kvquant4",
    .block_rows = LK_KVQUANT_ROWS,
    .parse = kvquant_parse,
    .print = kvquant_print,
    .bytes = kvquant_head_bytes,
    .scale_bytes = kvquant_scale_bytes,
    .encode = kvquant_encode,
    .decode = kvquant_decode,
    .preset = presets,
    .n_preset = 1,
};
