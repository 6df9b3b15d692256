#include "codec/f16.h"

#include "codec/half.h"

#include <stdio.h>

static int block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return LK_TILE;
}

static bool row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return true;
}

static size_t head_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * part->block_rows * part->d_head;
}

static size_t scale_bytes(const struct lk_part *part) {
    (void)part;
    return 0;
}

static void print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)codec, (void)side;
    snprintf(buf, cap, "f16");
}

static void encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride) {
    uint16_t *out = (uint16_t *)head + (size_t)row0 * part->d_head;
    for (int t = 0; t < n; t++, x += stride, out += part->d_head)
        for (int c = 0; c < part->d_head; c++) out[c] = lk_half(x[c]);
}

static void decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride) {
    for (int t = 0; t < n; t++, x += stride) {
        const uint16_t *row = lk_f16_row(head, part->d_head, row0 + t);
        for (int c = 0; c < part->d_head; c++) x[c] = lk_unhalf(row[c]);
    }
}

const struct lk_codec_ops lk_f16_ops = {
    .block_rows = block_rows,
    .row_wise = row_wise,
    .head_bytes = head_bytes,
    .scale_bytes = scale_bytes,
    .print = print,
    .encode = encode,
    .decode = decode,
};
