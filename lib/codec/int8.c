/* Codec int8. Formula and layout are in int8.h. */
#include "codec/int8.h"

#include "codec/bitplanes.h"
#include "codec/f16.h"

#include <math.h>
#include <stdio.h>

static size_t int8_scale_bytes(const struct lk_part *part) {
    (void)part;
    return sizeof(uint16_t) * LK_TILE;
}

static size_t int8_head_bytes(const struct lk_part *part) {
    return lk_bitplanes_bytes(8, part->d_head) + int8_scale_bytes(part);
}

static void int8_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)codec, (void)side;
    snprintf(buf, cap, "int8");
}

static void int8_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                        size_t stride) {
    uint16_t *scale = (uint16_t *)lk_int8_scales(head, part->d_head);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        float max = 0;
        for (int c = 0; c < part->d_head; c++) max = fmaxf(max, fabsf(lk_clamp_finite(x[c])));
        scale[t] = lk_f32_to_f16(max / 127 + LK_INT8_EPS);
        /* Divide by the scale as it is stored. */
        float stored = lk_f16_to_f32(scale[t]), inverse = stored > 0 ? 1 / stored : 0;
        for (int c = 0; c < part->d_head; c++) {
            float level = fminf(fmaxf(lk_clamp_finite(x[c]) * inverse, -127), 127);
            code[c] = (uint8_t)(lk_round_half_away(level) + LK_INT8_MID);
        }
        lk_bitplanes_pack_row(part->side, 8, part->d_head, head, t, code);
    }
}

static void int8_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                        size_t stride) {
    const uint16_t *scale = lk_int8_scales(head, part->d_head);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_bitplanes_unpack_row(part->side, 8, part->d_head, head, t, code);
        for (int c = 0; c < part->d_head; c++)
            x[c] = lk_f16_to_f32(scale[t]) * (float)(code[c] - LK_INT8_MID);
    }
}

const struct lk_coding_ops lk_int8_ops = {
    .head_bytes = int8_head_bytes,
    .scale_bytes = int8_scale_bytes,
    .print = int8_print,
    .encode = int8_encode,
    .decode = int8_decode,
};
