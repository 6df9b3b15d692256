/* AVX-512, AVX512-VBMI and AMX kernels, shared among avx512*.c. Only those files are compiled for
 * AVX-512 (F, BW, DQ, VL, VNNI). lk_kernels_choose returns their tables only if the CPU has all of
 * it.
 *
 * A tile's codes are first unpacked to bytes in groups of 16 rows (tokens of K, channels of V). One
 * VPDPBUSD then multiplies four columns of 16 rows with four numbers of a query or of its weights:
 *
 *   K: [d_head / 4 quads][2 groups][64]
 *   V: [ceil(d_head / 16) groups][LK_TILE / 4 quads][64]
 *
 * The instruction takes one unsigned and one signed operand. Queries are signed, so bytes of K are
 * unsigned. Weights are not, so bytes of V are levels around zero, and sums need no correction. */
#ifndef LK_KERNELS_AVX512_H
#define LK_KERNELS_AVX512_H

#include "kernels/avx2.h"

#include <immintrin.h>

extern const struct lk_kernels lk_kernels_avx512, lk_kernels_avx512vbmi, lk_kernels_amx;

enum {
    LK_AVX512_QUERIES = 4, /* queries that share loaded bytes */
    LK_AVX512_BATCH = 64,  /* queries that share unpacked bytes */
    LK_AVX512_ROWS = 16,   /* rows of a group */
    /* bytes of an unpacked tile; V's last group is padded */
    LK_AVX512_CELLS = LK_TILE * (LK_MAX_D_HEAD + 8),
};

/* ---- unpacking (avx512_codes.c) ---- */

/* Tokens in K's groups: two octets (8 rows) per group. */
enum lk_avx512_order {
    LK_OCTETS_01_23, /* group 0: tokens 0..15                 group 1: tokens 16..31 */
    LK_OCTETS_02_13, /* group 0: tokens 0..7 and 16..23       group 1: tokens 8..15, 24..31 */
};

/* Tables of the bytes that codes stand for. */
struct lk_avx512_levels {
    bool given, trellis;
    /* without VBMI: four copies of the table; VBMI: levels indexed by the fields of cells a and
     * b */
    __m512i a, b;
    /* Levels by index (codec/rot.h). Without VBMI: four copies of each quarter; VBMI: all 64 in
     * the first one */
    __m512i of_index[4];
};

struct lk_avx512_unpack {
    /* Prepare the tables. table: 32 bytes that replace codes of up to 5 bits; only the first
     * 1 << bits of them count. NULL: codes are not replaced. */
    void (*levels)(int bits, const uint8_t *table, struct lk_avx512_levels *out);

    /* The same for a trellis. table: 64 levels by index */
    void (*trellis_levels)(const uint8_t *table, struct lk_avx512_levels *out);

    /* Unpack a tile of K, in *order. cells: [LK_AVX512_CELLS], 64-byte aligned. Returns the bytes:
     * codes of 8 bits are not copied. */
    const uint8_t *(*k)(int bits, int d_head, const void *tile,
                        const struct lk_avx512_levels *levels, uint8_t *cells,
                        enum lk_avx512_order *order);

    /* Unpack channels [c0, c1) of a tile of V, c0 a multiple of 16. Groups of cells are `stride`
     * bytes apart, 64-byte aligned. Codes of 5 to 7 bits become 2 * code - (2^bits - 1), which is
     * also what the table for 5 bits must have, and those of 8 bits code - 128. */
    void (*v)(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, int c0,
              int c1, uint8_t *cells, size_t stride);
};

extern const struct lk_avx512_unpack lk_avx512_unpack, lk_avx512vbmi_unpack;

/* ---- weights of values (avx512_codes.c) ---- */

/* Weights of a tile's tokens, p[t] * scale[t], as a row of bytes and a step for each query. Bytes
 * are in fours; h2 are the high bytes of tokens 8..11, l2 their low bytes:
 *
 *   16 bits:  step * (256 h + l)    | h0 h4 l0 l4 | h1 h5 l1 l5 | h2 h6 l2 l6 | h3 h7 l3 l7 |
 *   8 bits:   step * h              | h0 h4  -  - | h1 h5  -  - | h2 h6  -  - | h3 h7  -  - |
 *
 * 8 bits are enough for codes of up to five bits, whose own error is much larger. Rounding would
 * turn the many small weights of a tile to 0, so 8-bit weights are dithered: rounded up or down
 * depending on the token's place in the tile, right on average. */
struct lk_avx512_weights {
    _Alignas(64) uint8_t byte[LK_AVX512_BATCH][2 * LK_TILE];
    float step[LK_AVX512_BATCH + LK_AVX512_QUERIES]; /* written in fours */
};

/* Index of the four bytes of tokens 4 quad .. 4 quad + 3 in a row. */
static inline int lk_avx512_quad(int quad, int high) {
    return 4 * (quad % 4 * 4 + quad / 4 + (high ? 0 : 2));
}

enum { LK_AVX512_MAX_BITS_Q8 = 5 }; /* max_bits_q8 of these tables */
static inline bool lk_avx512_needs_16bit(int bits) { return bits > LK_AVX512_MAX_BITS_Q8; }

/* Quantize n <= LK_AVX512_BATCH rows of weights p [n][LK_TILE], `stride` floats apart. scale: of
 * tokens 0..15 and 16..31. fine: 16 bits */
void lk_avx512_quantize_weights(const float *p, size_t stride, int n, const __m512 scale[2],
                                bool fine, struct lk_avx512_weights *out);

/* ---- score and accumulate by codec ---- */

/* rot, asym and int8 (avx512_per_token.c): one scale per token, levels symmetric around zero. */
lk_score_fn lk_avx512_per_token_score;
lk_accumulate_fn lk_avx512_per_token_accumulate;

/* rot and asym for at most LK_AVX512_DECODE_QUERIES queries (avx512_decode.c). More than 5 bits are
 * left to the kernels above. */
enum { LK_AVX512_DECODE_QUERIES = 2 * LK_AVX512_QUERIES };
lk_score_fn lk_avx512_decode_score, lk_avx512vbmi_decode_score;
lk_accumulate_fn lk_avx512_decode_accumulate, lk_avx512vbmi_decode_accumulate;

/* rot, asym and int8 for many queries with AMX (avx512_amx.c), between enter and leave. */
void lk_avx512_amx_enter(struct lk_kernels_state *before);
void lk_avx512_amx_leave(const struct lk_kernels_state *before);
lk_score_fn lk_avx512_amx_score;
lk_accumulate_fn lk_avx512_amx_accumulate;

/* f16 (avx512_f16.c): products and sums in floats, for the exact rows of prompts in fixed point. */
lk_score_fn lk_avx512_f16_score;
lk_accumulate_fn lk_avx512_f16_accumulate;

/* KIVI (avx512_kivi.c): a scale and a minimum per group. */
lk_score_fn lk_avx512_kivi_score;
lk_accumulate_fn lk_avx512_kivi_accumulate;

/* Quantized weights (avx512_products.c). */
lk_quantize_inputs_fn lk_avx512_quantize_inputs;
lk_quantize_short_fn lk_avx512_quantize_short;
lk_multiply_fn lk_avx512_multiply;

#endif
