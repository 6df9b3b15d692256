/* Products of quantized weights with the inputs of many tokens.
 *
 * ggml multiplies a block of outputs with a few tokens at a time and unpacks the weights each time.
 * Here the weights of a few outputs are unpacked once for many tokens, to bytes in the order that
 * the instructions read (avx512_products.c). Inputs are rounded as ggml rounds them, products of
 * codes are exact integers, and the sums of Q4_K are rounded in ggml's order, so they have the same
 * bits as ggml's. Those of Q6_K are rounded once per block; ggml adds eight partial sums.
 *
 *   Q4_K: 256 weights: d, dmin in f16, 8 pairs of a scale and a minimum of 6 bits, codes of 4 bits:
 *         w = d scale code - dmin minimum
 *   Q6_K: 256 weights: d in f16, 16 scales of 8 bits, codes of 6 bits: w = d scale (code - 32) */
#ifndef LK_KERNELS_PRODUCTS_H
#define LK_KERNELS_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LK_PRODUCT_BLOCK = 256,  /* inputs of a block */
    LK_PRODUCT_OUTPUTS = 16, /* outputs that are computed together */
    LK_PRODUCT_EXACT =
        4, /* ggml multiplies so many tokens together; others are rounded per block */
};

/* Inputs of a block of one token: x = step * code. */
struct lk_input_block {
    int8_t code[LK_PRODUCT_BLOCK];
    int16_t sum16[LK_PRODUCT_BLOCK / 16], sum32[LK_PRODUCT_BLOCK / 32]; /* of codes */
    float step, pad[3];
};

/* How weights lie in memory. */
enum lk_weights_layout {
    /* ggml's repacked Q4_K: the blocks of 8 outputs together, [n_out / 8][n_in / 256]:
     *
     *   | d, f16 [8] | dmin, f16 [8] | scales and minima [8 parts][12] | codes [16][8 outputs][8] |
     *
     * The 12 bytes of a part have 8 scales and 8 minima as a block of Q4_K has them. Byte j of
     * piece p of an output has the codes of inputs 64 (p / 4) + 8 (p % 4) + j and 32 further. */
    LK_Q4_K_BY_8,
    LK_Q6_K_ROWS, /* rows of blocks: | low bits [128] | high bits [64] | scales [16] | d, f16 | */
};
enum { LK_Q4_K_BY_8_BYTES = 8 * 144, LK_Q6_K_BYTES = 210 };

/* y[t][o] = sum over i of w[o][i] x[t][i]. */
struct lk_product {
    enum lk_weights_layout layout;
    int n_in, n_out; /* multiples of 256 and 16 */
    const void *weights;
    int n_tok;
    const struct lk_input_block *x; /* [n_in / 256][n_tok] */
    float *y;                       /* [n_tok][n_out] */
};

/* Blocks of one token, `stride` blocks apart, from x [n_in]. */
typedef void lk_quantize_inputs_fn(const float *x, int n_in, struct lk_input_block *out,
                                   size_t stride);

/* Outputs [first, first + n) of a product, multiples of 16, for all tokens. */
typedef void lk_multiply_fn(const struct lk_product *product, int first, int n);

/* Plain C, which tests compare others with. */
lk_quantize_inputs_fn lk_quantize_inputs_plain;
lk_multiply_fn lk_multiply_plain;

/* Scales and minima of 8 outputs: a part of LK_Q4_K_BY_8. */
static inline void lk_q4_k_by_8_scales(const uint8_t *part, uint8_t scale[8], uint8_t min[8]) {
    for (int j = 0; j < 8; j++) {
        scale[j] = j < 4 ? part[j] & 63 : (part[4 + j] & 15) | (part[j - 4] >> 6) << 4;
        min[j] = j < 4 ? part[4 + j] & 63 : part[4 + j] >> 4 | (part[j] >> 6) << 4;
    }
}

#endif
