/* Scores of whole tiles of K (kernels.h: score_tiles), for AVX2 and AVX-512. */
#include "kernels/avx2_per_token.h"

/* Mean of the squared scales of a tile's rows. */
LK_ALWAYS_INLINE float mean_square(const uint16_t *scale) {
    __m256 sum = _mm256_setzero_ps();
    LK_UNROLL
    for (int t = 0; t < LK_TILE; t += 8) {
        __m256 x = load_abs_f16x8(scale + t);
        sum = _mm256_fmadd_ps(x, x, sum);
    }
    return hsum_f32x8(sum) * (1.0f / LK_TILE);
}

void lk_avx2_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride) {
    int n_tile = lk_rows_n_tile(rows), d = rows->d_head;
    for (int t = 0; t < n_tile; t++) {
        struct lk_tile tile = lk_rows_tile(rows, t);
        const uint16_t *scale = lk_rot_scales(tile.codec, tile.head, d);
        struct lk_avx2_mean mean = load_mean(&tile, scale);
        float square = mean_square(scale), sum[LK_AVX2_QUERIES];
        for (int i = 0; i < q->n_q; i += LK_AVX2_QUERIES) {
            int n = q->n_q - i < LK_AVX2_QUERIES ? q->n_q - i : LK_AVX2_QUERIES;
            dot_mean_any(&mean, q, i, n, sum);
            for (int j = i; j < i + n; j++) s[j * stride + t] = sum[j - i] + spread[j] * square;
        }
    }
}
