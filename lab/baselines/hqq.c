/* HQQ (Badri and Shaji 2023, "Half-Quadratic Quantization"): as codec asym (codec/asym.h) in groups
 * of channels, with another zero point, which is not an integer:
 *
 *   scale = (max y - min y) / (2^bits - 1),  at least max |y| / LK_ASYM_MAX_ZERO
 *   code = clamp(round(y / scale + zero), 0, 2^bits - 1),  y ~ scale * (code - zero)
 *
 * The zero point minimizes the error's l_p norm, p = 0.7, by a half-quadratic solver: LK_HQQ_STEPS
 * times
 *
 *   e = shrink(y - y~),  zero = mean(code - (y - e) / scale),  beta = 1.01 beta
 *   shrink(r) = sign(r) max(|r| - |r|^(p - 1) / beta, 0),  beta = 10 at first
 *
 * It ends as soon as the mean of |y - y~| does not get smaller, and keeps the zero point of the
 * smallest mean. It starts at -min y / scale, which is rounded at 4 bits only, as in the published
 * code. The code decides for a whole tensor when to end; here each group does.
 *
 * Blocks have the layout of asym, which decodes them. */
#include "baselines/baselines.h"
#include "codec/asym.h"
#include "codec/f16.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { USUAL_GROUP = 64 }; /* that the name alone stands for */

static bool hqq_parse(const char *word, lk_codec_param *param) {
    return lk_parse_bits(word, "hqq", 2, 4, param);
}

static bool hqq_parse_option(const char *word, lk_codec_param *param) {
    int group = strcmp(word, "g32") == 0    ? 32
                : strcmp(word, "g64") == 0  ? 64
                : strcmp(word, "g128") == 0 ? 128
                                            : 0;
    if (param->option || !group) return false;
    param->option = (uint16_t)group;
    return true;
}

/* The codec that has the same layout. */
static struct lk_codec layout_of(const lk_codec_param *param) {
    return (struct lk_codec){.coding = LK_ASYM,
                             .bits = param->bits,
                             .group = param->option ? param->option : USUAL_GROUP};
}

static void hqq_print(const lk_codec_param *param, char *buf, size_t cap) {
    if (param->option && param->option != USUAL_GROUP)
        snprintf(buf, cap, "hqq%d(g%d)", param->bits, param->option);
    else
        snprintf(buf, cap, "hqq%d", param->bits);
}

static int32_t hqq_unit(const lk_codec_param *param) { return layout_of(param).group; }

static const char *hqq_reject(const lk_codec_shape *shape) {
    struct lk_codec layout = layout_of(&shape->param);
    return lk_codec_reject_reason(&layout, lk_shape_side(shape), shape->n_channel);
}

static size_t hqq_bytes(const lk_codec_shape *shape) {
    struct lk_codec layout = layout_of(&shape->param);
    return lk_codec_head_bytes(&layout, lk_shape_side(shape), shape->n_channel, LK_TILE);
}

static size_t hqq_scale_bytes(const lk_codec_shape *shape) {
    struct lk_codec layout = layout_of(&shape->param);
    return lk_codec_head_scale_bytes(&layout, lk_shape_side(shape), shape->n_channel, LK_TILE);
}

/* Scale and zero point of a group, as stored. */
struct hqq_grid {
    float scale, inverse, zero, top;
};

static float code_of(const struct hqq_grid *grid, float y) {
    return fminf(fmaxf(lk_round_half_away(y * grid->inverse + grid->zero), 0), grid->top);
}

static float value_of(const struct hqq_grid *grid, float code) {
    return grid->scale * (code - grid->zero);
}

/* Where the solver starts. y: [n], finite */
static struct hqq_grid first_grid(const float *y, int n, int bits) {
    float lo = INFINITY, hi = -INFINITY, top = (float)((1 << bits) - 1);
    for (int c = 0; c < n; c++) {
        /* Groups are whole. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
        lo = fminf(lo, y[c]);
        hi = fmaxf(hi, y[c]);
    }
    float least = fmaxf(fabsf(lo), fabsf(hi)) / LK_ASYM_MAX_ZERO;
    struct hqq_grid grid = {.top = top};
    grid.scale = lk_f16_to_f32(lk_f32_to_f16(fmaxf((hi - lo) / top, least)));
    grid.inverse = grid.scale > 0 ? 1 / grid.scale : 0;
    grid.zero = fminf(fmaxf(-lo * grid.inverse, -2 * LK_ASYM_MAX_ZERO), 2 * LK_ASYM_MAX_ZERO);
    if (bits == 4) grid.zero = lk_round_half_away(grid.zero);
    grid.zero = lk_f16_to_f32(lk_f32_to_f16(grid.zero + 0.0f)); /* + 0: never -0 */
    return grid;
}

/* shrink, p = 0.7 */
static float hqq_shrink(float r, float beta) {
    float magnitude = fabsf(r);
    if (magnitude == 0) return 0;
    float left = magnitude - powf(magnitude, 0.7f - 1) / beta;
    return left > 0 ? copysignf(left, r) : 0;
}

/* The zero point. */
static float hqq_zero(struct hqq_grid grid, const float *y, int n) {
    const float kappa = 1.01f;
    float beta = 10, least = INFINITY, best = grid.zero;
    if (grid.scale == 0) return 0;
    for (int step = 0; step < LK_HQQ_STEPS; step++, beta *= kappa) {
        float error = 0, sum = 0;
        for (int c = 0; c < n; c++) {
            float code = code_of(&grid, y[c]), r = y[c] - value_of(&grid, code);
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

static void hqq_encode(const lk_codec_shape *shape, void *block, int32_t row0, int32_t n,
                       const float *x, size_t stride) {
    struct lk_codec layout = layout_of(&shape->param);
    int d = shape->n_channel, width = lk_asym_width(&layout, d);
    uint8_t code[LK_MAX_D_HEAD];
    float y[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        char *group = block;
        for (int c = 0; c < d; c++) y[c] = lk_clamp_finite(x[c]);
        for (int c = 0; c < d; c += width, group += lk_asym_group_bytes(&layout, width)) {
            uint16_t *scale = (uint16_t *)lk_asym_scales(&layout, group, width);
            struct hqq_grid grid = first_grid(y + c, width, layout.bits);
            grid.zero = hqq_zero(grid, y + c, width);
            for (int i = 0; i < width; i++) code[i] = (uint8_t)code_of(&grid, y[c + i]);
            scale[t] = lk_f32_to_f16(grid.scale);
            scale[LK_TILE + t] = lk_f32_to_f16(grid.zero);
            lk_bitplanes_pack_row(lk_shape_side(shape), layout.bits, width, group, t, code);
        }
    }
}

static void hqq_decode(const lk_codec_shape *shape, const void *block, int32_t row0, int32_t n,
                       float *x, size_t stride) {
    struct lk_codec layout = layout_of(&shape->param);
    struct lk_part part = {&layout, lk_shape_side(shape), shape->n_channel, LK_TILE, NULL};
    lk_codec_decode(&part, block, row0, n, x, stride);
}

static const lk_preset presets[] = {
    {"hqq-4", "body: hqq4; residual 128: f16",
     "HQQ at 4 bits: per token, in groups of 64, zero points by the half-quadratic solver", NULL,
     0},
    {"hqq-2", "body: hqq2; residual 128: f16",
     "HQQ at 2 bits: per token, in groups of 64, zero points by the half-quadratic solver", NULL,
     0}};

const lk_codec_ops lk_hqq_ops = {
    .name = "hqq",
    .words = "hqq2 to hqq4",
    .example = "hqq4",
    .options = "g32, g64 or g128",
    .parse = hqq_parse,
    .parse_option = hqq_parse_option,
    .print = hqq_print,
    .unit = hqq_unit,
    .reject = hqq_reject,
    .bytes = hqq_bytes,
    .scale_bytes = hqq_scale_bytes,
    .encode = hqq_encode,
    .decode = hqq_decode,
    .preset = presets,
    .n_preset = 2,
};
