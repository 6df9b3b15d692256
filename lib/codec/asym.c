/* Codec asym. Formulas and layout are in asym.h. */
#include "codec/asym.h"

#include "codec/hadamard.h"
#include "codec/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *asym_reject_reason(const struct lk_codec *codec, enum lk_side side, int d_head) {
    (void)side;
    if (codec->bits < 2 || codec->bits > 8) return "asym must have 2 to 8 bits";
    if (codec->group == 0 || d_head % codec->group == 0) return NULL;
    if (codec->group == 32) return "groups of 32 channels need d_head to be a multiple of 32";
    if (codec->group == 64) return "groups of 64 channels need d_head to be a multiple of 64";
    if (codec->group == 128) return "groups of 128 channels need d_head to be a multiple of 128";
    return "the group size of asym must be 32, 64 or 128";
}

static size_t asym_groups(const struct lk_part *part) {
    return (size_t)(part->d_head / lk_asym_width(part->codec, part->d_head));
}

static size_t asym_scale_bytes(const struct lk_part *part) {
    return asym_groups(part) * 2 * sizeof(uint16_t) * LK_TILE;
}

static size_t asym_head_bytes(const struct lk_part *part) {
    return lk_bitplanes_bytes(part->codec->bits, part->d_head) + asym_scale_bytes(part);
}

static void asym_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)side;
    char option[3][16] = {"", "", ""}, list[64] = "";
    int usual = codec->hqq ? 64 : 0; /* the group size that the name alone stands for */
    if (codec->group != usual) snprintf(option[0], sizeof option[0], "g%d", codec->group);
    if (codec->hadamard) snprintf(option[1], sizeof option[1], "hadamard");
    if (codec->clip) snprintf(option[2], sizeof option[2], "clip%d", codec->clip);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(list);
        if (*option[i]) snprintf(list + n, sizeof list - n, "%s%s", n ? "," : "", option[i]);
    }
    snprintf(buf, cap, "%s%d%s%s%s", codec->hqq ? "hqq" : "asym", codec->bits, *list ? "(" : "",
             list, *list ? ")" : "");
}

/* Scale and zero point of a group, as stored. */
struct asym_grid {
    float scale, inverse, zero, top;
};

static float asym_code(const struct asym_grid *grid, float y, bool round_first) {
    float level = y * grid->inverse;
    level = round_first ? lk_round_half_away(level) + grid->zero
                        : lk_round_half_away(level + grid->zero);
    return fminf(fmaxf(level, 0), grid->top);
}

static float asym_value(const struct asym_grid *grid, float code) {
    return grid->scale * (code - grid->zero);
}

/* Eq. 9. y: [n], finite. round_zero: false leaves the zero point as it is, for HQQ */
static struct asym_grid find_grid(const float *y, int n, int bits, bool round_zero) {
    float lo = y[0], hi = y[0], top = (float)((1 << bits) - 1);
    for (int c = 1; c < n; c++) {
        lo = fminf(lo, y[c]);
        hi = fmaxf(hi, y[c]);
    }
    float least = fmaxf(fabsf(lo), fabsf(hi)) / LK_ASYM_MAX_ZERO;
    struct asym_grid grid = {.top = top};
    grid.scale = lk_f16_to_f32(lk_f32_to_f16(fmaxf((hi - lo) / top, least)));
    grid.inverse = grid.scale > 0 ? 1 / grid.scale : 0;
    grid.zero = fminf(fmaxf(-lo * grid.inverse, -2 * LK_ASYM_MAX_ZERO), 2 * LK_ASYM_MAX_ZERO);
    if (round_zero) grid.zero = lk_round_half_away(grid.zero);
    grid.zero = lk_f16_to_f32(lk_f32_to_f16(grid.zero + 0.0f)); /* + 0: never -0 */
    return grid;
}

/* shrink of asym.h, p = 0.7 */
static float hqq_shrink(float r, float beta) {
    float magnitude = fabsf(r);
    if (magnitude == 0) return 0;
    float left = magnitude - powf(magnitude, 0.7f - 1) / beta;
    return left > 0 ? copysignf(left, r) : 0;
}

/* The zero point of HQQ. grid: that of Eq. 9, where the solver starts */
static float hqq_zero(struct asym_grid grid, const float *y, int n) {
    const float kappa = 1.01f;
    float beta = 10, least = INFINITY, best = grid.zero;
    if (grid.scale == 0) return 0;
    for (int step = 0; step < LK_HQQ_STEPS; step++, beta *= kappa) {
        float error = 0, sum = 0;
        for (int c = 0; c < n; c++) {
            float code = asym_code(&grid, y[c], false), r = y[c] - asym_value(&grid, code);
            error += fabsf(r);
            sum += code - (y[c] - hqq_shrink(r, beta)) * grid.inverse;
        }
        if (!(error < least)) break;
        least = error;
        best = grid.zero;
        grid.zero = lk_f16_to_f32(lk_f32_to_f16(sum / (float)n));
    }
    return best;
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Clamp y [n] to a percentile of its magnitudes. */
static void clip_group(float *y, int n, int percentile) {
    float magnitude[LK_MAX_D_HEAD];
    for (int c = 0; c < n; c++) magnitude[c] = fabsf(y[c]);
    qsort(magnitude, (size_t)n, sizeof *magnitude, compare_floats);
    float at = (float)percentile / 100 * (float)(n - 1);
    int i = (int)at; /* below n - 1: percentile < 100 */
    float limit = magnitude[i] + (at - (float)i) * (magnitude[i + 1] - magnitude[i]);
    for (int c = 0; c < n; c++) y[c] = fminf(fmaxf(y[c], -limit), limit);
}

static void encode_group(const struct lk_codec *codec, enum lk_side side, int width, void *group,
                         int t, float *y) {
    uint16_t *scale = (uint16_t *)lk_asym_scales(codec, group, width);
    uint8_t code[LK_MAX_D_HEAD];
    if (codec->clip) clip_group(y, width, codec->clip);
    struct asym_grid grid = find_grid(y, width, codec->bits, !codec->hqq || codec->bits == 4);
    if (codec->hqq) grid.zero = hqq_zero(grid, y, width);
    for (int c = 0; c < width; c++) code[c] = (uint8_t)asym_code(&grid, y[c], !codec->hqq);
    scale[t] = lk_f32_to_f16(grid.scale);
    scale[LK_TILE + t] = lk_f32_to_f16(grid.zero);
    lk_bitplanes_pack_row(side, codec->bits, width, group, t, code);
}

static void asym_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                        size_t stride) {
    int d = part->d_head, width = lk_asym_width(part->codec, d);
    float y[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        for (int c = 0; c < d; c++) y[c] = lk_clamp_finite(x[c]);
        if (part->codec->hadamard) lk_rotate(y, d);
        char *group = head;
        for (int c = 0; c < d; c += width, group += lk_asym_group_bytes(part->codec, width))
            encode_group(part->codec, part->side, width, group, t, y + c);
    }
}

static void asym_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                        size_t stride) {
    const struct lk_codec *codec = part->codec;
    int d = part->d_head, width = lk_asym_width(codec, d);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        const char *group = head;
        for (int c = 0; c < d; c += width, group += lk_asym_group_bytes(codec, width)) {
            const uint16_t *scale = lk_asym_scales(codec, group, width);
            struct asym_grid grid = {.scale = lk_f16_to_f32(scale[t]),
                                     .zero = lk_f16_to_f32(scale[LK_TILE + t])};
            lk_bitplanes_unpack_row(part->side, codec->bits, width, group, t, code);
            for (int i = 0; i < width; i++) x[c + i] = asym_value(&grid, (float)code[i]);
        }
        if (codec->hadamard) lk_unrotate(x, d);
    }
}

const struct lk_codec_ops lk_asym_ops = {
    .reject_reason = asym_reject_reason,
    .head_bytes = asym_head_bytes,
    .scale_bytes = asym_scale_bytes,
    .print = asym_print,
    .encode = asym_encode,
    .decode = asym_decode,
};
