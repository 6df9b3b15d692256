/* rot and int8 by AMX: 16 rows of queries, or of weights, times 64 bytes of 16 columns in one instruction. The cells that
 * AVX-512 unpacks already lie as its right operand wants them, four bytes of a column side by side.
 *
 *   K: left [16 queries][64 channels] signed, right [16 quads of channels][16 tokens] unsigned
 *   V: left [8 queries' two planes][64 tokens] unsigned, right [16 quads of tokens][16 channels] signed
 *
 * What multiplies stays in registers over a whole run of V: weights of a run have one step for each query. */
#include "kernels/avx512_amx.h"

#include "kernels/avx512_row.h"

enum {
    SIDE = 16,                      /* rows of a register */
    WIDE = 64,                      /* bytes of a row */
    PLANES = SIDE / 2,              /* queries of two planes */
    RUN = 256,                      /* rows of V that share a step */
    PAIRS = RUN / (2 * LK_TILE),    /* two tiles of V: 64 tokens */
    GROUPS = WIDE / LK_AVX512_ROWS, /* of V's channels at a time */
    BATCH = LK_AVX512_BATCH,
};

/* ---- registers: 0 to 3 sums, 4 the left operand, 5 and 6 the right one ---- */

LK_ALWAYS_INLINE void load_left(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void load_right(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm5" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void load_other(const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm6" : : "r"(p), "r"(stride) : "memory");
}
LK_ALWAYS_INLINE void clear_two(void) {
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1" : : : "memory");
}
LK_ALWAYS_INLINE void clear_four(void) {
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3"
                     :
                     :
                     : "memory");
}
LK_ALWAYS_INLINE void store_sums(int32_t *sum, int n) {
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilestored %%tmm1, (%2,%1,1)"
                     :
                     : "r"(sum), "r"((size_t)WIDE), "r"(sum + SIDE * SIDE)
                     : "memory");
    if (n == 4)
        __asm__ volatile("tilestored %%tmm2, (%0,%1,1)\n\ttilestored %%tmm3, (%2,%1,1)"
                         :
                         : "r"(sum + 2 * SIDE * SIDE), "r"((size_t)WIDE), "r"(sum + 3 * SIDE * SIDE)
                         : "memory");
}

/* Registers of 16 rows of 64 bytes, all of them. */
void lk_avx512_amx_enter(struct lk_kernels_state *before) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = WIDE;
        shapes.rows[i] = SIDE;
    }
    __asm__ volatile("sttilecfg %0" : "=m"(before->tiles));
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

void lk_avx512_amx_leave(const struct lk_kernels_state *before) {
    __asm__ volatile("ldtilecfg %0" : : "m"(before->tiles));
}

/* ---- K ---- */

/* The left operand for queries of one codec: rows of all queries, or of all their planes. */
struct left {
    const int8_t *row; /* [n_row][stride] */
    size_t stride;
    int n_row;
    _Alignas(64) int8_t last[LK_MAX_D_HEAD / WIDE][SIDE]
                            [WIDE]; /* the last rows, which do not fill a register, and zeros */
};

static void copy_last(struct left *left, int d) {
    int first = left->n_row / SIDE * SIDE, n = left->n_row - first;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < d; c += WIDE) {
            int m = d - c < WIDE ? d - c : WIDE;
            memset(left->last[c / WIDE][i] + m, 0, WIDE - m);
            memcpy(left->last[c / WIDE][i], left->row + (first + i) * left->stride + c, m);
        }
}

/* sum [2][SIDE][SIDE]: rows [i, i + SIDE) times tokens 0..15 and 16..31 of unpacked cells, which are zero behind the last
 * channel. What lies behind the last row's channels is read, and meets zeros. */
static void multiply_k(const struct left *left, int i, int d, const uint8_t *cells, int32_t *sum) {
    bool whole = left->n_row - i >= SIDE;
    clear_two();
    for (int c = 0; c < d; c += WIDE) {
        if (whole)
            load_left(left->row + i * left->stride + c, left->stride);
        else
            load_left(left->last[c / WIDE], WIDE);
        load_right(cells + c * LK_TILE, 2 * WIDE);
        __asm__ volatile("tdpbsud %%tmm5, %%tmm4, %%tmm0" : : : "memory");
        load_other(cells + c * LK_TILE + WIDE, 2 * WIDE);
        __asm__ volatile("tdpbsud %%tmm6, %%tmm4, %%tmm1" : : : "memory");
    }
    store_sums(sum, 2);
}

/* A tile of K on its way: what is stored is not read before much else was done, because it has to reach the cache first. */
struct passing {
    _Alignas(64) uint8_t room[LK_AVX512_CELLS + LK_TILE * WIDE];
    const uint8_t *cells;
    enum lk_avx512_order order;
    struct rows rows;
    float offset[BATCH + SIDE];
    float *s;
};

/* Sums of a tile for rows i, i + 1, ... */
struct product {
    _Alignas(64) int32_t sum[2 * SIDE * SIDE];
    const struct passing *tile;
    int i;
};

LK_ALWAYS_INLINE __m512i sums_of(const int32_t *sum, int row) {
    return _mm512_load_si512(sum + row * SIDE);
}

/* 256 * high + low */
LK_ALWAYS_INLINE __m512i join_planes(const int32_t *sum, int i) {
    return _mm512_add_epi32(_mm512_slli_epi32(sums_of(sum, 2 * i), 8), sums_of(sum, 2 * i + 1));
}

static void finish_k(const struct product *p, const struct row_form *form,
                     const struct lk_queries *q, const float *middle, size_t stride) {
    int i0 = form->fine ? p->i / 2 : p->i, most = form->fine ? PLANES : SIDE,
        n = q->n_q - i0 < most ? q->n_q - i0 : most;
    const float *factor = form->fine ? q->scale16 : q->scale8;
    const int32_t *other = p->sum + SIDE * SIDE;
    for (int i = 0; i < n; i++) {
        struct tokens dot;
        if (form->fine)
            dot = order_tokens(join_planes(p->sum, i), join_planes(other, i), p->tile->order);
        else
            dot = order_tokens(sums_of(p->sum, i), sums_of(other, i), p->tile->order);
        put_scores(dot, &p->tile->rows, factor[i0 + i], middle[i0 + i], p->tile->offset[i0 + i],
                   p->tile->s + (i0 + i) * stride);
    }
}

/* Tile t of the run; behind its last channel are zeros. */
static void take_tile(struct passing *to, const struct lk_rows *run, int t,
                      const struct row_form *form, const struct lk_queries *q, float *s) {
    struct lk_tile tile = lk_rows_tile(run, t);
    int d = run->d_head, bits = run->codec->bits;
    read_rows(&to->rows, &tile);
    fetch(&tile);
    to->cells = lk_avx512vbmi_unpack.k(bits, d, tile.head, &form->levels, to->room, &to->order);
    if (bits == 8 && d % WIDE)
        to->cells = memcpy(to->room, to->cells, d * LK_TILE); /* behind its own are scales */
    find_offset(&to->rows, q, 0, q->n_q, to->offset);
    to->s = s + t * LK_TILE;
}

/* Of n_q <= BATCH queries. */
static void score_batch(const struct lk_rows *run, const struct lk_queries *q, float *s,
                        size_t stride) {
    float middle[BATCH];
    int d = run->d_head, n_tile = lk_rows_tiles(run), n_product = 0;
    struct passing tile[3]; /* finished, multiplied and unpacked */
    struct product product[2];
    struct row_form form;
    struct left left;
    find_form(&form, &lk_avx512vbmi_unpack, run->codec, LK_K);
    find_middle(&form, q, 0, q->n_q, middle);
    left.row = form.fine ? q->planes : q->q8;
    left.n_row = form.fine ? 2 * q->n_q : q->n_q;
    left.stride = lk_queries_pad(d);
    copy_last(&left, d);
    for (int k = 0; d % WIDE && k < 3; k++)
        memset(tile[k].room + d * LK_TILE, 0, (WIDE - d % WIDE) * LK_TILE);
    take_tile(&tile[0], run, 0, &form, q, s);
    for (int t = 0, k = 0; t < n_tile; t++, k = k < 2 ? k + 1 : 0) {
        if (t + 1 < n_tile) take_tile(&tile[k < 2 ? k + 1 : 0], run, t + 1, &form, q, s);
        for (int i = 0; i < left.n_row; i += SIDE, n_product++) {
            struct product *p = &product[n_product % 2];
            p->tile = &tile[k];
            p->i = i;
            multiply_k(&left, i, d, tile[k].cells, p->sum);
            if (n_product) finish_k(&product[(n_product + 1) % 2], &form, q, middle, stride);
        }
    }
    finish_k(&product[(n_product + 1) % 2], &form, q, middle, stride);
}

void lk_avx512_amx_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                         size_t stride) {
    for (int i = 0; i < q->n_q; i += BATCH) {
        struct lk_queries some = lk_queries_some(q, i, q->n_q - i < BATCH ? q->n_q - i : BATCH);
        score_batch(run, &some, s + i * stride, stride);
    }
}

/* ---- V ---- */

/* Weights of a run, times the tokens' scales, ~ step * (256 high + low): rows 2 i and 2 i + 1 of query i. Sixteen bits,
 * because with eight the many small weights of a run would all be rounded to nothing. */
struct weights {
    _Alignas(64) uint8_t byte[BATCH / PLANES][PAIRS][SIDE][WIDE];
    float step[BATCH];
};

/* Bytes of 64 tokens, from four vectors whose bytes were packed in lanes. */
LK_ALWAYS_INLINE __m512i in_turn(__m512i packed) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed);
}

/* Weights of query i: p [n_tile * LK_TILE] times scale, and zeros up to whole pairs. */
static void weigh(const float *p, const float *scale, int n_tile, int i, struct weights *out) {
    const float least =
        1e-30f; /* below it there is nothing to add, and its inverse would overflow */
    __m512 weight[RUN / SIDE], most = _mm512_setzero_ps();
    int n = n_tile * LK_TILE / SIDE;
    for (int v = 0; v < n; v++) {
        weight[v] = _mm512_mul_ps(_mm512_loadu_ps(p + v * SIDE), _mm512_load_ps(scale + v * SIDE));
        most = _mm512_max_ps(most, weight[v]);
    }
    if (n % 4) weight[n] = weight[n + 1] = _mm512_setzero_ps();
    float max = _mm512_reduce_max_ps(most);
    out->step[i] = max * (1.0f / 65535);
    __m512 times = _mm512_set1_ps(max > least * 65535 ? 65535 / max : 0);
    for (int pair = 0; pair < (n + 3) / 4; pair++) {
        const __m512 *w = weight + 4 * pair;
        __m512i x[4], low = _mm512_set1_epi16(255);
        LK_UNROLL
        for (int k = 0; k < 4; k++) x[k] = _mm512_cvtps_epi32(_mm512_mul_ps(w[k], times));
        __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]);
        uint8_t(*row)[WIDE] = out->byte[i / PLANES][pair] + 2 * (i % PLANES);
        _mm512_store_si512(
            row[0], in_turn(_mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8))));
        _mm512_store_si512(row[1], in_turn(_mm512_packus_epi16(_mm512_and_si512(a, low),
                                                               _mm512_and_si512(b, low))));
    }
}

/* registers 0 to 3 += rows of weights times 64 channels of an unpacked pair. */
LK_ALWAYS_INLINE void multiply_v(uint8_t (*weights)[WIDE], uint8_t (*cells)[SIDE * WIDE]) {
    load_left(weights, WIDE);
    load_right(cells[0], WIDE);
    __asm__ volatile("tdpbusd %%tmm5, %%tmm4, %%tmm0" : : : "memory");
    load_other(cells[1], WIDE);
    __asm__ volatile("tdpbusd %%tmm6, %%tmm4, %%tmm1" : : : "memory");
    load_right(cells[2], WIDE);
    __asm__ volatile("tdpbusd %%tmm5, %%tmm4, %%tmm2" : : : "memory");
    load_other(cells[3], WIDE);
    __asm__ volatile("tdpbusd %%tmm6, %%tmm4, %%tmm3" : : : "memory");
}

/* acc [n][d] += offset + step times sums, for channels [c0, c1). */
static void finish_v(const int32_t *sum, const float *step, const float *offset, int n, int c0,
                     int c1, int d, float *acc) {
    for (int i = 0; i < n; i++)
        for (int c = c0; c < c1; c += SIDE) {
            const int32_t *at = sum + (c - c0) / SIDE * SIDE * SIDE;
            __mmask16 inside = c1 - c >= SIDE ? 0xffff : 0x00ff;
            __m512 high = _mm512_cvtepi32_ps(sums_of(at, 2 * i)),
                   low = _mm512_cvtepi32_ps(sums_of(at, 2 * i + 1));
            __m512 x = _mm512_add_ps(_mm512_maskz_loadu_ps(inside, acc + (size_t)i * d + c),
                                     _mm512_set1_ps(offset[i]));
            x = _mm512_fmadd_ps(_mm512_fmadd_ps(high, _mm512_set1_ps(256), low),
                                _mm512_set1_ps(step[i]), x);
            _mm512_mask_storeu_ps(acc + (size_t)i * d + c, inside, x);
        }
}

/* Tiles [t0, t0 + n_tile) of a run, at most RUN rows, and n_q <= BATCH queries. */
static void accumulate_run(const struct lk_rows *run, const struct row_form *form, int t0,
                           int n_tile, const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(64) uint8_t cells[PAIRS][GROUPS][SIDE * WIDE];
    _Alignas(64) int32_t sum[GROUPS * SIDE * SIDE];
    _Alignas(64) float scale[RUN];
    struct weights weights;
    float offset[BATCH];
    struct lk_tile tile[RUN / LK_TILE];
    int d = run->d_head, bits = run->codec->bits, n_pair = (n_tile + 1) / 2;
    int held =
        n_q > PLANES
            ? PAIRS
            : 2; /* pairs whose cells are still wanted: few leave the first cache to the rows */
    for (int t = 0; t < n_tile; t++) {
        struct rows rows;
        tile[t] = lk_rows_tile(run, t0 + t);
        read_rows(&rows, &tile[t]);
        _mm512_store_ps(scale + t * LK_TILE, rows.scale[0]);
        _mm512_store_ps(scale + t * LK_TILE + SIDE, rows.scale[1]);
        for (int i = 0; rows.mean && i < n_q; i++)
            add_mean(&rows, d, sum_of(p + i * stride + t * LK_TILE, NULL), acc + (size_t)i * d);
    }
    for (int i = 0; i < n_q; i++) {
        weigh(p + i * stride, scale, n_tile, i, &weights);
        if (bits < 8) weights.step[i] *= 0.5f; /* their levels are doubled */
        offset[i] = 0;
        for (int t = 0; form->top == 255 && t < n_tile;
             t++) { /* 128 was taken off cells whose middle is 127.5 */
            __m512 both[2] = {_mm512_load_ps(scale + t * LK_TILE),
                              _mm512_load_ps(scale + t * LK_TILE + SIDE)};
            offset[i] += 0.5f * sum_of(p + i * stride + t * LK_TILE, both);
        }
    }
    for (int c0 = 0; c0 < d; c0 += WIDE) {
        int c1 = d - c0 < WIDE ? d : c0 + WIDE;
        clear_four();
        for (int t = 0; t < n_tile;
             t++) { /* the first queries' products while later tiles are unpacked */
            if (c0 == 0) fetch(&tile[t]);
            lk_avx512vbmi_unpack.v(bits, d, tile[t].head, &form->levels, c0, c1,
                                   cells[t / 2 % held][0] + t % 2 * (SIDE / 2) * WIDE, SIDE * WIDE);
            if (t % 2 && t > 1) multiply_v(weights.byte[0][t / 2 - 1], cells[(t / 2 - 1) % held]);
        }
        for (int pair = n_tile / 2 ? n_tile / 2 - 1 : 0; pair < n_pair; pair++)
            multiply_v(weights.byte[0][pair], cells[pair % held]);
        for (int i = 0;;) {
            store_sums(sum, 4);
            finish_v(sum, weights.step + i, offset + i, n_q - i < PLANES ? n_q - i : PLANES, c0, c1,
                     d, acc + (size_t)i * d);
            if ((i += PLANES) >= n_q) break;
            clear_four();
            for (int pair = 0; pair < n_pair; pair++)
                multiply_v(weights.byte[i / PLANES][pair], cells[pair]);
        }
    }
}

void lk_avx512_amx_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                              float *acc) {
    struct row_form form;
    find_form(&form, &lk_avx512vbmi_unpack, run->codec, LK_V);
    for (int i = 0; i < n_q; i += BATCH)
        for (int t = 0; t < lk_rows_tiles(run); t += RUN / LK_TILE) {
            int n_tile =
                lk_rows_tiles(run) - t < RUN / LK_TILE ? lk_rows_tiles(run) - t : RUN / LK_TILE;
            accumulate_run(run, &form, t, n_tile, p + i * stride + t * LK_TILE, stride,
                           n_q - i < BATCH ? n_q - i : BATCH, acc + (size_t)i * run->d_head);
        }
}
