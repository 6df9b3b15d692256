#include "kernels/avx512_row.h"

/* Queries [i0, i0 + n); middle, offset: of these. */
LK_ALWAYS_INLINE void score(const struct row_form *form, const struct rows *rows,
                            const uint8_t *cells, enum lk_avx512_order order,
                            const struct lk_queries *q, const float *middle, const float *offset,
                            int i0, int n, float *s, size_t stride) {
    int d = q->d_head, pad = lk_queries_pad(d);
    const float *factor = (form->fine ? q->scale16 : q->scale8) + i0;
    struct sums sum;
    if (form->fine)
        sum = dot_k_fine(cells, d, q->planes + (size_t)i0 * 2 * pad, pad, n);
    else
        sum = dot_k(no_sums(), cells, d, q->q8 + (size_t)i0 * pad, pad, n);
    LK_UNROLL
    for (int i = 0; i < n; i++)
        put_scores(in_order(sum.of[i], order), rows, factor[i], middle[i], offset[i],
                   s + (i0 + i) * stride);
}

/* Of n_q <= LK_AVX512_BATCH queries. */
static void score_batch(const struct lk_avx512_unpack *unpack, const struct row_form *form,
                        const struct lk_rows *run, const struct lk_queries *q, float *s,
                        size_t stride) {
    _Alignas(64) uint8_t room[LK_AVX512_CELLS];
    float middle[LK_AVX512_BATCH], offset[LK_AVX512_BATCH];
    find_middle(form, q, 0, q->n_q, middle);
    for (int t = 0; t < lk_rows_tiles(run); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(run, t);
        enum lk_avx512_order order;
        struct rows rows;
        int n = q->n_q, i = 0;
        read_rows(&rows, &tile);
        fetch(&tile);
        const uint8_t *cells =
            unpack->k(tile.codec->bits, tile.d_head, tile.head, &form->levels, room, &order);
        find_offset(&rows, q, 0, n, offset);
        for (; i + 4 <= n; i += 4)
            score(form, &rows, cells, order, q, middle + i, offset + i, i, 4, s, stride);
        if (n - i == 3)
            score(form, &rows, cells, order, q, middle + i, offset + i, i, 3, s, stride);
        if (n - i == 2)
            score(form, &rows, cells, order, q, middle + i, offset + i, i, 2, s, stride);
        if (n - i == 1)
            score(form, &rows, cells, order, q, middle + i, offset + i, i, 1, s, stride);
    }
}

void lk_avx512_row_score(const struct lk_avx512_unpack *unpack, const struct lk_rows *run,
                         const struct lk_queries *q, float *s, size_t stride) {
    struct row_form form;
    find_form(&form, unpack, run->codec, LK_K);
    for (int i = 0; i < q->n_q; i += LK_AVX512_BATCH) {
        struct lk_queries some =
            lk_queries_some(q, i, q->n_q - i < LK_AVX512_BATCH ? q->n_q - i : LK_AVX512_BATCH);
        score_batch(unpack, &form, run, &some, s + i * stride, stride);
    }
}

static void accumulate_tile(const struct lk_avx512_unpack *unpack, const struct row_form *form,
                            const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            float *acc) {
    _Alignas(64) uint8_t cells[LK_AVX512_CELLS];
    struct rows rows;
    struct lk_avx512_weights weights;
    int d = tile->d_head, bits = tile->codec->bits;
    read_rows(&rows, tile);
    fetch(tile);
    unpack->v(bits, d, tile->head, &form->levels, 0, d, cells, LK_AVX512_ROWS * LK_TILE);
    float unit = bits == 8 ? 1 : 0.5f; /* levels of fewer bits are doubled */
    bool fine = lk_avx512_fine(bits),
         off = form->top == 255; /* 128 was taken off cells whose middle is 127.5 */
    for (int i = 0; i < n_q;
         i += LK_AVX512_BATCH, p += LK_AVX512_BATCH * stride, acc += (size_t)LK_AVX512_BATCH * d) {
        int n = n_q - i < LK_AVX512_BATCH ? n_q - i : LK_AVX512_BATCH;
        float offset[LK_AVX512_BATCH];
        lk_avx512_weigh(p, stride, n, rows.scale, fine, &weights);
        for (int j = 0; j < n; j++) {
            weights.step[j] *= unit;
            if (off) offset[j] = 0.5f * sum_of(p + j * stride, rows.scale);
            if (rows.mean) add_mean(&rows, d, sum_of(p + j * stride, NULL), acc + (size_t)j * d);
        }
        if (!fine)
            add_queries(cells, &weights, false, NULL, n, 0, d, d, acc);
        else if (off)
            add_queries(cells, &weights, true, offset, n, 0, d, d, acc);
        else
            add_queries(cells, &weights, true, NULL, n, 0, d, d, acc);
    }
}

void lk_avx512_row_accumulate(const struct lk_avx512_unpack *unpack, const struct lk_rows *run,
                              const float *p, size_t stride, int n_q, float *acc) {
    struct row_form form;
    find_form(&form, unpack, run->codec, LK_V);
    for (int t = 0; t < lk_rows_tiles(run); t++) {
        struct lk_tile tile = lk_rows_tile(run, t);
        accumulate_tile(unpack, &form, &tile, p + t * LK_TILE, stride, n_q, acc);
    }
}
