/* rot of up to 4 bits for AVX2: codes are looked up and multiplied without being stored (avx2.h).
 * Products of 8-bit levels with 8-bit queries or weights are summed in 16 bits as long as they fit.
 *
 * Templates take bits and n, the number of queries, as constants. */
#include "kernels/avx2.h"
#include "kernels/avx2_per_token.h"

enum {
    WEIGHTED_TILES = 4,            /* tiles of V whose weights are quantized together */
    MAX_QUADS = LK_MAX_D_HEAD / 4, /* quads of channels */
    MAX_WEIGHT = 127,
};

/* ---- codes to levels ---- */

/* Levels of codec/rot.h as bytes, indexed by a nibble of packed codes. With 2 bits a nibble has two
 * codes: `low` has the levels of the lower one, `high` those of the upper one. With 3 bits a nibble
 * has one code, in its lowest bits.
 *
 * Products are summed in 16 bits, modulo 2^16, and the part of `middle` in a sum is subtracted. The
 * rest must fit into 16 bits. It does if `middle` times the sum of the factors' magnitudes fits,
 * because levels differ from `middle` by at most `middle`. */
struct level_tables {
    __m256i low, high;
    int top, middle; /* middle: top / 2, rounded up */
};

static struct level_tables make_level_tables(const struct lk_codec *codec) {
    int bits = codec->bits;
    const __m128i nibble = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                  mask = _mm_set1_epi8((char)((1 << bits) - 1));
    struct lk_rot_codebook of = lk_rot_codebook(codec);
    __m128i table = nibble;
    if (of.table && bits == 2) table = _mm_loadu_si32(of.table);
    if (of.table && bits == 3) table = _mm_loadl_epi64((const __m128i *)of.table);
    if (of.table && bits == 4) table = _mm_loadu_si128((const __m128i *)of.table);
    __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(nibble, mask));
    __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibble, 2), mask));
    return (struct level_tables){_mm256_broadcastsi128_si256(low),
                                 _mm256_broadcastsi128_si256(high), of.top, (of.top + 1) / 2};
}

/* The planes of a tile (codec/bitplanes.h). */
struct plane_ptrs {
    const uint8_t *four, *two, *one;
};

LK_ALWAYS_INLINE struct plane_ptrs find_planes(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_bitplanes_bytes(4, d_head) : 0);
    return (struct plane_ptrs){tile, two, two + (bits & 2 ? lk_bitplanes_bytes(2, d_head) : 0)};
}

LK_ALWAYS_INLINE __m256i loadu_256(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
LK_ALWAYS_INLINE __m256i and_bytes(__m256i v, int mask) {
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

/* Shift 16-bit lanes by n bits to the right, or by -n to the left. Bits move between the two bytes
 * of a lane. */
LK_ALWAYS_INLINE __m256i shift_right_i16(__m256i v, int n) {
    return n > 0 ? _mm256_srli_epi16(v, n) : n < 0 ? _mm256_slli_epi16(v, -n) : v;
}

/* Bits of v where the mask is 1, else of base. */
LK_ALWAYS_INLINE __m256i blend_bits(__m256i base, __m256i v, int mask) {
    return _mm256_xor_si256(base, and_bytes(_mm256_xor_si256(base, v), mask));
}

/* Two cells of a group of 8 cells. */
struct cell_pair {
    __m256i a, b;
};

/* Levels of cells j and j + 4 of the group at p; j < 4 is a constant. */
LK_ALWAYS_INLINE struct cell_pair unpack_cell_pair(int bits, struct plane_ptrs p, int j,
                                                   const struct level_tables *levels) {
    int upper = j / 2 * 4; /* first bit of the nibble that has their codes */
    if (bits == 4) {
        __m256i a = and_bytes(shift_right_i16(loadu_256(p.four + j / 2 * 32), j % 2 * 4), 15);
        __m256i b = and_bytes(shift_right_i16(loadu_256(p.four + 64 + j / 2 * 32), j % 2 * 4), 15);
        return (struct cell_pair){_mm256_shuffle_epi8(levels->low, a),
                                  _mm256_shuffle_epi8(levels->low, b)};
    }
    if (bits == 2) {
        __m256i a = and_bytes(shift_right_i16(loadu_256(p.two), upper), 15),
                b = and_bytes(shift_right_i16(loadu_256(p.two + 32), upper), 15);
        __m256i table = j % 2 ? levels->high : levels->low;
        return (struct cell_pair){_mm256_shuffle_epi8(table, a), _mm256_shuffle_epi8(table, b)};
    }
    __m256i one = loadu_256(p.one);
    if (bits == 1)
        return (struct cell_pair){and_bytes(shift_right_i16(one, j), 1),
                                  and_bytes(shift_right_i16(one, j + 4), 1)};
    /* Both codes go into one byte, as nibbles whose highest bit is 0, as the lookup requires. */
    __m256i two = blend_bits(shift_right_i16(loadu_256(p.two), upper),
                             shift_right_i16(loadu_256(p.two + 32), upper - 4), 0xf0);
    __m256i both = _mm256_or_si256(and_bytes(shift_right_i16(two, j % 2 * 2), 0x33),
                                   and_bytes(shift_right_i16(one, j - 2), 0x44));
    return (struct cell_pair){_mm256_shuffle_epi8(levels->low, both),
                              _mm256_shuffle_epi8(levels->low, shift_right_i16(both, 4))};
}

/* sum + sums of pairs of products, modulo 2^16. cell: levels up to 63; x: -127 to 127. In assembly,
 * because gcc would compute many products before it adds them and run out of registers. */
LK_ALWAYS_INLINE __m256i mul_sum_i8_pairs(__m256i sum, __m256i cell, const __m256i *x) {
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
            : "+x"(sum), "=&x"(product)
            : "x"(cell), "m"(*x));
    return sum;
}

/* Sums of every other pair of 16-bit lanes, in all lanes. */
LK_ALWAYS_INLINE __m256i sum_alternate_i16(__m256i v) {
    v = _mm256_add_epi16(v, _mm256_permute4x64_epi64(v, 0x4e));
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1));
}

/* Sums of pairs of 16-bit lanes, in 32 bits. */
LK_ALWAYS_INLINE __m256i sum_i16_pairs(__m256i sum) {
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* Addresses that are prefetched line by line during the products: a core stalls if too many lines
 * are in flight. See lk_tile_next, lk_tile_ahead. */
struct prefetch_at {
    const char *next, *ahead;
};

/* Prefetch everything but the cells, at once. */
LK_ALWAYS_INLINE struct prefetch_at start_prefetch(const struct lk_tile *tile) {
    lk_tile_prefetch_lines(tile, lk_bitplanes_bytes(tile->codec->bits, tile->d_head),
                           tile_bytes(tile));
    lk_tile_prefetch_page(tile, 0, tile_bytes(tile));
    return (struct prefetch_at){lk_tile_next(tile), lk_tile_ahead(tile)};
}

LK_ALWAYS_INLINE void prefetch_line(const struct prefetch_at *at, int byte) {
    __builtin_prefetch(at->next + byte, 0, 3);
    __builtin_prefetch(at->ahead + byte, 0, 2);
}

/* ---- K ---- */

/* n <= LK_AVX2_QUERIES queries as operands of the products. */
struct query_group {
    const struct level_tables *levels;
    __m256i quad[MAX_QUADS][LK_AVX2_QUERIES]; /* four channels of q8 in all lanes */
    int window; /* groups of 8 channels whose products are summed in 16 bits */
    /* initial value of a window's sums, indexed by its first channel / 16 */
    __m256i bias[MAX_QUADS / 4][LK_AVX2_QUERIES];
    __m256 middle[LK_AVX2_QUERIES]; /* (top / 2 - middle) * sum8, in all lanes */
    __m256 scale8[LK_AVX2_QUERIES]; /* in all lanes */
    const int16_t *q16;             /* [n][lk_queries_pad(d_head)]; set if tiles have means */
    __m128 scale16;                 /* [n], padded with 0; set if tiles have means */
};

/* Maximum of 16 numbers, none of which is negative. */
static int hmax_i16x16(__m256i v) {
    __m128i max = _mm_max_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return 65535 - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(max, _mm_set1_epi16(-1))), 0);
}

/* Groups of channels whose products fit into 16 bits. Two groups always fit; four or eight depend
 * on the queries q8 [n][pad], between -127 and 127. */
static int max_window(const int8_t *q8, int pad, int n, int middle) {
    __m256i four = _mm256_setzero_si256(), eight = four;
    for (int i = 0; i < n; i++, q8 += pad)
        for (int c = 0; c < pad; c += 64) {
            __m256i all = _mm256_setzero_si256();
            for (int k = c; k < pad && k < c + 64; k += 32) {
                __m256i magnitude = _mm256_abs_epi8(loadu_256((const uint8_t *)q8 + k));
                __m256i sum =
                    sum_alternate_i16(_mm256_maddubs_epi16(magnitude, _mm256_set1_epi8(1)));
                four = _mm256_max_epi16(four, sum);
                all = _mm256_add_epi16(all, sum);
            }
            eight = _mm256_max_epi16(eight, all);
        }
    int limit = INT16_MAX / middle;
    return hmax_i16x16(eight) <= limit ? 8 : hmax_i16x16(four) <= limit ? 4 : 2;
}

/* Initial value of sums over channels [c, end): minus what `middle` adds to them. q8: zero after
 * the last channel */
static __m256i window_bias(const int8_t *q8, int c, int end, int middle) {
    const __m256i level = _mm256_set1_epi8((char)middle);
    __m256i sum = _mm256_setzero_si256();
    for (; c + 32 <= end; c += 32)
        sum =
            _mm256_sub_epi16(sum, _mm256_maddubs_epi16(level, loadu_256((const uint8_t *)q8 + c)));
    for (; c < end; c += 8)
        sum = _mm256_sub_epi16(
            sum, _mm256_maddubs_epi16(
                     level, _mm256_zextsi128_si256(_mm_loadl_epi64((const __m128i *)(q8 + c)))));
    return sum_alternate_i16(sum);
}

/* Queries [i0, i0 + n) of q. */
static void prepare_queries(const struct lk_queries *q, int i0, int n,
                            const struct level_tables *levels, struct query_group *queries) {
    int d = q->d_head, pad = lk_queries_pad(d);
    const int8_t *q8 = q->q8 + (size_t)i0 * pad;
    queries->levels = levels;
    int window = queries->window = max_window(q8, pad, n, levels->middle);
    for (int i = 0; i < n; i++, q8 += pad) {
        for (int quad = 0; quad < pad / 4; quad += 8) LK_UNROLL
        for (int k = 0; k < 8; k++) queries->quad[quad + k][i] = set1_i8x4(q8 + 4 * (quad + k));
        for (int c = 0; c < d; c += 8 * window)
            queries->bias[c / 16][i] =
                window_bias(q8, c, c + 8 * window < d ? c + 8 * window : d, levels->middle);
        queries->middle[i] = _mm256_set1_ps((0.5f * (float)levels->top - (float)levels->middle) *
                                            (float)q->sum8[i0 + i]);
        queries->scale8[i] = _mm256_set1_ps(q->scale8[i0 + i]);
    }
    if (!q->q16) return; /* a codec without means */
    queries->q16 = q->q16 + (size_t)i0 * pad;
    queries->scale16 = load_scale16(q, i0, n);
}

/* Products of half a tile: of[i][k] belongs to query i and tokens 8 (2 half + k) .. + 7. */
struct half_sums {
    __m256i of[LK_AVX2_QUERIES][2];
};

/* Prefetch as many bytes as half a tile's cells of a group have. With 1 or 2 bits the first half
 * fetches for both. */
LK_ALWAYS_INLINE void prefetch_half_group(int bits, int half, struct prefetch_at *at) {
    if (bits < 3 && half) return;
    int n = bits < 3 ? 32 * bits : 16 * bits;
    prefetch_line(at, 0);
    at->next += n, at->ahead += n;
}

/* A tile of K that is being scored. */
struct scored_tile {
    struct lk_tile tile;
    struct prefetch_at at;
    float offset[LK_AVX2_QUERIES]; /* <mean, q_i> */
};

/* Products over a window of groups from group g on. half is a constant. */
LK_ALWAYS_INLINE void dot_window(int bits, int n, int half, struct scored_tile *tile,
                                 const struct query_group *queries, int g, struct half_sums *out) {
    int d = tile->tile.d_head, n_group = d / 8 - g;
    if (n_group > queries->window) n_group = queries->window;
    const __m256i(*x)[LK_AVX2_QUERIES] = queries->quad + 2 * g, (*end)[LK_AVX2_QUERIES];
    struct plane_ptrs p = find_planes(bits, d, tile->tile.head);
    p.four += g * 128, p.two += g * 64, p.one += g * 32;
    __m256i sum[LK_AVX2_QUERIES][2];
    LK_UNROLL
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = queries->bias[g / 2][i];
    for (end = x + 2 * n_group; x < end; x += 2, p.four += 128, p.two += 64, p.one += 32) {
        prefetch_half_group(bits, half, &tile->at);
        LK_UNROLL
        for (int k = 0; k < 2; k++) {
            struct cell_pair cell = unpack_cell_pair(bits, p, 2 * half + k, queries->levels);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum[i][k] = mul_sum_i8_pairs(mul_sum_i8_pairs(sum[i][k], cell.a, &x[0][i]), cell.b,
                                             &x[1][i]);
        }
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) LK_UNROLL
    for (int k = 0; k < 2; k++) out->of[i][k] = sum_i16_pairs(sum[i][k]);
}

/* Products over all channels. */
LK_ALWAYS_INLINE void dot_half_tile(int bits, int n, int half, struct scored_tile *tile,
                                    const struct query_group *queries, struct half_sums *sums) {
    dot_window(bits, n, half, tile, queries, 0, sums);
    for (int g = queries->window; g < tile->tile.d_head / 8; g += queries->window) {
        struct half_sums more;
        dot_window(bits, n, half, tile, queries, g, &more);
        LK_UNROLL
        for (int i = 0; i < n; i++) LK_UNROLL
        for (int k = 0; k < 2; k++)
            sums->of[i][k] = _mm256_add_epi32(sums->of[i][k], more.of[i][k]);
    }
}

/* Scores of rows 16 half .. 16 half + 15 of a tile. */
LK_ALWAYS_INLINE void score_half(int bits, int n, int half, struct scored_tile *tile,
                                 const struct query_group *queries, float *s, size_t stride) {
    const uint16_t *scale = lk_rot_scales(tile->tile.codec, tile->tile.head, tile->tile.d_head);
    struct half_sums sums;
    dot_half_tile(bits, n, half, tile, queries, &sums);
    LK_UNROLL
    for (int k = 0; k < 2; k++) {
        int row = 16 * half + 8 * k;
        __m256 scales = load_abs_f16x8(scale + row);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m256 level = _mm256_sub_ps(_mm256_cvtepi32_ps(sums.of[i][k]), queries->middle[i]);
            __m256 times = _mm256_mul_ps(queries->scale8[i], scales);
            _mm256_storeu_ps(s + i * stride + row,
                             _mm256_fmadd_ps(level, times, _mm256_set1_ps(tile->offset[i])));
        }
    }
}

LK_ALWAYS_INLINE void score_tiles(int bits, int n, const struct lk_rows *rows,
                                  const struct query_group *queries, float *s, size_t stride) {
    for (int t = 0; t < lk_rows_n_tile(rows); t++, s += LK_TILE) {
        struct scored_tile tile = {.tile = lk_rows_tile(rows, t)};
        const uint16_t *scale = lk_rot_scales(rows->codec, tile.tile.head, rows->d_head);
        struct lk_avx2_mean mean = load_mean(&tile.tile, scale);
        tile.at = start_prefetch(&tile.tile);
        if (mean.code)
            dot_mean(n, &mean, rows->d_head, queries->q16, queries->scale16, tile.offset);
        score_half(bits, n, 0, &tile, queries, s, stride);
        score_half(bits, n, 1, &tile, queries, s, stride);
    }
}

/* Scores of n queries for all tiles of a run. One function per number of bits, so that gcc finds
 * registers for all that its loops need. */
typedef void score_fn(int n, const struct lk_rows *rows, const struct query_group *queries,
                      float *s, size_t stride);

LK_ALWAYS_INLINE void score_tiles_of_n(int bits, int n, const struct lk_rows *rows,
                                       const struct query_group *queries, float *s, size_t stride) {
    if (n == 1) score_tiles(bits, 1, rows, queries, s, stride);
    if (n == 2) score_tiles(bits, 2, rows, queries, s, stride);
    if (n == 3) score_tiles(bits, 3, rows, queries, s, stride);
    if (n == 4) score_tiles(bits, 4, rows, queries, s, stride);
}

static void score_1bit(int n, const struct lk_rows *rows, const struct query_group *queries,
                       float *s, size_t stride) {
    score_tiles_of_n(1, n, rows, queries, s, stride);
}

static void score_2bit(int n, const struct lk_rows *rows, const struct query_group *queries,
                       float *s, size_t stride) {
    score_tiles_of_n(2, n, rows, queries, s, stride);
}

static void score_3bit(int n, const struct lk_rows *rows, const struct query_group *queries,
                       float *s, size_t stride) {
    score_tiles_of_n(3, n, rows, queries, s, stride);
}

static void score_4bit(int n, const struct lk_rows *rows, const struct query_group *queries,
                       float *s, size_t stride) {
    score_tiles_of_n(4, n, rows, queries, s, stride);
}

static score_fn *const score_by_bits[] = {NULL, score_1bit, score_2bit, score_3bit, score_4bit};

void lk_avx2_rot_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                       const struct lk_queries *q, float *s, size_t stride) {
    if (!lk_is_plain_lowbit(rows->codec)) {
        lk_avx2_per_token_score(kernels, rows, q, s, stride);
        return;
    }
    struct level_tables levels = make_level_tables(rows->codec);
    for (int i = 0; i < q->n_q; i += LK_AVX2_QUERIES) {
        int n = q->n_q - i < LK_AVX2_QUERIES ? q->n_q - i : LK_AVX2_QUERIES;
        struct query_group queries;
        prepare_queries(q, i, n, &levels, &queries);
        score_by_bits[rows->codec->bits](n, rows, &queries, s + i * stride, stride);
    }
}

/* ---- V ---- */

/* A tile of V and the weights of its tokens: p[t] * scale[t] ~ step * w[t], 0 <= w <=
 * MAX_WEIGHT. */
struct weighted_tile {
    __m256i quad[LK_TILE / 4][LK_AVX2_QUERIES]; /* w of four tokens in all lanes */
    __m256i middle[LK_AVX2_QUERIES];            /* what `middle` adds to sums, in all lanes */
    __m256 step[LK_AVX2_QUERIES];               /* in all lanes */
    __m256 product[LK_AVX2_QUERIES][4];         /* p * scale */
    struct lk_avx2_mean mean;
    struct lk_tile tile;
    struct prefetch_at at;
};

/* Swap the halves of v, the pairs of lanes in each half, or the lanes in each pair. */
LK_ALWAYS_INLINE __m256 swap_halves(__m256 v) { return _mm256_permute2f128_ps(v, v, 1); }
LK_ALWAYS_INLINE __m256 swap_pairs(__m256 v) { return _mm256_permute_ps(v, 0x4e); }
LK_ALWAYS_INLINE __m256 swap_lanes(__m256 v) { return _mm256_permute_ps(v, 0xb1); }

/* The step, in all lanes, for which weights are <= MAX_WEIGHT and the sums of their products with
 * levels fit into 16 bits. Each sum takes every other pair of tokens. fit: the maximum sum of such
 * weights */
LK_ALWAYS_INLINE __m256 weight_step(const __m256 *product, float fit) {
    __m256 sum =
        _mm256_add_ps(_mm256_add_ps(product[0], product[1]), _mm256_add_ps(product[2], product[3]));
    __m256 max =
        _mm256_max_ps(_mm256_max_ps(product[0], product[1]), _mm256_max_ps(product[2], product[3]));
    sum = _mm256_add_ps(sum, swap_halves(sum));
    max = _mm256_mul_ps(_mm256_max_ps(max, swap_halves(max)), _mm256_set1_ps(1.0f / MAX_WEIGHT));
    sum = _mm256_add_ps(sum, swap_lanes(sum));
    max = _mm256_max_ps(max, _mm256_mul_ps(sum, _mm256_set1_ps(1 / fit)));
    max = _mm256_max_ps(max, swap_pairs(max));
    max = _mm256_max_ps(max, swap_lanes(max));
    return _mm256_max_ps(max, _mm256_set1_ps(LK_MIN_STEP));
}

/* Added to weights [8 j, 8 j + 8) before they are truncated to integers: the bit-reversed number of
 * the token, scaled to [0, 1). Rounding would turn the many small weights of a tile to 0; dithered
 * weights are right on average. */
LK_ALWAYS_INLINE __m256 dither(int j) {
    const __m256 eighth = _mm256_setr_ps(0, 16, 8, 24, 4, 20, 12, 28);
    return _mm256_mul_ps(_mm256_add_ps(eighth, _mm256_set1_ps((float)(j / 2 + j % 2 * 2) + 0.5f)),
                         _mm256_set1_ps(1.0f / LK_TILE));
}

/* Weights as bytes, in fours: tokens 0-3, 8-11, 16-19, 24-27, then 4-7, 12-15, 20-23, 28-31. */
LK_ALWAYS_INLINE __m256i quantize_weights(const __m256 *product, __m256 step) {
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1), step);
    __m256i x[4];
    LK_UNROLL
    for (int j = 0; j < 4; j++)
        x[j] = _mm256_cvttps_epi32(_mm256_fmadd_ps(product[j], inverse, dither(j)));
    return _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]),
                              _mm256_packs_epi32(x[2], x[3])); /* within halves */
}

/* Weighted sums of n <= LK_AVX2_QUERIES queries over a run. */
struct weighted_run {
    const struct level_tables *levels;
    const struct lk_rows *rows;
    const float *p;
    size_t stride;
    int n;
    float *acc;                     /* [n][d_head] */
    __m256 middle[LK_AVX2_QUERIES]; /* what `middle` adds to the sums, in all lanes */
};

/* Quantize weights for tiles [t, t + n_tile) of a run, and add the tiles' means to the result.
 * Tiles take turns, because each step has a long latency and few instructions. */
static void prepare_weights(struct weighted_run *run, int t, int n_tile,
                            struct weighted_tile *out) {
    const struct lk_rows *rows = run->rows;
    const float *p = run->p;
    size_t stride = run->stride;
    int d = rows->d_head, n = run->n;
    /* Dithering adds less than 1 to each of the 16 weights of a sum. */
    float fit = (float)(INT16_MAX / run->levels->middle - 16);
    const __m256i level = _mm256_set1_epi8((char)run->levels->middle);
    for (int k = 0; k < n_tile; k++) {
        struct lk_avx2_params params;
        out[k].tile = lk_rows_tile(rows, t + k);
        load_params(&params, &out[k].tile);
        out[k].mean = params.mean;
        out[k].at = start_prefetch(&out[k].tile);
        for (int i = 0; i < n; i++) {
            LK_UNROLL
            for (int j = 0; j < 4; j++)
                out[k].product[i][j] =
                    _mm256_mul_ps(_mm256_loadu_ps(p + i * stride + (t + k) * LK_TILE + 8 * j),
                                  _mm256_loadu_ps(params.scale + 8 * j));
            out[k].step[i] = weight_step(out[k].product[i], fit);
        }
    }
    for (int k = 0; k < n_tile; k++)
        for (int i = 0; i < n; i++) {
            _Alignas(32) uint8_t w[LK_TILE];
            __m256i bytes = quantize_weights(out[k].product[i], out[k].step[i]);
            _mm256_store_si256((__m256i *)w, bytes);
            /* Load the bytes again: that takes fewer instructions than gcc's shuffles. */
            __asm__("" : "+m"(w));
            LK_UNROLL
            for (int quad = 0; quad < LK_TILE / 4; quad++)
                out[k].quad[quad][i] = set1_i8x4(w + quad / 2 * 4 + quad % 2 * 16);
            out[k].middle[i] = sum_alternate_i16(_mm256_maddubs_epi16(level, bytes));
            run->middle[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_i16_pairs(out[k].middle[i])),
                                             out[k].step[i], run->middle[i]);
            if (out[k].mean.code)
                add_mean(&out[k].mean, d, sum_tile_f32(p + i * stride + (t + k) * LK_TILE),
                         run->acc + (size_t)i * d);
        }
}

/* acc += weights times levels of n_tile tiles w, for 8 channels of n queries from channel 8 at on.
 * Rows of acc are d apart. */
LK_ALWAYS_INLINE void accumulate_octet(int bits, int n, int at, const struct level_tables *levels,
                                       const struct weighted_tile *w, int n_tile, int d,
                                       float *acc) {
    __m256 all[LK_AVX2_QUERIES];
    LK_UNROLL
    for (int i = 0; i < n; i++) all[i] = _mm256_loadu_ps(acc + (size_t)i * d);
    for (const struct weighted_tile *end = w + n_tile; w < end; w++) {
        __m256i sum[LK_AVX2_QUERIES];
        struct plane_ptrs p = find_planes(bits, d, w->tile.head);
        p.four += at * 128, p.two += at * 64, p.one += at * 32;
        LK_UNROLL
        for (int line = 0; line < 32 * bits; line += 64)
            prefetch_line(&w->at, 32 * bits * at + line);
        LK_UNROLL
        for (int j = 0; j < 4; j++) {
            struct cell_pair cell = unpack_cell_pair(bits, p, j, levels);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                sum[i] =
                    j ? mul_sum_i8_pairs(sum[i], cell.a, &w->quad[j][i])
                      : _mm256_sub_epi16(_mm256_maddubs_epi16(cell.a, w->quad[0][i]), w->middle[i]);
                sum[i] = mul_sum_i8_pairs(sum[i], cell.b, &w->quad[j + 4][i]);
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++)
            all[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_i16_pairs(sum[i])), w->step[i], all[i]);
    }
    LK_UNROLL
    for (int i = 0; i < n; i++) _mm256_storeu_ps(acc + (size_t)i * d, all[i]);
}

LK_ALWAYS_INLINE void accumulate_tiles(int bits, int n, const struct level_tables *levels,
                                       const struct weighted_tile *w, int n_tile, int d,
                                       float *acc) {
    for (int at = 0; at < d / 8; at++)
        accumulate_octet(bits, n, at, levels, w, n_tile, d, acc + 8 * at);
}

/* acc [n][d] += weights times levels of n_tile tiles w. One function per number of bits, as
 * above. */
typedef void accumulate_fn(int n, const struct level_tables *levels, const struct weighted_tile *w,
                           int n_tile, int d, float *acc);

LK_ALWAYS_INLINE void accumulate_tiles_of_n(int bits, int n, const struct level_tables *levels,
                                            const struct weighted_tile *w, int n_tile, int d,
                                            float *acc) {
    if (n == 1) accumulate_tiles(bits, 1, levels, w, n_tile, d, acc);
    if (n == 2) accumulate_tiles(bits, 2, levels, w, n_tile, d, acc);
    if (n == 3) accumulate_tiles(bits, 3, levels, w, n_tile, d, acc);
    if (n == 4) accumulate_tiles(bits, 4, levels, w, n_tile, d, acc);
}

static void accumulate_1bit(int n, const struct level_tables *levels, const struct weighted_tile *w,
                            int n_tile, int d, float *acc) {
    accumulate_tiles_of_n(1, n, levels, w, n_tile, d, acc);
}
static void accumulate_2bit(int n, const struct level_tables *levels, const struct weighted_tile *w,
                            int n_tile, int d, float *acc) {
    accumulate_tiles_of_n(2, n, levels, w, n_tile, d, acc);
}
static void accumulate_3bit(int n, const struct level_tables *levels, const struct weighted_tile *w,
                            int n_tile, int d, float *acc) {
    accumulate_tiles_of_n(3, n, levels, w, n_tile, d, acc);
}
static void accumulate_4bit(int n, const struct level_tables *levels, const struct weighted_tile *w,
                            int n_tile, int d, float *acc) {
    accumulate_tiles_of_n(4, n, levels, w, n_tile, d, acc);
}

static accumulate_fn *const accumulate_by_bits[] = {NULL, accumulate_1bit, accumulate_2bit,
                                                    accumulate_3bit, accumulate_4bit};

static void accumulate_run(struct weighted_run *run) {
    struct weighted_tile weighted[WEIGHTED_TILES];
    const struct level_tables *levels = run->levels;
    int d = run->rows->d_head, bits = run->rows->codec->bits, n_tile = lk_rows_n_tile(run->rows);
    for (int i = 0; i < run->n; i++) run->middle[i] = _mm256_setzero_ps();
    for (int t = 0; t < n_tile; t += WEIGHTED_TILES) {
        int n_weighted = n_tile - t < WEIGHTED_TILES ? n_tile - t : WEIGHTED_TILES;
        prepare_weights(run, t, n_weighted, weighted);
        accumulate_by_bits[bits](run->n, levels, weighted, n_weighted, d, run->acc);
    }
    for (int i = 0; i < run->n; i++) {
        float *acc = run->acc + (size_t)i * d;
        __m256 correction = _mm256_mul_ps(
            run->middle[i], _mm256_set1_ps(0.5f * (float)levels->top / (float)levels->middle - 1));
        for (int c = 0; c < d; c += 8)
            _mm256_storeu_ps(acc + c, _mm256_sub_ps(_mm256_loadu_ps(acc + c), correction));
    }
}

void lk_avx2_rot_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                            const float *p, size_t stride, int n_q, float *acc) {
    if (!lk_is_plain_lowbit(rows->codec)) {
        lk_avx2_per_token_accumulate(kernels, rows, p, stride, n_q, acc);
        return;
    }
    struct level_tables levels = make_level_tables(rows->codec);
    for (int i = 0; i < n_q; i += LK_AVX2_QUERIES) {
        struct weighted_run run = {.levels = &levels,
                                   .rows = rows,
                                   .p = p + i * stride,
                                   .stride = stride,
                                   .n = n_q - i < LK_AVX2_QUERIES ? n_q - i : LK_AVX2_QUERIES,
                                   .acc = acc + (size_t)i * rows->d_head};
        accumulate_run(&run);
    }
}
