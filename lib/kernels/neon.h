/* Parts of the NEON kernels, shared among neon*.c. Those files alone are compiled for Advanced SIMD with
 * the dot product instructions of Armv8.2, and lk_kernels_choose calls them only where the CPU has these.
 *
 * sdot multiplies signed bytes, and everything here is a sum of such products. Cells are signed bytes
 * as they are: levels and codes of up to 7 bits are at most 127. Codes of 8 bits have their top bit
 * flipped on the way, which subtracts 128. 16-bit numbers are two planes of bytes, x = 256 high + low.
 *
 * Written for the instructions; not timed on hardware. What to look at is the disassembly: in the loops of
 * neon_dot.c gcc spills nothing, and 64 of 82 to 93 instructions are dot products for 2 queries or more. */
#ifndef LK_KERNELS_NEON_H
#define LK_KERNELS_NEON_H

#include "kernels/tile.h"

#include <arm_neon.h>

#if defined(__clang__)
#define LK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LK_UNROLL _Pragma("GCC unroll 8")
#endif

extern const struct lk_kernels lk_kernels_neon;

/* ---- rows in and out (neon_encode.c) ---- */

void lk_neon_encode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, void *head, int row0, int n, const float *x, size_t stride);
void lk_neon_decode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, const void *head, int row0, int n, float *x, size_t stride);

/* ---- codes ---- */

/* A tile's codes as bytes in the order of codec/cells.h, each replaced by table[code] where table is
 * not NULL. cells: [LK_TILE * d_head]; codes of 8 bits are not copied. Returns the bytes. (neon_unpack.c) */
const uint8_t *lk_neon_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells);

enum { LK_NEON_QUERIES = 4 }; /* most queries of one dot product below */

/* What cells are multiplied with: n <= LK_NEON_QUERIES rows of 8-bit numbers, [n][pad], or of 16-bit
 * ones as planes, [n][2][pad], the high bytes first. */
struct lk_neon_rows {
    const int8_t *x;
    int n, pad;
    bool fine; /* 16 bits */
};

/* dot[i][t] = sum over channels of row i [c] * cell(t, c). flip: subtract 128 from each cell; only for 16-bit
 * rows. Without it cells are at most 127. (neon_dot.c) */
void lk_neon_dot_k(const uint8_t *cells, int d_head, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_TILE]);

/* dot[i][c] = sum over tokens of row i [t] * cell(t, c) for the n_channel (a multiple of 8) channels that
 * begin at cells. 16-bit rows only; flip as above. */
void lk_neon_dot_v(const uint8_t *cells, int n_channel, bool flip, const struct lk_neon_rows *x,
                   int32_t dot[][LK_MAX_D_HEAD]);

/* sum[i] = sum over channels of code[c] * row i [c]. 16-bit rows only. Both are read up to a multiple of 16
 * channels; the row has zeros there. */
void lk_neon_dot_mean(const int8_t *code, int d_head, const struct lk_neon_rows *x,
                      int32_t sum[LK_NEON_QUERIES]);

/* ---- weights of values, and other rows made on the way (neon_weights.c) ---- */

/* p[t] * scale[t] ~ step * (256 planes[0][t] + planes[1][t]) for t < LK_TILE; *sum is the sum of these 16-bit
 * numbers. Returns step. Sixteen bits, because with eight the many small weights of a tile would all be
 * rounded to nothing. */
float lk_neon_weigh(const float *p, const float *scale, int8_t planes[2][LK_TILE], int32_t *sum);

/* The same for a query and the scales of channels, of which a few have most of the range. Returns step. */
float lk_neon_fold(const float *q, const float *scale, int d_head, int8_t planes[2][LK_MAX_D_HEAD]);

/* Half floats as floats; n a multiple of 8. */
void lk_neon_to_float(const uint16_t *half, int n, float *out);

/* Half floats without their signs, as floats; those from n on become 0. out: [LK_TILE] */
void lk_neon_scales(const uint16_t *half, int n, float *out);

/* <a, b> over n numbers, n a multiple of 8. */
float lk_neon_dot(const float *a, const float *b, int n);

/* ---- one file per codec ---- */

void lk_neon_f16_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride);
void lk_neon_f16_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc);
void lk_neon_kivi_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                        size_t stride);
void lk_neon_kivi_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                             float *acc);

/* rot and int8: one scale per token, levels symmetric around zero. */
void lk_neon_row_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride);
void lk_neon_row_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc);

/* neon_turned.c */
void lk_neon_score_turned(const float *k, int d, const struct lk_rope_table *turns, const float *q,
                          int n_q, float *s, size_t stride);

/* neon_gelu.c */
void lk_neon_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y);
void lk_neon_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y);

/* neon_softmax.c */
float lk_neon_max(const float *s, int n);
float lk_neon_exp_sum(float *s, int n, float scale, float max);

#endif
