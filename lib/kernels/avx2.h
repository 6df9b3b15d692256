/* Parts of the AVX2 kernels, shared among avx2*.c. Those files alone are compiled for AVX2, FMA and
 * F16C, and lk_kernels_choose calls them only where the CPU has all three. */
#ifndef LK_KERNELS_AVX2_H
#define LK_KERNELS_AVX2_H

#include "kernels/tile.h"

#if defined(__clang__)
#define LK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LK_UNROLL _Pragma("GCC unroll 16")
#endif

extern const struct lk_kernels lk_kernels_avx2, lk_kernels_avxvnni;

/* ---- rows in and out (avx2_encode.c) ---- */

void lk_avx2_encode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, void *head, int row0, int n, const float *x, size_t stride);
void lk_avx2_decode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, const void *head, int row0, int n, float *x, size_t stride);

/* ---- codes ---- */

/* A tile's codes as bytes in the order of codec/cells.h, each replaced by table[code] where table is
 * not NULL. cells: [LK_TILE * d_head], 32-byte aligned; codes of 8 bits are not copied.
 * Returns the bytes. (avx2_unpack.c) */
const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells);

enum { LK_AVX2_QUERIES = 4 }; /* most queries of one dot product below */

/* Dot products of n <= LK_AVX2_QUERIES queries with a tile's bytes. */
struct lk_avx2_dots {
    /* dot[i][t] = sum over channels of q8[i * pad + c] * cell(t, c). NULL where avx2_low.h's kernels do without. */
    void (*k8)(const uint8_t *cells, int d_head, const int8_t *q8, int pad, int n,
               int32_t dot[][LK_TILE]);

    /* The same for 16-bit queries. */
    void (*k16)(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n,
                int32_t dot[][LK_TILE]);

    /* dot[i][c] = sum over tokens of p16[i][t] * cell(t, c) for the n_channel (a multiple of 8)
     * channels that begin at cells. */
    void (*v16)(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n,
                int32_t dot[][LK_MAX_D_HEAD]);
};

extern const struct lk_avx2_dots lk_avx2_dots, lk_avxvnni_dots;

/* ---- weights of values (avx2_weights.c) ---- */

/* p[t] * scale[t] ~ step * p16[t] for t < LK_TILE; *sum is the sum of p16. Returns step. Sixteen bits,
 * because with eight the many small weights of a tile would all be rounded to nothing. */
float lk_avx2_weigh(const float *p, const float *scale, int16_t *p16, int32_t *sum);

/* <a, b> over n numbers, n a multiple of 8. */
float lk_avx2_dot(const float *a, const float *b, int n);

/* ---- one file per codec ---- */

void lk_avx2_f16_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride);
void lk_avx2_f16_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc);
void lk_avx2_kivi_score(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                        const struct lk_queries *q, float *s, size_t stride);
void lk_avx2_kivi_accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                             const float *p, size_t stride, int n_q, float *acc);

/* rot and int8: one scale per token, levels symmetric around zero. */
void lk_avx2_row_score(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                       const struct lk_queries *q, float *s, size_t stride);
void lk_avx2_row_accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                            const float *p, size_t stride, int n_q, float *acc);

/* avx2_turned.c */
void lk_avx2_score_turned(const float *k, int d, const struct lk_rope_table *turns, const float *q,
                          int n_q, float *s, size_t stride);

/* avx2_gelu.c */
void lk_avx2_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y);
void lk_avx2_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y);

/* avx2_softmax.c */
float lk_avx2_max(const float *s, int n);
float lk_avx2_exp_sum(float *s, int n, float scale, float max);

#endif
