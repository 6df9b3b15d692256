/* Scores of rot of up to 5 bits for the few queries of decoding, for AVX-512 and AVX512-VBMI
 * (avx512.h). n, the number of queries, and the form of the codes are constants after inlining, so
 * each of the files that include this compiles one CPU's forms. */
#ifndef LK_KERNELS_AVX512_DECODE_SCORE_H
#define LK_KERNELS_AVX512_DECODE_SCORE_H

#include "kernels/avx512_cells.h"
#include "kernels/avx512_per_token.h"

/* sum + products of unsigned bytes with the same four signed bytes in every row. */
LK_ALWAYS_INLINE __m512i dpbusd_each(__m512i sum, __m512i bytes, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*(const int32_t *)four));
    return sum;
}

/* Products of a tile with n queries q8 [n][pad]. */
LK_ALWAYS_INLINE struct query_sums dot_tile_k(struct pair_form form, struct plane_ptrs p,
                                              const struct lk_avx512_levels *levels, int d,
                                              const int8_t *q8, int pad, int n) {
    struct query_sums sum = zero_sums();
    const int8_t *end = q8 + d;
    for (; q8 < end; q8 += 8, p.four += 128, p.two += 64, p.one += 32) LK_UNROLL
    for (int odd = 0; odd < 2; odd++) {
        struct cell_pair cell = unpack_pair_k(form, p, odd, odd, levels);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            sum.of[i][2 * odd] = dpbusd_each(sum.of[i][2 * odd], cell.a, q8 + i * pad + 4 * odd);
            sum.of[i][2 * odd + 1] =
                dpbusd_each(sum.of[i][2 * odd + 1], cell.b, q8 + i * pad + 4 * odd);
        }
    }
    return sum;
}

/* Scores of queries [i0, i0 + n). */
LK_ALWAYS_INLINE void score_queries(struct pair_form form, const struct lk_avx512_form *codes,
                                    const struct lk_rows *rows, const struct lk_queries *q, int i0,
                                    int n, float *s, size_t stride) {
    float middle[LK_AVX512_QUERIES], offset[LK_AVX512_QUERIES] = {0};
    int d = rows->d_head, pad = lk_queries_pad(d);
    dot_middle(codes, q, i0, n, middle);
    s += i0 * stride;
    for (int t = 0; t < lk_rows_n_tile(rows); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, t);
        struct lk_avx512_params params;
        load_params(&params, &tile);
        prefetch_tile(&tile);
        struct query_sums sum = dot_tile_k(form, find_planes(form.bits, d, tile.head),
                                           &codes->levels, d, q->q8 + (size_t)i0 * pad, pad, n);
        if (params.mean) dot_mean(&params, q, i0, n, offset);
        LK_UNROLL
        for (int i = 0; i < n; i++)
            store_scores(join_sums(sum.of[i], LK_OCTETS_02_13), &params, q->scale8[i0 + i],
                         middle[i], offset[i], s + i * stride);
    }
}

LK_ALWAYS_INLINE void score_all(struct pair_form form, const struct lk_avx512_form *codes,
                                const struct lk_rows *rows, const struct lk_queries *q, float *s,
                                size_t stride) {
    int i = 0, n = q->n_q;
    for (; n - i >= 4; i += 4) score_queries(form, codes, rows, q, i, 4, s, stride);
    if (n - i == 3) score_queries(form, codes, rows, q, i, 3, s, stride);
    if (n - i == 2) score_queries(form, codes, rows, q, i, 2, s, stride);
    if (n - i == 1) score_queries(form, codes, rows, q, i, 1, s, stride);
}

/* Codes of 1 to 4 bits, or of 5 bits without a trellis. */
LK_ALWAYS_INLINE void score_bits(pair_form_fn *form, bool trellis,
                                 const struct lk_avx512_unpack *unpack, const struct lk_rows *rows,
                                 const struct lk_queries *q, float *s, size_t stride) {
    struct lk_avx512_form codes;
    make_form(&codes, unpack, rows->codec, LK_K);
    if (!trellis && rows->codec->bits == 5) {
        score_all(form(5), &codes, rows, q, s, stride);
        return;
    }
    switch (rows->codec->bits) {
    case 1: score_all(form(1), &codes, rows, q, s, stride); return;
    case 2: score_all(form(2), &codes, rows, q, s, stride); return;
    case 3: score_all(form(3), &codes, rows, q, s, stride); return;
    default: score_all(form(4), &codes, rows, q, s, stride);
    }
}

#endif
