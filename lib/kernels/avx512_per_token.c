/* rot and int8 for AVX-512 and AVX512-VBMI: a tile is unpacked to bytes, which up to
 * LK_AVX512_BATCH queries share. */
#include "kernels/avx512_per_token.h"

/* A tile of K unpacked to bytes. middle, offset: of each query */
struct tile_bytes {
    const uint8_t *cells;
    enum lk_avx512_order order;
    struct lk_avx512_params params;
    const float *middle;
    float offset[LK_AVX512_BATCH];
};

/* Scores of queries [i0, i0 + n); n is a constant after inlining. */
LK_ALWAYS_INLINE void score_queries(const struct lk_avx512_form *form,
                                    const struct tile_bytes *tile, const struct lk_queries *q,
                                    int i0, int n, float *s, size_t stride) {
    int d = q->d_head, pad = lk_queries_pad(d);
    const float *factor = (form->fine ? q->scale16 : q->scale8) + i0;
    const float *middle = tile->middle + i0, *offset = tile->offset + i0;
    struct query_sums sum;
    if (form->fine)
        sum = dot_k_fine(tile->cells, d, q->planes + (size_t)i0 * 2 * pad, pad, n);
    else
        sum = dot_k(zero_sums(), tile->cells, d, q->q8 + (size_t)i0 * pad, pad, n);
    LK_UNROLL
    for (int i = 0; i < n; i++)
        store_scores(join_sums(sum.of[i], tile->order), &tile->params, factor[i], middle[i],
                     offset[i], s + (i0 + i) * stride);
}

/* n_q <= LK_AVX512_BATCH queries. */
static void score_batch(const struct lk_avx512_unpack *unpack, const struct lk_avx512_form *form,
                        const struct lk_rows *rows, const struct lk_queries *q, float *s,
                        size_t stride) {
    _Alignas(64) uint8_t buf[LK_AVX512_CELLS];
    float middle[LK_AVX512_BATCH];
    struct tile_bytes bytes;
    bytes.middle = middle;
    dot_middle(form, q, 0, q->n_q, middle);
    for (int t = 0; t < lk_rows_n_tile(rows); t++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, t);
        int n = q->n_q, i = 0;
        load_params(&bytes.params, &tile);
        prefetch_tile(&tile);
        bytes.cells =
            unpack->k(tile.codec->bits, tile.d_head, tile.head, &form->levels, buf, &bytes.order);
        dot_mean_any(&bytes.params, q, 0, n, bytes.offset);
        for (; i + 4 <= n; i += 4) score_queries(form, &bytes, q, i, 4, s, stride);
        if (n - i == 3) score_queries(form, &bytes, q, i, 3, s, stride);
        if (n - i == 2) score_queries(form, &bytes, q, i, 2, s, stride);
        if (n - i == 1) score_queries(form, &bytes, q, i, 1, s, stride);
    }
}

void lk_avx512_per_token_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                               const struct lk_queries *q, float *s, size_t stride) {
    struct lk_avx512_form form;
    make_form(&form, kernels->unpack, rows->codec, LK_K);
    for (int i = 0; i < q->n_q; i += LK_AVX512_BATCH) {
        struct lk_queries some =
            lk_queries_slice(q, i, q->n_q - i < LK_AVX512_BATCH ? q->n_q - i : LK_AVX512_BATCH);
        score_batch(kernels->unpack, &form, rows, &some, s + i * stride, stride);
    }
}

static void accumulate_tile(const struct lk_avx512_unpack *unpack,
                            const struct lk_avx512_form *form, const struct lk_tile *tile,
                            const float *p, size_t stride, int n_q, float *acc) {
    _Alignas(64) uint8_t cells[LK_AVX512_CELLS];
    struct lk_avx512_params params;
    struct lk_avx512_weights weights;
    int d = tile->d_head, bits = tile->codec->bits;
    load_params(&params, tile);
    prefetch_tile(tile);
    unpack->v(bits, d, tile->head, &form->levels, 0, d, cells, LK_AVX512_ROWS * LK_TILE);
    float unit = bits == 8 ? 1 : 0.5f; /* levels of fewer bits are doubled */
    bool fine = lk_avx512_needs_16bit(bits);
    /* The middle of these cells is 127.5, but unpacking subtracted 128. */
    bool off = form->top == 255;
    for (int i = 0; i < n_q;
         i += LK_AVX512_BATCH, p += LK_AVX512_BATCH * stride, acc += (size_t)LK_AVX512_BATCH * d) {
        int n = n_q - i < LK_AVX512_BATCH ? n_q - i : LK_AVX512_BATCH;
        float offset[LK_AVX512_BATCH];
        lk_avx512_quantize_weights(p, stride, n, params.scale, fine, &weights);
        for (int j = 0; j < n; j++) {
            weights.step[j] *= unit;
            if (off) offset[j] = 0.5f * sum_tile_f32(p + j * stride, params.scale);
            if (params.mean)
                add_mean(&params, d, sum_tile_f32(p + j * stride, NULL), acc + (size_t)j * d);
        }
        if (!fine)
            accumulate_queries((struct weighted_cells){cells, &weights, false, NULL, d, acc}, n, 0,
                               d);
        else if (off)
            accumulate_queries((struct weighted_cells){cells, &weights, true, offset, d, acc}, n, 0,
                               d);
        else
            accumulate_queries((struct weighted_cells){cells, &weights, true, NULL, d, acc}, n, 0,
                               d);
    }
}

void lk_avx512_per_token_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                                    const float *p, size_t stride, int n_q, float *acc) {
    struct lk_avx512_form form;
    make_form(&form, kernels->unpack, rows->codec, LK_V);
    for (int t = 0; t < lk_rows_n_tile(rows); t++) {
        struct lk_tile tile = lk_rows_tile(rows, t);
        accumulate_tile(kernels->unpack, &form, &tile, p + t * LK_TILE, stride, n_q, acc);
    }
}
