#include "codec/int8.h"

#include "codec/cells.h"
#include "codec/half.h"

#include <math.h>
#include <stdio.h>

static int block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return LK_TILE;
}

static bool row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return true;
}

static size_t scale_bytes(const struct lk_part *part) {
    (void)part;
    return sizeof(uint16_t) * LK_TILE;
}

static size_t head_bytes(const struct lk_part *part) {
    return lk_cells_bytes(8, part->d_head) + scale_bytes(part);
}

static void print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)codec, (void)side;
    snprintf(buf, cap, "int8");
}

static void encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride) {
    uint16_t *scale = (uint16_t *)lk_int8_scales(head, part->d_head);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        float most = 0;
        for (int c = 0; c < part->d_head; c++) most = fmaxf(most, fabsf(lk_tame(x[c])));
        scale[t] = lk_half(most / 127 + LK_INT8_EPS);
        /* The division uses the scale that will be read back. */
        float stored = lk_unhalf(scale[t]), inverse = stored > 0 ? 1 / stored : 0;
        for (int c = 0; c < part->d_head; c++) {
            float level = fminf(fmaxf(lk_tame(x[c]) * inverse, -127), 127);
            code[c] = (uint8_t)(lk_nearest(level) + LK_INT8_MID);
        }
        lk_cells_put(part->side, 8, part->d_head, head, t, code);
    }
}

static void decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride) {
    const uint16_t *scale = lk_int8_scales(head, part->d_head);
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_cells_get(part->side, 8, part->d_head, head, t, code);
        for (int c = 0; c < part->d_head; c++)
            x[c] = lk_unhalf(scale[t]) * (float)(code[c] - LK_INT8_MID);
    }
}

const struct lk_codec_ops lk_int8_ops = {
    .block_rows = block_rows,
    .row_wise = row_wise,
    .head_bytes = head_bytes,
    .scale_bytes = scale_bytes,
    .print = print,
    .encode = encode,
    .decode = decode,
};
