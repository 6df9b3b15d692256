/* Combinations of prepared vectors with AVX-512 (kernels.h: combine_queries), in integers. The
 * vectors' scales are folded into the weights, which are rounded to unsigned bytes around 128. One
 * VPDPBUSD multiplies four vectors' bytes of 16 numbers with four weights. */
#include "kernels/avx512_dot.h"

#include <math.h>

enum {
    BATCH = 16,    /* combinations that share interleaved bytes */
    MAX_ROWS = 12, /* combinations whose sums stay in registers */
    NUMBERS = 32,  /* numbers of a vector that are worked on together */
    MIDDLE = 128,
    MAX_SUMS = BATCH * 512 /* sums of a batch; wide vectors have smaller batches */
};

_Static_assert(MAX_SUMS >= (int)LK_MAX_D_HEAD, "a batch has at least one combination");

/* Weights of up to BATCH combinations as bytes, 128 for 0, and their steps. */
struct byte_weights {
    _Alignas(64) uint8_t byte[BATCH][LK_MAX_COMBINE];
    float step[BATCH];
};

/* Row i of the weights times the vectors' scales. */
static void quantize_row(const struct lk_queries *x, const float *w, struct byte_weights *out,
                         int i) {
    float product[LK_MAX_COMBINE];
    __m512 max = _mm512_setzero_ps();
    int n = x->n_q, c = 0;
    for (; c < n; c += 16) {
        __mmask16 inside = n - c >= 16 ? 0xffff : (__mmask16)((1 << (n - c)) - 1);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, w + c),
                                 _mm512_maskz_loadu_ps(inside, x->scale8 + c));
        _mm512_storeu_ps(product + c, v);
        max = _mm512_max_ps(_mm512_abs_ps(v), max); /* a NaN in v is lost here, but not in v */
    }
    float range = _mm512_reduce_max_ps(max), to8 = range > LK_MIN_STEP ? 127 / range : 0;
    out->step[i] = range / 127;
    __m512i middle = _mm512_set1_epi32(MIDDLE);
    for (int j = 0; j < c; j += 16) {
        __m512 v = _mm512_loadu_ps(product + j);
        if (_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q)) out->step[i] = NAN;
        __m512i y =
            _mm512_add_epi32(middle, _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(to8))));
        _mm_storeu_si128((__m128i *)(out->byte[i] + j), _mm512_cvtepi32_epi8(y));
    }
}

/* 32 numbers of the vectors from q8 on, four vectors' bytes side by side: out [n_quad][2][64], in
 * the order of numbers 0-3, 16-19, 4-7, 20-23, ... */
static void interleave(const int8_t *q8, int n, int pad, int8_t *out) {
    for (int j = 0; j < n; j += 4, out += 128) {
        __m256i row[4];
        LK_UNROLL
        for (int i = 0; i < 4; i++)
            row[i] = j + i < n ? _mm256_loadu_si256((const __m256i *)(q8 + (size_t)(j + i) * pad))
                               : _mm256_setzero_si256();
        __m256i a = _mm256_unpacklo_epi8(row[0], row[1]), b = _mm256_unpackhi_epi8(row[0], row[1]),
                c = _mm256_unpacklo_epi8(row[2], row[3]), d = _mm256_unpackhi_epi8(row[2], row[3]);
        _mm256_store_si256((__m256i *)out, _mm256_unpacklo_epi16(a, c));
        _mm256_store_si256((__m256i *)(out + 32), _mm256_unpackhi_epi16(a, c));
        _mm256_store_si256((__m256i *)(out + 64), _mm256_unpacklo_epi16(b, d));
        _mm256_store_si256((__m256i *)(out + 96), _mm256_unpackhi_epi16(b, d));
    }
}

/* sum [n][pad]: 32 numbers of combinations [i0, i0 + n); n is a constant after inlining. */
LK_ALWAYS_INLINE void multiply(const int8_t *quads, int n_quad, const struct byte_weights *weights,
                               int i0, int n, int32_t *sum, int pad) {
    __m512i part[MAX_ROWS][2], all[2];
    LK_UNROLL
    for (int k = 0; k < 2; k++) {
        all[k] = _mm512_setzero_si512();
        LK_UNROLL
        for (int i = 0; i < n; i++) part[i][k] = _mm512_setzero_si512();
    }
    const __m512i ones = _mm512_set1_epi8(1);
    for (int j = 0; j < n_quad; j++, quads += 128) {
        __m512i a = _mm512_load_si512(quads), b = _mm512_load_si512(quads + 64);
        all[0] = dpbusd_i32x16(all[0], ones, a);
        all[1] = dpbusd_i32x16(all[1], ones, b);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i w = set1_i8x4_x16(weights->byte[i0 + i] + 4 * j);
            part[i][0] = dpbusd_i32x16(part[i][0], w, a);
            part[i][1] = dpbusd_i32x16(part[i][1], w, b);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2; k++)
        _mm512_storeu_si512(sum + (i0 + i) * pad + 16 * k,
                            _mm512_sub_epi32(part[i][k], _mm512_slli_epi32(all[k], 7)));
}

/* Round sum [pad], times step, to the bytes of query i of *out. */
static void quantize_sums(const int32_t *sum, float step, const struct lk_queries *out, int i) {
    int pad = lk_queries_pad(out->d_head);
    int8_t *q8 = out->q8 + (size_t)i * pad;
    __m512i max = _mm512_setzero_si512(), total = _mm512_setzero_si512();
    for (int c = 0; c < pad; c += 16)
        max = _mm512_max_epi32(max, _mm512_abs_epi32(_mm512_loadu_si512(sum + c)));
    int32_t range = _mm512_reduce_max_epi32(max);
    __m512 to8 = _mm512_set1_ps(range ? 127 / (float)range : 0);
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (int c = 0; c < pad; c += NUMBERS) {
        __m512i a = _mm512_cvtps_epi32(
                    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sum + c)), to8)),
                b = _mm512_cvtps_epi32(
                    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sum + c + 16)), to8));
        total = _mm512_add_epi32(total, _mm512_add_epi32(a, b));
        __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a)),
                                                _mm512_cvtepi32_epi8(b), 1);
        _mm256_storeu_si256((__m256i *)(q8 + c), _mm256_permutevar8x32_epi32(bytes, order));
    }
    out->sum8[i] = _mm512_reduce_add_epi32(total);
    out->scale8[i] = step * ((float)range / 127);
}

void lk_avx512_combine_queries(const struct lk_queries *x, const float *w, int n,
                               const struct lk_queries *out) {
    _Alignas(64) int8_t quads[LK_MAX_COMBINE * NUMBERS];
    int32_t sum[MAX_SUMS];
    struct byte_weights weights;
    int pad = lk_queries_pad(x->d_head), n_quad = (x->n_q + 3) / 4;
    int batch = pad * BATCH <= MAX_SUMS ? BATCH : MAX_SUMS / pad;
    for (int first = 0; first < n; first += batch) {
        int here = n - first < batch ? n - first : batch;
        for (int i = 0; i < here; i++)
            quantize_row(x, w + (size_t)(first + i) * x->n_q, &weights, i);
        for (int c = 0; c < pad; c += NUMBERS) {
            int i = 0;
            interleave(x->q8 + c, x->n_q, pad, quads);
            for (; here - i >= MAX_ROWS; i += MAX_ROWS)
                multiply(quads, n_quad, &weights, i, MAX_ROWS, sum + c, pad);
            for (; here - i >= 4; i += 4) multiply(quads, n_quad, &weights, i, 4, sum + c, pad);
            for (; i < here; i++) multiply(quads, n_quad, &weights, i, 1, sum + c, pad);
        }
        for (int i = 0; i < here; i++)
            quantize_sums(sum + i * pad, weights.step[i], out, first + i);
    }
}
