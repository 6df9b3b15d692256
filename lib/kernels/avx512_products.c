/* Products of quantized weights with AVX-512.
 *
 * Weights of 16 outputs are unpacked to panels, in which one VPDPBUSD multiplies four inputs of all
 * 16 outputs with four codes of a token. A panel is read for up to MAX_TOK tokens, TOKENS at a time
 * for two panels, so 12 sums stay in registers. */
#include "kernels/avx512_dot.h"
#include "kernels/kernels.h"
#include "kernels/products.h"

#include <math.h>

enum {
    TOKENS = 6,
    GROUPS = 2,    /* panels that are read together */
    MAX_TOK = 384, /* tokens whose sums are kept at once: 48 KB */
    BLOCKS = 2,    /* blocks of a panel that are unpacked at once */
    SHORTS = 16,   /* the same for blocks of 32 */
    LANES = LK_PRODUCT_OUTPUTS,
    QUADS = LK_PRODUCT_BLOCK / 4,
};

/* A block of 16 outputs. */
struct panel {
    _Alignas(64) uint8_t code[QUADS][LANES][4];
    int32_t scale[16][LANES]; /* Q4_K: of 32 inputs; Q6_K: of 16 */
    /* What is multiplied with the sums of codes, pairs of parts: Q4_K: minima; Q6_K: 32 * scale */
    int16_t min[8][LANES][2];
    float d[LANES], d_min[LANES]; /* d_min: Q4_K */
};

/* A block of 32 inputs of 16 outputs. Codes are larger by `middle`, so that they have no sign. */
struct short_panel {
    _Alignas(64) uint8_t code[LK_PRODUCT_SHORT / 4][LANES][4];
    float d[LANES], offset[LANES]; /* offset: if the product has them */
};

/* Sums of a token for two panels. */
struct sums {
    _Alignas(64) float of[GROUPS][LANES];
};

/* ---- inputs ---- */

void lk_avx512_quantize_inputs(const float *x, int n_in, struct lk_input_block *out,
                               size_t stride) {
    for (int b = 0; b < n_in / LK_PRODUCT_BLOCK; b++, x += LK_PRODUCT_BLOCK, out += stride) {
        __m512 max = _mm512_setzero_ps(), top = _mm512_set1_ps(-INFINITY);
        for (int i = 0; i < LK_PRODUCT_BLOCK; i += LANES) {
            __m512 v = _mm512_loadu_ps(x + i);
            max = _mm512_max_ps(_mm512_abs_ps(v), max);
            top = _mm512_max_ps(v, top);
        }
        float all = _mm512_reduce_max_ps(max);
        float to_code = 0;
        if (all != 0) to_code = (_mm512_reduce_max_ps(top) == all ? -127.0f : 127.0f) / all;
        out->step = all == 0 ? 0 : 1 / to_code;
        for (int i = 0; i < LK_PRODUCT_BLOCK; i += LANES) {
            __m512i code =
                _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(to_code)));
            _mm_storeu_si128((__m128i *)(out->code + i), _mm512_cvtsepi32_epi8(code));
            out->sum16[i / LANES] = (int16_t)_mm512_reduce_add_epi32(code);
        }
        for (int i = 0; i < LK_PRODUCT_BLOCK / 32; i++)
            out->sum32[i] = (int16_t)(out->sum16[2 * i] + out->sum16[2 * i + 1]);
    }
}

void lk_avx512_quantize_short(const float *x, int n_in, struct lk_short_block *out, size_t stride) {
    for (int b = 0; b < n_in / LK_PRODUCT_SHORT; b++, x += LK_PRODUCT_SHORT, out += stride) {
        __m512 a = _mm512_loadu_ps(x), c = _mm512_loadu_ps(x + LANES);
        float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(c)));
        __m512 to_code = _mm512_set1_ps(max == 0 ? 0 : 127.0f / max);
        __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(a, to_code)),
                second = _mm512_cvtps_epi32(_mm512_mul_ps(c, to_code));
        _mm_storeu_si128((__m128i *)out->code, _mm512_cvtsepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(out->code + LANES), _mm512_cvtsepi32_epi8(second));
        out->sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        out->step = _cvtsh_ss(_cvtss_sh(max / 127.0f, _MM_FROUND_TO_NEAREST_INT));
        out->total = out->step * (float)out->sum;
    }
}

/* ---- panels ---- */

/* Parts [8] of 8 outputs, which are the panel's from `lane` on. */
static void unpack_q4_k_scales(const uint8_t *w, struct panel *out, int lane) {
    enum { HALF_BYTES = 16, PART = 12 };
    for (int s = 0; s < 8; s++) {
        uint8_t scale[8], min[8];
        lk_q4_k_by_8_scales(w + 2 * HALF_BYTES + s * PART, scale, min);
        for (int j = 0; j < 8; j++) {
            out->scale[s][lane + j] = scale[j];
            out->min[s / 2][lane + j][s % 2] = min[j];
        }
    }
    _mm256_storeu_ps(out->d + lane, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)w)));
    _mm256_storeu_ps(out->d_min + lane,
                     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(w + HALF_BYTES))));
}

/* Codes of 8 bytes of outputs 0..7 and 8..15, with `flip`ped bits: the low halves are two quads,
 * the high ones two quads `further`. */
LK_ALWAYS_INLINE void unpack_halves(const uint8_t *a, const uint8_t *b, int flip, int further,
                                    uint8_t (*out)[LANES][4]) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1)), low = _mm512_set1_epi8(15),
                  flipped = _mm512_set1_epi8((char)flip);
    __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    __m512i first = _mm512_xor_si512(_mm512_permutex2var_epi32(x, even, y), flipped),
            second = _mm512_xor_si512(_mm512_permutex2var_epi32(x, odd, y), flipped);
    _mm512_store_si512(out[0], _mm512_and_si512(first, low));
    _mm512_store_si512(out[1], _mm512_and_si512(second, low));
    _mm512_store_si512(out[further], _mm512_and_si512(_mm512_srli_epi16(first, 4), low));
    _mm512_store_si512(out[further + 1], _mm512_and_si512(_mm512_srli_epi16(second, 4), low));
}

/* a, b: a block of outputs 0..7 and of outputs 8..15 */
static void unpack_q4_k(const uint8_t *a, const uint8_t *b, struct panel *out) {
    enum { CODES = 128 };
    for (int piece = 0; piece < 16; piece++)
        unpack_halves(a + CODES + 64 * piece, b + CODES + 64 * piece, 0, 8,
                      out->code + 16 * (piece / 4) + 2 * (piece % 4));
    unpack_q4_k_scales(a, out, 0);
    unpack_q4_k_scales(b, out, 8);
}

/* Codes of half a block of Q6_K as bytes. */
LK_ALWAYS_INLINE void unpack_q6_k_half(const uint8_t *w, int half, uint8_t *out) {
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(48);
    __m256i a = _mm256_loadu_si256((const __m256i *)(w + 64 * half)),
            b = _mm256_loadu_si256((const __m256i *)(w + 64 * half + 32)),
            high = _mm256_loadu_si256((const __m256i *)(w + 128 + 32 * half));
    __m256i code[4] = {
        _mm256_or_si256(_mm256_and_si256(a, low),
                        _mm256_and_si256(_mm256_slli_epi16(high, 4), two)),
        _mm256_or_si256(_mm256_and_si256(b, low),
                        _mm256_and_si256(_mm256_slli_epi16(high, 2), two)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low),
                        _mm256_and_si256(high, two)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low),
                        _mm256_and_si256(_mm256_srli_epi16(high, 2), two)),
    };
    for (int i = 0; i < 4; i++) _mm256_store_si256((__m256i *)(out + 32 * i), code[i]);
}

/* Transpose 16 bytes of 16 rows: out[quad][row][4]. Each 128-bit lane has rows 4 l .. 4 l + 3, so
 * that transposing within lanes leaves the rows in order. */
LK_ALWAYS_INLINE void transpose_quads(const uint8_t *x, size_t stride, uint8_t (*out)[LANES][4]) {
    __m512i row[4];
    LK_UNROLL
    for (int r = 0; r < 4; r++) {
        const uint8_t *p = x + r * stride;
        row[r] = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)p));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0x00f0,
                                             _mm_load_si128((const __m128i *)(p + 4 * stride)));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0x0f00,
                                             _mm_load_si128((const __m128i *)(p + 8 * stride)));
        row[r] = _mm512_mask_broadcast_i32x4(row[r], 0xf000,
                                             _mm_load_si128((const __m128i *)(p + 12 * stride)));
    }
    __m512i a = _mm512_unpacklo_epi32(row[0], row[1]), b = _mm512_unpacklo_epi32(row[2], row[3]),
            c = _mm512_unpackhi_epi32(row[0], row[1]), d = _mm512_unpackhi_epi32(row[2], row[3]);
    _mm512_store_si512(out[0], _mm512_unpacklo_epi64(a, b));
    _mm512_store_si512(out[1], _mm512_unpackhi_epi64(a, b));
    _mm512_store_si512(out[2], _mm512_unpacklo_epi64(c, d));
    _mm512_store_si512(out[3], _mm512_unpackhi_epi64(c, d));
}

/* w: a block of each of 16 outputs, `stride` bytes apart */
static void unpack_q6_k(const uint8_t *w, size_t stride, struct panel *out) {
    enum { SCALES = 192, D = 208, MIDDLE = 32 };
    _Alignas(64) uint8_t code[LANES][LK_PRODUCT_BLOCK];
    for (int row = 0; row < LANES; row++, w += stride) {
        unpack_q6_k_half(w, 0, code[row]);
        unpack_q6_k_half(w, 1, code[row] + LK_PRODUCT_BLOCK / 2);
        for (int s = 0; s < 16; s++) {
            int scale = (int8_t)w[SCALES + s];
            out->scale[s][row] = scale;
            out->min[s / 2][row][s % 2] = (int16_t)(MIDDLE * scale);
        }
        uint16_t d;
        memcpy(&d, w + D, sizeof d);
        out->d[row] = _cvtsh_ss(d);
    }
    for (int quad = 0; quad < QUADS; quad += 4)
        transpose_quads(code[0] + 4 * quad, LK_PRODUCT_BLOCK, out->code + quad);
}

/* Blocks [b, b + n) of outputs [first, first + 16), n <= SHORTS, of Q8_0 or Q5_0. */
static void unpack_short(const struct lk_product *p, int first, int b, int n,
                         struct short_panel *out) {
    enum { D = sizeof(uint16_t), HIGH = sizeof(uint32_t) };
    _Alignas(64) uint8_t code[LANES][SHORTS * LK_PRODUCT_SHORT];
    _Alignas(32) uint16_t d[SHORTS][LANES];
    bool q8 = p->layout == LK_Q8_0_ROWS;
    size_t bytes = q8 ? LK_Q8_0_BYTES : LK_Q5_0_BYTES, n_block = p->n_in / LK_PRODUCT_SHORT;
    for (int row = 0; row < LANES; row++) {
        const uint8_t *w =
            (const uint8_t *)p->weights + ((size_t)(first + row) * n_block + b) * bytes;
        for (int i = 0; i < n; i++, w += bytes) {
            __m256i codes;
            memcpy(&d[i][row], w, D);
            if (q8) {
                codes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(w + D)),
                                         _mm256_set1_epi8((char)128));
            } else {
                uint32_t high;
                memcpy(&high, w + D, HIGH);
                __m128i low = _mm_loadu_si128((const __m128i *)(w + D + HIGH));
                codes = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(low, 4), low),
                                         _mm256_set1_epi8(15));
                codes = _mm256_or_si256(codes, _mm256_maskz_set1_epi8(high, 16));
            }
            _mm256_store_si256((__m256i *)(code[row] + LK_PRODUCT_SHORT * i), codes);
        }
    }
    for (int i = 0; i < n; i++) {
        _mm512_store_ps(out[i].d, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)d[i])));
        for (int half = 0; half < 2; half++)
            transpose_quads(code[0] + LK_PRODUCT_SHORT * i + 16 * half, sizeof code[0],
                            out[i].code + 4 * half);
    }
}

/* The same of Q4_0. */
static void unpack_q4_0(const struct lk_product *p, int first, int b, int n,
                        struct short_panel *out) {
    enum { DS = 8 * sizeof(uint16_t) };
    size_t n_block = p->n_in / LK_PRODUCT_SHORT;
    const uint8_t *x = (const uint8_t *)p->weights + (first / 8 * n_block + b) * LK_Q4_0_BY_8_BYTES;
    const uint8_t *y = x + n_block * LK_Q4_0_BY_8_BYTES;
    for (int i = 0; i < n; i++, x += LK_Q4_0_BY_8_BYTES, y += LK_Q4_0_BY_8_BYTES) {
        __m128i d[] = {_mm_loadu_si128((const __m128i *)x), _mm_loadu_si128((const __m128i *)y)};
        _mm512_store_ps(out[i].d, _mm512_cvtph_ps(_mm256_set_m128i(d[1], d[0])));
        for (int piece = 0; piece < 2; piece++)
            unpack_halves(x + DS + 64 * piece, y + DS + 64 * piece, 0x88, 4,
                          out[i].code + 2 * piece);
    }
}

static void unpack_offsets(const struct lk_product *p, int first, int b, int n,
                           struct short_panel *out) {
    for (int i = 0; i < n; i++) {
        const uint16_t *offset = p->offset + lk_offset_index(p->n_in, b + i, first);
        _mm512_store_ps(out[i].offset,
                        _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)offset)));
    }
}

/* Blocks [b, b + n) of outputs [first, first + 16). */
static void unpack(const struct lk_product *p, int first, int b, int n, struct panel *out) {
    size_t n_block = p->n_in / LK_PRODUCT_BLOCK;
    const uint8_t *w = p->weights;
    for (int i = 0; i < n; i++, out++) {
        if (p->layout == LK_Q4_K_BY_8) {
            const uint8_t *a = w + (first / 8 * n_block + b + i) * LK_Q4_K_BY_8_BYTES;
            unpack_q4_k(a, a + n_block * LK_Q4_K_BY_8_BYTES, out);
        } else {
            unpack_q6_k(w + (first * n_block + b + i) * LK_Q6_K_BYTES, n_block * LK_Q6_K_BYTES,
                        out);
        }
    }
}

/* ---- products ----
 *
 * n, groups and parts are constants after inlining. */

/* sum [n][groups] = products of codes of a part of a block */
LK_ALWAYS_INLINE void dot_part(const struct panel *panel[GROUPS], int groups, int quad, int n_quad,
                               const struct lk_input_block *x, int n, __m512i sum[TOKENS][GROUPS]) {
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int g = 0; g < groups; g++) sum[i][g] = _mm512_setzero_si512();
    LK_UNROLL
    for (int k = 0; k < n_quad; k++) {
        __m512i w[GROUPS];
        LK_UNROLL
        for (int g = 0; g < groups; g++) w[g] = _mm512_load_si512(panel[g]->code[quad + k]);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i code = set1_i8x4_x16(x[i].code + 4 * (quad + k));
            LK_UNROLL
            for (int g = 0; g < groups; g++) sum[i][g] = dpbusd_i32x16(sum[i][g], w[g], code);
        }
    }
}

/* Minima, or what is the middle of the codes, times sums of codes. */
LK_ALWAYS_INLINE __m512i dot_minima(const struct panel *panel, int parts,
                                    const struct lk_input_block *x) {
    const int16_t *sums = parts == 8 ? x->sum32 : x->sum16;
    __m512i whole = _mm512_setzero_si512();
    LK_UNROLL
    for (int pair = 0; pair < parts / 2; pair++)
        whole = _mm512_add_epi32(whole, _mm512_madd_epi16(set1_i8x4_x16(sums + 2 * pair),
                                                          _mm512_load_si512(panel->min[pair])));
    return whole;
}

/* sums += products of a block of n tokens. parts: of a block, with a scale each; 8: Q4_K. */
LK_ALWAYS_INLINE void multiply_block(const struct panel *panel[GROUPS], int groups, int parts,
                                     const struct lk_input_block *x, int n, struct sums *sums) {
    __m512i whole[TOKENS][GROUPS], sum[TOKENS][GROUPS];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int g = 0; g < groups; g++) whole[i][g] = _mm512_setzero_si512();
    for (int part = 0; part < parts; part++) {
        dot_part(panel, groups, part * QUADS / parts, QUADS / parts, x, n, sum);
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            __m512i scale = _mm512_load_si512(panel[g]->scale[part]);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                whole[i][g] = _mm512_add_epi32(whole[i][g], _mm512_mullo_epi32(sum[i][g], scale));
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        __m512 step = _mm512_set1_ps(x[i].step);
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            __m512i minima = dot_minima(panel[g], parts, &x[i]);
            __m512 d = _mm512_mul_ps(_mm512_load_ps(panel[g]->d), step),
                   all = _mm512_load_ps(sums[i].of[g]);
            if (parts == 16) { /* Q6_K: the middle of the codes is part of the integers */
                whole[i][g] = _mm512_sub_epi32(whole[i][g], minima);
            } else {
                __m512 d_min = _mm512_mul_ps(_mm512_load_ps(panel[g]->d_min), step);
                all = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima), d_min, all);
            }
            _mm512_store_ps(sums[i].of[g],
                            _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[i][g]), d, all));
        }
    }
}

/* Tokens [0, n) of a block for two panels, or one. */
LK_ALWAYS_INLINE void multiply_tokens(const struct panel *panel[GROUPS], int groups, int parts,
                                      const struct lk_input_block *x, int n, struct sums *sums) {
    int i = 0;
    for (; i + TOKENS <= n; i += TOKENS)
        multiply_block(panel, groups, parts, x + i, TOKENS, sums + i);
    for (; i < n; i++) multiply_block(panel, groups, parts, x + i, 1, sums + i);
}

/* sums += products of n_block blocks of 32 of n tokens, whose blocks are n_tok apart. */
LK_ALWAYS_INLINE void multiply_short(const struct short_panel *panel[GROUPS], int groups,
                                     int middle, bool offsets, int n_block,
                                     const struct lk_short_block *x, int n_tok, int n,
                                     struct sums *sums) {
    __m512 all[TOKENS][GROUPS];
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int g = 0; g < groups; g++) all[i][g] = _mm512_load_ps(sums[i].of[g]);
    for (int b = 0; b < n_block; b++, x += n_tok) {
        __m512i sum[TOKENS][GROUPS];
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int g = 0; g < groups; g++) sum[i][g] = _mm512_set1_epi32(-middle * x[i].sum);
        LK_UNROLL
        for (int k = 0; k < LK_PRODUCT_SHORT / 4; k++) {
            __m512i w[GROUPS];
            LK_UNROLL
            for (int g = 0; g < groups; g++) w[g] = _mm512_load_si512(panel[g][b].code[k]);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                __m512i code = set1_i8x4_x16(x[i].code + 4 * k);
                LK_UNROLL
                for (int g = 0; g < groups; g++) sum[i][g] = dpbusd_i32x16(sum[i][g], w[g], code);
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int g = 0; g < groups; g++) {
            __m512 d = _mm512_mul_ps(_mm512_load_ps(panel[g][b].d), _mm512_set1_ps(x[i].step));
            all[i][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][g]), d, all[i][g]);
            if (offsets)
                all[i][g] = _mm512_fmadd_ps(_mm512_load_ps(panel[g][b].offset),
                                            _mm512_set1_ps(x[i].total), all[i][g]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int g = 0; g < groups; g++) _mm512_store_ps(sums[i].of[g], all[i][g]);
}

/* ---- outputs ----
 *
 * Outputs [first, first + 16 groups) of tokens [tok, tok + n), n <= MAX_TOK. */

LK_ALWAYS_INLINE void sum_outputs(const struct lk_product *p, int first, int groups, int tok, int n,
                                  struct sums *sums) {
    struct panel panels[GROUPS][BLOCKS];
    int n_block = p->n_in / LK_PRODUCT_BLOCK;
    for (int b = 0; b < n_block; b += BLOCKS) {
        int here = n_block - b < BLOCKS ? n_block - b : BLOCKS;
        for (int g = 0; g < groups; g++) unpack(p, first + g * LANES, b, here, panels[g]);
        for (int i = 0; i < here; i++) {
            const struct panel *panel[GROUPS] = {&panels[0][i], &panels[groups - 1][i]};
            const struct lk_input_block *x =
                (const struct lk_input_block *)p->x + (size_t)(b + i) * p->n_tok + tok;
            if (p->layout == LK_Q4_K_BY_8)
                multiply_tokens(panel, groups, 8, x, n, sums);
            else
                multiply_tokens(panel, groups, 16, x, n, sums);
        }
    }
}

/* Tokens [0, n) of n_block blocks for two panels, or one. */
LK_ALWAYS_INLINE void multiply_short_tokens(const struct short_panel *panel[GROUPS], int groups,
                                            int middle, bool offsets, int n_block,
                                            const struct lk_short_block *x, int n_tok, int n,
                                            struct sums *sums) {
    int i = 0;
    for (; i + TOKENS <= n; i += TOKENS)
        multiply_short(panel, groups, middle, offsets, n_block, x + i, n_tok, TOKENS, sums + i);
    for (; i < n; i++)
        multiply_short(panel, groups, middle, offsets, n_block, x + i, n_tok, 1, sums + i);
}

LK_ALWAYS_INLINE void sum_short_outputs(const struct lk_product *p, int first, int groups, int tok,
                                        int n, struct sums *sums) {
    struct short_panel panels[GROUPS][SHORTS];
    const struct short_panel *panel[GROUPS] = {panels[0], panels[groups - 1]};
    int n_block = p->n_in / LK_PRODUCT_SHORT;
    int middle = p->layout == LK_Q8_0_ROWS ? 128 : p->layout == LK_Q5_0_ROWS ? 16 : 8;
    for (int b = 0; b < n_block; b += SHORTS) {
        int here = n_block - b < SHORTS ? n_block - b : SHORTS;
        const struct lk_short_block *x =
            (const struct lk_short_block *)p->x + (size_t)b * p->n_tok + tok;
        for (int g = 0; g < groups; g++)
            if (p->layout == LK_Q4_0_BY_8)
                unpack_q4_0(p, first + g * LANES, b, here, panels[g]);
            else
                unpack_short(p, first + g * LANES, b, here, panels[g]);
        if (p->offset) {
            for (int g = 0; g < groups; g++)
                unpack_offsets(p, first + g * LANES, b, here, panels[g]);
            multiply_short_tokens(panel, groups, middle, true, here, x, p->n_tok, n, sums);
        } else {
            multiply_short_tokens(panel, groups, middle, false, here, x, p->n_tok, n, sums);
        }
    }
}

LK_ALWAYS_INLINE void multiply_outputs(const struct lk_product *p, int first, int groups, int tok,
                                       int n, struct sums *sums) {
    memset(sums, 0, n * sizeof *sums);
    if (lk_product_block(p->layout) == LK_PRODUCT_SHORT)
        sum_short_outputs(p, first, groups, tok, n, sums);
    else
        sum_outputs(p, first, groups, tok, n, sums);
    for (int i = 0; i < n; i++)
        for (int g = 0; g < groups; g++) {
            size_t at = (size_t)(tok + i) * p->n_out + first + g * LANES;
            __m512 all = _mm512_load_ps(sums[i].of[g]);
            if (p->residual) all = _mm512_add_ps(all, _mm512_loadu_ps(p->residual + at));
            _mm512_storeu_ps(p->y + at, all);
        }
}

void lk_avx512_multiply(const struct lk_product *p, int first, int n) {
    struct sums sums[MAX_TOK];
    for (int end = first + n; first < end; first += GROUPS * LANES)
        for (int tok = 0; tok < p->n_tok; tok += MAX_TOK) {
            int here = p->n_tok - tok < MAX_TOK ? p->n_tok - tok : MAX_TOK;
            if (end - first >= GROUPS * LANES)
                multiply_outputs(p, first, GROUPS, tok, here, sums);
            else
                multiply_outputs(p, first, 1, tok, here, sums);
        }
}
