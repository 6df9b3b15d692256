#include "kern/avx512_few.h"

#include "kern/avx512_cells.h"
#include "kern/avx512_row.h"

/* How one width of codes is read; constants. */
struct form {
    int        bits;
    struct at  at;
    make_pair *make;
};

/* sum + products of unsigned bytes and four signed ones, the same for every row. */
LK_INLINE __m512i dpbusd_each(__m512i sum, __m512i bytes, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*(const int32_t *)four));
    return sum;
}

/* ---- K ---------------------------------------------------------------------------------------- */

/* Products of a tile with n queries, q8 [n][pad]. */
LK_INLINE struct sums multiply_k(struct form form, struct planes p, const struct lk_avx512_levels *levels, int d, const int8_t *q8, int pad, int n) {
    struct sums sum = no_sums();
    for (int quad = 0; quad < d / 4; quad += 2, q8 += 8)
        LK_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            struct pair cell = cells_of_k(form.bits, p, quad + odd, odd, form.at, levels, form.make);
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                sum.of[i][2 * odd] = dpbusd_each(sum.of[i][2 * odd], cell.a, q8 + i * pad + 4 * odd);
                sum.of[i][2 * odd + 1] = dpbusd_each(sum.of[i][2 * odd + 1], cell.b, q8 + i * pad + 4 * odd);
            }
        }
    return sum;
}

/* Of n <= LK_AVX512_QUERIES queries, a constant. */
LK_INLINE void score_tile(struct form form, const struct row_form *codes, const struct lk_tile *tile, const struct rows *rows,
                          const struct lk_queries *q, const float *middle, int i0, int n, float *s, size_t stride) {
    int d = tile->d_head, pad = lk_queries_pad(d);
    float offset[4] = {0};
    struct sums sum = multiply_k(form, planes_of(form.bits, d, tile->head), &codes->levels, d, q->q8 + (size_t)i0 * pad, pad, n);
    if (rows->mean) dot_mean(rows, q, i0, n, offset);
    LK_UNROLL
    for (int i = 0; i < n; i++)
        put_scores(in_order(sum.of[i], LK_OCTETS_02_13), rows, q->scale8[i0 + i], middle[i0 + i], offset[i], s + (i0 + i) * stride);
}

LK_INLINE void score(struct form form, const struct row_form *codes, const struct lk_rows *run, const struct lk_queries *q, float *s, size_t stride) {
    float middle[LK_AVX512_FEW];
    find_middle(codes, q, 0, q->n_q, middle);
    for (int t = 0; t < lk_rows_tiles(run); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(run, t);
        struct rows rows;
        int n = q->n_q, i = 0;
        read_rows(&rows, &tile);
        fetch(&tile);
        for (; i + 4 <= n; i += 4) score_tile(form, codes, &tile, &rows, q, middle, i, 4, s, stride);
        if (n - i == 3) score_tile(form, codes, &tile, &rows, q, middle, i, 3, s, stride);
        if (n - i == 2) score_tile(form, codes, &tile, &rows, q, middle, i, 2, s, stride);
        if (n - i == 1) score_tile(form, codes, &tile, &rows, q, middle, i, 1, s, stride);
    }
}

/* ---- V ---------------------------------------------------------------------------------------- */

/* Weights of a tile, n_q queries. */
struct weighed {
    _Alignas(64) uint8_t byte[LK_AVX512_FEW][2 * LK_TILE];
    float          step[LK_AVX512_FEW];
    struct lk_tile tile;
};

LK_INLINE void weigh(const struct lk_rows *run, int t, const float *p, size_t stride, int n, float *acc, struct weighed *out) {
    struct rows rows;
    int i = 0;
    out->tile = lk_rows_tile(run, t);
    read_rows(&rows, &out->tile);
    p += t * LK_TILE;
    for (; i + 4 <= n; i += 4) lk_avx512_weigh_few(p + i * stride, stride, 4, rows.scale, false, out->byte + i, out->step + i);
    if (n - i == 3) lk_avx512_weigh_few(p + i * stride, stride, 3, rows.scale, false, out->byte + i, out->step + i);
    if (n - i == 2) lk_avx512_weigh_few(p + i * stride, stride, 2, rows.scale, false, out->byte + i, out->step + i);
    if (n - i == 1) lk_avx512_weigh_few(p + i * stride, stride, 1, rows.scale, false, out->byte + i, out->step + i);
    for (int j = 0; rows.mean && j < n; j++) add_mean(&rows, run->d_head, sum_of(p + j * stride, NULL), acc + (size_t)j * run->d_head);
}

/* Channels [c, c + 16 groups) of n queries from i0 on; n and groups are constants. */
LK_INLINE void add_groups_of(struct form form, struct planes p, const struct lk_avx512_levels *levels, const struct weighed *w, int i0, int n, int groups,
                             int c, int d, float *acc) {
    struct sums sum = no_sums();
    LK_UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i x[2][LK_AVX512_QUERIES];
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            x[0][i] = four_bytes(w->byte[i0 + i] + lk_avx512_quad(2 * k, 1));
            x[1][i] = four_bytes(w->byte[i0 + i] + lk_avx512_quad(2 * k + 1, 1));
        }
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            int octet = c / 8 + 2 * g, next = octet + (octet + 1 < d / 8);
            struct pair cell = cells_of_v(form.bits, p, octet, next, k, form.at, levels, form.make);
            LK_UNROLL
            for (int i = 0; i < n; i++) sum.of[i][g] = dpbusd(dpbusd(sum.of[i][g], x[0][i], cell.a), x[1][i], cell.b);
        }
    }
    __mmask16 last = d - c >= groups * LK_AVX512_ROWS ? 0xffff : 0x00ff;
    LK_UNROLL
    for (int g = 0; g < groups; g++)
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            float *out = acc + (size_t)(i0 + i) * d + c + g * LK_AVX512_ROWS;
            __mmask16 inside = g == groups - 1 ? last : 0xffff;
            __m512 x = _mm512_maskz_loadu_ps(inside, out), step = _mm512_set1_ps(0.5f * w->step[i0 + i]); /* levels are doubled */
            _mm512_mask_storeu_ps(out, inside, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum.of[i][g]), step, x));
        }
}

LK_INLINE void add_some(struct form form, struct planes p, const struct lk_avx512_levels *levels, const struct weighed *w, int i0, int n, int d, float *acc) {
    int c = 0;
    if (n < 4) /* sums of four queries and four groups would not stay in registers */
        for (; c + 64 <= d; c += 64) add_groups_of(form, p, levels, w, i0, n, 4, c, d, acc);
    for (; c + 32 <= d; c += 32) add_groups_of(form, p, levels, w, i0, n, 2, c, d, acc);
    for (; c < d; c += 16) add_groups_of(form, p, levels, w, i0, n, 1, c, d, acc);
}

LK_INLINE void accumulate(struct form form, const struct row_form *codes, const struct lk_rows *run, const float *p, size_t stride, int n, float *acc) {
    struct weighed weighed[2];
    int d = run->d_head, n_tile = lk_rows_tiles(run);
    weigh(run, 0, p, stride, n, acc, &weighed[0]);
    for (int t = 0; t < n_tile; t++) {
        const struct weighed *w = &weighed[t % 2];
        if (t + 1 < n_tile) weigh(run, t + 1, p, stride, n, acc, &weighed[(t + 1) % 2]);
        fetch(&w->tile);
        struct planes planes = planes_of(form.bits, d, w->tile.head);
        int i = 0;
        for (; i + 4 <= n; i += 4) add_some(form, planes, &codes->levels, w, i, 4, d, acc);
        if (n - i == 3) add_some(form, planes, &codes->levels, w, i, 3, d, acc);
        if (n - i == 2) add_some(form, planes, &codes->levels, w, i, 2, d, acc);
        if (n - i == 1) add_some(form, planes, &codes->levels, w, i, 1, d, acc);
    }
}

/* ---- widths ----------------------------------------------------------------------------------- */

LK_INLINE struct form plain(int bits) { return (struct form){bits, plain_at(bits), plain_pair}; }
LK_INLINE struct form vbmi(int bits) { return (struct form){bits, vbmi_at(bits), vbmi_pair}; }

void lk_avx512_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s, size_t stride) {
    struct row_form codes;
    find_form(&codes, &lk_avx512_unpack, run->codec, LK_K);
    switch (run->codec->bits) {
    case 1: score(plain(1), &codes, run, q, s, stride); return;
    case 2: score(plain(2), &codes, run, q, s, stride); return;
    case 3: score(plain(3), &codes, run, q, s, stride); return;
    default: score(plain(4), &codes, run, q, s, stride);
    }
}

void lk_avx512_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q, float *acc) {
    struct row_form codes;
    find_form(&codes, &lk_avx512_unpack, run->codec, LK_V);
    switch (run->codec->bits) {
    case 1: accumulate(plain(1), &codes, run, p, stride, n_q, acc); return;
    case 2: accumulate(plain(2), &codes, run, p, stride, n_q, acc); return;
    case 3: accumulate(plain(3), &codes, run, p, stride, n_q, acc); return;
    default: accumulate(plain(4), &codes, run, p, stride, n_q, acc);
    }
}

VBMI void lk_avx512vbmi_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s, size_t stride) {
    struct row_form codes;
    find_form(&codes, &lk_avx512vbmi_unpack, run->codec, LK_K);
    switch (run->codec->bits) {
    case 1: score(vbmi(1), &codes, run, q, s, stride); return;
    case 2: score(vbmi(2), &codes, run, q, s, stride); return;
    case 3: score(vbmi(3), &codes, run, q, s, stride); return;
    default: score(vbmi(4), &codes, run, q, s, stride);
    }
}

VBMI void lk_avx512vbmi_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q, float *acc) {
    struct row_form codes;
    find_form(&codes, &lk_avx512vbmi_unpack, run->codec, LK_V);
    switch (run->codec->bits) {
    case 1: accumulate(vbmi(1), &codes, run, p, stride, n_q, acc); return;
    case 2: accumulate(vbmi(2), &codes, run, p, stride, n_q, acc); return;
    case 3: accumulate(vbmi(3), &codes, run, p, stride, n_q, acc); return;
    default: accumulate(vbmi(4), &codes, run, p, stride, n_q, acc);
    }
}
