#include "kernels/avx512_few.h"

#include "kernels/avx512_cells.h"
#include "kernels/avx512_row.h"

enum { BESIDE = 4 }; /* tiles of V whose weights are made at once */

/* How one width of codes is read; constants. */
struct form {
    int bits;
    struct at at;
    make_pair *make;
};

/* sum + products of unsigned bytes and four signed ones, the same for every row. */
LK_ALWAYS_INLINE __m512i dpbusd_each(__m512i sum, __m512i bytes, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*(const int32_t *)four));
    return sum;
}

/* ---- K ---- */

/* Products of a tile with n queries, q8 [n][pad]. */
LK_ALWAYS_INLINE struct sums multiply_k(struct form form, struct planes p,
                                        const struct lk_avx512_levels *levels, int d,
                                        const int8_t *q8, int pad, int n) {
    struct sums sum = no_sums();
    const int8_t *end = q8 + d;
    for (; q8 < end; q8 += 8, p.four += 128, p.two += 64, p.one += 32) LK_UNROLL
    for (int odd = 0; odd < 2; odd++) {
        struct pair cell = cells_of_k(form.bits, p, odd, odd, form.at, levels, form.make);
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            sum.of[i][2 * odd] = dpbusd_each(sum.of[i][2 * odd], cell.a, q8 + i * pad + 4 * odd);
            sum.of[i][2 * odd + 1] =
                dpbusd_each(sum.of[i][2 * odd + 1], cell.b, q8 + i * pad + 4 * odd);
        }
    }
    return sum;
}

/* Queries [i0, i0 + n); n is a constant. */
LK_ALWAYS_INLINE void score(struct form form, const struct row_form *codes,
                            const struct lk_rows *run, const struct lk_queries *q, int i0, int n,
                            float *s, size_t stride) {
    float middle[LK_AVX512_QUERIES], offset[LK_AVX512_QUERIES] = {0};
    int d = run->d_head, pad = lk_queries_pad(d);
    find_middle(codes, q, i0, n, middle);
    s += i0 * stride;
    for (int t = 0; t < lk_rows_tiles(run); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(run, t);
        struct rows rows;
        read_rows(&rows, &tile);
        fetch(&tile);
        struct sums sum = multiply_k(form, planes_of(form.bits, d, tile.head), &codes->levels, d,
                                     q->q8 + (size_t)i0 * pad, pad, n);
        if (rows.mean) dot_mean(&rows, q, i0, n, offset);
        LK_UNROLL
        for (int i = 0; i < n; i++)
            put_scores(in_order(sum.of[i], LK_OCTETS_02_13), &rows, q->scale8[i0 + i], middle[i],
                       offset[i], s + i * stride);
    }
}

LK_ALWAYS_INLINE void score_all(struct form form, const struct row_form *codes,
                                const struct lk_rows *run, const struct lk_queries *q, float *s,
                                size_t stride) {
    int i = 0, n = q->n_q;
    for (; n - i >= 4; i += 4) score(form, codes, run, q, i, 4, s, stride);
    if (n - i == 3) score(form, codes, run, q, i, 3, s, stride);
    if (n - i == 2) score(form, codes, run, q, i, 2, s, stride);
    if (n - i == 1) score(form, codes, run, q, i, 1, s, stride);
}

/* ---- V ---- */

/* A tile and its weights. */
struct weighed {
    _Alignas(64) uint8_t byte[LK_AVX512_QUERIES][2 * LK_TILE];
    float step[LK_AVX512_QUERIES];
    struct lk_tile tile;
};

LK_ALWAYS_INLINE void weigh(const struct lk_rows *run, int t, const float *p, size_t stride, int n,
                            float *acc, struct weighed *out) {
    struct rows rows;
    out->tile = lk_rows_tile(run, t);
    read_rows(&rows, &out->tile);
    p += t * LK_TILE;
    lk_avx512_weigh_few(p, stride, n, rows.scale, false, out->byte, out->step);
    for (int i = 0; rows.mean && i < n; i++)
        add_mean(&rows, run->d_head, sum_of(p + i * stride, NULL), acc + (size_t)i * run->d_head);
}

/* Channels [c, c + 16 groups) of n queries; n and groups are constants. */
LK_ALWAYS_INLINE void add_groups_of(struct form form, struct planes p,
                                    const struct lk_avx512_levels *levels, const struct weighed *w,
                                    int n, int groups, int c, int d, float *acc) {
    struct sums sum = no_sums();
    bool whole = groups > 1 || d - c >= LK_AVX512_ROWS;
    p.four += c * 16, p.two += c * 8, p.one += c * 4;
    LK_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint8_t *byte = w->byte[0];
        __m512i x[2][LK_AVX512_QUERIES];
        /* else gcc reads the weights of all tokens first, and has no registers for them */
        __asm__ volatile("" : "+r"(byte));
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            x[0][i] = four_bytes(byte + i * 2 * LK_TILE + lk_avx512_quad(2 * k, 1));
            x[1][i] = four_bytes(byte + i * 2 * LK_TILE + lk_avx512_quad(2 * k + 1, 1));
        }
        LK_UNROLL
        for (int g = 0; g < groups; g++) {
            struct pair cell =
                cells_of_v(form.bits, p, 2 * g, 2 * g + whole, k, form.at, levels, form.make);
            LK_UNROLL
            for (int i = 0; i < n; i++)
                sum.of[i][g] = dpbusd(dpbusd(sum.of[i][g], x[0][i], cell.a), x[1][i], cell.b);
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

/* Of n queries, a constant. To make weights takes long for few instructions: those of several tiles are made side by side. */
LK_ALWAYS_INLINE void accumulate(struct form form, const struct row_form *codes,
                                 const struct lk_rows *run, const float *p, size_t stride, int n,
                                 float *acc) {
    struct weighed weighed[BESIDE];
    int d = run->d_head, n_tile = lk_rows_tiles(run);
    for (int t = 0; t < n_tile; t++) {
        for (int i = t; t % BESIDE == 0 && i < n_tile && i < t + BESIDE; i++)
            weigh(run, i, p, stride, n, acc, &weighed[i - t]);
        const struct weighed *w = &weighed[t % BESIDE];
        fetch(&w->tile);
        struct planes planes = planes_of(form.bits, d, w->tile.head);
        int c = 0;
        if (n < 4) /* sums of four queries and four groups would not stay in registers */
            for (; c + 64 <= d; c += 64)
                add_groups_of(form, planes, &codes->levels, w, n, 4, c, d, acc);
        for (; c + 32 <= d; c += 32)
            add_groups_of(form, planes, &codes->levels, w, n, 2, c, d, acc);
        for (; c < d; c += 16) add_groups_of(form, planes, &codes->levels, w, n, 1, c, d, acc);
    }
}

LK_ALWAYS_INLINE void accumulate_all(struct form form, const struct row_form *codes,
                                     const struct lk_rows *run, const float *p, size_t stride,
                                     int n, float *acc) {
    for (; n >= 4; n -= 4, p += 4 * stride, acc += (size_t)4 * run->d_head)
        accumulate(form, codes, run, p, stride, 4, acc);
    if (n == 3) accumulate(form, codes, run, p, stride, 3, acc);
    if (n == 2) accumulate(form, codes, run, p, stride, 2, acc);
    if (n == 1) accumulate(form, codes, run, p, stride, 1, acc);
}

/* ---- widths ---- */

LK_ALWAYS_INLINE struct form plain(int bits) {
    return (struct form){bits, plain_at(bits), plain_pair};
}
LK_ALWAYS_INLINE struct form vbmi(int bits) {
    return (struct form){bits, vbmi_at(bits), vbmi_pair};
}

void lk_avx512_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                         size_t stride) {
    struct row_form codes;
    find_form(&codes, &lk_avx512_unpack, run->codec, LK_K);
    switch (run->codec->bits) {
    case 1: score_all(plain(1), &codes, run, q, s, stride); return;
    case 2: score_all(plain(2), &codes, run, q, s, stride); return;
    case 3: score_all(plain(3), &codes, run, q, s, stride); return;
    default: score_all(plain(4), &codes, run, q, s, stride);
    }
}

void lk_avx512_few_accumulate(const struct lk_rows *run, const float *p, size_t stride, int n_q,
                              float *acc) {
    struct row_form codes;
    find_form(&codes, &lk_avx512_unpack, run->codec, LK_V);
    switch (run->codec->bits) {
    case 1: accumulate_all(plain(1), &codes, run, p, stride, n_q, acc); return;
    case 2: accumulate_all(plain(2), &codes, run, p, stride, n_q, acc); return;
    case 3: accumulate_all(plain(3), &codes, run, p, stride, n_q, acc); return;
    default: accumulate_all(plain(4), &codes, run, p, stride, n_q, acc);
    }
}

VBMI void lk_avx512vbmi_few_score(const struct lk_rows *run, const struct lk_queries *q, float *s,
                                  size_t stride) {
    struct row_form codes;
    find_form(&codes, &lk_avx512vbmi_unpack, run->codec, LK_K);
    switch (run->codec->bits) {
    case 1: score_all(vbmi(1), &codes, run, q, s, stride); return;
    case 2: score_all(vbmi(2), &codes, run, q, s, stride); return;
    case 3: score_all(vbmi(3), &codes, run, q, s, stride); return;
    default: score_all(vbmi(4), &codes, run, q, s, stride);
    }
}

VBMI void lk_avx512vbmi_few_accumulate(const struct lk_rows *run, const float *p, size_t stride,
                                       int n_q, float *acc) {
    struct row_form codes;
    find_form(&codes, &lk_avx512vbmi_unpack, run->codec, LK_V);
    switch (run->codec->bits) {
    case 1: accumulate_all(vbmi(1), &codes, run, p, stride, n_q, acc); return;
    case 2: accumulate_all(vbmi(2), &codes, run, p, stride, n_q, acc); return;
    case 3: accumulate_all(vbmi(3), &codes, run, p, stride, n_q, acc); return;
    default: accumulate_all(vbmi(4), &codes, run, p, stride, n_q, acc);
    }
}
