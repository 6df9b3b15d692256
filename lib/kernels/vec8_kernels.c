/* Kernels that the tables of AVX2, AVX-512 and NEON share: GELU layers, recurrences, offsets of
 * weights, scores with RoPE, and zero points of asym, in eight lanes. Tests compare them with
 * reference.c. */
#include "kernels/vec8_kernels.h"

#include "codec/asym.h"
#include "kernels/tile.h"
#include "kernels/vec8.h"

/* ---- GELU layer (kernels.h: gelu_layer): lanes are outputs, each weight is read once ---- */

enum { LK_GELU_COLUMNS = 8 }; /* vectors of sums, which stay in registers */

/* gelu(x) = x / (1 + e^-t), t = 2 sqrt(2/pi) (x + 0.044715 x^3). The exponent is clamped where the
 * quotient is x or almost 0. */
LK_ALWAYS_INLINE lk_f32x8 gelu_f32x8(lk_f32x8 x) {
    const float max_exponent = 126, factor = -1.5957691216057308f * lk_log2e;
    lk_f32x8 t = lk_max_f32x8(
        lk_min_f32x8(factor * x * (1 + 0.044715f * x * x), lk_set1_f32x8(max_exponent)),
        lk_set1_f32x8(-max_exponent));
    lk_i32x8 k = lk_round_f32x8(t);
    lk_f32x8 r = t - lk_i32x8_to_f32x8(k), y = lk_set1_f32x8(lk_exp2[5]);
    LK_UNROLL8
    for (int i = 4; i >= 0; i--) y = y * r + lk_exp2[i];
    return x / (1 + y * (lk_f32x8)((k + 127) << 23));
}

/* 8 n outputs; n is constant after inlining. */
LK_ALWAYS_INLINE void gelu_columns(const float *x, const uint16_t *w, int n_in, int n_out, float *y,
                                   int n) {
    lk_f32x8 sum[LK_GELU_COLUMNS] = {{0}};
    for (int i = 0; i < n_in; i++, w += n_out) {
        LK_UNROLL8
        for (int v = 0; v < n; v++) sum[v] += x[i] * lk_load_f16x8(w + LK_LANES * v);
    }
    LK_UNROLL8
    for (int v = 0; v < n; v++) lk_store_f32x8(y + LK_LANES * v, gelu_f32x8(sum[v]));
}

/* The last n < LK_LANES outputs. */
LK_ALWAYS_INLINE void gelu_tail(const float *x, const uint16_t *w, int n_in, int n_out, float *y,
                                int n) {
    lk_f32x8 sum = {0};
    uint16_t row[LK_LANES] = {0};
    for (int i = 0; i < n_in; i++, w += n_out) {
        memcpy(row, w, (size_t)n * sizeof *w);
        sum += x[i] * lk_load_f16x8(row);
    }
    sum = gelu_f32x8(sum);
    memcpy(y, &sum, (size_t)n * sizeof *y);
}

void lk_vec8_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    int o = 0;
    for (; o + LK_GELU_COLUMNS * LK_LANES <= n_out; o += LK_GELU_COLUMNS * LK_LANES)
        gelu_columns(x, w + o, n_in, n_out, y + o, LK_GELU_COLUMNS);
    for (; o + LK_LANES <= n_out; o += LK_LANES) gelu_columns(x, w + o, n_in, n_out, y + o, 1);
    if (o < n_out) gelu_tail(x, w + o, n_in, n_out, y + o, n_out - o);
}

/* ---- gated delta rule (kernels.h: delta_step): lanes are value channels ---- */

/* 8 n value channels from `from` and `to` on; n is constant after inlining. */
LK_ALWAYS_INLINE void delta_columns(const float *from, float *to, int d, const float *q,
                                    const float *k, const float *v, float decay, float beta,
                                    float *out, int n) {
    lk_f32x8 held[4] = {{0}}, sum[4] = {{0}};
    for (int i = 0; i < d; i++) {
        LK_UNROLL8
        for (int j = 0; j < n; j++)
            held[j] += k[i] * lk_load_f32x8(from + (size_t)i * d + LK_LANES * j);
    }
    LK_UNROLL8
    for (int j = 0; j < n; j++)
        held[j] = beta * (lk_load_f32x8(v + LK_LANES * j) - decay * held[j]);
    for (int i = 0; i < d; i++) {
        LK_UNROLL8
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)i * d + LK_LANES * j;
            lk_f32x8 row = decay * lk_load_f32x8(from + at) + k[i] * held[j];
            lk_store_f32x8(to + at, row);
            sum[j] += q[i] * row;
        }
    }
    LK_UNROLL8
    for (int j = 0; j < n; j++) lk_store_f32x8(out + LK_LANES * j, sum[j]);
}

void lk_vec8_delta_step(const float *from, float *to, int d, const float *q, const float *k,
                        const float *v, float decay, float beta, float *out) {
    int c = 0;
    for (; c + 4 * LK_LANES <= d; c += 4 * LK_LANES)
        delta_columns(from + c, to + c, d, q, k, v + c, decay, beta, out + c, 4);
    for (; c < d; c += 2 * LK_LANES)
        delta_columns(from + c, to + c, d, q, k, v + c, decay, beta, out + c, 2);
}

/* ---- state space models (kernels.h: scan_step): lanes are value channels ---- */

/* 8 n value channels from `from` and `to` on, of rows of d channels; n is constant after
 * inlining. */
LK_ALWAYS_INLINE void scan_columns(const float *from, float *to, int n_key, int d, const float *q,
                                   const float *k, const float *v, float decay, float beta,
                                   float *out, int n) {
    lk_f32x8 sum[4] = {{0}}, added[4] = {{0}};
    LK_UNROLL8
    for (int j = 0; j < n; j++) added[j] = beta * lk_load_f32x8(v + LK_LANES * j);
    for (int i = 0; i < n_key; i++) {
        LK_UNROLL8
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)i * d + LK_LANES * j;
            lk_f32x8 row = decay * lk_load_f32x8(from + at) + k[i] * added[j];
            lk_store_f32x8(to + at, row);
            sum[j] += q[i] * row;
        }
    }
    LK_UNROLL8
    for (int j = 0; j < n; j++) lk_store_f32x8(out + LK_LANES * j, sum[j]);
}

void lk_vec8_scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out) {
    int c = 0;
    for (; c + 4 * LK_LANES <= d; c += 4 * LK_LANES)
        scan_columns(from + c, to + c, n, d, q, k, v + c, decay, beta, out + c, 4);
    for (; c < d; c += 2 * LK_LANES)
        scan_columns(from + c, to + c, n, d, q, k, v + c, decay, beta, out + c, 2);
}

/* ---- offsets of weights (kernels.h: add_offsets): lanes are outputs ---- */

/* An offset is converted to float once for up to LK_OFFSET_TOKENS tokens. */
enum {
    LK_OFFSET_TOKENS = 4,
    LK_OFFSET_BLOCKS = 64, /* blocks of inputs per pass */
    LK_OFFSET_SUMS = 8     /* tokens times vectors of outputs: sums stay in registers */
};

/* s[b] = sum of block b of x, for n blocks of LK_OFFSET_BLOCK inputs. */
LK_ALWAYS_INLINE void block_sums(const float *x, int n, float *s) {
    for (int b = 0; b < n; b++, x += LK_OFFSET_BLOCK) {
        s[b] = lk_hsum_f32x8((lk_load_f32x8(x) + lk_load_f32x8(x + LK_LANES)) +
                             (lk_load_f32x8(x + 2 * LK_LANES) + lk_load_f32x8(x + 3 * LK_LANES)));
    }
}

/* y [n_tok][n_out] += offsets times s, for 8 n outputs. offset: of the first block. n_tok and n are
 * constant after inlining. */
LK_ALWAYS_INLINE void offset_columns(float s[][LK_OFFSET_BLOCKS], int n_tok, int n_block,
                                     const uint16_t *offset, float *y, int n_out, int n) {
    lk_f32x8 sum[LK_OFFSET_SUMS];
    LK_UNROLL8
    for (int i = 0; i < n_tok * n; i++)
        sum[i] = lk_load_f32x8(y + (size_t)(i / n) * n_out + LK_LANES * (i % n));
    for (int b = 0; b < n_block; b++, offset += LK_OFFSET_TILE) {
        lk_f32x8 c[LK_OFFSET_SUMS];
        LK_UNROLL8
        for (int v = 0; v < n; v++) c[v] = lk_load_f16x8(offset + LK_LANES * v);
        LK_UNROLL8
        for (int i = 0; i < n_tok * n; i++) sum[i] += s[i / n][b] * c[i % n];
    }
    LK_UNROLL8
    for (int i = 0; i < n_tok * n; i++)
        lk_store_f32x8(y + (size_t)(i / n) * n_out + LK_LANES * (i % n), sum[i]);
}

/* Same as above, for n <= LK_OFFSET_TILE outputs of a tile. */
LK_ALWAYS_INLINE void offset_tile(float s[][LK_OFFSET_BLOCKS], int n_tok, int n_block,
                                  const uint16_t *offset, int n, float *y, int n_out) {
    int o = 0;
    const int n_vec = n_tok == 1 ? 4 : 2;
    for (; o + n_vec * LK_LANES <= n; o += n_vec * LK_LANES)
        offset_columns(s, n_tok, n_block, offset + o, y + o, n_out, n_vec);
    for (; o + LK_LANES <= n; o += LK_LANES)
        offset_columns(s, n_tok, n_block, offset + o, y + o, n_out, 1);
    for (; o < n; o++)
        for (int t = 0; t < n_tok; t++)
            for (int b = 0; b < n_block; b++)
                y[(size_t)t * n_out + o] +=
                    s[t][b] * lk_load_f16(offset + (size_t)b * LK_OFFSET_TILE + o);
}

/* n_block blocks of n_tok tokens from x and offset on, for n outputs from y on. */
LK_ALWAYS_INLINE void offset_blocks(const float *x, int n_tok, int n_in, const uint16_t *offset,
                                    int n_block, int n_out, int n, float *y) {
    float s[LK_OFFSET_TOKENS][LK_OFFSET_BLOCKS];
    for (int t = 0; t < n_tok; t++) block_sums(x + (size_t)t * n_in, n_block, s[t]);
    for (int o = 0; o < n;
         o += LK_OFFSET_TILE, offset += (size_t)n_in / LK_OFFSET_BLOCK * LK_OFFSET_TILE) {
        offset_tile(s, n_tok, n_block, offset, n - o < LK_OFFSET_TILE ? n - o : LK_OFFSET_TILE,
                    y + o, n_out);
    }
}

void lk_vec8_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y) {
    offset += (size_t)first * (n_in / LK_OFFSET_BLOCK);
    for (int t = 0, step; t < n_tok;
         t += step, x += (size_t)step * n_in, y += (size_t)step * n_out) {
        step = n_tok - t < LK_OFFSET_TOKENS ? 1 : LK_OFFSET_TOKENS;
        for (int b = 0, n_block = n_in / LK_OFFSET_BLOCK; b < n_block; b += LK_OFFSET_BLOCKS) {
            int part = n_block - b < LK_OFFSET_BLOCKS ? n_block - b : LK_OFFSET_BLOCKS;
            const float *x_b = x + (size_t)b * LK_OFFSET_BLOCK;
            const uint16_t *offset_b = offset + (size_t)b * LK_OFFSET_TILE;
            if (step == 1)
                offset_blocks(x_b, 1, n_in, offset_b, part, n_out, n, y + first);
            else
                offset_blocks(x_b, LK_OFFSET_TOKENS, n_in, offset_b, part, n_out, n, y + first);
        }
    }
}

/* ---- scores with RoPE (kernels.h: score_rope): lanes are rows ---- */

enum { LK_ROPE_QUERIES = 4 }; /* queries per pass: their sums stay in registers */

/* Scores of rows [t, t + LK_LANES) for n queries q [n][d]. A pair of channels is rotated in
 * registers, once for all n queries. n is constant after inlining. */
LK_ALWAYS_INLINE void rope_score_column(const struct lk_rope_keys *keys, int t, const float *q,
                                        size_t q_stride, int n, float *s, size_t stride) {
    const struct lk_rope_table *rope = keys->rope;
    const float *k = keys->k, *mean = keys->mean;
    int d = keys->d, n_pair = rope ? rope->n_pair : 0, n_fold = keys->n_fold;
    lk_f32x8 sum[LK_ROPE_QUERIES] = {{0}};
    for (int j = 0; j < n_pair; j++) {
        int a = 2 * j, b = 2 * j + 1;
        lk_f32x8 c = lk_load_f32x8(rope->cos_sin[j][0] + t),
                 e = lk_load_f32x8(rope->cos_sin[j][1] + t);
        lk_f32x8 x = lk_load_f32x8(k + a * LK_TILE + t), y = lk_load_f32x8(k + b * LK_TILE + t);
        if (mean) x += mean[a], y += mean[b];
        lk_f32x8 first = c * x - e * y, second = e * x + c * y;
        LK_UNROLL8
        for (int i = 0; i < n; i++)
            sum[i] += lk_set1_f32x8(q[i * q_stride + a]) * first +
                      lk_set1_f32x8(q[i * q_stride + b]) * second;
    }
    for (int c = 2 * n_pair; c < d; c++) {
        lk_f32x8 x = lk_load_f32x8(k + c * LK_TILE + t);
        if (mean) x += mean[c];
        LK_UNROLL8
        for (int i = 0; i < n; i++) sum[i] += lk_set1_f32x8(q[i * q_stride + c]) * x;
    }
    for (int m = 0; m < n_fold; m++) {
        lk_f32x8 basis = lk_load_f32x8(keys->basis + m * keys->basis_stride + t);
        LK_UNROLL8
        for (int i = 0; i < n; i++)
            sum[i] += basis * (lk_load_f32x8(keys->fold + (i * n_fold + m) * LK_TILE + t) +
                               keys->offset[i * n_fold + m]);
    }
    LK_UNROLL8
    for (int i = 0; i < n; i++) lk_store_f32x8(s + i * stride + t, sum[i]);
}

void lk_vec8_score_rope(const struct lk_rope_keys *all, const float *q, size_t q_stride, int n_q,
                        float *s, size_t stride) {
    struct lk_rope_keys keys = *all;
    for (int i = 0; i < n_q; i += LK_ROPE_QUERIES) {
        for (int t = 0; t < LK_TILE; t += LK_LANES) switch (n_q - i) {
            case 1: rope_score_column(&keys, t, q, q_stride, 1, s, stride); break;
            case 2: rope_score_column(&keys, t, q, q_stride, 2, s, stride); break;
            case 3: rope_score_column(&keys, t, q, q_stride, 3, s, stride); break;
            default: rope_score_column(&keys, t, q, q_stride, LK_ROPE_QUERIES, s, stride);
            }
        q += LK_ROPE_QUERIES * q_stride;
        s += LK_ROPE_QUERIES * stride;
        if (keys.n_fold) {
            keys.fold += LK_ROPE_QUERIES * keys.n_fold * LK_TILE;
            keys.offset += LK_ROPE_QUERIES * keys.n_fold;
        }
    }
}

/* ---- combinations of prepared vectors (kernels.h: combine_queries): lanes are numbers of a
 * vector ---- */

enum { LK_COMBINE = 4 }; /* vectors per pass */

/* out [n] rows of x->d_head numbers, rounded up to a multiple of LK_LANES, LK_MAX_D_HEAD apart. n
 * is constant after inlining. */
LK_ALWAYS_INLINE void combine_rows(const struct lk_queries *x, const float *w, int n,
                                   float out[][LK_MAX_D_HEAD]) {
    typedef int8_t lk_i8x8 __attribute__((vector_size(8)));
    int pad = lk_queries_pad(x->d_head);
    float scaled[LK_COMBINE][LK_MAX_COMBINE];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < x->n_q; j++) scaled[i][j] = w[(size_t)i * x->n_q + j] * x->scale8[j];
    for (int c = 0; c < x->d_head; c += LK_LANES) {
        lk_f32x8 sum[LK_COMBINE] = {{0}};
        for (int j = 0; j < x->n_q; j++) {
            lk_i8x8 bytes;
            memcpy(&bytes, x->q8 + (size_t)j * pad + c, sizeof bytes);
            lk_f32x8 v = lk_i32x8_to_f32x8(__builtin_convertvector(bytes, lk_i32x8));
            LK_UNROLL8
            for (int i = 0; i < n; i++) sum[i] += scaled[i][j] * v;
        }
        LK_UNROLL8
        for (int i = 0; i < n; i++) lk_store_f32x8(out[i] + c, sum[i]);
    }
}

void lk_vec8_combine_queries(const struct lk_queries *x, const float *w, int n,
                             const struct lk_queries *out) {
    float row[LK_COMBINE][LK_MAX_D_HEAD];
    for (int i = 0; i < n; i += LK_COMBINE, w += (size_t)LK_COMBINE * x->n_q) {
        int here = n - i < LK_COMBINE ? n - i : LK_COMBINE;
        if (here == LK_COMBINE)
            combine_rows(x, w, LK_COMBINE, row);
        else
            for (int j = 0; j < here; j++) combine_rows(x, w + (size_t)j * x->n_q, 1, row + j);
        for (int j = 0; j < here; j++) lk_queries_set8(out, i + j, row[j]);
    }
}

/* ---- zero points of asym (kernels.h: add_score_offsets, add_sum_offsets) ----
 *
 * The kernels of rot and int8 compute with levels around zero, code - top / 2. What they leave out
 * is the same for all channels of a row:
 *
 *   scale (code - zero) = scale (code - top / 2) + offset,  offset = scale (top / 2 - zero) */

enum { LK_ASYM_VECTORS = LK_TILE / LK_LANES };

/* Offsets of a tile's rows, 0 after the last one. */
LK_ALWAYS_INLINE void row_offsets(const struct lk_tile *tile, lk_f32x8 offset[LK_ASYM_VECTORS]) {
    const lk_i32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const uint16_t *scale = lk_asym_scales(tile->codec, tile->head, tile->d_head);
    float half_top = 0.5f * (float)((1 << tile->codec->bits) - 1);
    for (int j = 0; j < LK_ASYM_VECTORS; j++) {
        int t = j * LK_LANES;
        lk_f32x8 zero = lk_load_f16x8(scale + LK_TILE + t);
        offset[j] = lk_mask_f32x8(lane < tile->n - t,
                                  lk_load_f16x8(scale + t) * (lk_set1_f32x8(half_top) - zero));
    }
}

/* s[i][t] += offset_t * (sum of query i), as the query was quantized. fine: to 16 bits */
void lk_vec8_add_score_offsets(const struct lk_rows *rows, const struct lk_queries *q, bool fine,
                               float *s, size_t stride) {
    for (int k = 0; k < lk_rows_n_tile(rows); k++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, k);
        lk_f32x8 offset[LK_ASYM_VECTORS];
        row_offsets(&tile, offset);
        for (int i = 0; i < q->n_q; i++) {
            float *out = s + i * stride, sum = fine ? q->scale16[i] * (float)q->sum16[i]
                                                    : q->scale8[i] * (float)q->sum8[i];
            for (int j = 0; j < LK_ASYM_VECTORS; j++, out += LK_LANES)
                lk_store_f32x8(out, lk_load_f32x8(out) + offset[j] * sum);
        }
    }
}

/* acc[i][c] += sum over t of p[i][t] * offset_t, for all channels c. */
void lk_vec8_add_sum_offsets(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc) {
    enum { QUERIES = 8 };
    int d = rows->d_head;
    for (int i0 = 0; i0 < n_q; i0 += QUERIES) {
        int n = n_q - i0 < QUERIES ? n_q - i0 : QUERIES;
        lk_f32x8 sum[QUERIES];
        for (int i = 0; i < QUERIES; i++) sum[i] = (lk_f32x8){0};
        for (int k = 0; k < lk_rows_n_tile(rows); k++) {
            struct lk_tile tile = lk_rows_tile(rows, k);
            lk_f32x8 offset[LK_ASYM_VECTORS];
            row_offsets(&tile, offset);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < LK_ASYM_VECTORS; j++)
                    sum[i] += offset[j] *
                              lk_load_f32x8(p + (i0 + i) * stride + k * LK_TILE + j * LK_LANES);
        }
        for (int i = 0; i < n; i++) {
            float *out = acc + (size_t)(i0 + i) * d, all = lk_hsum_f32x8(sum[i]);
            for (int c = 0; c < d; c += LK_LANES)
                lk_store_f32x8(out + c, lk_load_f32x8(out + c) + all);
        }
    }
}
