#include "kern/avx2_few.h"

#include "kern/avx2_row.h"

enum {
    BESIDE = 4,                /* tiles of V whose weights are made at once                 */
    QUADS = LK_MAX_D_HEAD / 4, /* most quads of channels                                    */
    MOST_WEIGHT = 127,
};

/* ---- codes to levels ------------------------------------------------------------------------- */

/* Bytes of codec/rot.h's levels, by a nibble of packed codes: with 2 bits a nibble has two codes, the lower one's levels
 * are in `low`, the upper one's in `high`; with 3 bits it has one code in its lowest bits. */
struct levels {
    __m256i low, high;
    int     top;
};

static struct levels find_levels(const struct lk_codec *codec) {
    int bits = codec->bits;
    const __m128i nibble = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), mask = _mm_set1_epi8((char)((1 << bits) - 1));
    struct lk_rot_levels of = lk_rot_levels(codec);
    __m128i table = nibble;
    if (of.table && bits == 2) table = _mm_loadu_si32(of.table);
    if (of.table && bits == 3) table = _mm_loadl_epi64((const __m128i *)of.table);
    if (of.table && bits == 4) table = _mm_loadu_si128((const __m128i *)of.table);
    __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(nibble, mask));
    __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibble, 2), mask));
    return (struct levels){_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high), of.top};
}

/* Where the planes of codec/cells.h are. */
struct planes {
    const uint8_t *four, *two, *one;
};

LK_INLINE struct planes planes_of(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    return (struct planes){tile, two, two + (bits & 2 ? lk_cells_bytes(2, d_head) : 0)};
}

LK_INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
LK_INLINE __m256i only(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }

/* Bits n places to the right, of 16-bit lanes: bits of the byte above come in. Negative n: to the left. */
LK_INLINE __m256i down(__m256i v, int n) { return n > 0 ? _mm256_srli_epi16(v, n) : n < 0 ? _mm256_slli_epi16(v, -n) : v; }

/* v where the mask has ones, else base. */
LK_INLINE __m256i merge(__m256i base, __m256i v, int mask) { return _mm256_xor_si256(base, only(_mm256_xor_si256(base, v), mask)); }

/* Two cells of a group. */
struct pair {
    __m256i a, b;
};

/* Cells j and j + 4 of the group where p is; bits and j < 4 are constants. */
LK_INLINE struct pair cells_of(int bits, struct planes p, int j, const struct levels *levels) {
    int upper = j / 2 * 4; /* the nibble where their bits are */
    if (bits == 4) {
        __m256i a = only(down(load(p.four + j / 2 * 32), j % 2 * 4), 15);
        __m256i b = only(down(load(p.four + 64 + j / 2 * 32), j % 2 * 4), 15);
        return (struct pair){_mm256_shuffle_epi8(levels->low, a), _mm256_shuffle_epi8(levels->low, b)};
    }
    if (bits == 2) {
        __m256i a = only(down(load(p.two), upper), 15), b = only(down(load(p.two + 32), upper), 15);
        __m256i table = j % 2 ? levels->high : levels->low;
        return (struct pair){_mm256_shuffle_epi8(table, a), _mm256_shuffle_epi8(table, b)};
    }
    __m256i one = load(p.one);
    if (bits == 1) return (struct pair){only(down(one, j), 1), only(down(one, j + 4), 1)};
    /* Both codes in one byte, as nibbles whose highest bit is 0: what a lookup wants. */
    __m256i two = merge(down(load(p.two), upper), down(load(p.two + 32), upper - 4), 0xf0);
    __m256i both = _mm256_or_si256(only(down(two, j % 2 * 2), 0x33), only(down(one, j - 2), 0x44));
    return (struct pair){_mm256_shuffle_epi8(levels->low, both), _mm256_shuffle_epi8(levels->low, down(both, 4))};
}

/* Sums of pairs of products in 16 bits; cell: levels up to 63, x: from -127 to 127. Left to itself, gcc makes many products
 * before it adds them, and has no registers for them. */
LK_INLINE __m256i multiply(__m256i sum, __m256i cell, const __m256i *x) {
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(cell), "m"(*x));
    return sum;
}

/* The first of such sums. */
LK_INLINE __m256i first_product(__m256i cell, const __m256i *x) { return _mm256_maddubs_epi16(cell, _mm256_load_si256(x)); }

/* 32-bit sums of the pairs of 16-bit ones. */
LK_INLINE __m256i widened(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

/* Four bytes in all lanes. */
LK_INLINE __m256i four_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

/* ---- K --------------------------------------------------------------------------------------- */

/* n <= LK_AVX2_QUERIES queries as products want them. */
struct few {
    __m256i quad[QUADS][LK_AVX2_QUERIES]; /* four channels of q8 in all lanes                 */
    __m256  middle[LK_AVX2_QUERIES];      /* what levels around zero would take off a product */
    int     beside;                       /* groups whose products are summed in 16 bits      */
};

/* Largest of 16 numbers that are not negative. */
static int largest(__m256i v) {
    __m128i most = _mm_max_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return 65535 - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1))), 0);
}

/* Sums of x over every other pair of channels, in 16-bit lanes of 2 and of 4 groups. x: 32 bytes, none negative */
LK_INLINE __m256i sum_groups(__m256i x, __m256i *two) {
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi8(1));
    x = _mm256_add_epi16(x, _mm256_shuffle_epi32(x, 0xb1));
    *two = _mm256_add_epi16(x, _mm256_shuffle_epi32(x, 0x4e));
    return _mm256_add_epi16(*two, _mm256_permute4x64_epi64(*two, 0x4e));
}

/* Groups of channels, 1, 2, 4 or 8, whose products with levels up to top fit into 16 bits. That is asked of the queries: by
 * what could be in them it would be one. Levels are not negative, so that positive numbers and negative ones count apart.
 * q8 [n][pad] */
static int groups_beside(const int8_t *q8, int pad, int n, int top) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i two = zero, four = zero, eight = zero;
    for (int i = 0; i < n; i++, q8 += pad)
        for (int c = 0; c < pad; c += 64) {
            __m256i plus = zero, minus = zero;
            for (int k = c; k < pad && k < c + 64; k += 32) {
                __m256i x = _mm256_loadu_si256((const __m256i *)(q8 + k)), two_plus, two_minus;
                __m256i four_plus = sum_groups(_mm256_max_epi8(x, zero), &two_plus);
                __m256i four_minus = sum_groups(_mm256_max_epi8(_mm256_sub_epi8(zero, x), zero), &two_minus);
                two = _mm256_max_epi16(two, _mm256_max_epi16(two_plus, two_minus));
                four = _mm256_max_epi16(four, _mm256_max_epi16(four_plus, four_minus));
                plus = _mm256_add_epi16(plus, four_plus), minus = _mm256_add_epi16(minus, four_minus);
            }
            eight = _mm256_max_epi16(eight, _mm256_max_epi16(plus, minus));
        }
    int most = INT16_MAX / top;
    return largest(eight) <= most ? 8 : largest(four) <= most ? 4 : largest(two) <= most ? 2 : 1;
}

/* Queries [i0, i0 + n) */
static void spread(const struct lk_queries *q, int i0, int n, int top, struct few *few) {
    int pad = lk_queries_pad(q->d_head);
    const int8_t *q8 = q->q8 + (size_t)i0 * pad;
    for (int i = 0; i < n; i++) {
        for (int quad = 0; quad < q->d_head / 4; quad++) few->quad[quad][i] = four_bytes(q8 + i * pad + quad * 4);
        few->middle[i] = _mm256_set1_ps(0.5f * (float)top * (float)q->sum8[i0 + i]);
    }
    few->beside = groups_beside(q8, pad, n, top);
}

/* Products of a tile: of[i][o][j] those of query i and token 8 o + j. */
struct sums {
    __m256i of[LK_AVX2_QUERIES][LK_TILE / 8];
};

/* Those of octets 2 half and 2 half + 1 over n_group <= beside groups from where p and x are on, or added to what
 * there is. bits, n and half are constants. */
LK_INLINE void multiply_window(int bits, int n, int half, struct planes p, const __m256i (*x)[LK_AVX2_QUERIES], const struct levels *levels, int n_group,
                               bool add, struct sums *out) {
    const __m256i (*end)[LK_AVX2_QUERIES] = x + 2 * n_group;
    __m256i sum[LK_AVX2_QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (; x < end; x += 2, p.four += 128, p.two += 64, p.one += 32)
        LK_UNROLL
        for (int k = 0; k < 2; k++) {
            struct pair cell = cells_of(bits, p, 2 * half + k, levels);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum[i][k] = multiply(multiply(sum[i][k], cell.a, &x[0][i]), cell.b, &x[1][i]);
        }
    LK_UNROLL
    for (int i = 0; i < n; i++)
        LK_UNROLL
        for (int k = 0; k < 2; k++) {
            __m256i *to = &out->of[i][2 * half + k], wide = widened(sum[i][k]);
            *to = add ? _mm256_add_epi32(*to, wide) : wide;
        }
}

LK_INLINE void multiply_some(int bits, int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    for (int g = 0; g < d / 8; g += few->beside) {
        struct planes p = planes_of(bits, d, tile);
        p.four += g * 128, p.two += g * 64, p.one += g * 32;
        int n_group = d / 8 - g < few->beside ? d / 8 - g : few->beside;
        multiply_window(bits, n, 0, p, few->quad + 2 * g, levels, n_group, g > 0, out);
        multiply_window(bits, n, 1, p, few->quad + 2 * g, levels, n_group, g > 0, out);
    }
}

/* Products of a tile with n queries. Functions of their own, in which gcc finds registers for all that the loops want. */
typedef void multiply_tile(int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out);

LK_INLINE void multiply_any(int bits, int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    if (n == 1) multiply_some(bits, 1, tile, levels, few, d, out);
    if (n == 2) multiply_some(bits, 2, tile, levels, few, d, out);
    if (n == 3) multiply_some(bits, 3, tile, levels, few, d, out);
    if (n == 4) multiply_some(bits, 4, tile, levels, few, d, out);
}

static void multiply1(int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    multiply_any(1, n, tile, levels, few, d, out);
}

static void multiply2(int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    multiply_any(2, n, tile, levels, few, d, out);
}

static void multiply3(int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    multiply_any(3, n, tile, levels, few, d, out);
}

static void multiply4(int n, const uint8_t *tile, const struct levels *levels, const struct few *few, int d, struct sums *out) {
    multiply_any(4, n, tile, levels, few, d, out);
}

static multiply_tile *const multiply_of[] = {NULL, multiply1, multiply2, multiply3, multiply4};

/* Queries [i0, i0 + n), n <= LK_AVX2_QUERIES. */
static void score(const struct levels *levels, const struct lk_rows *run, const struct lk_queries *q, int i0, int n, float *s, size_t stride) {
    int d = run->d_head, bits = run->codec->bits;
    struct few few;
    spread(q, i0, n, levels->top, &few);
    for (int t = 0; t < lk_rows_tiles(run); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(run, t);
        struct rows rows;
        struct sums sums;
        float offset[LK_AVX2_QUERIES] = {0};
        read_rows(&rows, &tile);
        fetch(&tile);
        if (rows.mean) find_offset(&rows, q, i0, n, offset);
        multiply_of[bits](n, tile.head, levels, &few, d, &sums);
        for (int i = 0; i < n; i++) {
            __m256 middle = few.middle[i], factor = _mm256_set1_ps(q->scale8[i0 + i]), plus = _mm256_set1_ps(offset[i]);
            LK_UNROLL
            for (int o = 0; o < LK_TILE / 8; o++) {
                __m256 level = _mm256_sub_ps(_mm256_cvtepi32_ps(sums.of[i][o]), middle);
                __m256 times = _mm256_mul_ps(factor, _mm256_loadu_ps(rows.scale + 8 * o));
                _mm256_storeu_ps(s + i * stride + 8 * o, _mm256_fmadd_ps(level, times, plus));
            }
        }
    }
}

void lk_avx2_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s, size_t stride) {
    struct levels levels = find_levels(run->codec);
    for (int i = 0; i < q->n_q; i += LK_AVX2_QUERIES)
        score(&levels, run, q, i, q->n_q - i < LK_AVX2_QUERIES ? q->n_q - i : LK_AVX2_QUERIES, s + i * stride, stride);
}

/* ---- V --------------------------------------------------------------------------------------- */

/* A tile and the weights of its tokens, p[t] * scale[t] ~ step * w[t], 0 <= w <= MOST_WEIGHT. */
struct weighed {
    __m256i        quad[LK_TILE / 4][LK_AVX2_QUERIES]; /* w of four tokens in all lanes */
    __m256         step[LK_AVX2_QUERIES];              /* in all lanes                  */
    struct rows    rows;
    struct lk_tile tile;
};

/* Halves of the tile whose sums are kept apart. */
static inline int halves_of(int bits) { return bits == 4 ? 2 : 1; }

LK_INLINE __m256 weight(const float *p, const float *scale, int j) { return _mm256_mul_ps(_mm256_loadu_ps(p + 8 * j), _mm256_loadu_ps(scale + 8 * j)); }

/* Lanes of v exchanged: by halves, by pairs in halves, by lanes in pairs. */
LK_INLINE __m256 swap4(__m256 v) { return _mm256_permute2f128_ps(v, v, 1); }
LK_INLINE __m256 swap2(__m256 v) { return _mm256_permute_ps(v, 0x4e); }
LK_INLINE __m256 swap1(__m256 v) { return _mm256_permute_ps(v, 0xb1); }

/* A step, in all lanes, with which weights are at most MOST_WEIGHT and their products with levels fit into 16 bits: sums take
 * every other pair of tokens, of the tile or of each half. fit: the largest sum of such weights */
LK_INLINE __m256 step_of(int halves, const float *p, const float *scale, float fit) {
    __m256 w0 = weight(p, scale, 0), w1 = weight(p, scale, 1), w2 = weight(p, scale, 2), w3 = weight(p, scale, 3);
    __m256 a = _mm256_add_ps(w0, w1), b = _mm256_add_ps(w2, w3), sum, most;
    if (halves == 1) sum = _mm256_add_ps(a, b), sum = _mm256_add_ps(sum, swap4(sum));
    else a = _mm256_add_ps(a, swap4(a)), b = _mm256_add_ps(b, swap4(b)), sum = _mm256_max_ps(_mm256_add_ps(a, swap1(a)), _mm256_add_ps(b, swap1(b)));
    if (halves == 1) sum = _mm256_add_ps(sum, swap1(sum));
    most = _mm256_max_ps(_mm256_max_ps(w0, w1), _mm256_max_ps(w2, w3));
    most = _mm256_mul_ps(_mm256_max_ps(most, swap4(most)), _mm256_set1_ps(1.0f / MOST_WEIGHT));
    most = _mm256_max_ps(most, _mm256_mul_ps(sum, _mm256_set1_ps(1 / fit)));
    most = _mm256_max_ps(most, swap2(most));
    return _mm256_max_ps(most, swap1(most));
}

/* What is added to weights [8 j, 8 j + 8) before they are cut to integers: token t's is its number with the bits in
 * reverse, in [0, 1). The many small weights of a tile would all be rounded to nothing; so they are right on average. */
LK_INLINE __m256 dither(int j) {
    const __m256 eighth = _mm256_setr_ps(0, 16, 8, 24, 4, 20, 12, 28);
    return _mm256_mul_ps(_mm256_add_ps(eighth, _mm256_set1_ps((float)(j / 2 + j % 2 * 2) + 0.5f)), _mm256_set1_ps(1.0f / LK_TILE));
}

/* Weights as bytes. */
LK_INLINE __m256i round_weights(const float *p, const float *scale, __m256 step) {
    const __m256 least = _mm256_set1_ps(1e-30f); /* below it there is nothing to add, and its inverse would overflow */
    __m256 counts = _mm256_cmp_ps(step, least, _CMP_GT_OQ), inverse = _mm256_and_ps(counts, _mm256_div_ps(_mm256_set1_ps(1), step));
    __m256i x[4];
    LK_UNROLL
    for (int j = 0; j < 4; j++) x[j] = _mm256_cvttps_epi32(_mm256_fmadd_ps(weight(p, scale, j), inverse, dither(j)));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3])); /* in halves */
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Weights of n queries for tiles [t, t + beside) of a run, in turns: each step takes long for few instructions. The lanes of
 * middle[i] add up to what levels around zero would take off the sums of query i, in units of top / 2. */
static void weigh(int top, const struct lk_rows *run, int t, int beside, const float *p, size_t stride, int n, float *acc, __m256 *middle,
                  struct weighed *out) {
    int halves = halves_of(run->codec->bits), d = run->d_head;
    float fit = (float)(INT16_MAX / top - 16 / halves); /* dithering adds less than one to each of a lane's weights */
    for (int k = 0; k < beside; k++) {
        out[k].tile = lk_rows_tile(run, t + k);
        read_rows(&out[k].rows, &out[k].tile);
        for (int i = 0; i < n; i++) out[k].step[i] = step_of(halves, p + i * stride + (t + k) * LK_TILE, out[k].rows.scale, fit);
    }
    for (int k = 0; k < beside; k++)
        for (int i = 0; i < n; i++) {
            const float *row = p + i * stride + (t + k) * LK_TILE;
            _Alignas(32) uint8_t w[LK_TILE];
            __m256i bytes = round_weights(row, out[k].rows.scale, out[k].step[i]);
            __m256 sum = _mm256_cvtepi32_ps(_mm256_sad_epu8(bytes, _mm256_setzero_si256()));
            middle[i] = _mm256_fmadd_ps(sum, out[k].step[i], middle[i]);
            _mm256_store_si256((__m256i *)w, bytes);
            LK_UNROLL
            for (int quad = 0; quad < LK_TILE / 4; quad++) out[k].quad[quad][i] = four_bytes(w + quad * 4);
            if (out[k].rows.mean) add_mean(&out[k].rows, d, sum_of(row), acc + (size_t)i * d);
        }
}

/* acc += weights times levels, for one octet of the channels of n queries; acc's rows are d apart. bits and n are constants. */
LK_INLINE void add_octet(int bits, int n, struct planes p, const struct levels *levels, const struct weighed *w, int d, float *acc) {
    __m256i first[LK_AVX2_QUERIES], last[LK_AVX2_QUERIES];
    const __m256i (*x)[LK_AVX2_QUERIES] = w->quad;
    __asm__("" : "+r"(x)); /* else gcc keeps an address for each weight */
    LK_UNROLL
    for (int j = 0; j < 4; j++) {
        struct pair cell = cells_of(bits, p, j, levels);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            first[i] = j ? multiply(first[i], cell.a, &x[j][i]) : first_product(cell.a, &x[0][i]);
            if (halves_of(bits) == 1) first[i] = multiply(first[i], cell.b, &x[j + 4][i]);
            else last[i] = j ? multiply(last[i], cell.b, &x[j + 4][i]) : first_product(cell.b, &x[4][i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) {
        __m256i sum = widened(first[i]);
        if (halves_of(bits) == 2) sum = _mm256_add_epi32(sum, widened(last[i]));
        float *out = acc + (size_t)i * d;
        _mm256_storeu_ps(out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), w->step[i], _mm256_loadu_ps(out)));
    }
}

LK_INLINE void add_some(int bits, int n, const struct levels *levels, const struct weighed *w, int d, float *acc) {
    struct planes p = planes_of(bits, d, w->tile.head);
    for (int c = 0; c < d; c += 8, p.four += 128, p.two += 64, p.one += 32) add_octet(bits, n, p, levels, w, d, acc + c);
}

/* acc [n][d] += weights times levels of a tile; functions of their own as above. */
typedef void add_tile(int n, const struct levels *levels, const struct weighed *w, int d, float *acc);

LK_INLINE void add_any(int bits, int n, const struct levels *levels, const struct weighed *w, int d, float *acc) {
    if (n == 1) add_some(bits, 1, levels, w, d, acc);
    if (n == 2) add_some(bits, 2, levels, w, d, acc);
    if (n == 3) add_some(bits, 3, levels, w, d, acc);
    if (n == 4) add_some(bits, 4, levels, w, d, acc);
}

static void add1(int n, const struct levels *levels, const struct weighed *w, int d, float *acc) { add_any(1, n, levels, w, d, acc); }
static void add2(int n, const struct levels *levels, const struct weighed *w, int d, float *acc) { add_any(2, n, levels, w, d, acc); }
static void add3(int n, const struct levels *levels, const struct weighed *w, int d, float *acc) { add_any(3, n, levels, w, d, acc); }
static void add4(int n, const struct levels *levels, const struct weighed *w, int d, float *acc) { add_any(4, n, levels, w, d, acc); }

static add_tile *const add_of[] = {NULL, add1, add2, add3, add4};

/* Of n <= LK_AVX2_QUERIES queries. */
static void accumulate(const struct levels *levels, const struct lk_rows *run, const float *p, size_t stride, int n, float *acc) {
    struct weighed weighed[BESIDE];
    __m256 middle[LK_AVX2_QUERIES];
    int d = run->d_head, n_tile = lk_rows_tiles(run);
    for (int i = 0; i < n; i++) middle[i] = _mm256_setzero_ps();
    for (int t = 0; t < n_tile; t += BESIDE) {
        int beside = n_tile - t < BESIDE ? n_tile - t : BESIDE;
        weigh(levels->top, run, t, beside, p, stride, n, acc, middle, weighed);
        for (int k = 0; k < beside; k++) {
            fetch(&weighed[k].tile);
            add_of[run->codec->bits](n, levels, &weighed[k], d, acc);
        }
    }
    for (int i = 0; i < n; i++, acc += d) {
        __m256 less = _mm256_set1_ps(0.5f * (float)levels->top * total(middle[i]));
        for (int c = 0; c < d; c += 8) _mm256_storeu_ps(acc + c, _mm256_sub_ps(_mm256_loadu_ps(acc + c), less));
    }
}

void lk_avx2_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q, float *acc) {
    struct levels levels = find_levels(run->codec);
    for (int i = 0; i < n_q; i += LK_AVX2_QUERIES)
        accumulate(&levels, run, p + i * stride, stride, n_q - i < LK_AVX2_QUERIES ? n_q - i : LK_AVX2_QUERIES, acc + (size_t)i * run->d_head);
}
