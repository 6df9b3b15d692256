/* Products of quantized weights with the inputs of many tokens.
 *
 * ggml multiplies a block of outputs with a few tokens at a time and unpacks the weights each time.
 * Here the weights of a few outputs are unpacked once for many tokens, to bytes in the order that
 * the instructions read (avx512_products.c). Inputs are rounded as ggml rounds them, and products
 * of codes are exact integers. They are summed over a block and rounded once, where ggml adds up to
 * eight partial sums in f32.
 *
 *   Q4_K: 256 weights: d, dmin in f16, 8 pairs of a scale and a minimum of 6 bits, codes of 4 bits:
 *         w = d scale code - dmin minimum
 *   Q6_K: 256 weights: d in f16, 16 scales of 8 bits, codes of 6 bits: w = d scale (code - 32)
 *   Q8_0: 32 weights: d in f16, codes of 8 bits with a sign: w = d code
 *   Q5_0: 32 weights: d in f16, codes of 5 bits: w = d (code - 16)
 *   Q4_0: 32 weights: d in f16, codes of 4 bits: w = d (code - 8) */
#ifndef LK_KERNELS_PRODUCTS_H
#define LK_KERNELS_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LK_PRODUCT_BLOCK = 256,  /* inputs of a block */
    LK_PRODUCT_SHORT = 32,   /* inputs of a block of Q8_0, Q5_0 and Q4_0 */
    LK_PRODUCT_OUTPUTS = 16, /* outputs that are computed together */
};

/* Inputs of a block of one token: x = step * code. */
struct lk_input_block {
    int8_t code[LK_PRODUCT_BLOCK];
    int16_t sum16[LK_PRODUCT_BLOCK / 16], sum32[LK_PRODUCT_BLOCK / 32]; /* of codes */
    float step, pad[3];
};

/* The same for weights with blocks of 32. The step is rounded to f16, as ggml does it. */
struct lk_short_block {
    int8_t code[LK_PRODUCT_SHORT];
    int32_t sum;       /* of codes */
    float step, total; /* total = step * sum */
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
    LK_Q8_0_ROWS, /* | d, f16 | codes [32] | */
    LK_Q5_0_ROWS, /* | d, f16 | high bits, u32 | low bits of inputs i and 16 + i [16] | */
    /* ggml's repacked Q4_0: the blocks of 8 outputs together, [n_out / 8][n_in / 32]:
     *
     *   | d, f16 [8] | codes [2][8 outputs][8] |
     *
     * Byte j of piece p of an output has the codes of inputs 8 p + j and 16 further, each with its
     * highest bit flipped. */
    LK_Q4_0_BY_8,
};
enum {
    LK_Q4_K_BY_8_BYTES = 8 * 144,
    LK_Q6_K_BYTES = 210,
    LK_Q8_0_BYTES = 34,
    LK_Q5_0_BYTES = 22,
    LK_Q4_0_BY_8_BYTES = 8 * 18,
};

/* Inputs of a block of the layout. */
static inline int lk_product_block(enum lk_weights_layout layout) {
    return layout == LK_Q4_K_BY_8 || layout == LK_Q6_K_ROWS ? LK_PRODUCT_BLOCK : LK_PRODUCT_SHORT;
}

/* y[t][o] = residual[t][o] + sum over i of w[o][i] x[t][i]. */
struct lk_product {
    enum lk_weights_layout layout;
    int n_in, n_out; /* multiples of the block's inputs, and of 16 */
    const void *weights;
    int n_tok;
    const void *x; /* struct lk_input_block or lk_short_block [n_in / inputs of a block][n_tok] */
    float *y;      /* [n_tok][n_out] */
    /* With blocks of 32: what the weights of each block are larger by, in f16, at lk_offset_index
     * (kernels.h), or NULL. It is multiplied with the total of a block of inputs. */
    const uint16_t *offset;
    const float *residual; /* [n_tok][n_out], or NULL */
};

/* Blocks of one token, `stride` blocks apart, from x [n_in]. */
typedef void lk_quantize_inputs_fn(const float *x, int n_in, struct lk_input_block *out,
                                   size_t stride);

typedef void lk_quantize_short_fn(const float *x, int n_in, struct lk_short_block *out,
                                  size_t stride);

/* Outputs [first, first + n) of a product, multiples of 16, for all tokens. */
typedef void lk_multiply_fn(const struct lk_product *product, int first, int n);

/* Plain C, which tests compare others with. */
lk_quantize_inputs_fn lk_quantize_inputs_plain;
lk_quantize_short_fn lk_quantize_short_plain;
lk_multiply_fn lk_multiply_plain;

/* Scales and minima of 8 outputs: a part of LK_Q4_K_BY_8. */
static inline void lk_q4_k_by_8_scales(const uint8_t *part, uint8_t scale[8], uint8_t min[8]) {
    for (int j = 0; j < 8; j++) {
        scale[j] = j < 4 ? part[j] & 63 : (part[4 + j] & 15) | (part[j - 4] >> 6) << 4;
        min[j] = j < 4 ? part[4 + j] & 63 : part[4 + j] >> 4 | (part[j] >> 6) << 4;
    }
}

#endif
