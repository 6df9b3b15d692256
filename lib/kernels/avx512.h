/* Parts of the AVX-512 kernels, shared among avx512*.c. Those files alone are compiled for AVX-512
 * (F, BW, DQ, VL, VNNI), and lk_kernels_choose calls them only where the CPU has all of it.
 *
 * A tile's codes are first unpacked to bytes in groups of 16 rows (tokens of K, channels of V), so that
 * one VPDPBUSD multiplies four columns of 16 rows with four numbers of a query or of its weights:
 *
 *   K: [d_head / 4 quads][2 groups][64]         V: [ceil(d_head / 16) groups][LK_TILE / 4 quads][64]
 *
 * It wants one operand unsigned and one signed. Queries have signs, so K's bytes are unsigned. Weights
 * have none, so V's bytes are levels around zero, and nothing has to be corrected afterwards. */
#ifndef LK_KERNELS_AVX512_H
#define LK_KERNELS_AVX512_H

#include "kernels/avx2.h"

#include <immintrin.h>

extern const struct lk_kernels lk_kernels_avx512, lk_kernels_avx512vbmi, lk_kernels_amx;

enum {
    LK_AVX512_QUERIES = 4, /* queries that share what is loaded */
    LK_AVX512_BATCH = 64,  /* queries that share what is unpacked */
    LK_AVX512_ROWS = 16,   /* of a group */
    LK_AVX512_CELLS =
        LK_TILE * (LK_MAX_D_HEAD + 8), /* bytes of an unpacked tile, V's last group filled up */
};

/* Where a group's rows are: two octets (8 rows) per group. */
enum lk_avx512_order {
    LK_OCTETS_01_23, /* group 0: tokens 0..15                 group 1: tokens 16..31 */
    LK_OCTETS_02_13, /* group 0: tokens 0..7 and 16..23       group 1: tokens 8..15, 24..31 */
};

/* Bytes that codes stand for. */
struct lk_avx512_levels {
    bool given;
    __m512i a, b; /* plain: four times the table; VBMI: levels by where the fields of a and b are */
};

/* Unpacking. (avx512_unpack.c) */
struct lk_avx512_unpack {
    /* table: 16 bytes that replace codes of up to 4 bits; with fewer than 4, only the first of them count. NULL: the
     * codes themselves. */
    void (*levels)(int bits, const __m128i *table, struct lk_avx512_levels *out);

    /* Returns the bytes, which are the tile's own for 8 bits. cells: [LK_AVX512_CELLS], 64-byte aligned */
    const uint8_t *(*k)(int bits, int d_head, const void *tile,
                        const struct lk_avx512_levels *levels, uint8_t *cells,
                        enum lk_avx512_order *order);

    /* Channels [c0, c1), c0 a multiple of 16; their groups `stride` bytes apart, 64-byte aligned. Codes of 5 to 7 bits
     * become 2 * code - (2^bits - 1), those of 8 bits code - 128. */
    void (*v)(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, int c0,
              int c1, uint8_t *cells, size_t stride);
};

extern const struct lk_avx512_unpack lk_avx512_unpack, lk_avx512vbmi_unpack;

/* ---- weights of values (avx512_weights.c) ---- */

/* Weights of a tile's tokens, p[t] * scale[t], as a row of bytes and a step for each query. Bytes in fours, h2 those
 * of tokens 8..11:
 *
 *   fine:    step * (256 h + l)    | h0 h4 l0 l4 | h1 h5 l1 l5 | h2 h6 l2 l6 | h3 h7 l3 l7 |
 *   coarse:  step * h              | h0 h4  -  - | h1 h5  -  - | h2 h6  -  - | h3 h7  -  - |
 *
 * Coarse ones are enough where codes have four bits or fewer, whose own error is greater by far. The many small weights of a
 * tile would all be rounded to nothing, so they are dithered: up or down by where in the tile a token is, right on average. */
struct lk_avx512_weights {
    _Alignas(64) uint8_t byte[LK_AVX512_BATCH][2 * LK_TILE];
    float step[LK_AVX512_BATCH + LK_AVX512_QUERIES]; /* written in fours */
};

/* Where the four bytes of tokens 4 quad .. 4 quad + 3 are; high: 1 or 0. */
static inline int lk_avx512_quad(int quad, int high) {
    return 4 * (quad % 4 * 4 + quad / 4 + (high ? 0 : 2));
}

static inline bool lk_avx512_fine(int bits) { return bits > 4; }

/* n <= LK_AVX512_BATCH rows p, `stride` apart; scale: of tokens 0..15 and 16..31. */
void lk_avx512_weigh(const float *p, size_t stride, int n, const __m512 scale[2], bool fine,
                     struct lk_avx512_weights *out);

/* ---- one file per codec ---- */

/* rot and int8: one scale per token, levels symmetric around zero. */
void lk_avx512_row_score(const struct lk_avx512_unpack *unpack, const struct lk_rows *run,
                         const struct lk_queries *q, float *s, size_t stride);
void lk_avx512_row_accumulate(const struct lk_avx512_unpack *unpack, const struct lk_rows *run,
                              const float *p, size_t stride, int n_q, float *acc);

void lk_avx512_f16_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                         size_t stride);
void lk_avx512_f16_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                              float *acc);

void lk_avx512_kivi_score(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile,
                          const struct lk_queries *q, float *s, size_t stride);
void lk_avx512_kivi_accumulate(const struct lk_avx512_unpack *unpack, const struct lk_tile *tile,
                               const float *p, size_t stride, int n_q, float *acc);

/* avx512_softmax.c */
float lk_avx512_max(const float *s, int n);
float lk_avx512_exp_sum(float *s, int n, float scale, float max);

#endif
