/* AVX2 and AVX-VNNI kernels, shared among avx2*.c. Only those files are compiled for AVX2, FMA and
 * F16C. lk_kernels_choose returns their tables only if the CPU has all three. */
#ifndef LK_KERNELS_AVX2_H
#define LK_KERNELS_AVX2_H

#include "kernels/composed.h"
#include "kernels/tile.h"

extern const struct lk_kernels lk_kernels_avx2, lk_kernels_avxvnni;

/* ---- kernels on floats, and encoders (avx2_f32.c, avx2_encode.c) ----
 *
 * Entries of struct lk_kernels, where they are specified. */

float lk_avx2_max(const float *s, int n);
float lk_avx2_exp_sum(float *s, int n, float scale, float max);
void lk_avx2_score_rope(const struct lk_rope_keys *keys, const float *q, size_t q_stride, int n_q,
                        float *s, size_t stride);
void lk_avx2_combine_queries(const struct lk_queries *x, const float *w, int n,
                             const struct lk_queries *out);
void lk_avx2_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y);
void lk_avx2_delta_step(const float *from, float *to, int d, const float *q, const float *k,
                        const float *v, float decay, float beta, float *out);
void lk_avx2_scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out);
void lk_avx2_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y);
void lk_avx2_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride);
void lk_avx2_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride);

enum { LK_AVX2_MAX_BITS_Q8 = 4 }; /* max_bits_q8 of the tables of AVX2 */

/* The entries that all tables of x86 share. */
#define LK_AVX2_SHARED_KERNELS                                                                     \
    .score_rope = lk_avx2_score_rope, .encode = lk_avx2_encode, .decode = lk_avx2_decode,          \
    .gelu_layer = lk_avx2_gelu_layer, .add_offsets = lk_avx2_add_offsets,                          \
    .delta_step = lk_avx2_delta_step, .scan_step = lk_avx2_scan_step,                              \
    .score_tiles = lk_avx2_score_tiles

/* avx2_score_tiles.c, as in struct lk_kernels */
void lk_avx2_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride);

/* ---- codes of a tile, and weights of values (avx2_codes.c) ---- */

/* Codes of a tile as bytes in the order of codec/bitplanes.h, each replaced by table[code] unless
 * table is NULL. cells: [LK_TILE * d_head], 32-byte aligned. Returns the bytes: codes of 8 bits are
 * not copied. */
const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells);

/* The same for a trellis of 1 to 4 bits. table: [64] levels by index (codec/trellis.h) */
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

/* ---- score and accumulate by codec ----
 *
 * As in struct lk_kernels, for one tile: s and p are those of its first row. */

/* f16 (avx2_f16.c): products and sums in floats. */
void lk_avx2_f16_score(const struct lk_tile *tile, const struct lk_queries *q, float *s,
                       size_t stride);
void lk_avx2_f16_accumulate(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc);

/* KIVI (avx2_kivi.c): a scale and a minimum per group. */
void lk_avx2_kivi_score(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                        const struct lk_queries *q, float *s, size_t stride);
void lk_avx2_kivi_accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                             const float *p, size_t stride, int n_q, float *acc);

/* rot, asym and int8 (avx2_per_token.c): one scale per token, levels symmetric around zero. */
void lk_avx2_per_token_score(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                             const struct lk_queries *q, float *s, size_t stride);
void lk_avx2_per_token_accumulate(const struct lk_avx2_dots *dots, const struct lk_tile *tile,
                                  const float *p, size_t stride, int n_q, float *acc);

/* rot and asym of up to 4 bits (avx2_lowbit.c). A cell goes from its codes to the products without
 * being stored, sums stay in 16 bits as long as they fit, and weights of several tiles of V are
 * quantized side by side. These take a whole run of rows. */
void lk_avx2_lowbit_score(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                          size_t stride);
void lk_avx2_lowbit_accumulate(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                               float *acc);

/* asym without groups (avx2_asym.c): what the kernels of rot leave out, for a whole run. Used for
 * AVX-512 as well. fine: the scores were computed with 16-bit queries */
void lk_avx2_add_score_offsets(const struct lk_rows *rows, const struct lk_queries *q, bool fine,
                               float *s, size_t stride);
void lk_avx2_add_sum_offsets(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc);

#endif
