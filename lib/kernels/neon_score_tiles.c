/* Scores of whole tiles of K (kernels.h: score_tiles), for NEON. */
#include "codec/rot.h"
#include "kernels/neon.h"

void lk_neon_score_tiles(const struct lk_rows *rows, const struct lk_queries *q,
                         const float *spread, float *s, size_t stride) {
    int d = rows->d_head;
    for (int j = 0; j < lk_rows_n_tile(rows); j++) {
        struct lk_tile tile = lk_rows_tile(rows, j);
        const uint16_t *scale = lk_rot_scales(tile.codec, tile.head, d);
        const int8_t *code = lk_rot_mean(tile.codec, tile.head, d);
        float row[LK_TILE], mean[LK_MAX_D_HEAD], mean_scale = lk_rot_load_mean_scale(scale);
        lk_neon_load_scales(scale, LK_TILE, row);
        for (int c = 0; c < d; c++) mean[c] = mean_scale * code[c];
        float square = lk_neon_dot_f32(row, row, LK_TILE) / LK_TILE;
        for (int i = 0; i < q->n_q; i++)
            s[i * stride + j] = lk_neon_dot_f32(q->q + (size_t)i * d, mean, d) + spread[i] * square;
    }
}
