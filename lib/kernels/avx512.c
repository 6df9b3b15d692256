/* Tables of the AVX-512, AVX512-VBMI and AMX kernels, softmax, and combinations of queries. */
#include "kernels/avx512_dot.h"
#include "kernels/vec8.h"

#include <math.h>

/* ---- softmax ---- */

/* Mask of the lanes below n. */
static inline __mmask16 lane_mask(int n) { return (__mmask16)((1u << n) - 1); }

static float max_f32(const float *s, int n) {
    /* Four maxima, because with one each instruction would wait for the previous one. */
    __m512 max = _mm512_set1_ps(-INFINITY), part[4] = {max, max, max, max};
    int t = 0;
    for (; t + 64 <= n; t += 64) LK_UNROLL
    for (int i = 0; i < 4; i++) part[i] = _mm512_max_ps(part[i], _mm512_loadu_ps(s + t + 16 * i));
    max = _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3]));
    for (; t + 16 <= n; t += 16) max = _mm512_max_ps(max, _mm512_loadu_ps(s + t));
    __mmask16 rest = lane_mask(n - t);
    max = _mm512_mask_max_ps(max, rest, max, _mm512_maskz_loadu_ps(rest, s + t));
    return _mm512_reduce_max_ps(max);
}

/* 2^x for x up to 127. */
static inline __m512 exp2_f32x16(__m512 x) {
    __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lk_exp2_min), _CMP_GT_OQ);
    __m512 k = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           r = _mm512_sub_ps(x, k);
    __m512 y = _mm512_set1_ps(lk_exp2[5]);
    LK_UNROLL
    for (int i = 4; i >= 0; i--) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(lk_exp2[i]));
    return _mm512_maskz_scalef_ps(counts, y, k);
}

static float exp_sum(float *s, int n, float scale, float max) {
    const __m512 factor = _mm512_set1_ps(scale * lk_log2e), shift = _mm512_set1_ps(max * lk_log2e);
    __m512 sum = _mm512_setzero_ps();
    int t = 0;
    for (; t + 16 <= n; t += 16) {
        __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_loadu_ps(s + t), factor, shift));
        _mm512_storeu_ps(s + t, y);
        sum = _mm512_add_ps(sum, y);
    }
    __mmask16 rest = lane_mask(n - t);
    __m512 y = exp2_f32x16(_mm512_fmsub_ps(_mm512_maskz_loadu_ps(rest, s + t), factor, shift));
    _mm512_mask_storeu_ps(s + t, rest, y);
    return _mm512_reduce_add_ps(_mm512_mask_add_ps(sum, rest, sum, y));
}

/* ---- combinations of prepared vectors (kernels.h: combine_queries), in integers ----
 *
 * The vectors' scales are folded into the weights, which are rounded to unsigned bytes around 128.
 * One VPDPBUSD multiplies four vectors' bytes of 16 numbers with four weights. */

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

static void combine_queries(const struct lk_queries *x, const float *w, int n,
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

/* ---- tables ---- */

/* The same kernels for few and for many queries, and two kernels of rot. */
#define BOTH(codec)                                                                                \
    {                                                                                              \
        lk_avx512_##codec##_score, lk_avx512_##codec##_score, lk_avx512_##codec##_accumulate,      \
            lk_avx512_##codec##_accumulate                                                         \
    }
#define FEW_MANY(few, many)                                                                        \
    {                                                                                              \
        lk_avx512##few##_score, lk_avx512_##many##_score, lk_avx512##few##_accumulate,             \
            lk_avx512_##many##_accumulate                                                          \
    }

#define SHARED_KERNELS                                                                             \
    .max_bits_q8 = LK_AVX512_MAX_BITS_Q8, .max = max_f32, .exp_sum = exp_sum,                      \
    .combine_queries = combine_queries, .quantize_inputs = lk_avx512_quantize_inputs,              \
    .quantize_short = lk_avx512_quantize_short, .multiply = lk_avx512_multiply, LK_X86_KERNELS

const struct lk_kernels lk_kernels_avx512 = {.name = "avx512",
                                             .coding = {[LK_F16] = BOTH(f16),
                                                        [LK_INT8] = BOTH(per_token),
                                                        [LK_KIVI] = BOTH(kivi),
                                                        [LK_ROT] = FEW_MANY(_decode, per_token),
                                                        LK_COMPOSED_CODINGS},
                                             .few = LK_AVX512_DECODE_QUERIES,
                                             .unpack = &lk_avx512_unpack,
                                             SHARED_KERNELS};

const struct lk_kernels lk_kernels_avx512vbmi = {
    .name = "avx512vbmi",
    .coding = {[LK_F16] = BOTH(f16),
               [LK_INT8] = BOTH(per_token),
               [LK_KIVI] = BOTH(kivi),
               [LK_ROT] = FEW_MANY(vbmi_decode, per_token),
               LK_COMPOSED_CODINGS},
    .few = LK_AVX512_DECODE_QUERIES,
    .unpack = &lk_avx512vbmi_unpack,
    SHARED_KERNELS};

/* AMX pays only if enough queries fill its registers of 16 rows. */
const struct lk_kernels lk_kernels_amx = {.name = "amx",
                                          .enter = lk_avx512_amx_enter,
                                          .leave = lk_avx512_amx_leave,
                                          .coding = {[LK_F16] = BOTH(f16),
                                                     [LK_INT8] = FEW_MANY(_per_token, amx),
                                                     [LK_KIVI] = BOTH(kivi),
                                                     [LK_ROT] = FEW_MANY(vbmi_decode, amx),
                                                     LK_COMPOSED_CODINGS},
                                          .few = LK_AVX512_QUERIES,
                                          .unpack = &lk_avx512vbmi_unpack,
                                          SHARED_KERNELS};
