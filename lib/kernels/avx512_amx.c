/* rot and int8 for many queries with AMX: one instruction multiplies 16 rows of queries, or of
 * weights, with 64 bytes of 16 columns. The cells that AVX-512 unpacks already have the layout of
 * its right operand: four bytes of a column next to each other.
 *
 *   K: left  [16 queries][64 channels] signed
 *      right [16 quads of channels][16 tokens] unsigned
 *   V: left  [8 queries][2 planes][64 tokens] unsigned
 *      right [16 quads of tokens][16 channels] signed
 *
 * Weights of STEP_ROWS rows of V share one step per query, so that their products stay in registers
 * until the end of these rows. */
#include "kernels/avx512.h"
#include "kernels/avx512_per_token.h"

enum {
    AMX_ROWS = 16,                       /* rows of a tile register */
    AMX_BYTES = 64,                      /* bytes of a row */
    FINE_QUERIES = AMX_ROWS / 2,         /* queries with two planes per register */
    STEP_ROWS = 256,                     /* rows of V that share a step */
    PAIRS = STEP_ROWS / (2 * LK_TILE),   /* pairs of tiles of V: 64 tokens each */
    GROUPS = AMX_BYTES / LK_AVX512_ROWS, /* groups of channels of V per pass */
    BATCH = LK_AVX512_BATCH,
};

/* ---- registers: tmm0 to 3 hold sums, 4 the left operand, 5 and 6 the right one ---- */

LK_ALWAYS_INLINE void load_left(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void load_right(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm5" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void load_right2(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm6" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void zero_2_sums(void) {
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1" : : : "memory");
}
LK_ALWAYS_INLINE void zero_4_sums(void) {
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3"
                     :
                     :
                     : "memory");
}
LK_ALWAYS_INLINE void store_sums(int32_t *sum, int n) {
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilestored %%tmm1, (%2,%1,1)"
                     :
                     : "r"(sum), "r"((size_t)AMX_BYTES), "r"(sum + AMX_ROWS * AMX_ROWS)
                     : "memory");
    if (n == 4)
        __asm__ volatile("tilestored %%tmm2, (%0,%1,1)\n\ttilestored %%tmm3, (%2,%1,1)"
                         :
                         : "r"(sum + 2 * AMX_ROWS * AMX_ROWS), "r"((size_t)AMX_BYTES),
                           "r"(sum + 3 * AMX_ROWS * AMX_ROWS)
                         : "memory");
}

/* All registers have 16 rows of 64 bytes. */
void lk_avx512_amx_enter(struct lk_kernels_state *before) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = AMX_BYTES;
        shapes.rows[i] = AMX_ROWS;
    }
    __asm__ volatile("sttilecfg %0" : "=m"(before->amx_config));
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

void lk_avx512_amx_leave(const struct lk_kernels_state *before) {
    __asm__ volatile("ldtilecfg %0" : : "m"(before->amx_config));
}

/* ---- K ---- */

/* Left operand of K: the rows of all queries, or the two planes of each. */
struct left_operand {
    const int8_t *row; /* [n_row][stride] */
    size_t stride;
    int n_row;
    /* the last n_row % AMX_ROWS rows, zero padded to a whole register */
    _Alignas(64) int8_t tail[LK_MAX_D_HEAD / AMX_BYTES][AMX_ROWS][AMX_BYTES];
};

static void copy_tail(struct left_operand *left, int d) {
    int first = left->n_row / AMX_ROWS * AMX_ROWS, n = left->n_row - first;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < d; c += AMX_BYTES) {
            int m = d - c < AMX_BYTES ? d - c : AMX_BYTES;
            memset(left->tail[c / AMX_BYTES][i] + m, 0, AMX_BYTES - m);
            memcpy(left->tail[c / AMX_BYTES][i], left->row + (first + i) * left->stride + c, m);
        }
}

/* sum [2][AMX_ROWS][AMX_ROWS] = rows [i, i + AMX_ROWS) times groups 0 and 1 of unpacked cells.
 * Cells are zero after the last channel, so the bytes that are read after a row's last channel do
 * not count. */
static void dot_tile_k(const struct left_operand *left, int i, int d, const uint8_t *cells,
                       int32_t *sum) {
    bool whole = left->n_row - i >= AMX_ROWS;
    zero_2_sums();
    for (int c = 0; c < d; c += AMX_BYTES) {
        if (whole)
            load_left(left->row + i * left->stride + c, left->stride);
        else
            load_left(left->tail[c / AMX_BYTES], AMX_BYTES);
        load_right(cells + c * LK_TILE, 2 * AMX_BYTES);
        __asm__ volatile("tdpbsud %%tmm5, %%tmm4, %%tmm0" : : : "memory");
        load_right2(cells + c * LK_TILE + AMX_BYTES, 2 * AMX_BYTES);
        __asm__ volatile("tdpbsud %%tmm6, %%tmm4, %%tmm1" : : : "memory");
    }
    store_sums(sum, 2);
}

/* A tile of K that is being worked on. Three of them are in flight: stored bytes and sums are read
 * only after much other work, when they have reached the cache. */
struct unpacked_tile {
    _Alignas(64) uint8_t buf[LK_AVX512_CELLS + LK_TILE * AMX_BYTES];
    const uint8_t *cells;
    enum lk_avx512_order order;
    struct lk_avx512_params params;
    float offset[BATCH + AMX_ROWS];
    float *s;
};

/* Products of a tile with rows [i, i + AMX_ROWS) of the left operand. */
struct product {
    _Alignas(64) int32_t sum[2 * AMX_ROWS * AMX_ROWS];
    const struct unpacked_tile *tile;
    int i;
};

LK_ALWAYS_INLINE __m512i sums_of(const int32_t *sum, int row) {
    return _mm512_load_si512(sum + row * AMX_ROWS);
}

/* 256 * high + low of query i, in rows 2 i and 2 i + 1 */
LK_ALWAYS_INLINE __m512i join_planes(const int32_t *sum, int i) {
    return _mm512_add_epi32(_mm512_slli_epi32(sums_of(sum, 2 * i), 8), sums_of(sum, 2 * i + 1));
}

static void store_products_k(const struct product *p, const struct lk_avx512_form *form,
                             const struct lk_queries *q, const float *middle, size_t stride) {
    int i0 = form->fine ? p->i / 2 : p->i, n_max = form->fine ? FINE_QUERIES : AMX_ROWS,
        n = q->n_q - i0 < n_max ? q->n_q - i0 : n_max;
    const float *factor = form->fine ? q->scale16 : q->scale8;
    const int32_t *other = p->sum + AMX_ROWS * AMX_ROWS;
    for (int i = 0; i < n; i++) {
        struct token_sums dot;
        if (form->fine)
            dot = order_tokens(join_planes(p->sum, i), join_planes(other, i), p->tile->order);
        else
            dot = order_tokens(sums_of(p->sum, i), sums_of(other, i), p->tile->order);
        store_scores(dot, &p->tile->params, factor[i0 + i], middle[i0 + i], p->tile->offset[i0 + i],
                     p->tile->s + (i0 + i) * stride);
    }
}

/* Unpack tile t of a run, zero after its last channel. s: scores of the run's first row */
static void unpack_tile(struct unpacked_tile *to, const struct lk_rows *rows, int t,
                        const struct lk_avx512_form *form, const struct lk_queries *q, float *s) {
    struct lk_tile tile = lk_rows_tile(rows, t);
    int d = rows->d_head, bits = rows->codec->bits;
    load_params(&to->params, &tile);
    prefetch_tile(&tile);
    to->cells = lk_avx512vbmi_unpack.k(bits, d, tile.head, &form->levels, to->buf, &to->order);
    if (bits == 8 && d % AMX_BYTES)
        to->cells = memcpy(to->buf, to->cells, d * LK_TILE); /* scales follow its codes */
    dot_mean_any(&to->params, q, 0, q->n_q, to->offset);
    to->s = s + t * LK_TILE;
}

/* n_q <= BATCH queries. */
static void score_batch(const struct lk_rows *rows, const struct lk_queries *q, float *s,
                        size_t stride) {
    float middle[BATCH];
    int d = rows->d_head, n_tile = lk_rows_n_tile(rows), n_product = 0;
    struct unpacked_tile tile[3]; /* one is finished, one multiplied, one unpacked */
    struct product product[2];
    struct lk_avx512_form form;
    struct left_operand left;
    make_form(&form, &lk_avx512vbmi_unpack, rows->codec, LK_K);
    dot_middle(&form, q, 0, q->n_q, middle);
    left.row = form.fine ? q->planes : q->q8;
    left.n_row = form.fine ? 2 * q->n_q : q->n_q;
    left.stride = lk_queries_pad(d);
    copy_tail(&left, d);
    for (int k = 0; d % AMX_BYTES && k < 3; k++)
        memset(tile[k].buf + d * LK_TILE, 0, (AMX_BYTES - d % AMX_BYTES) * LK_TILE);
    unpack_tile(&tile[0], rows, 0, &form, q, s);
    for (int t = 0, k = 0; t < n_tile; t++, k = k < 2 ? k + 1 : 0) {
        if (t + 1 < n_tile) unpack_tile(&tile[k < 2 ? k + 1 : 0], rows, t + 1, &form, q, s);
        for (int i = 0; i < left.n_row; i += AMX_ROWS, n_product++) {
            struct product *p = &product[n_product % 2];
            p->tile = &tile[k];
            p->i = i;
            dot_tile_k(&left, i, d, tile[k].cells, p->sum);
            if (n_product)
                store_products_k(&product[(n_product + 1) % 2], &form, q, middle, stride);
        }
    }
    store_products_k(&product[(n_product + 1) % 2], &form, q, middle, stride);
}

void lk_avx512_amx_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                         const struct lk_queries *q, float *s, size_t stride) {
    (void)kernels;
    for (int i = 0; i < q->n_q; i += BATCH) {
        struct lk_queries some = lk_queries_slice(q, i, q->n_q - i < BATCH ? q->n_q - i : BATCH);
        score_batch(rows, &some, s + i * stride, stride);
    }
}

/* ---- V ---- */

/* Weights of up to STEP_ROWS rows, times the tokens' scales, ~ step * (256 high + low): rows 2 i
 * and 2 i + 1 of query i. 16 bits, because 8 bits would round the many small weights of a run to
 * 0. */
struct weights {
    _Alignas(64) uint8_t byte[BATCH / FINE_QUERIES][PAIRS][AMX_ROWS][AMX_BYTES];
    float step[BATCH];
};

/* Restore the order of 64 tokens' bytes after packing within 128-bit lanes. */
LK_ALWAYS_INLINE __m512i order_bytes(__m512i packed) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed);
}

/* Quantize weights of query i: p [n_tile * LK_TILE] * scale, zero padded to whole pairs of
 * tiles. */
static void quantize_weights(const float *p, const float *scale, int n_tile, int i,
                             struct weights *out) {
    __m512 weight[STEP_ROWS / AMX_ROWS], max16 = _mm512_setzero_ps();
    int n = n_tile * LK_TILE / AMX_ROWS;
    for (int v = 0; v < n; v++) {
        weight[v] =
            _mm512_mul_ps(_mm512_loadu_ps(p + v * AMX_ROWS), _mm512_load_ps(scale + v * AMX_ROWS));
        max16 = _mm512_max_ps(max16, weight[v]);
    }
    if (n % 4) weight[n] = weight[n + 1] = _mm512_setzero_ps();
    float max = _mm512_reduce_max_ps(max16);
    out->step[i] = max * (1.0f / 65535);
    __m512 times = _mm512_set1_ps(max > LK_MIN_STEP * 65535 ? 65535 / max : 0);
    for (int pair = 0; pair < (n + 3) / 4; pair++) {
        const __m512 *w = weight + 4 * pair;
        __m512i x[4], low = _mm512_set1_epi16(255);
        LK_UNROLL
        for (int k = 0; k < 4; k++) x[k] = _mm512_cvtps_epi32(_mm512_mul_ps(w[k], times));
        __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]);
        uint8_t(*row)[AMX_BYTES] = out->byte[i / FINE_QUERIES][pair] + 2 * (i % FINE_QUERIES);
        _mm512_store_si512(row[0], order_bytes(_mm512_packus_epi16(_mm512_srli_epi16(a, 8),
                                                                   _mm512_srli_epi16(b, 8))));
        _mm512_store_si512(row[1], order_bytes(_mm512_packus_epi16(_mm512_and_si512(a, low),
                                                                   _mm512_and_si512(b, low))));
    }
}

/* tmm0 to 3 += rows of weights times 64 channels of an unpacked pair of tiles. */
LK_ALWAYS_INLINE void dot_pair_v(uint8_t (*weights)[AMX_BYTES],
                                 uint8_t (*cells)[AMX_ROWS * AMX_BYTES]) {
    load_left(weights, AMX_BYTES);
    load_right(cells[0], AMX_BYTES);
    __asm__ volatile("tdpbusd %%tmm5, %%tmm4, %%tmm0" : : : "memory");
    load_right2(cells[1], AMX_BYTES);
    __asm__ volatile("tdpbusd %%tmm6, %%tmm4, %%tmm1" : : : "memory");
    load_right(cells[2], AMX_BYTES);
    __asm__ volatile("tdpbusd %%tmm5, %%tmm4, %%tmm2" : : : "memory");
    load_right2(cells[3], AMX_BYTES);
    __asm__ volatile("tdpbusd %%tmm6, %%tmm4, %%tmm3" : : : "memory");
}

/* acc [n][d] += offset + step * sums, for channels [c0, c1). */
static void add_products_v(const int32_t *sum, const float *step, const float *offset, int n,
                           int c0, int c1, int d, float *acc) {
    for (int i = 0; i < n; i++)
        for (int c = c0; c < c1; c += AMX_ROWS) {
            const int32_t *at = sum + (c - c0) / AMX_ROWS * AMX_ROWS * AMX_ROWS;
            __mmask16 inside = c1 - c >= AMX_ROWS ? 0xffff : 0x00ff;
            __m512 high = _mm512_cvtepi32_ps(sums_of(at, 2 * i)),
                   low = _mm512_cvtepi32_ps(sums_of(at, 2 * i + 1));
            __m512 x = _mm512_add_ps(_mm512_maskz_loadu_ps(inside, acc + (size_t)i * d + c),
                                     _mm512_set1_ps(offset[i]));
            x = _mm512_fmadd_ps(_mm512_fmadd_ps(high, _mm512_set1_ps(256), low),
                                _mm512_set1_ps(step[i]), x);
            _mm512_mask_storeu_ps(acc + (size_t)i * d + c, inside, x);
        }
}

/* Tiles [t0, t0 + n_tile) of a run, at most STEP_ROWS rows, for n_q <= BATCH queries. */
static void accumulate_run(const struct lk_rows *rows, const struct lk_avx512_form *form, int t0,
                           int n_tile, const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(64) uint8_t cells[PAIRS][GROUPS][AMX_ROWS * AMX_BYTES];
    _Alignas(64) int32_t sum[GROUPS * AMX_ROWS * AMX_ROWS];
    _Alignas(64) float scale[STEP_ROWS];
    struct weights weights;
    float offset[BATCH];
    struct lk_tile tile[STEP_ROWS / LK_TILE];
    int d = rows->d_head, bits = rows->codec->bits, n_pair = (n_tile + 1) / 2;
    /* Pairs whose cells must be kept. With few queries only two, which leaves the first-level cache
     * to the rows. */
    int n_kept = n_q > FINE_QUERIES ? PAIRS : 2;
    for (int t = 0; t < n_tile; t++) {
        struct lk_avx512_params params;
        tile[t] = lk_rows_tile(rows, t0 + t);
        load_params(&params, &tile[t]);
        _mm512_store_ps(scale + t * LK_TILE, params.scale[0]);
        _mm512_store_ps(scale + t * LK_TILE + AMX_ROWS, params.scale[1]);
        for (int i = 0; params.mean && i < n_q; i++)
            add_mean(&params, d, sum_tile_f32(p + i * stride + t * LK_TILE, NULL),
                     acc + (size_t)i * d);
    }
    for (int i = 0; i < n_q; i++) {
        quantize_weights(p + i * stride, scale, n_tile, i, &weights);
        if (bits < 8) weights.step[i] *= 0.5f; /* their levels are doubled */
        offset[i] = 0;
        /* The middle of these cells is 127.5, but unpacking subtracted 128. */
        for (int t = 0; form->top == 255 && t < n_tile; t++) {
            __m512 both[2] = {_mm512_load_ps(scale + t * LK_TILE),
                              _mm512_load_ps(scale + t * LK_TILE + AMX_ROWS)};
            offset[i] += 0.5f * sum_tile_f32(p + i * stride + t * LK_TILE, both);
        }
    }
    for (int c0 = 0; c0 < d; c0 += AMX_BYTES) {
        int c1 = d - c0 < AMX_BYTES ? d : c0 + AMX_BYTES;
        zero_4_sums();
        /* Multiply for the first queries while later tiles are unpacked. */
        for (int t = 0; t < n_tile; t++) {
            if (c0 == 0) prefetch_tile(&tile[t]);
            lk_avx512vbmi_unpack.v(bits, d, tile[t].head, &form->levels, c0, c1,
                                   cells[t / 2 % n_kept][0] + t % 2 * (AMX_ROWS / 2) * AMX_BYTES,
                                   AMX_ROWS * AMX_BYTES);
            if (t % 2 && t > 1) dot_pair_v(weights.byte[0][t / 2 - 1], cells[(t / 2 - 1) % n_kept]);
        }
        for (int pair = n_tile / 2 ? n_tile / 2 - 1 : 0; pair < n_pair; pair++)
            dot_pair_v(weights.byte[0][pair], cells[pair % n_kept]);
        for (int i = 0;;) {
            store_sums(sum, 4);
            add_products_v(sum, weights.step + i, offset + i,
                           n_q - i < FINE_QUERIES ? n_q - i : FINE_QUERIES, c0, c1, d,
                           acc + (size_t)i * d);
            if ((i += FINE_QUERIES) >= n_q) break;
            zero_4_sums();
            for (int pair = 0; pair < n_pair; pair++)
                dot_pair_v(weights.byte[i / FINE_QUERIES][pair], cells[pair]);
        }
    }
}

void lk_avx512_amx_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                              const float *p, size_t stride, int n_q, float *acc) {
    struct lk_avx512_form form;
    (void)kernels;
    make_form(&form, &lk_avx512vbmi_unpack, rows->codec, LK_V);
    for (int i = 0; i < n_q; i += BATCH)
        for (int t = 0; t < lk_rows_n_tile(rows); t += STEP_ROWS / LK_TILE) {
            int n_tile = lk_rows_n_tile(rows) - t < STEP_ROWS / LK_TILE ? lk_rows_n_tile(rows) - t
                                                                        : STEP_ROWS / LK_TILE;
            accumulate_run(rows, &form, t, n_tile, p + i * stride + t * LK_TILE, stride,
                           n_q - i < BATCH ? n_q - i : BATCH, acc + (size_t)i * rows->d_head);
        }
}
