#include "codec/rot.h"

#include "codec/hadamard.h"
#include "codec/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- levels ---- */

/* Steps that minimise the squared error of 2^b uniform levels on a unit Gaussian (Max 1960). */
static const float uniform_unit[9] = {0,         1.595769f, 0.995687f, 0.586019f, 0.335201f,
                                      0.188139f, 0.104063f, 0.056868f, 0.030762f};

/* Lloyd-Max levels of a unit Gaussian, rounded to small integers (error within 1 % of the optimum). */
static const uint8_t lloyd2[] = {0, 7, 13, 20};
static const uint8_t lloyd3[] = {0, 8, 14, 19, 24, 29, 35, 43};
static const uint8_t lloyd4[] = {0, 8, 13, 17, 21, 24, 27, 30, 33, 36, 39, 42, 46, 50, 55, 63};

struct lk_rot_levels lk_rot_levels(const struct lk_codec *codec) {
    if (codec->lloyd && codec->bits == 2) return (struct lk_rot_levels){lloyd2, 20, 0.151035f};
    if (codec->lloyd && codec->bits == 3) return (struct lk_rot_levels){lloyd3, 43, 0.099990f};
    if (codec->lloyd && codec->bits == 4) return (struct lk_rot_levels){lloyd4, 63, 0.087131f};
    return (struct lk_rot_levels){NULL, (1 << codec->bits) - 1, uniform_unit[codec->bits]};
}

/* ---- one row ---- */

/* Steps worth trying, as multiples of a guess. The Gaussian's best step is the guess for coarse codes;
 * for fine ones it is the step at which the row's largest value just reaches the last level, because
 * one row is short and rarely has the tail that the Gaussian's step makes room for. Against the
 * Gaussian's step alone, the search takes this share off the squared error of Gaussian rows of 64:
 * 2 bits 1.5 %, 3 bits 6 %, 4 bits 17 %, 6 bits 40 %, 8 bits 55 %. */
static const float coarse_trial[LK_ROT_TRIALS] = {1.0f, 0.82f, 0.91f, 1.09f, 1.18f};
static const float fine_trial[LK_ROT_TRIALS] = {1.02f, 0.98f, 0.94f, 0.90f, 0.86f};

struct lk_rot_coder lk_rot_coder(const struct lk_codec *codec) {
    struct lk_rot_levels levels = lk_rot_levels(codec);
    struct lk_rot_coder coder = {
        .half = 1 << (codec->bits - 1), .fine = codec->bits > 3, .unit = levels.unit};
    coder.trial = coder.fine ? fine_trial : coarse_trial;
    coder.n_trial = codec->bits == 1 ? 1 : LK_ROT_TRIALS;
    float mid = 0.5f * (float)levels.top;
    coder.reach = levels.table ? mid : mid + 0.5f; /* uniform cells reach past the last level */
    coder.n_border = levels.table ? coder.half - 1 : 0;
    for (int k = 0; levels.table && k < coder.half; k++)
        coder.magnitude[k] = (float)levels.table[coder.half + k] - mid;
    for (int k = 0; k < coder.n_border; k++)
        coder.border[k] = 0.5f * (coder.magnitude[k] + coder.magnitude[k + 1]);
    return coder;
}

/* Which magnitude is nearest to one that is already divided by the step. */
static int nearest(const struct lk_rot_coder *coder, float at) {
    if (coder->n_border == 0) return (int)fminf(at, (float)(coder->half - 1));
    int k = 0;
    while (k < coder->n_border && at > coder->border[k]) k++;
    return k;
}

/* Codes of y [d], and their scale. Under the unbiased scale the error is <y, y> (1 / cos^2 - 1), cos
 * the cosine between y and its levels: the trial with the largest one wins. */
static float code_row(const struct lk_rot_coder *coder, int d, const float *y, uint8_t *code) {
    float energy = 0, most = 0, best = 0, scale = 0;
    for (int c = 0; c < d; c++) {
        energy += y[c] * y[c];
        most = fmaxf(most, fabsf(y[c]));
    }
    float rms = sqrtf(energy / (float)d);
    float guess = rms > 0 ? coder->fine ? most / coder->reach : rms * coder->unit : 1, step = guess;
    for (int i = 0; i < coder->n_trial; i++) {
        float trial = guess * coder->trial[i], inverse = 1 / trial, dot = 0, norm = 0;
        for (int c = 0; c < d; c++) {
            int k = nearest(coder, fabsf(y[c]) * inverse);
            float level = coder->n_border ? coder->magnitude[k] : (float)k + 0.5f;
            dot += level * fabsf(y[c]);
            norm += level * level;
        }
        float worth = dot * (dot / norm);
        if (!(worth > best)) continue;
        best = worth;
        scale = energy / dot;
        step = trial;
    }
    for (int c = 0; c < d; c++) {
        int k = nearest(coder, fabsf(y[c]) * (1 / step));
        code[c] = (uint8_t)(y[c] < 0 ? coder->half - 1 - k : coder->half + k);
    }
    return rms > 0 ? scale : 0;
}

/* ---- the codec ---- */

static int block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return LK_TILE;
}

static bool row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    return !codec->mean;
}

static const char *refuses(const struct lk_codec *codec, enum lk_side side, int d_head) {
    (void)side, (void)d_head;
    if (codec->bits < 1 || codec->bits > 8) return "rot has 1 to 8 bits";
    if (codec->lloyd && !lk_codec_lloyd(codec->bits)) return "Lloyd-Max levels are for 2 to 4 bits";
    return NULL;
}

static size_t scale_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * LK_TILE + (part->codec->mean ? part->d_head : 0);
}

static size_t head_bytes(const struct lk_part *part) {
    return lk_cells_bytes(part->codec->bits, part->d_head) + scale_bytes(part);
}

static void print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    /* What a recipe has by default is not said: K is centred and equalised, V is not. */
    const char *option[3];
    int n = 0;
    if (codec->mean != (side == LK_K)) option[n++] = codec->mean ? "mean" : "nomean";
    if (codec->sigma != (side == LK_K)) option[n++] = codec->sigma ? "sigma" : "nosigma";
    if (codec->lloyd != lk_codec_lloyd(codec->bits))
        option[n++] = codec->lloyd ? "lloyd" : "uniform";
    size_t len = (size_t)snprintf(buf, cap, "rot%d", codec->bits);
    for (int i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%c%s%s", i ? ',' : '(', option[i],
                                i == n - 1 ? ")" : "");
}

/* The row divided by sigma. */
static void equalise(const struct lk_part *part, const float *x, float *y) {
    for (int c = 0; c < part->d_head; c++)
        y[c] = lk_tame(part->sigma ? x[c] * (1 / part->sigma[c]) : x[c]);
}

float lk_rot_round_mean(float *mean, int d, int8_t *code) {
    float most = 0;
    for (int c = 0; c < d; c++) most = fmaxf(most, fabsf(mean[c]));
    float scale = most / 127;
    for (int c = 0; c < d; c++) {
        code[c] = (int8_t)(scale > 0 ? fminf(fmaxf(roundf(mean[c] / scale), -127), 127) : 0);
        mean[c] = scale * code[c];
    }
    return scale;
}

void lk_rot_store_mean_scale(uint16_t *scale, float mean_scale) {
    uint32_t bits;
    memcpy(&bits, &mean_scale, sizeof bits);
    for (int t = 0; t < LK_TILE; t++)
        scale[t] = (uint16_t)((scale[t] & 0x7fff) | (bits >> t & 1) << 15);
}

float lk_rot_load_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < LK_TILE; t++) bits |= (uint32_t)(scale[t] >> 15) << t;
    float mean_scale;
    memcpy(&mean_scale, &bits, sizeof mean_scale);
    return mean_scale;
}

static void encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_coder coder = lk_rot_coder(codec);
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_rot_scales(codec, head, d);
    float y[LK_MAX_D_HEAD], mean[LK_MAX_D_HEAD] = {0}, mean_scale = 0;
    uint8_t code[LK_MAX_D_HEAD];
    if (codec->mean) {
        for (int t = 0; t < LK_TILE; t++) {
            equalise(part, x + t * stride, y);
            for (int c = 0; c < d; c++) mean[c] += y[c];
        }
        for (int c = 0; c < d; c++) mean[c] /= LK_TILE;
        lk_rotate(mean, d);
        mean_scale = lk_rot_round_mean(mean, d, (int8_t *)lk_rot_mean(codec, head, d));
    }
    for (int t = 0; t < n; t++) {
        equalise(part, x + t * stride, y);
        lk_rotate(y, d);
        for (int c = 0; c < d; c++) y[c] -= mean[c];
        scale[row0 + t] = lk_half(code_row(&coder, d, y, code));
        lk_cells_put(part->side, codec->bits, d, head, row0 + t, code);
    }
    if (codec->mean) lk_rot_store_mean_scale(scale, mean_scale);
}

/* A row against the mean of a block that has one already. */
static void replace(const struct lk_part *part, void *head, int row, const float *x) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_coder coder = lk_rot_coder(codec);
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mean_scale = lk_rot_load_mean_scale(scale), y[LK_MAX_D_HEAD];
    uint8_t code[LK_MAX_D_HEAD];
    equalise(part, x, y);
    lk_rotate(y, d);
    for (int c = 0; c < d; c++) y[c] -= mean_scale * mean[c];
    uint16_t of_mean = scale[row] & 0x8000; /* a bit of the mean's scale lies there */
    scale[row] = lk_half(code_row(&coder, d, y, code)) | of_mean;
    lk_cells_put(part->side, codec->bits, d, head, row, code);
}

static void decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_levels levels = lk_rot_levels(codec);
    int d = part->d_head;
    const uint16_t *scale = lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mid = 0.5f * (float)levels.top,
          mean_scale = codec->mean ? lk_rot_load_mean_scale(scale) : 0;
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_cells_get(part->side, codec->bits, d, head, t, code);
        float row_scale = lk_unhalf(scale[t] & 0x7fff);
        for (int c = 0; c < d; c++)
            x[c] = row_scale * ((float)(levels.table ? levels.table[code[c]] : code[c]) - mid);
        if (codec->mean)
            for (int c = 0; c < d; c++) x[c] += mean_scale * mean[c];
        lk_unrotate(x, d);
        if (part->sigma)
            for (int c = 0; c < d; c++) x[c] *= part->sigma[c];
    }
}

const struct lk_codec_ops lk_rot_ops = {
    .block_rows = block_rows,
    .row_wise = row_wise,
    .refuses = refuses,
    .head_bytes = head_bytes,
    .scale_bytes = scale_bytes,
    .print = print,
    .encode = encode,
    .replace = replace,
    .decode = decode,
};
