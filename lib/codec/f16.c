/* Codec f16. The layout is drawn in f16.h. */
#include "codec/f16.h"

#include <stdio.h>

static size_t f16_head_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * part->block_rows * part->d_head;
}

static void f16_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)codec, (void)side;
    snprintf(buf, cap, "f16");
}

static void f16_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                       size_t stride) {
    uint16_t *out = (uint16_t *)head + (size_t)row0 * part->d_head;
    for (int t = 0; t < n; t++, x += stride, out += part->d_head)
        for (int c = 0; c < part->d_head; c++) out[c] = lk_f32_to_f16(x[c]);
}

static void f16_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                       size_t stride) {
    for (int t = 0; t < n; t++, x += stride) {
        const uint16_t *row = lk_f16_row(head, part->d_head, row0 + t);
        for (int c = 0; c < part->d_head; c++) x[c] = lk_f16_to_f32(row[c]);
    }
}

const struct lk_coding_ops lk_f16_ops = {
    .head_bytes = f16_head_bytes,
    .print = f16_print,
    .encode = f16_encode,
    .decode = f16_decode,
};
