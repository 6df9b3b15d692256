/* Codec asym. Formulas and layout are in asym.h. */
#include "codec/asym.h"

#include "codec/f16.h"
#include "codec/hadamard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int asym_unit(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    return codec->group ? codec->group : 8;
}

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
    char option[2][16] = {"", ""}, list[40] = "";
    if (codec->group) snprintf(option[0], sizeof option[0], "g%d", codec->group);
    if (codec->hadamard) snprintf(option[1], sizeof option[1], "hadamard");
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(list);
        if (*option[i]) snprintf(list + n, sizeof list - n, "%s%s", n ? "," : "", option[i]);
    }
    snprintf(buf, cap, "asym%d%s%s%s", codec->bits, *list ? "(" : "", list, *list ? ")" : "");
}

/* Scale and zero point of a group, as stored. */
struct asym_grid {
    float scale, inverse, zero, top;
};

static float asym_code(const struct asym_grid *grid, float y) {
    return fminf(fmaxf(lk_round_half_away(y * grid->inverse) + grid->zero, 0), grid->top);
}

static float asym_value(const struct asym_grid *grid, float code) {
    return grid->scale * (code - grid->zero);
}

/* Eq. 9. y: [n], finite */
static struct asym_grid find_grid(const float *y, int n, int bits) {
    float lo = y[0], hi = y[0], top = (float)((1 << bits) - 1);
    for (int c = 1; c < n; c++) {
        /* Groups are whole. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
        lo = fminf(lo, y[c]);
        hi = fmaxf(hi, y[c]);
    }
    float least = fmaxf(fabsf(lo), fabsf(hi)) / LK_ASYM_MAX_ZERO;
    struct asym_grid grid = {.top = top};
    grid.scale = lk_f16_to_f32(lk_f32_to_f16(fmaxf((hi - lo) / top, least)));
    grid.inverse = grid.scale > 0 ? 1 / grid.scale : 0;
    grid.zero = fminf(fmaxf(-lo * grid.inverse, -2 * LK_ASYM_MAX_ZERO), 2 * LK_ASYM_MAX_ZERO);
    grid.zero = lk_round_half_away(grid.zero);
    grid.zero = lk_f16_to_f32(lk_f32_to_f16(grid.zero + 0.0f)); /* + 0: never -0 */
    return grid;
}

static void encode_group(const struct lk_codec *codec, enum lk_side side, int width, void *group,
                         int t, const float *y) {
    uint16_t *scale = (uint16_t *)lk_asym_scales(codec, group, width);
    uint8_t code[LK_MAX_D_HEAD];
    struct asym_grid grid = find_grid(y, width, codec->bits);
    for (int c = 0; c < width; c++) code[c] = (uint8_t)asym_code(&grid, y[c]);
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

const struct lk_coding_ops lk_asym_ops = {
    .unit = asym_unit,
    .reject_reason = asym_reject_reason,
    .head_bytes = asym_head_bytes,
    .scale_bytes = asym_scale_bytes,
    .print = asym_print,
    .encode = asym_encode,
    .decode = asym_decode,
};
