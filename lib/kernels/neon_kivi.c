/* KIVI for NEON: x = scale * code + min. The scale and the minimum of a channel (K) are multiplied
 * into the query, those of a token (V) into its weight. Codes are then only multiplied with
 * integers. */
#include "codec/kivi.h"
#include "kernels/neon.h"

static void score_tile(const struct lk_tile *tile, const struct lk_queries *q, bool matrix,
                       float *s, size_t stride) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int8_t planes[LK_NEON_QUERIES][2][LK_MAX_D_HEAD];
    int32_t dot[LK_NEON_QUERIES][LK_TILE];
    float scale[LK_MAX_D_HEAD], min[LK_MAX_D_HEAD], step[LK_NEON_QUERIES], offset[LK_NEON_QUERIES];
    int d = tile->d_head;
    lk_tile_prefetch(tile, 0, lk_bitplanes_bytes(tile->codec->bits, d));
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_K, tile->head, d);
    lk_neon_load_f16(half, d, scale);
    lk_neon_load_f16(half + d, d, min);
    const void *codes = lk_kivi_tile(tile->codec, tile->head, d, tile->row0);
    const uint8_t *cells = lk_neon_unpack(tile->codec->bits, d, codes, NULL, buf);
    for (int i0 = 0; i0 < q->n_q; i0 += LK_NEON_QUERIES) {
        int n = q->n_q - i0 < LK_NEON_QUERIES ? q->n_q - i0 : LK_NEON_QUERIES;
        struct lk_neon_rows x = {
            .x = planes[0][0], .n = n, .pad = LK_MAX_D_HEAD, .fine = true, .matrix = matrix};
        for (int j = 0; j < n; j++) {
            const float *row = q->q + (size_t)(i0 + j) * d;
            step[j] = lk_neon_quantize_query(row, scale, d, planes[j]);
            offset[j] = lk_neon_dot_f32(row, min, d);
        }
        lk_neon_dot_k(cells, d, false, &x, dot);
        for (int j = 0; j < n; j++) {
            float32x4_t first = vdupq_n_f32(offset[j]), factor = vdupq_n_f32(step[j]);
            LK_UNROLL8
            for (int t = 0; t < LK_TILE; t += 4)
                vst1q_f32(s + (i0 + j) * stride + t,
                          vfmaq_f32(first, vcvtq_f32_s32(vld1q_s32(dot[j] + t)), factor));
        }
    }
}

/* Group g of channels, for n <= LK_NEON_QUERIES queries. */
static void accumulate_group(const struct lk_tile *tile, const uint8_t *cells, int g,
                             const float *p, size_t stride, int n, bool matrix, float *acc) {
    int8_t planes[LK_NEON_QUERIES][2][LK_TILE];
    int32_t sum, dot[LK_NEON_QUERIES][LK_MAX_D_HEAD];
    float step[LK_NEON_QUERIES], offset[LK_NEON_QUERIES], scale[LK_TILE], min[LK_TILE];
    int d = tile->d_head, group = tile->codec->group;
    struct lk_neon_rows x = {
        .x = planes[0][0], .n = n, .pad = LK_TILE, .fine = true, .matrix = matrix};
    const uint16_t *half = lk_kivi_scales(tile->codec, LK_V, tile->head, d);
    lk_neon_load_scales(half + g * LK_TILE, tile->n, scale);
    lk_neon_load_f16(half + lk_kivi_groups(tile->codec, LK_V, d) + g * LK_TILE, LK_TILE, min);
    for (int t = tile->n; t < LK_TILE; t++) min[t] = 0;
    for (int j = 0; j < n; j++) {
        step[j] = lk_neon_quantize_weights(p + j * stride, scale, planes[j], &sum);
        offset[j] = lk_neon_dot_f32(p + j * stride, min, LK_TILE);
    }
    lk_neon_dot_v(cells + g * group * LK_TILE, group, false, &x, dot);
    for (int j = 0; j < n; j++) {
        float *out = acc + (size_t)j * d + g * group;
        float32x4_t first = vdupq_n_f32(offset[j]), factor = vdupq_n_f32(step[j]);
        for (int c = 0; c < group; c += 8) {
            float32x4_t a = vfmaq_f32(first, vcvtq_f32_s32(vld1q_s32(dot[j] + c)), factor);
            float32x4_t b = vfmaq_f32(first, vcvtq_f32_s32(vld1q_s32(dot[j] + c + 4)), factor);
            vst1q_f32(out + c, vaddq_f32(vld1q_f32(out + c), a));
            vst1q_f32(out + c + 4, vaddq_f32(vld1q_f32(out + c + 4), b));
        }
    }
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            bool matrix, float *acc) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int d = tile->d_head;
    lk_tile_prefetch(tile, 0, lk_codec_head_bytes(tile->codec, LK_V, d, LK_TILE));
    const uint8_t *cells = lk_neon_unpack(tile->codec->bits, d, tile->head, NULL, buf);
    for (int i0 = 0; i0 < n_q; i0 += LK_NEON_QUERIES) {
        int n = n_q - i0 < LK_NEON_QUERIES ? n_q - i0 : LK_NEON_QUERIES;
        for (int g = 0; g < d / tile->codec->group; g++)
            accumulate_group(tile, cells, g, p + i0 * stride, stride, n, matrix,
                             acc + (size_t)i0 * d);
    }
}

void lk_neon_kivi_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                        const struct lk_queries *q, float *s, size_t stride) {
    bool matrix = kernels == &lk_kernels_neon_i8mm;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(&tile, q, matrix, s, stride);
    }
}

void lk_neon_kivi_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                             const float *p, size_t stride, int n_q, float *acc) {
    bool matrix = kernels == &lk_kernels_neon_i8mm;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, matrix, acc);
    }
}
