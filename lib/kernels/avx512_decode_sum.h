/* Sums of values of rot of up to 5 bits for the few queries of decoding, for AVX-512 and
 * AVX512-VBMI (avx512.h). n, the number of queries, and the form of the codes are constants after
 * inlining, so each of the files that include this compiles one CPU's forms. */
#ifndef LK_KERNELS_AVX512_DECODE_SUM_H
#define LK_KERNELS_AVX512_DECODE_SUM_H

#include "kernels/avx512_cells.h"
#include "kernels/avx512_per_token.h"

enum { WEIGHTED_TILES = 4 }; /* tiles of V whose weights are quantized together */

/* A tile and its quantized weights. */
struct weighted_tile {
    _Alignas(64) uint8_t byte[LK_AVX512_QUERIES][2 * LK_TILE];
    float step[LK_AVX512_QUERIES];
    struct lk_tile tile;
};

LK_ALWAYS_INLINE void prepare_weights(const struct lk_rows *rows, int t, const float *p,
                                      size_t stride, int n, float *acc, struct weighted_tile *out) {
    struct lk_avx512_params params;
    out->tile = lk_rows_tile(rows, t);
    load_params(&params, &out->tile);
    p += t * LK_TILE;
    lk_avx512_quantize_weights_of(p, stride, n, params.scale, false, out->byte, out->step);
    for (int i = 0; params.mean && i < n; i++)
        add_mean(&params, rows->d_head, sum_tile_f32(p + i * stride, NULL),
                 acc + (size_t)i * rows->d_head);
}

/* acc [n][d] += weights times levels, for channels [c, c + 16 groups); groups is a constant. */
LK_ALWAYS_INLINE void add_groups(struct pair_form form, struct plane_ptrs p,
                                 const struct lk_avx512_levels *levels,
                                 const struct weighted_tile *w, int n, int groups, int c, int d,
                                 float *acc) {
    struct query_sums sum = zero_sums();
    bool whole = groups > 1 || d - c >= LK_AVX512_ROWS;
    p.four += c * 16, p.two += c * 8, p.one += c * 4;
    LK_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint8_t *byte = w->byte[0];
        __m512i x[2][LK_AVX512_QUERIES];
        /* Otherwise gcc reads the weights of all tokens first and runs out of registers. */
        __asm__ volatile("" : "+r"(byte));
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            x[0][i] = set1_i8x4_x16(byte + i * 2 * LK_TILE + lk_avx512_quad(2 * k, 1));
            x[1][i] = set1_i8x4_x16(byte + i * 2 * LK_TILE + lk_avx512_quad(2 * k + 1, 1));
        }
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            struct cell_pair cell = unpack_pair_v(form, p, 2 * g, 2 * g + whole, k, levels);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum.of[i][g] =
                    dpbusd_i32x16(dpbusd_i32x16(sum.of[i][g], x[0][i], cell.a), x[1][i], cell.b);
        }
    }
    __mmask16 inside = whole ? 0xffff : 0x00ff;
    LK_UNROLL
    for (int g = 0; g < groups; g++) LK_UNROLL
    for (int i = 0; i < n; i++) {
        float *out = acc + (size_t)i * d + c + g * LK_AVX512_ROWS;
        __m512 x = _mm512_maskz_loadu_ps(inside, out),
               step = _mm512_set1_ps(0.5f * w->step[i]); /* levels are doubled */
        _mm512_mask_storeu_ps(out, inside,
                              _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum.of[i][g]), step, x));
    }
}

/* Quantizing weights has a long latency and few instructions, so several tiles are done
 * together. */
LK_ALWAYS_INLINE void accumulate_run(struct pair_form form, const struct lk_avx512_form *codes,
                                     const struct lk_rows *rows, const float *p, size_t stride,
                                     int n, float *acc) {
    struct weighted_tile weighted[WEIGHTED_TILES];
    int d = rows->d_head, n_tile = lk_rows_n_tile(rows);
    for (int t = 0; t < n_tile; t++) {
        for (int i = t; t % WEIGHTED_TILES == 0 && i < n_tile && i < t + WEIGHTED_TILES; i++)
            prepare_weights(rows, i, p, stride, n, acc, &weighted[i - t]);
        const struct weighted_tile *w = &weighted[t % WEIGHTED_TILES];
        prefetch_tile(&w->tile);
        struct plane_ptrs planes = find_planes(form.bits, d, w->tile.head);
        int c = 0;
        if (n < 4) /* sums of four queries and four groups would not stay in registers */
            for (; c + 64 <= d; c += 64)
                add_groups(form, planes, &codes->levels, w, n, 4, c, d, acc);
        for (; c + 32 <= d; c += 32) add_groups(form, planes, &codes->levels, w, n, 2, c, d, acc);
        for (; c < d; c += 16) add_groups(form, planes, &codes->levels, w, n, 1, c, d, acc);
    }
}

LK_ALWAYS_INLINE void accumulate_all(struct pair_form form, const struct lk_avx512_form *codes,
                                     const struct lk_rows *rows, const float *p, size_t stride,
                                     int n, float *acc) {
    for (; n >= 4; n -= 4, p += 4 * stride, acc += (size_t)4 * rows->d_head)
        accumulate_run(form, codes, rows, p, stride, 4, acc);
    if (n == 3) accumulate_run(form, codes, rows, p, stride, 3, acc);
    if (n == 2) accumulate_run(form, codes, rows, p, stride, 2, acc);
    if (n == 1) accumulate_run(form, codes, rows, p, stride, 1, acc);
}

/* Codes of 1 to 4 bits, or of 5 bits without a trellis. */
LK_ALWAYS_INLINE void accumulate_bits(pair_form_fn *form, bool trellis,
                                      const struct lk_avx512_unpack *unpack,
                                      const struct lk_rows *rows, const float *p, size_t stride,
                                      int n_q, float *acc) {
    struct lk_avx512_form codes;
    make_form(&codes, unpack, rows->codec, LK_V);
    if (!trellis && rows->codec->bits == 5) {
        accumulate_all(form(5), &codes, rows, p, stride, n_q, acc);
        return;
    }
    switch (rows->codec->bits) {
    case 1: accumulate_all(form(1), &codes, rows, p, stride, n_q, acc); return;
    case 2: accumulate_all(form(2), &codes, rows, p, stride, n_q, acc); return;
    case 3: accumulate_all(form(3), &codes, rows, p, stride, n_q, acc); return;
    default: accumulate_all(form(4), &codes, rows, p, stride, n_q, acc);
    }
}

#endif
