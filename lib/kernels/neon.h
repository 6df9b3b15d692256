/* NEON kernels, shared among neon*.c. Only those files are compiled for Advanced SIMD with the dot
 * product instructions of Armv8.2. lk_kernels_choose returns the table only if the CPU has them.
 *
 * SDOT multiplies signed bytes, and everything here is a sum of such products. Cells are used as
 * signed bytes: levels, and codes of up to 7 bits, are at most 127. Codes of 8 bits have their top
 * bit flipped when they are loaded, which subtracts 128. 16-bit numbers are split into two planes
 * of bytes, x = 256 * high + low.
 *
 * Products of two rows or more use the matrix products of Armv8.6 (i8mm) if the CPU has them: the
 * table lk_kernels_neon_i8mm. The sums are integers, so both tables compute the same bits.
 *
 * Tested in an emulator and not timed on hardware. Judge changes by the disassembly: in the loops
 * of neon_dot.c gcc spills nothing, and 64 of 82 to 93 instructions are dot products for 2 or more
 * queries. */
#ifndef LK_KERNELS_NEON_H
#define LK_KERNELS_NEON_H

#include "kernels/tile.h"

#include <arm_neon.h>

extern const struct lk_kernels lk_kernels_neon, lk_kernels_neon_i8mm;

enum { LK_NEON_MAX_BITS_Q8 = 4 }; /* max_bits_q8 of this table */

/* neon_per_token.c, as in struct lk_kernels */
void lk_neon_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride);

/* ---- codes, scales and weights of a tile (neon_codes.c) ---- */

/* Codes of a tile as bytes in the order of codec/bitplanes.h, each replaced by table[code] unless
 * table is NULL. cells: [LK_TILE * d_head]. Returns the bytes: codes of 8 bits are not copied. */
const uint8_t *lk_neon_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells);

/* The same for a trellis of 1 to 4 bits. table: [64] levels by index (codec/rot.h) */
const uint8_t *lk_neon_unpack_trellis(int bits, int d_head, const void *tile, const uint8_t *table,
                                      uint8_t *cells);

/* Quantize weights of a tile: p[t] * scale[t] ~ step * (256 planes[0][t] + planes[1][t]) for t <
 * LK_TILE. *sum is the sum of these 16-bit numbers. Returns step. 8 bits would round the many small
 * weights of a tile to 0. */
float lk_neon_quantize_weights(const float *p, const float *scale, int8_t planes[2][LK_TILE],
                               int32_t *sum);

/* Same as above, for q [d_head] times the scales of channels, a few of which have most of the
 * range. */
float lk_neon_quantize_query(const float *q, const float *scale, int d_head,
                             int8_t planes[2][LK_MAX_D_HEAD]);

/* n f16 values as floats, n a multiple of 8. */
void lk_neon_load_f16(const uint16_t *half, int n, float *out);

/* Scales of a tile's rows without their signs: out [LK_TILE], 0 from row n on. */
void lk_neon_load_scales(const uint16_t *half, int n, float *out);

/* <a, b> over n floats, n a multiple of 8. */
float lk_neon_dot_f32(const float *a, const float *b, int n);

/* ---- integer dot products (neon_dot.c) ---- */

enum { LK_NEON_QUERIES = 4 }; /* maximum number of rows per call below */

/* n <= LK_NEON_QUERIES rows that are multiplied with cells: 8-bit numbers [n][pad], or 16-bit
 * numbers as planes [n][2][pad], high bytes first. */
struct lk_neon_rows {
    const int8_t *x;
    int n, pad;
    bool fine;   /* 16 bits */
    bool matrix; /* by the matrix products of i8mm; the sums are the same */
};

/* dot[i][t] = sum over channels c < d_head of row i [c] * cell(t, c). flip: subtract 128 from each
 * cell, only for 16-bit rows. Without flip, cells are at most 127. */
void lk_neon_dot_k(const uint8_t *cells, int d_head, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_TILE]);

/* dot[i][c] = sum over t < LK_TILE of row i [t] * cell(t, c), for n_channel channels from `cells`
 * on, a multiple of 8. 16-bit rows only; flip as above. */
void lk_neon_dot_v(const uint8_t *cells, int n_channel, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_MAX_D_HEAD]);

/* The same by the matrix products of Armv8.6 (neon_i8mm.c, compiled for them), called by the two
 * above. */
void lk_neon_i8mm_dot_k(const uint8_t *cells, int d_head, bool flip, const struct lk_neon_rows *x,
                        int32_t dot[][LK_TILE]);
void lk_neon_i8mm_dot_v(const uint8_t *cells, int n_channel, bool flip,
                        const struct lk_neon_rows *x, int32_t dot[][LK_MAX_D_HEAD]);

/* sum[i] = sum over channels of code[c] * row i [c]. 16-bit rows only. Both are read up to a
 * multiple of 16 channels; the rows are zero there. */
void lk_neon_dot_mean(const int8_t *code, int d_head, const struct lk_neon_rows *x,
                      int32_t sum[LK_NEON_QUERIES]);

/* ---- score and accumulate by codec ---- */

/* f16 (neon_f16.c): products and sums in floats. */
lk_score_fn lk_neon_f16_score;
lk_accumulate_fn lk_neon_f16_accumulate;

/* KIVI (neon_kivi.c): a scale and a minimum per group. */
lk_score_fn lk_neon_kivi_score;
lk_accumulate_fn lk_neon_kivi_accumulate;

/* rot, asym and int8 (neon_per_token.c): one scale per token, levels symmetric around zero. */
lk_score_fn lk_neon_per_token_score;
lk_accumulate_fn lk_neon_per_token_accumulate;

#endif
