#include "kernels/avx2_low.h"

#include "kernels/avx2_row.h"

enum {
    BESIDE = 4,                /* tiles of V whose weights are made at once */
    QUADS = LK_MAX_D_HEAD / 4, /* most quads of channels */
    MOST_WEIGHT = 127,
};

/* ---- codes to levels ---- */

/* Bytes of codec/rot.h's levels, by a nibble of packed codes: with 2 bits a nibble has two codes, the lower one's levels
 * are in `low`, the upper one's in `high`; with 3 bits it has one code in its lowest bits.
 *
 * Products are summed in 16 bits, modulo 2^16, and what `middle` would add to a sum is taken off. What is left has to fit,
 * and does where `middle` times the sum of the factors' magnitudes does: levels are at most that far from it. */
struct levels {
    __m256i low, high;
    int top, middle; /* middle: top / 2, rounded up */
};

static struct levels find_levels(const struct lk_codec *codec) {
    int bits = codec->bits;
    const __m128i nibble = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                  mask = _mm_set1_epi8((char)((1 << bits) - 1));
    struct lk_rot_levels of = lk_rot_levels(codec);
    __m128i table = nibble;
    if (of.table && bits == 2) table = _mm_loadu_si32(of.table);
    if (of.table && bits == 3) table = _mm_loadl_epi64((const __m128i *)of.table);
    if (of.table && bits == 4) table = _mm_loadu_si128((const __m128i *)of.table);
    __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(nibble, mask));
    __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibble, 2), mask));
    return (struct levels){_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high),
                           of.top, (of.top + 1) / 2};
}

/* Where the planes of codec/cells.h are. */
struct planes {
    const uint8_t *four, *two, *one;
};

LK_ALWAYS_INLINE struct planes planes_of(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    return (struct planes){tile, two, two + (bits & 2 ? lk_cells_bytes(2, d_head) : 0)};
}

LK_ALWAYS_INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
LK_ALWAYS_INLINE __m256i only(__m256i v, int mask) {
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

/* Bits n places to the right, of 16-bit lanes: bits of the byte above come in. Negative n: to the left. */
LK_ALWAYS_INLINE __m256i down(__m256i v, int n) {
    return n > 0 ? _mm256_srli_epi16(v, n) : n < 0 ? _mm256_slli_epi16(v, -n) : v;
}

/* v where the mask has ones, else base. */
LK_ALWAYS_INLINE __m256i merge(__m256i base, __m256i v, int mask) {
    return _mm256_xor_si256(base, only(_mm256_xor_si256(base, v), mask));
}

/* Two cells of a group. */
struct pair {
    __m256i a, b;
};

/* Cells j and j + 4 of the group where p is; bits and j < 4 are constants. */
LK_ALWAYS_INLINE struct pair cells_of(int bits, struct planes p, int j,
                                      const struct levels *levels) {
    int upper = j / 2 * 4; /* the nibble where their bits are */
    if (bits == 4) {
        __m256i a = only(down(load(p.four + j / 2 * 32), j % 2 * 4), 15);
        __m256i b = only(down(load(p.four + 64 + j / 2 * 32), j % 2 * 4), 15);
        return (struct pair){_mm256_shuffle_epi8(levels->low, a),
                             _mm256_shuffle_epi8(levels->low, b)};
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
    return (struct pair){_mm256_shuffle_epi8(levels->low, both),
                         _mm256_shuffle_epi8(levels->low, down(both, 4))};
}

/* Sums of pairs of products, modulo 2^16; cell: levels up to 63, x: from -127 to 127. Left to itself, gcc makes many products
 * before it adds them, and has no registers for them. */
LK_ALWAYS_INLINE __m256i multiply(__m256i sum, __m256i cell, const __m256i *x) {
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
            : "+x"(sum), "=&x"(product)
            : "x"(cell), "m"(*x));
    return sum;
}

/* Sums of every other pair of 16-bit lanes, in all of them. */
LK_ALWAYS_INLINE __m256i add_pairs(__m256i v) {
    v = _mm256_add_epi16(v, _mm256_permute4x64_epi64(v, 0x4e));
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1));
}

/* 32-bit sums of the pairs of 16-bit ones. */
LK_ALWAYS_INLINE __m256i widened(__m256i sum) {
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* Four bytes in all lanes. */
LK_ALWAYS_INLINE __m256i four_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

/* Where cells lie that are asked for meanwhile, line by line: cores wait where they have asked for too many at once. */
struct ahead {
    const char *next, *later;
};

/* Ask for what else a tile has, at once. */
LK_ALWAYS_INLINE struct ahead fetch_rest(const struct lk_tile *tile) {
    lk_tile_fetch_lines(tile, lk_cells_bytes(tile->codec->bits, tile->d_head), fetched_bytes(tile));
    lk_tile_fetch_page(tile, 0, fetched_bytes(tile));
    return (struct ahead){lk_tile_next(tile), lk_tile_later(tile)};
}

LK_ALWAYS_INLINE void fetch_line(const struct ahead *ahead, int at) {
    __builtin_prefetch(ahead->next + at, 0, 3);
    __builtin_prefetch(ahead->later + at, 0, 2);
}

/* ---- K ---- */

/* n <= LK_AVX2_QUERIES queries as products want them. */
struct few {
    __m256i quad[QUADS][LK_AVX2_QUERIES]; /* four channels of q8 in all lanes */
    __m256i begin[QUADS / 4]
                 [LK_AVX2_QUERIES]; /* by a window's first channel / 16: where its sums begin */
    __m256 middle[LK_AVX2_QUERIES]; /* what levels around zero would still take off */
    __m256 scale8[LK_AVX2_QUERIES]; /* in all lanes */
    const int16_t *q16;             /* [n][lk_queries_pad(d_head)], set where tiles have means */
    __m128 scale16;                 /* of the queries, 0 behind them; as q16 */
    int beside;                     /* groups of a window, whose products are summed in 16 bits */
};

/* Largest of 16 numbers that are not negative. */
static int largest(__m256i v) {
    __m128i most = _mm_max_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return 65535 - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1))), 0);
}

/* Groups of channels whose products fit into 16 bits: 2 always do, 4 or 8 depend on the queries. q8 [n][pad], between -127
 * and 127 */
static int groups_beside(const int8_t *q8, int pad, int n, int middle) {
    __m256i four = _mm256_setzero_si256(), eight = four;
    for (int i = 0; i < n; i++, q8 += pad)
        for (int c = 0; c < pad; c += 64) {
            __m256i all = _mm256_setzero_si256();
            for (int k = c; k < pad && k < c + 64; k += 32) {
                __m256i magnitude = _mm256_abs_epi8(load((const uint8_t *)q8 + k));
                __m256i sum = add_pairs(_mm256_maddubs_epi16(magnitude, _mm256_set1_epi8(1)));
                four = _mm256_max_epi16(four, sum);
                all = _mm256_add_epi16(all, sum);
            }
            eight = _mm256_max_epi16(eight, all);
        }
    int most = INT16_MAX / middle;
    return largest(eight) <= most ? 8 : largest(four) <= most ? 4 : 2;
}

/* Where sums over channels [c, end) begin: what `middle` adds to them, taken off. q8: zero behind the last channel */
static __m256i begin_of(const int8_t *q8, int c, int end, int middle) {
    const __m256i level = _mm256_set1_epi8((char)middle);
    __m256i sum = _mm256_setzero_si256();
    for (; c + 32 <= end; c += 32)
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(level, load((const uint8_t *)q8 + c)));
    for (; c < end; c += 8)
        sum = _mm256_sub_epi16(
            sum, _mm256_maddubs_epi16(
                     level, _mm256_zextsi128_si256(_mm_loadl_epi64((const __m128i *)(q8 + c)))));
    return add_pairs(sum);
}

/* Queries [i0, i0 + n) */
static void spread(const struct lk_queries *q, int i0, int n, const struct levels *levels,
                   struct few *few) {
    int d = q->d_head, pad = lk_queries_pad(d);
    const int8_t *q8 = q->q8 + (size_t)i0 * pad;
    int beside = few->beside = groups_beside(q8, pad, n, levels->middle);
    for (int i = 0; i < n; i++, q8 += pad) {
        for (int quad = 0; quad < pad / 4; quad += 8) LK_UNROLL
        for (int k = 0; k < 8; k++) few->quad[quad + k][i] = four_bytes(q8 + 4 * (quad + k));
        for (int c = 0; c < d; c += 8 * beside)
            few->begin[c / 16][i] =
                begin_of(q8, c, c + 8 * beside < d ? c + 8 * beside : d, levels->middle);
        few->middle[i] = _mm256_set1_ps((0.5f * (float)levels->top - (float)levels->middle) *
                                        (float)q->sum8[i0 + i]);
        few->scale8[i] = _mm256_set1_ps(q->scale8[i0 + i]);
    }
    if (!q->q16) return; /* of a codec without means */
    few->q16 = q->q16 + (size_t)i0 * pad;
    few->scale16 = scales16(q, i0, n);
}

/* Products of a tile with n queries: of[i][k] are those of query i and octet 2 half + k. */
struct sums {
    __m256i of[LK_AVX2_QUERIES][2];
};

/* As many bytes as a half's cells of a group have; with few bits, both halves' with the first one. */
LK_ALWAYS_INLINE void fetch_on(int bits, int half, struct ahead *ahead) {
    if (bits < 3 && half) return;
    int n = bits < 3 ? 32 * bits : 16 * bits;
    fetch_line(ahead, 0);
    ahead->next += n, ahead->later += n;
}

/* Those over n_group groups from where p and x are on, at most `beside`; sums in 16 bits begin at `begin`. bits, n and half are
 * constants. */
LK_ALWAYS_INLINE void multiply_window(int bits, int n, int half, struct ahead *ahead,
                                      struct planes p, const __m256i (*x)[LK_AVX2_QUERIES],
                                      const __m256i *begin, const struct levels *levels,
                                      int n_group, struct sums *out) {
    const __m256i(*end)[LK_AVX2_QUERIES] = x + 2 * n_group;
    __m256i sum[LK_AVX2_QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = begin[i];
    for (; x < end; x += 2, p.four += 128, p.two += 64, p.one += 32) {
        fetch_on(bits, half, ahead);
        LK_UNROLL
        for (int k = 0; k < 2; k++) {
            struct pair cell = cells_of(bits, p, 2 * half + k, levels);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum[i][k] = multiply(multiply(sum[i][k], cell.a, &x[0][i]), cell.b, &x[1][i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2; k++) out->of[i][k] = widened(sum[i][k]);
}

/* Products of half a tile. */
LK_ALWAYS_INLINE void multiply_half(int bits, int n, int half, const struct lk_tile *tile,
                                    const struct levels *levels, const struct few *few,
                                    struct ahead *ahead, struct sums *sums) {
    int n_group = tile->d_head / 8, g = few->beside;
    struct planes p = planes_of(bits, tile->d_head, tile->head);
    multiply_window(bits, n, half, ahead, p, few->quad, few->begin[0], levels,
                    n_group < g ? n_group : g, sums);
    for (; g < n_group; g += few->beside) {
        struct sums more;
        p.four += few->beside * 128, p.two += few->beside * 64, p.one += few->beside * 32;
        multiply_window(bits, n, half, ahead, p, few->quad + 2 * g, few->begin[g / 2], levels,
                        n_group - g < few->beside ? n_group - g : few->beside, &more);
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int k = 0; k < 2; k++)
            sums->of[i][k] = _mm256_add_epi32(sums->of[i][k], more.of[i][k]);
    }
}

/* Scores of half a tile: rows 16 half to 16 half + 15. scale: all of the tile's; bits, n and half are constants */
LK_ALWAYS_INLINE void score_half(int bits, int n, int half, const struct lk_tile *tile,
                                 const uint16_t *scale, const struct levels *levels,
                                 const struct few *few, const float *offset, struct ahead *ahead,
                                 float *s, size_t stride) {
    struct sums sums;
    multiply_half(bits, n, half, tile, levels, few, ahead, &sums);
    LK_UNROLL
    for (int k = 0; k < 2; k++) {
        int row = 16 * half + 8 * k;
        __m256 by = to_scales8(scale + row);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m256 level = _mm256_sub_ps(_mm256_cvtepi32_ps(sums.of[i][k]), few->middle[i]);
            __m256 times = _mm256_mul_ps(few->scale8[i], by);
            _mm256_storeu_ps(s + i * stride + row,
                             _mm256_fmadd_ps(level, times, _mm256_set1_ps(offset[i])));
        }
    }
}

LK_ALWAYS_INLINE void score_some(int bits, int n, const struct levels *levels,
                                 const struct lk_rows *run, const struct few *few, float *s,
                                 size_t stride) {
    for (int t = 0; t < lk_rows_tiles(run); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(run, t);
        const uint16_t *scale = lk_rot_scales(run->codec, tile.head, run->d_head);
        struct mean mean = read_mean(&tile, scale);
        float offset[LK_AVX2_QUERIES] = {0};
        struct ahead ahead = fetch_rest(&tile);
        if (mean.code) dot_mean(n, &mean, run->d_head, few->q16, few->scale16, offset);
        score_half(bits, n, 0, &tile, scale, levels, few, offset, &ahead, s, stride);
        score_half(bits, n, 1, &tile, scale, levels, few, offset, &ahead, s, stride);
    }
}

/* Scores of n queries; functions of their own, in which gcc finds registers for all that the loops want. */
typedef void score_run(int n, const struct levels *levels, const struct lk_rows *run,
                       const struct few *few, float *s, size_t stride);

LK_ALWAYS_INLINE void score_any(int bits, int n, const struct levels *levels,
                                const struct lk_rows *run, const struct few *few, float *s,
                                size_t stride) {
    if (n == 1) score_some(bits, 1, levels, run, few, s, stride);
    if (n == 2) score_some(bits, 2, levels, run, few, s, stride);
    if (n == 3) score_some(bits, 3, levels, run, few, s, stride);
    if (n == 4) score_some(bits, 4, levels, run, few, s, stride);
}

static void score1(int n, const struct levels *levels, const struct lk_rows *run,
                   const struct few *few, float *s, size_t stride) {
    score_any(1, n, levels, run, few, s, stride);
}

static void score2(int n, const struct levels *levels, const struct lk_rows *run,
                   const struct few *few, float *s, size_t stride) {
    score_any(2, n, levels, run, few, s, stride);
}

static void score3(int n, const struct levels *levels, const struct lk_rows *run,
                   const struct few *few, float *s, size_t stride) {
    score_any(3, n, levels, run, few, s, stride);
}

static void score4(int n, const struct levels *levels, const struct lk_rows *run,
                   const struct few *few, float *s, size_t stride) {
    score_any(4, n, levels, run, few, s, stride);
}

static score_run *const score_of[] = {NULL, score1, score2, score3, score4};

void lk_avx2_low_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                       size_t stride) {
    struct levels levels = find_levels(run->codec);
    for (int i = 0; i < q->n_q; i += LK_AVX2_QUERIES) {
        int n = q->n_q - i < LK_AVX2_QUERIES ? q->n_q - i : LK_AVX2_QUERIES;
        struct few few;
        spread(q, i, n, &levels, &few);
        score_of[run->codec->bits](n, &levels, run, &few, s + i * stride, stride);
    }
}

/* ---- V ---- */

/* A tile and the weights of its tokens, p[t] * scale[t] ~ step * w[t], 0 <= w <= MOST_WEIGHT. */
struct weighed {
    __m256i quad[LK_TILE / 4][LK_AVX2_QUERIES]; /* w of four tokens in all lanes */
    __m256i middle[LK_AVX2_QUERIES];            /* what levels' middle adds to sums */
    __m256 step[LK_AVX2_QUERIES];               /* in all lanes */
    __m256 product[LK_AVX2_QUERIES][4];         /* p * scale */
    struct mean mean;
    struct lk_tile tile;
    struct ahead ahead;
};

/* Lanes of v exchanged: by halves, by pairs in halves, by lanes in pairs. */
LK_ALWAYS_INLINE __m256 swap4(__m256 v) { return _mm256_permute2f128_ps(v, v, 1); }
LK_ALWAYS_INLINE __m256 swap2(__m256 v) { return _mm256_permute_ps(v, 0x4e); }
LK_ALWAYS_INLINE __m256 swap1(__m256 v) { return _mm256_permute_ps(v, 0xb1); }

/* A step, in all lanes, with which weights are at most MOST_WEIGHT and their products with levels fit into 16 bits. Sums take
 * every other pair of tokens. fit: the largest sum of such weights */
LK_ALWAYS_INLINE __m256 step_of(const __m256 *product, float fit) {
    __m256 sum =
        _mm256_add_ps(_mm256_add_ps(product[0], product[1]), _mm256_add_ps(product[2], product[3]));
    __m256 most =
        _mm256_max_ps(_mm256_max_ps(product[0], product[1]), _mm256_max_ps(product[2], product[3]));
    sum = _mm256_add_ps(sum, swap4(sum));
    most = _mm256_mul_ps(_mm256_max_ps(most, swap4(most)), _mm256_set1_ps(1.0f / MOST_WEIGHT));
    sum = _mm256_add_ps(sum, swap1(sum));
    most = _mm256_max_ps(most, _mm256_mul_ps(sum, _mm256_set1_ps(1 / fit)));
    most = _mm256_max_ps(most, swap2(most));
    most = _mm256_max_ps(most, swap1(most));
    return _mm256_max_ps(
        most, _mm256_set1_ps(
                  1e-30f)); /* below it there is nothing to add, and its inverse would overflow */
}

/* What is added to weights [8 j, 8 j + 8) before they are cut to integers: token t's is its number with the bits in
 * reverse, in [0, 1). The many small weights of a tile would all be rounded to nothing; so they are right on average. */
LK_ALWAYS_INLINE __m256 dither(int j) {
    const __m256 eighth = _mm256_setr_ps(0, 16, 8, 24, 4, 20, 12, 28);
    return _mm256_mul_ps(_mm256_add_ps(eighth, _mm256_set1_ps((float)(j / 2 + j % 2 * 2) + 0.5f)),
                         _mm256_set1_ps(1.0f / LK_TILE));
}

/* Weights as bytes: four by four, tokens 0, 8, 16, 24, then 4, 12, 20, 28. */
LK_ALWAYS_INLINE __m256i round_weights(const __m256 *product, __m256 step) {
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1), step);
    __m256i x[4];
    LK_UNROLL
    for (int j = 0; j < 4; j++)
        x[j] = _mm256_cvttps_epi32(_mm256_fmadd_ps(product[j], inverse, dither(j)));
    return _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]),
                              _mm256_packs_epi32(x[2], x[3])); /* in halves */
}

/* Weights of n queries for tiles [t, t + beside) of a run, in turns: each step takes long for few instructions. middle[i]: all
 * that is taken off the sums of query i, in all lanes. */
static void weigh(const struct levels *levels, const struct lk_rows *run, int t, int beside,
                  const float *p, size_t stride, int n, float *acc, __m256 *middle,
                  struct weighed *out) {
    int d = run->d_head;
    float fit = (float)(INT16_MAX / levels->middle -
                        16); /* dithering adds less than one to each of a lane's weights */
    const __m256i level = _mm256_set1_epi8((char)levels->middle);
    for (int k = 0; k < beside; k++) {
        struct rows rows;
        out[k].tile = lk_rows_tile(run, t + k);
        read_rows(&rows, &out[k].tile);
        out[k].mean = rows.mean;
        out[k].ahead = fetch_rest(&out[k].tile);
        for (int i = 0; i < n; i++) {
            LK_UNROLL
            for (int j = 0; j < 4; j++)
                out[k].product[i][j] =
                    _mm256_mul_ps(_mm256_loadu_ps(p + i * stride + (t + k) * LK_TILE + 8 * j),
                                  _mm256_loadu_ps(rows.scale + 8 * j));
            out[k].step[i] = step_of(out[k].product[i], fit);
        }
    }
    for (int k = 0; k < beside; k++)
        for (int i = 0; i < n; i++) {
            _Alignas(32) uint8_t w[LK_TILE];
            __m256i bytes = round_weights(out[k].product[i], out[k].step[i]);
            _mm256_store_si256((__m256i *)w, bytes);
            __asm__(
                ""
                : "+m"(
                    w)); /* to be loaded again: that takes fewer instructions than gcc's shuffles */
            LK_UNROLL
            for (int quad = 0; quad < LK_TILE / 4; quad++)
                out[k].quad[quad][i] = four_bytes(w + quad / 2 * 4 + quad % 2 * 16);
            out[k].middle[i] = add_pairs(_mm256_maddubs_epi16(level, bytes));
            middle[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(out[k].middle[i])),
                                        out[k].step[i], middle[i]);
            if (out[k].mean.code)
                add_mean(&out[k].mean, d, sum_of(p + i * stride + (t + k) * LK_TILE),
                         acc + (size_t)i * d);
        }
}

/* acc += weights times levels of `beside` tiles, for an octet of the channels of n queries, `at` octets from the first; acc's rows are
 * d apart. bits and n are constants. */
LK_ALWAYS_INLINE void add_octet(int bits, int n, int at, const struct levels *levels,
                                const struct weighed *w, int beside, int d, float *acc) {
    __m256 all[LK_AVX2_QUERIES];
    LK_UNROLL
    for (int i = 0; i < n; i++) all[i] = _mm256_loadu_ps(acc + (size_t)i * d);
    for (const struct weighed *end = w + beside; w < end; w++) {
        __m256i sum[LK_AVX2_QUERIES];
        struct planes p = planes_of(bits, d, w->tile.head);
        p.four += at * 128, p.two += at * 64, p.one += at * 32;
        LK_UNROLL
        for (int line = 0; line < 32 * bits; line += 64)
            fetch_line(&w->ahead, 32 * bits * at + line);
        LK_UNROLL
        for (int j = 0; j < 4; j++) {
            struct pair cell = cells_of(bits, p, j, levels);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                sum[i] =
                    j ? multiply(sum[i], cell.a, &w->quad[j][i])
                      : _mm256_sub_epi16(_mm256_maddubs_epi16(cell.a, w->quad[0][i]), w->middle[i]);
                sum[i] = multiply(sum[i], cell.b, &w->quad[j + 4][i]);
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++)
            all[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(sum[i])), w->step[i], all[i]);
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) _mm256_storeu_ps(acc + (size_t)i * d, all[i]);
}

LK_ALWAYS_INLINE void add_some(int bits, int n, const struct levels *levels,
                               const struct weighed *w, int beside, int d, float *acc) {
    for (int at = 0; at < d / 8; at++) add_octet(bits, n, at, levels, w, beside, d, acc + 8 * at);
}

/* acc [n][d] += weights times levels of `beside` tiles; functions of their own as above. */
typedef void add_tile(int n, const struct levels *levels, const struct weighed *w, int beside,
                      int d, float *acc);

LK_ALWAYS_INLINE void add_any(int bits, int n, const struct levels *levels, const struct weighed *w,
                              int beside, int d, float *acc) {
    if (n == 1) add_some(bits, 1, levels, w, beside, d, acc);
    if (n == 2) add_some(bits, 2, levels, w, beside, d, acc);
    if (n == 3) add_some(bits, 3, levels, w, beside, d, acc);
    if (n == 4) add_some(bits, 4, levels, w, beside, d, acc);
}

static void add1(int n, const struct levels *levels, const struct weighed *w, int beside, int d,
                 float *acc) {
    add_any(1, n, levels, w, beside, d, acc);
}
static void add2(int n, const struct levels *levels, const struct weighed *w, int beside, int d,
                 float *acc) {
    add_any(2, n, levels, w, beside, d, acc);
}
static void add3(int n, const struct levels *levels, const struct weighed *w, int beside, int d,
                 float *acc) {
    add_any(3, n, levels, w, beside, d, acc);
}
static void add4(int n, const struct levels *levels, const struct weighed *w, int beside, int d,
                 float *acc) {
    add_any(4, n, levels, w, beside, d, acc);
}

static add_tile *const add_of[] = {NULL, add1, add2, add3, add4};

/* Of n <= LK_AVX2_QUERIES queries. */
static void accumulate(const struct levels *levels, const struct lk_rows *run, const float *p,
                       size_t stride, int n, float *acc) {
    struct weighed weighed[BESIDE];
    __m256 middle[LK_AVX2_QUERIES];
    int d = run->d_head, n_tile = lk_rows_tiles(run);
    for (int i = 0; i < n; i++) middle[i] = _mm256_setzero_ps();
    for (int t = 0; t < n_tile; t += BESIDE) {
        int beside = n_tile - t < BESIDE ? n_tile - t : BESIDE;
        weigh(levels, run, t, beside, p, stride, n, acc, middle, weighed);
        add_of[run->codec->bits](n, levels, weighed, beside, d, acc);
    }
    for (int i = 0; i < n; i++, acc += d) {
        __m256 less = _mm256_mul_ps(
            middle[i], _mm256_set1_ps(0.5f * (float)levels->top / (float)levels->middle - 1));
        for (int c = 0; c < d; c += 8)
            _mm256_storeu_ps(acc + c, _mm256_sub_ps(_mm256_loadu_ps(acc + c), less));
    }
}

void lk_avx2_low_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                            float *acc) {
    struct levels levels = find_levels(run->codec);
    for (int i = 0; i < n_q; i += LK_AVX2_QUERIES)
        accumulate(&levels, run, p + i * stride, stride,
                   n_q - i < LK_AVX2_QUERIES ? n_q - i : LK_AVX2_QUERIES,
                   acc + (size_t)i * run->d_head);
}
