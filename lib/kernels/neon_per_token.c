/* rot and int8 for NEON: x = scale_t * (cell - top / 2) + mean, 0 <= cell <= top. */
#include "codec/int8.h"
#include "codec/rot.h"
#include "kernels/neon.h"

#include <string.h>

/* A tile unpacked to bytes, and its parameters. */
struct tile_params {
    const uint8_t *cells;
    const int8_t *mean; /* [d_head]; NULL: no mean */
    float mean_scale;
    bool flip; /* cells of 8 bits: 128 is subtracted from them */
    int top;   /* twice the middle of the cells, after that */
    bool fine; /* 5 bits and more require 16-bit queries */
    float scale[LK_TILE];
};

static float load_mean_scale(const uint16_t *scale) {
    static const uint16_t place[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint32_t bits = 0;
    LK_UNROLL8
    for (int t = 0; t < LK_TILE; t += 8) { /* each lane is all sign bits; keep one of them */
        int16x8_t sign = vshrq_n_s16(vreinterpretq_s16_u16(vld1q_u16(scale + t)), 15);
        bits |= (uint32_t)vaddvq_u16(vandq_u16(vreinterpretq_u16_s16(sign), vld1q_u16(place))) << t;
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* buf: [LK_TILE * d_head] */
static void load_params(struct tile_params *params, const struct lk_tile *tile, enum lk_side side,
                        uint8_t *buf) {
    const struct lk_codec *codec = tile->codec;
    lk_tile_prefetch(tile, 0, lk_codec_head_bytes(codec, side, tile->d_head, LK_TILE));
    params->mean = NULL;
    params->fine = codec->bits > LK_NEON_MAX_BITS_Q8;
    params->flip = codec->bits == 8;
    if (codec->coding == LK_INT8) {
        params->cells = tile->head;
        params->top = 2 * LK_INT8_MID - 2 * 128;
        lk_neon_load_scales(lk_int8_scales(tile->head, tile->d_head), tile->n, params->scale);
        return;
    }
    struct lk_rot_codebook levels = lk_rot_codebook(codec);
    params->cells =
        codec->trellis
            ? lk_neon_unpack_trellis(codec->bits, tile->d_head, tile->head, levels.table, buf)
            : lk_neon_unpack(codec->bits, tile->d_head, tile->head, levels.table, buf);
    params->top = params->flip ? levels.top - 2 * 128 : levels.top;
    const uint16_t *scale = lk_rot_scales(codec, tile->head, tile->d_head);
    lk_neon_load_scales(scale, tile->n, params->scale);
    if (!codec->mean) return;
    params->mean = lk_rot_mean(codec, tile->head, tile->d_head);
    params->mean_scale = load_mean_scale(scale);
}

/* 2 * dot - top * sum, which is twice the dot product with the levels, exactly. The difference fits
 * into 32 bits although 2 * dot may not. */
LK_ALWAYS_INLINE float32x4_t doubled_dot(const int32_t *dot, int32x4_t top_sum) {
    return vcvtq_f32_s32(vsubq_s32(vshlq_n_s32(vld1q_s32(dot), 1), top_sum));
}

static inline int32x4_t set1_top_sum(int top, int32_t sum) {
    return vdupq_n_s32((int32_t)((uint32_t)top * (uint32_t)sum));
}

static void score_tile(const struct lk_tile *tile, const struct lk_queries *q, bool matrix,
                       float *s, size_t stride) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int32_t dot[LK_NEON_QUERIES][LK_TILE], mean[LK_NEON_QUERIES];
    struct tile_params params;
    load_params(&params, tile, LK_K, buf);
    int d = tile->d_head, pad = lk_queries_pad(d);
    for (int i0 = 0; i0 < q->n_q; i0 += LK_NEON_QUERIES) {
        int n = q->n_q - i0 < LK_NEON_QUERIES ? q->n_q - i0 : LK_NEON_QUERIES;
        struct lk_neon_rows fine = {.x = q->planes + (size_t)i0 * 2 * pad,
                                    .n = n,
                                    .pad = pad,
                                    .fine = true,
                                    .matrix = matrix};
        struct lk_neon_rows coarse = {
            .x = q->q8 + (size_t)i0 * pad, .n = n, .pad = pad, .matrix = matrix && n > 1};
        lk_neon_dot_k(params.cells, d, params.flip, params.fine ? &fine : &coarse, dot);
        if (params.mean) lk_neon_dot_mean(params.mean, d, &fine, mean);
        for (int j = 0; j < n; j++) {
            int i = i0 + j;
            float half = 0.5f * (params.fine ? q->scale16 : q->scale8)[i];
            int32x4_t top_sum = set1_top_sum(params.top, (params.fine ? q->sum16 : q->sum8)[i]);
            float32x4_t offset =
                vdupq_n_f32(params.mean ? params.mean_scale * q->scale16[i] * (float)mean[j] : 0);
            LK_UNROLL8
            for (int t = 0; t < LK_TILE; t += 4) {
                float32x4_t scale = vmulq_n_f32(vld1q_f32(params.scale + t), half);
                vst1q_f32(s + i * stride + t,
                          vfmaq_f32(offset, doubled_dot(dot[j] + t, top_sum), scale));
            }
        }
    }
}

/* out [d] += half * (2 * dot - top_sum) */
static void add_levels(const int32_t *dot, int d, int32x4_t top_sum, float half, float *out) {
    for (int c = 0; c < d; c += 8) {
        float32x4_t a = vfmaq_n_f32(vld1q_f32(out + c), doubled_dot(dot + c, top_sum), half);
        float32x4_t b =
            vfmaq_n_f32(vld1q_f32(out + c + 4), doubled_dot(dot + c + 4, top_sum), half);
        vst1q_f32(out + c, a);
        vst1q_f32(out + c + 4, b);
    }
}

/* Sum of p [LK_TILE]. */
static float sum_tile_f32(const float *p) {
    float32x4_t sum = vdupq_n_f32(0);
    LK_UNROLL8
    for (int t = 0; t < LK_TILE; t += 4) sum = vaddq_f32(sum, vld1q_f32(p + t));
    return vaddvq_f32(sum);
}

/* acc [d] += weight * mean */
static void add_mean(const struct tile_params *params, int d, float weight, float *acc) {
    float step = weight * params->mean_scale;
    for (int c = 0; c < d; c += 8) {
        int16x8_t code = vmovl_s8(vld1_s8(params->mean + c));
        float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(code))),
                    high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(code)));
        vst1q_f32(acc + c, vfmaq_n_f32(vld1q_f32(acc + c), low, step));
        vst1q_f32(acc + c + 4, vfmaq_n_f32(vld1q_f32(acc + c + 4), high, step));
    }
}

static void accumulate_tile(const struct lk_tile *tile, const float *p, size_t stride, int n_q,
                            bool matrix, float *acc) {
    _Alignas(32) uint8_t buf[LK_TILE * LK_MAX_D_HEAD];
    int8_t planes[LK_NEON_QUERIES][2][LK_TILE];
    int32_t sum[LK_NEON_QUERIES], dot[LK_NEON_QUERIES][LK_MAX_D_HEAD];
    float step[LK_NEON_QUERIES];
    struct tile_params params;
    load_params(&params, tile, LK_V, buf);
    int d = tile->d_head;
    for (int i0 = 0; i0 < n_q; i0 += LK_NEON_QUERIES) {
        int n = n_q - i0 < LK_NEON_QUERIES ? n_q - i0 : LK_NEON_QUERIES;
        for (int j = 0; j < n; j++)
            step[j] =
                lk_neon_quantize_weights(p + (i0 + j) * stride, params.scale, planes[j], &sum[j]);
        struct lk_neon_rows x = {
            .x = planes[0][0], .n = n, .pad = LK_TILE, .fine = true, .matrix = matrix};
        lk_neon_dot_v(params.cells, d, params.flip, &x, dot);
        for (int j = 0; j < n; j++) {
            float *out = acc + (size_t)(i0 + j) * d;
            add_levels(dot[j], d, set1_top_sum(params.top, sum[j]), 0.5f * step[j], out);
            if (params.mean) add_mean(&params, d, sum_tile_f32(p + (i0 + j) * stride), out);
        }
    }
}

void lk_neon_per_token_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                             const struct lk_queries *q, float *s, size_t stride) {
    bool matrix = kernels == &lk_kernels_neon_i8mm;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        score_tile(&tile, q, matrix, s, stride);
    }
}

void lk_neon_per_token_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                                  const float *p, size_t stride, int n_q, float *acc) {
    bool matrix = kernels == &lk_kernels_neon_i8mm;
    for (int i = 0; i < lk_rows_n_tile(rows); i++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, i);
        accumulate_tile(&tile, p, stride, n_q, matrix, acc);
    }
}

/* ---- scores of whole tiles by their means (kernels.h: score_tiles) ---- */

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
