/* NF4 (Dettmers et al. 2023, "QLoRA"): 4-bit codes for quantiles of a Gaussian, and the largest
 * magnitude of each group of 64 channels. The example of docs/add-a-codec.md: it needs no more than
 * the public header.
 *
 *   code = the index of the level nearest to x / largest,  x ~ largest * level[code]
 *
 *   row:   | codes: u8 [n_channel / 2], two channels each, the first one in the low bits |
 *          | largest: bfloat16 [groups] |
 *   block: | row 0 | ... | row 31 | */
#include "baselines/baselines.h"
#include "lowkey_codec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GROUP = 64 };

/* Quantiles of the unit Gaussian, divided by the largest one; one of them is 0. */
static const float level[16] = {
    -1.0f,      -0.6961928f, -0.5250731f, -0.3949175f, -0.2844414f, -0.1847734f, -0.0910500f, 0.0f,
    0.0795803f, 0.1609302f,  0.2461123f,  0.3379152f,  0.4407098f,  0.5626170f,  0.7229568f,  1.0f};

static bool nf4_parse(const char *word, lk_codec_param *param) {
    param->bits = 4;
    return strcmp(word, "nf4") == 0;
}

static void nf4_print(const lk_codec_param *param, char *buf, size_t cap) {
    (void)param;
    snprintf(buf, cap, "nf4");
}

static int n_group(const lk_codec_shape *shape) { return (shape->n_channel + GROUP - 1) / GROUP; }

static size_t row_bytes(const lk_codec_shape *shape) {
    return (size_t)shape->n_channel / 2 + sizeof(uint16_t) * (size_t)n_group(shape);
}

static size_t nf4_bytes(const lk_codec_shape *shape) { return LK_CODEC_TILE * row_bytes(shape); }

static size_t nf4_scale_bytes(const lk_codec_shape *shape) {
    return LK_CODEC_TILE * sizeof(uint16_t) * (size_t)n_group(shape);
}

/* bfloat16: the upper half of a float. Rounded up, so that no value exceeds the largest. */
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0xffff) >> 16);
}

static float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint8_t nearest_level(float x) {
    uint8_t k = 0;
    while (k < 15 && x > 0.5f * (level[k] + level[k + 1])) k++;
    return k;
}

/* Finite: NaN becomes 0. */
static float clamp(float x) { return x != x ? 0 : fminf(fmaxf(x, -1e9f), 1e9f); }

static void encode_row(const lk_codec_shape *shape, uint8_t *row, const float *x) {
    int d = shape->n_channel;
    for (int g = 0; g < n_group(shape); g++) {
        int from = g * GROUP, to = from + GROUP < d ? from + GROUP : d;
        float largest = 0;
        for (int c = from; c < to; c++) largest = fmaxf(largest, fabsf(clamp(x[c])));
        uint16_t stored = to_bf16(largest);
        float inverse = largest > 0 ? 1 / from_bf16(stored) : 0;
        memcpy(row + d / 2 + g * (int)sizeof stored, &stored, sizeof stored);
        for (int c = from; c < to; c += 2)
            row[c / 2] = (uint8_t)(nearest_level(clamp(x[c]) * inverse) |
                                   nearest_level(clamp(x[c + 1]) * inverse) << 4);
    }
}

static void nf4_encode(const lk_codec_shape *shape, void *block, int32_t row0, int32_t n,
                       const float *x, size_t stride) {
    uint8_t *row = (uint8_t *)block + (size_t)row0 * row_bytes(shape);
    for (int t = 0; t < n; t++, x += stride, row += row_bytes(shape)) encode_row(shape, row, x);
}

static void nf4_decode(const lk_codec_shape *shape, const void *block, int32_t row0, int32_t n,
                       float *x, size_t stride) {
    const uint8_t *row = (const uint8_t *)block + (size_t)row0 * row_bytes(shape);
    for (int t = 0; t < n; t++, x += stride, row += row_bytes(shape))
        for (int c = 0; c < shape->n_channel; c++) {
            uint16_t stored;
            memcpy(&stored, row + shape->n_channel / 2 + c / GROUP * (int)sizeof stored,
                   sizeof stored);
            x[c] = from_bf16(stored) * level[row[c / 2] >> c % 2 * 4 & 15];
        }
}

const lk_codec_ops lk_nf4_ops = {
    .name = "nf4",
    .words = "nf4",
    .example = "nf4",
    .parse = nf4_parse,
    .print = nf4_print,
    .bytes = nf4_bytes,
    .scale_bytes = nf4_scale_bytes,
    .encode = nf4_encode,
    .decode = nf4_decode,
};
