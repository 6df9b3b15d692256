#include "codec/kivi.h"

#include "codec/half.h"

#include <math.h>
#include <stdio.h>

static int block_rows(const struct lk_codec *codec, enum lk_side side) {
    return side == LK_K ? codec->group : LK_TILE;
}

static bool row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)codec;
    return side == LK_V;
}

static const char *refuses(const struct lk_codec *codec, enum lk_side side, int d_head) {
    if (codec->bits != 2 && codec->bits != 4) return "kivi has 2 or 4 bits";
    if (codec->group != 32 && codec->group != 64 && codec->group != 128)
        return "kivi groups are 32, 64 or 128 wide";
    if (side == LK_K || d_head % codec->group == 0) return NULL;
    if (codec->group == 32) return "kivi groups of 32 channels need d_head to be a multiple of 32";
    if (codec->group == 64) return "kivi groups of 64 channels need d_head to be a multiple of 64";
    return "kivi groups of 128 channels need d_head to be a multiple of 128";
}

static size_t scale_bytes(const struct lk_part *part) {
    return 2 * sizeof(uint16_t) * lk_kivi_groups(part->codec, part->side, part->d_head);
}

static size_t head_bytes(const struct lk_part *part) {
    return part->block_rows / LK_TILE * lk_cells_bytes(part->codec->bits, part->d_head) +
           scale_bytes(part);
}

static void print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)side;
    if (codec->group == 32)
        snprintf(buf, cap, "kivi%d", codec->bits);
    else
        snprintf(buf, cap, "kivi%d(g%d)", codec->bits, codec->group);
}

/* A group's scale and minimum, as they will be read back. */
struct range {
    float scale, min, inverse;
};

/* Of n numbers, `step` apart. */
static struct range find_range(const float *x, int n, size_t step, int bits, uint16_t *scale,
                               uint16_t *min) {
    float lo = lk_tame(x[0]), hi = lo;
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, lk_tame(x[i * step]));
        hi = fmaxf(hi, lk_tame(x[i * step]));
    }
    *scale = lk_half((hi - lo + 0.0f) / (float)((1 << bits) - 1)); /* + 0: never -0 */
    *min = lk_half(lo + 0.0f);
    struct range range = {.scale = lk_unhalf(*scale), .min = lk_unhalf(*min)};
    range.inverse = range.scale > 0 ? 1 / range.scale : 0;
    return range;
}

static uint8_t code_of(float x, const struct range *range, int bits) {
    float level = (lk_tame(x) - range->min) * range->inverse;
    return (uint8_t)lk_nearest(fminf(fmaxf(level, 0), (float)((1 << bits) - 1)));
}

static void encode_k(const struct lk_part *part, void *head, const float *x, size_t stride) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    struct range range[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++)
        range[c] = find_range(x + c, part->block_rows, stride, bits, scale + c, min + c);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = 0; t < part->block_rows; t++, x += stride) {
        for (int c = 0; c < d; c++) code[c] = code_of(x[c], &range[c], bits);
        lk_cells_put(LK_K, bits, d, (void *)lk_kivi_tile(part->codec, head, d, t), t % LK_TILE,
                     code);
    }
}

static void encode_v(const struct lk_part *part, void *head, int row0, int n, const float *x,
                     size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_V, head, d);
    uint16_t *min = scale + lk_kivi_groups(part->codec, LK_V, d);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        for (int g = 0; g < d / group; g++) {
            int at = g * LK_TILE + t;
            struct range range = find_range(x + g * group, group, 1, bits, scale + at, min + at);
            for (int c = g * group; c < (g + 1) * group; c++) code[c] = code_of(x[c], &range, bits);
        }
        lk_cells_put(LK_V, bits, d, head, t, code);
    }
}

static void encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride) {
    if (part->side == LK_K)
        encode_k(part, head, x, stride);
    else
        encode_v(part, head, row0, n, x, stride);
}

static void decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    const uint16_t *scale = lk_kivi_scales(part->codec, part->side, head, d);
    const uint16_t *min = scale + lk_kivi_groups(part->codec, part->side, d);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_cells_get(part->side, bits, d, lk_kivi_tile(part->codec, head, d, t), t % LK_TILE, code);
        for (int c = 0; c < d; c++) {
            int at = part->side == LK_K ? c : c / group * LK_TILE + t;
            x[c] = lk_unhalf(scale[at]) * (float)code[c] + lk_unhalf(min[at]);
        }
    }
}

const struct lk_codec_ops lk_kivi_ops = {
    .block_rows = block_rows,
    .row_wise = row_wise,
    .refuses = refuses,
    .head_bytes = head_bytes,
    .scale_bytes = scale_bytes,
    .print = print,
    .encode = encode,
    .decode = decode,
};
