/* AVX2 and AVX-VNNI kernels, shared among avx2*.c. Only those files are compiled for AVX2, FMA and
 * F16C. lk_kernels_choose returns their tables only if the CPU has all three. */
#ifndef LK_KERNELS_AVX2_H
#define LK_KERNELS_AVX2_H

#include "kernels/composed.h"
#include "kernels/tile.h"
#include "kernels/vec8_kernels.h"

extern const struct lk_kernels lk_kernels_avx2, lk_kernels_avxvnni;

enum { LK_AVX2_MAX_BITS_Q8 = 4 }; /* max_bits_q8 of the tables of AVX2 */

/* The entries that all tables of x86 share. */
#define LK_X86_KERNELS .score_tiles = lk_avx2_score_tiles, LK_VEC8_KERNELS

/* avx2_per_token.c, as in struct lk_kernels */
void lk_avx2_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride);

/* ---- codes of a tile, and weights of values (avx2_codes.c) ---- */

/* Codes of a tile as bytes in the order of codec/bitplanes.h, each replaced by table[code] unless
 * table is NULL. cells: [LK_TILE * d_head], 32-byte aligned. Returns the bytes: codes of 8 bits are
 * not copied. */
const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells);

/* The same for a trellis of 1 to 4 bits. table: [64] levels by index (codec/rot.h) */
const uint8_t *lk_avx2_unpack_trellis(int bits, int d_head, const void *tile, const uint8_t *table,
                                      uint8_t *cells);

/* Quantize weights of a tile: p[t] * scale[t] ~ step * p16[t] for t < LK_TILE, p16 in [0,
 * LK_MAX_X16]. *sum is the sum of p16. Returns step. 8 bits would round the many small weights of a
 * tile to 0. */
float lk_avx2_quantize_weights(const float *p, const float *scale, int16_t *p16, int32_t *sum);

/* <a, b> over n floats, n a multiple of 8. */
float lk_avx2_dot_f32(const float *a, const float *b, int n);

/* ---- integer dot products (avx2_dot.c, avx2_vnni.c) ---- */

enum { LK_AVX2_QUERIES = 4 }; /* maximum number of queries per call below */

/* Dot products of n <= LK_AVX2_QUERIES queries, or of their weights, with the bytes of a tile.
 * Results are exact. */
struct lk_avx2_dots {
    /* dot[i][t] = sum over channels c < d_head of q8[i * pad + c] * cell(t, c), for t < LK_TILE.
     * Cells are at most 127. */
    void (*k8)(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n,
               int32_t dot[][LK_TILE]);

    /* Same as above, for 16-bit queries. */
    void (*k16)(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                int32_t dot[][LK_TILE]);

    /* dot[i][c] = sum over t < LK_TILE of p16[i][t] * cell(t, c), for n_channel channels from
     * `cells` on, a multiple of 8. */
    void (*v16)(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n,
                int32_t dot[][LK_MAX_D_HEAD]);
};

extern const struct lk_avx2_dots lk_avx2_dots, lk_avxvnni_dots;

/* ---- score and accumulate by codec ---- */

/* f16 (avx2_f16.c): products and sums in floats. */
lk_score_fn lk_avx2_f16_score;
lk_accumulate_fn lk_avx2_f16_accumulate;

/* KIVI (avx2_kivi.c): a scale and a minimum per group. */
lk_score_fn lk_avx2_kivi_score;
lk_accumulate_fn lk_avx2_kivi_accumulate;

/* rot, asym and int8 (avx2_per_token.c): one scale per token, levels symmetric around zero. */
lk_score_fn lk_avx2_per_token_score;
lk_accumulate_fn lk_avx2_per_token_accumulate;

/* rot and asym (avx2_lowbit.c). Up to 4 bits a cell goes from its codes to the products without
 * being stored, sums stay in 16 bits as long as they fit, and weights of several tiles of V are
 * quantized side by side. Others are left to the kernels above. */
lk_score_fn lk_avx2_rot_score;
lk_accumulate_fn lk_avx2_rot_accumulate;

#endif
