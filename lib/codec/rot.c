/* Codec rot. Formulas, layout and the trellis are in rot.h. */
#include "codec/rot.h"

#include "codec/f16.h"
#include "codec/hadamard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- trellis-coded quantization: tables and the reference encoder ---- */

/* Levels, found by alternating between encoding words of Gaussian rows and replacing each level by
 * the mean of the values that use it (Lloyd's algorithm), from random assignments of equally
 * probable levels. Those of 3 and 4 bits are for rows of 64 channels, divided by their maximum. */
const uint8_t lk_trellis_table[5][LK_TRELLIS_LEVELS] = {
    [1] = {96, 88, 42, 32,  71, 126, 5,  52, 62, 94,  40, 71,  85, 41, 46, 89,
           68, 95, 4,  55,  78, 81,  35, 57, 38, 51,  76, 89,  31, 42, 75, 106,
           42, 45, 89, 77,  33, 78,  57, 92, 8,  49,  71, 117, 36, 82, 87, 42,
           31, 48, 66, 108, 35, 43,  79, 95, 79, 118, 13, 51,  78, 86, 22, 51},
    [2] = {23, 49, 67, 90,  42, 60, 80, 105, 26, 50, 66, 85,  36, 57, 73,  101,
           47, 72, 93, 120, 17, 35, 56, 67,  55, 29, 86, 126, 0,  81, 103, 58,
           2,  33, 56, 77,  52, 71, 97, 83,  15, 73, 46, 101, 34, 44, 63,  83,
           33, 57, 77, 102, 33, 49, 69, 100, 40, 51, 69, 84,  23, 60, 85,  116},
    [3] = {0,  26, 54, 70,  17, 49, 34, 42,  27, 37, 48,  59, 40, 11, 62, 51,
           85, 85, 98, 126, 57, 64, 76, 102, 68, 79, 108, 90, 79, 70, 92, 117,
           0,  26, 54, 70,  17, 49, 34, 42,  27, 37, 48,  59, 40, 11, 62, 51,
           85, 85, 98, 126, 57, 64, 76, 102, 68, 79, 108, 90, 79, 70, 92, 117},
    [4] = {6,  21, 32, 39, 46, 58, 62, 53, 65, 78, 73, 70, 84, 92, 103, 122,
           16, 35, 26, 48, 39, 44, 51, 57, 61, 68, 82, 90, 76, 83, 115, 100,
           23, 12, 42, 32, 47, 50, 56, 64, 70, 64, 79, 74, 92, 87, 96,  110,
           0,  28, 37, 44, 52, 54, 59, 60, 69, 74, 66, 80, 87, 97, 106, 126},
};

/* The Viterbi algorithm over all symbols of a word, from symbol `end` - 1 down to `end`, around the
 * word. The state after symbol end - 1 is `state`, and the one before symbol `end` is the same;
 * state < 0: both are free. */
static void find_path(const struct lk_trellis *t, const float *value, int end, int state,
                      uint8_t *index) {
    const float none = 3e38f;
    uint8_t best[LK_TRELLIS_MAX_SYMBOLS][LK_TRELLIS_MAX_STATES];
    float cost[LK_TRELLIS_MAX_STATES], next[LK_TRELLIS_MAX_STATES];
    int n = t->n_symbol;
    for (int i = 0; i < t->n_state; i++) cost[i] = state < 0 || i == state ? 0 : 1e38f;
    for (int k = 1; k <= n; k++) {
        int p = (end + n - k) % n;
        for (int i = 0; i < t->n_state; i++) next[i] = none;
        for (int i = 0; i < t->n_index; i++) {
            float error = value[p] - (float)(t->table[i] - LK_TRELLIS_TOP / 2);
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): each has one */
            float sum = cost[lk_trellis_next_state(t, i)] + error * error;
            int own = lk_trellis_own_state(t, i);
            if (!(sum < next[own])) continue;
            next[own] = sum;
            best[p][own] = (uint8_t)i;
        }
        memcpy(cost, next, sizeof cost);
    }
    int at = state < 0 ? 0 : state;
    for (int i = 1; state < 0 && i < t->n_state; i++)
        if (cost[i] < cost[at]) at = i;
    for (int k = 0; k < n; k++) {
        int p = (end + k) % n;
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): all sums are below `none` */
        index[p] = best[p][at];
        at = lk_trellis_next_state(t, index[p]);
    }
}

void lk_trellis_encode(const struct lk_trellis *t, const float *value, uint8_t *index) {
    int middle = t->n_symbol / 2;
    find_path(t, value, 0, -1, index);
    find_path(t, value, middle, lk_trellis_own_state(t, index[middle]), index);
}

void lk_trellis_levels(const struct lk_trellis *t, int d_head, const uint8_t *code,
                       uint8_t *level) {
    int n = t->n_symbol, n_group = d_head * 4 / n;
    for (int group = 0; group < n_group; group++)
        for (int word = 0; word < 8; word++)
            for (int p = 0; p < n; p++) {
                int own = code[lk_trellis_place(t, group, word, p)], index = own, shift = t->bits;
                for (int k = 1; t->bits != 3 && shift < 6; k++, shift += t->bits)
                    index |= code[lk_trellis_place(t, group, word, (p + k) % n)] << shift;
                if (t->bits == 3)
                    index = (own & 3) | (own >> 2) << 4 |
                            (code[lk_trellis_place(t, group, word, (p + 1) % n)] & 3) << 2;
                level[lk_trellis_place(t, group, word, p)] = t->table[index & 63];
            }
}

/* ---- codebooks ---- */

/* Steps that minimize the squared error of 2^b uniform levels on a unit Gaussian (Max 1960). */
static const float uniform_unit[9] = {0,         1.595769f, 0.995687f, 0.586019f, 0.335201f,
                                      0.188139f, 0.104063f, 0.056868f, 0.030762f};

/* Lloyd-Max codebooks for a unit Gaussian, rounded to small integers (error within 1 % of the
 * optimum). */
static const uint8_t lloyd2[] = {0, 7, 13, 20};
static const uint8_t lloyd3[] = {0, 8, 14, 19, 24, 29, 35, 43};
static const uint8_t lloyd4[] = {0, 8, 13, 17, 21, 24, 27, 30, 33, 36, 39, 42, 46, 50, 55, 63};

struct lk_rot_codebook lk_rot_codebook(const struct lk_codec *codec) {
    if (codec->trellis) {
        struct lk_trellis trellis = lk_trellis(codec->bits);
        return (struct lk_rot_codebook){trellis.table, LK_TRELLIS_TOP, trellis.unit};
    }
    if (codec->lloyd && codec->bits == 2) return (struct lk_rot_codebook){lloyd2, 20, 0.151035f};
    if (codec->lloyd && codec->bits == 3) return (struct lk_rot_codebook){lloyd3, 43, 0.099990f};
    if (codec->lloyd && codec->bits == 4) return (struct lk_rot_codebook){lloyd4, 63, 0.087131f};
    return (struct lk_rot_codebook){NULL, (1 << codec->bits) - 1, uniform_unit[codec->bits]};
}

/* ---- quantizing one row ---- */

/* Candidate steps, as multiples of a guess. For coarse codes the guess is the best step of a
 * Gaussian. For fine codes it is the step at which the largest value of the row just reaches the
 * last level: a row is short and rarely has the tail that the Gaussian's step makes room for.
 * Compared with the Gaussian's step alone, the search reduces the squared error of Gaussian rows of
 * 64 by: 2 bits 1.5 %, 3 bits 6 %, 4 bits 17 %, 6 bits 40 %, 8 bits 55 %. */
static const float coarse_trial[LK_ROT_TRIALS] = {1.0f, 0.82f, 0.91f, 1.09f, 1.18f};
static const float fine_trial[LK_ROT_TRIALS] = {1.02f, 0.98f, 0.94f, 0.90f, 0.86f};

struct lk_rot_quantizer lk_rot_quantizer(const struct lk_codec *codec) {
    struct lk_rot_codebook book = lk_rot_codebook(codec);
    struct lk_rot_quantizer q = {
        .half = 1 << (codec->bits - 1), .fine = codec->bits > 3, .unit = book.unit};
    q.trial = q.fine ? fine_trial : coarse_trial;
    q.n_trial = codec->bits == 1 ? 1 : LK_ROT_TRIALS;
    float mid = 0.5f * (float)book.top;
    q.reach = book.table ? mid : mid + 0.5f; /* uniform cells reach past the last level */
    q.n_border = book.table ? q.half - 1 : 0;
    for (int k = 0; book.table && k < q.half; k++)
        q.magnitude[k] = (float)book.table[q.half + k] - mid;
    for (int k = 0; k < q.n_border; k++) q.border[k] = 0.5f * (q.magnitude[k] + q.magnitude[k + 1]);
    return q;
}

/* Index of the magnitude nearest to `at`, a magnitude that is already divided by the step. */
static int nearest_magnitude(const struct lk_rot_quantizer *q, float at) {
    if (q->n_border == 0) return (int)fminf(at, (float)(q->half - 1));
    int k = 0;
    while (k < q->n_border && at > q->border[k]) k++;
    return k;
}

/* Quantize y [d] to codes [d]. Returns the scale. With the unbiased scale the error is <y, y> (1 /
 * cos^2 - 1), where cos is the cosine between y and its codebook entries: the trial with the
 * largest cosine wins. */
static float quantize_row(const struct lk_rot_quantizer *q, int d, const float *y, uint8_t *code) {
    float energy = 0, max = 0, best = 0, scale = 0;
    for (int c = 0; c < d; c++) {
        energy += y[c] * y[c];
        max = fmaxf(max, fabsf(y[c]));
    }
    float rms = sqrtf(energy / (float)d);
    float guess = rms > 0 ? q->fine ? max / q->reach : rms * q->unit : 1, step = guess;
    for (int i = 0; i < q->n_trial; i++) {
        float trial = guess * q->trial[i], inverse = 1 / trial, dot = 0, norm = 0;
        for (int c = 0; c < d; c++) {
            int k = nearest_magnitude(q, fabsf(y[c]) * inverse);
            float level = q->n_border ? q->magnitude[k] : (float)k + 0.5f;
            dot += level * fabsf(y[c]);
            norm += level * level;
        }
        float score = dot * (dot / norm); /* cos^2 <y, y> */
        if (!(score > best)) continue;
        best = score;
        scale = energy / dot;
        step = trial;
    }
    for (int c = 0; c < d; c++) {
        int k = nearest_magnitude(q, fabsf(y[c]) * (1 / step));
        code[c] = (uint8_t)(y[c] < 0 ? q->half - 1 - k : q->half + k);
    }
    return rms > 0 ? scale : 0;
}

/* ---- quantizing a tile with a trellis ---- */

/* Quantize the rows y [LK_TILE][d] of a tile: codes into `tile`, scales into scale [LK_TILE]. The
 * scales are unbiased like those of quantize_row. A word has values of several rows, and each
 * counts relative to its row: attention to a short row can be as large as to a long one. */
static void quantize_tile(const struct lk_part *part, const float *y, void *tile, uint16_t *scale) {
    struct lk_trellis trellis = lk_trellis(part->codec->bits);
    int d = part->d_head, n = trellis.n_symbol;
    float value[LK_TILE * LK_MAX_D_HEAD];
    uint8_t cell[LK_TILE * LK_MAX_D_HEAD], code[LK_MAX_D_HEAD];
    for (int t = 0; t < LK_TILE; t++) {
        float energy = 0, max = 0;
        for (int c = 0; c < d; c++) {
            /* A tile is whole. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
            energy += y[t * d + c] * y[t * d + c];
            max = fmaxf(max, fabsf(y[t * d + c]));
        }
        float step =
            trellis.per_max > 0 ? max * trellis.per_max : sqrtf(energy / (float)d) * trellis.unit;
        float inverse = step > LK_TRELLIS_MIN_STEP ? 1 / step : 0;
        for (int c = 0; c < d; c++)
            value[lk_bitplanes_index(part->side, t, c)] = y[t * d + c] * inverse;
    }
    for (int group = 0; group < d * 4 / n; group++)
        for (int word = 0; word < 8; word++) {
            float of_word[LK_TRELLIS_MAX_SYMBOLS];
            uint8_t index[LK_TRELLIS_MAX_SYMBOLS];
            for (int p = 0; p < n; p++)
                of_word[p] = value[lk_trellis_place(&trellis, group, word, p)];
            lk_trellis_encode(&trellis, of_word, index);
            for (int p = 0; p < n; p++) cell[lk_trellis_place(&trellis, group, word, p)] = index[p];
        }
    for (int t = 0; t < LK_TILE; t++) {
        float energy = 0, dot = 0;
        for (int c = 0; c < d; c++) {
            int index = cell[lk_bitplanes_index(part->side, t, c)];
            energy += y[t * d + c] * y[t * d + c];
            dot += y[t * d + c] * (float)(trellis.table[index] - LK_TRELLIS_TOP / 2);
            code[c] = (uint8_t)lk_trellis_code(&trellis, index);
        }
        scale[t] = lk_f32_to_f16(dot > 0 ? energy / dot : 0);
        lk_bitplanes_pack_row(part->side, part->codec->bits, d, tile, t, code);
    }
}

/* ---- the codec ---- */

static bool rot_row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    return !codec->mean && !codec->trellis;
}

static const char *rot_reject_reason(const struct lk_codec *codec, enum lk_side side, int d_head) {
    (void)side, (void)d_head;
    if (codec->bits < 1 || codec->bits > 8) return "rot must have 1 to 8 bits";
    if (codec->lloyd && !lk_codec_default_lloyd(codec->bits))
        return "rot has Lloyd-Max codebooks for 2 to 4 bits only";
    if (codec->trellis && codec->bits > 4) return "rot has trellises for 1 to 4 bits only";
    return NULL;
}

static size_t rot_scale_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * LK_TILE + (part->codec->mean ? part->d_head : 0);
}

static size_t rot_head_bytes(const struct lk_part *part) {
    return lk_bitplanes_bytes(part->codec->bits, part->d_head) + rot_scale_bytes(part);
}

/* Options are printed only if they differ from the defaults: K is centered and equalized, V is
 * not. */
static void rot_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    const char *option[3];
    int n = 0;
    if (codec->mean != (side == LK_K)) option[n++] = codec->mean ? "mean" : "nomean";
    if (codec->sigma != (side == LK_K)) option[n++] = codec->sigma ? "sigma" : "nosigma";
    if (codec->trellis)
        option[n++] = "trellis";
    else if (codec->lloyd != lk_codec_default_lloyd(codec->bits))
        option[n++] = codec->lloyd ? "lloyd" : "uniform";
    size_t len = (size_t)snprintf(buf, cap, "rot%d", codec->bits);
    for (int i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%c%s%s", i ? ',' : '(', option[i],
                                i == n - 1 ? ")" : "");
}

/* y = x / sigma, clamped. x, y: [d_head]. */
static void equalize(const struct lk_part *part, const float *x, float *y) {
    for (int c = 0; c < part->d_head; c++)
        y[c] = lk_clamp_finite(part->sigma ? x[c] * (1 / part->sigma[c]) : x[c]);
}

float lk_rot_round_mean(float *mean, int d, int8_t *code) {
    float max = 0;
    for (int c = 0; c < d; c++) max = fmaxf(max, fabsf(mean[c]));
    float scale = max / 127;
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

static void rot_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                       size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_quantizer quantizer = {0};
    if (!codec->trellis) quantizer = lk_rot_quantizer(codec);
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_rot_scales(codec, head, d);
    float y[LK_MAX_D_HEAD], mean[LK_MAX_D_HEAD] = {0}, mean_scale = 0;
    uint8_t code[LK_MAX_D_HEAD];
    if (codec->mean) {
        for (int t = 0; t < LK_TILE; t++) {
            equalize(part, x + t * stride, y);
            for (int c = 0; c < d; c++) mean[c] += y[c];
        }
        for (int c = 0; c < d; c++) mean[c] /= LK_TILE;
        lk_rotate(mean, d);
        mean_scale = lk_rot_round_mean(mean, d, (int8_t *)lk_rot_mean(codec, head, d));
    }
    float tile[LK_TILE * LK_MAX_D_HEAD];
    for (int t = 0; t < n; t++) {
        equalize(part, x + t * stride, y);
        lk_rotate(y, d);
        for (int c = 0; c < d; c++) y[c] -= mean[c];
        if (codec->trellis) {
            memcpy(tile + t * d, y, d * sizeof *y);
            continue;
        }
        scale[row0 + t] = lk_f32_to_f16(quantize_row(&quantizer, d, y, code));
        lk_bitplanes_pack_row(part->side, codec->bits, d, head, row0 + t, code);
    }
    if (codec->trellis) quantize_tile(part, tile, head, scale);
    if (codec->mean) lk_rot_store_mean_scale(scale, mean_scale);
}

/* Quantize a row against the stored mean of its block. */
static void rot_replace(const struct lk_part *part, void *head, int row, const float *x) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_quantizer quantizer = lk_rot_quantizer(codec);
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mean_scale = lk_rot_load_mean_scale(scale), y[LK_MAX_D_HEAD];
    uint8_t code[LK_MAX_D_HEAD];
    equalize(part, x, y);
    lk_rotate(y, d);
    for (int c = 0; c < d; c++) y[c] -= mean_scale * mean[c];
    uint16_t mean_bit = scale[row] & 0x8000; /* a bit of the mean's scale */
    scale[row] = lk_f32_to_f16(quantize_row(&quantizer, d, y, code)) | mean_bit;
    lk_bitplanes_pack_row(part->side, codec->bits, d, head, row, code);
}

/* Levels [d_head][32] of a tile with a trellis, in the order of its cells. */
static void decode_tile(const struct lk_part *part, const void *tile, uint8_t *level) {
    struct lk_trellis trellis = lk_trellis(part->codec->bits);
    uint8_t code[LK_MAX_D_HEAD], cell[LK_TILE * LK_MAX_D_HEAD];
    for (int t = 0; t < LK_TILE; t++) {
        lk_bitplanes_unpack_row(part->side, trellis.bits, part->d_head, tile, t, code);
        for (int c = 0; c < part->d_head; c++) cell[lk_bitplanes_index(part->side, t, c)] = code[c];
    }
    lk_trellis_levels(&trellis, part->d_head, cell, level);
}

static void rot_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                       size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_codebook book = lk_rot_codebook(codec);
    int d = part->d_head;
    const uint16_t *scale = lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mid = 0.5f * (float)book.top;
    float mean_scale = codec->mean ? lk_rot_load_mean_scale(scale) : 0;
    uint8_t code[LK_MAX_D_HEAD], level[LK_TILE * LK_MAX_D_HEAD];
    if (codec->trellis) decode_tile(part, head, level);
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_bitplanes_unpack_row(part->side, codec->bits, d, head, t, code);
        float row_scale = lk_f16_to_f32(scale[t] & 0x7fff);
        for (int c = 0; c < d; c++) {
            int entry = codec->trellis ? level[lk_bitplanes_index(part->side, t, c)]
                        : book.table   ? book.table[code[c]]
                                       : code[c];
            x[c] = row_scale * ((float)entry - mid);
        }
        if (codec->mean)
            for (int c = 0; c < d; c++) x[c] += mean_scale * mean[c];
        lk_unrotate(x, d);
        if (part->sigma)
            for (int c = 0; c < d; c++) x[c] *= part->sigma[c];
    }
}

const struct lk_coding_ops lk_rot_ops = {
    .row_wise = rot_row_wise,
    .reject_reason = rot_reject_reason,
    .head_bytes = rot_head_bytes,
    .scale_bytes = rot_scale_bytes,
    .print = rot_print,
    .encode = rot_encode,
    .replace = rot_replace,
    .decode = rot_decode,
};
