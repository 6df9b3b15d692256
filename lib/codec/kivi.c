/* Codec kivi. Formula and layouts are in kivi.h. */
#include "codec/kivi.h"

#include "codec/f16.h"

#include <math.h>
#include <stdio.h>

static int kivi_block_rows(const struct lk_codec *codec, enum lk_side side) {
    return side == LK_K ? codec->group : LK_TILE;
}

static bool kivi_row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)codec;
    return side == LK_V;
}

static int kivi_unit(const struct lk_codec *codec, enum lk_side side) {
    return side == LK_V ? codec->group : 8;
}

static const char *kivi_reject_reason(const struct lk_codec *codec, enum lk_side side, int d_head) {
    if (codec->bits != 2 && codec->bits != 4) return "kivi must have 2 or 4 bits";
    if (codec->group != 32 && codec->group != 64 && codec->group != 128)
        return "the group size of kivi must be 32, 64 or 128";
    if (side == LK_K || d_head % codec->group == 0) return NULL;
    if (codec->group == 32) return "kivi groups of 32 channels need d_head to be a multiple of 32";
    if (codec->group == 64) return "kivi groups of 64 channels need d_head to be a multiple of 64";
    return "kivi groups of 128 channels need d_head to be a multiple of 128";
}

static size_t kivi_scale_bytes(const struct lk_part *part) {
    return 2 * sizeof(uint16_t) * lk_kivi_groups(part->codec, part->side, part->d_head);
}

static size_t kivi_head_bytes(const struct lk_part *part) {
    return part->block_rows / LK_TILE * lk_bitplanes_bytes(part->codec->bits, part->d_head) +
           kivi_scale_bytes(part);
}

static void kivi_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)side;
    if (codec->group == 32)
        snprintf(buf, cap, "kivi%d", codec->bits);
    else
        snprintf(buf, cap, "kivi%d(g%d)", codec->bits, codec->group);
}

/* Scale and minimum of a group, as stored. */
struct kivi_range {
    float scale, min, inverse;
};

/* The range of n numbers, `step` floats apart. Also stores its scale and minimum. */
static struct kivi_range find_range(const float *x, int n, size_t step, int bits, uint16_t *scale,
                                    uint16_t *min) {
    float lo = lk_clamp_finite(x[0]), hi = lo;
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, lk_clamp_finite(x[i * step]));
        hi = fmaxf(hi, lk_clamp_finite(x[i * step]));
    }
    *scale = lk_f32_to_f16((hi - lo + 0.0f) / (float)((1 << bits) - 1)); /* + 0: never -0 */
    *min = lk_f32_to_f16(lo + 0.0f);
    struct kivi_range range = {.scale = lk_f16_to_f32(*scale), .min = lk_f16_to_f32(*min)};
    range.inverse = range.scale > 0 ? 1 / range.scale : 0;
    return range;
}

static uint8_t quantize_in_range(float x, const struct kivi_range *range, int bits) {
    float level = (lk_clamp_finite(x) - range->min) * range->inverse;
    return (uint8_t)lk_round_half_away(fminf(fmaxf(level, 0), (float)((1 << bits) - 1)));
}

static void kivi_encode_k(const struct lk_part *part, void *head, const float *x, size_t stride) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    struct kivi_range range[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++)
        range[c] = find_range(x + c, part->block_rows, stride, bits, scale + c, min + c);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = 0; t < part->block_rows; t++, x += stride) {
        for (int c = 0; c < d; c++) code[c] = quantize_in_range(x[c], &range[c], bits);
        void *tile = (void *)lk_kivi_tile(part->codec, head, d, t);
        lk_bitplanes_pack_row(LK_K, bits, d, tile, t % LK_TILE, code);
    }
}

static void kivi_encode_v(const struct lk_part *part, void *head, int row0, int n, const float *x,
                          size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_V, head, d);
    uint16_t *min = scale + lk_kivi_groups(part->codec, LK_V, d);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        for (int g = 0; g < d / group; g++) {
            int at = g * LK_TILE + t;
            struct kivi_range range =
                find_range(x + g * group, group, 1, bits, scale + at, min + at);
            for (int c = g * group; c < (g + 1) * group; c++)
                code[c] = quantize_in_range(x[c], &range, bits);
        }
        lk_bitplanes_pack_row(LK_V, bits, d, head, t, code);
    }
}

static void kivi_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                        size_t stride) {
    if (part->side == LK_K)
        kivi_encode_k(part, head, x, stride);
    else
        kivi_encode_v(part, head, row0, n, x, stride);
}

/* Quantize a row of K in the ranges that its block has, and clamp it to them. Other rows keep their
 * codes and scales. A channel of equal numbers has no range yet: the new number becomes the other
 * end of it, so its scale may be negative. */
static void kivi_replace(const struct lk_part *part, void *head, int row, const float *x) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    uint8_t code[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++) {
        struct kivi_range range = {.min = lk_f16_to_f32(min[c])};
        float distance = lk_clamp_finite(x[c]) - range.min;
        if (lk_f16_to_f32(scale[c]) == 0)
            scale[c] = lk_f32_to_f16(distance / (float)((1 << bits) - 1) + 0.0f);
        range.scale = lk_f16_to_f32(scale[c]);
        range.inverse = range.scale != 0 ? 1 / range.scale : 0;
        code[c] = quantize_in_range(x[c], &range, bits);
    }
    void *tile = (void *)lk_kivi_tile(part->codec, head, d, row);
    lk_bitplanes_pack_row(LK_K, bits, d, tile, row % LK_TILE, code);
}

static void kivi_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                        size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    const uint16_t *scale = lk_kivi_scales(part->codec, part->side, head, d);
    const uint16_t *min = scale + lk_kivi_groups(part->codec, part->side, d);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        const void *tile = lk_kivi_tile(part->codec, head, d, t);
        lk_bitplanes_unpack_row(part->side, bits, d, tile, t % LK_TILE, code);
        for (int c = 0; c < d; c++) {
            int at = part->side == LK_K ? c : c / group * LK_TILE + t;
            x[c] = lk_f16_to_f32(scale[at]) * (float)code[c] + lk_f16_to_f32(min[at]);
        }
    }
}

const struct lk_coding_ops lk_kivi_ops = {
    .block_rows = kivi_block_rows,
    .row_wise = kivi_row_wise,
    .unit = kivi_unit,
    .reject_reason = kivi_reject_reason,
    .head_bytes = kivi_head_bytes,
    .scale_bytes = kivi_scale_bytes,
    .print = kivi_print,
    .encode = kivi_encode,
    .replace = kivi_replace,
    .decode = kivi_decode,
};
