/* rot of up to 5 bits for the few queries of decoding, which would wait for the unpacking of whole
 * tiles: a cell goes from its codes to the products without being stored, and weights of several
 * tiles of V are quantized together. n, the number of queries, and the form of the codes are
 * constants after inlining. The build compiles this file twice, for AVX-512 and with LK_VBMI for
 * AVX512-VBMI. */
#include "kernels/avx512_cells.h"
#include "kernels/avx512_per_token.h"

#if defined(LK_VBMI)
#define lk_avx512_decode_score lk_avx512vbmi_decode_score
#define lk_avx512_decode_accumulate lk_avx512vbmi_decode_accumulate
#define TARGET VBMI
#define FORM vbmi_form
#define TRELLIS_FORM vbmi_trellis_form
#else
#define TARGET
#define FORM plain_form
#define TRELLIS_FORM plain_trellis_form
#endif

/* ---- scores ---- */

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

TARGET void lk_avx512_decode_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                                   const struct lk_queries *q, float *s, size_t stride) {
    if (lk_avx512_needs_16bit(rows->codec->bits))
        lk_avx512_per_token_score(kernels, rows, q, s, stride);
    else if (rows->codec->trellis)
        score_bits(TRELLIS_FORM, true, kernels->unpack, rows, q, s, stride);
    else
        score_bits(FORM, false, kernels->unpack, rows, q, s, stride);
}

/* ---- sums of values ---- */

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

TARGET void lk_avx512_decode_accumulate(const struct lk_kernels *kernels,
                                        const struct lk_rows *rows, const float *p, size_t stride,
                                        int n_q, float *acc) {
    if (lk_avx512_needs_16bit(rows->codec->bits))
        lk_avx512_per_token_accumulate(kernels, rows, p, stride, n_q, acc);
    else if (rows->codec->trellis)
        accumulate_bits(TRELLIS_FORM, true, kernels->unpack, rows, p, stride, n_q, acc);
    else
        accumulate_bits(FORM, false, kernels->unpack, rows, p, stride, n_q, acc);
}
