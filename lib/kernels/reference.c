/* Reference kernels on top of the codecs' own decode: slow, and right by inspection. Sums are in
 * double. */
#include "codec/f16.h"
#include "codec/rot.h"
#include "kernels/tile.h"

#include <math.h>

/* Row row0 + t of a tile in the codec's domain: T x, where lk_codec_transform_query is T^-T. For
 * rot that is H (x / sigma). x: [d_head] */
static void decode_in_domain(const struct lk_tile *tile, enum lk_side side, int t, float *x) {
    struct lk_part part = {tile->codec, side, tile->d_head, tile->block_rows, tile->sigma};
    float inverse[LK_MAX_D_HEAD];
    lk_codec_decode(&part, tile->head, tile->row0 + t, 1, x, tile->d_head);
    for (int c = 0; tile->sigma && c < tile->d_head; c++) inverse[c] = 1 / tile->sigma[c];
    lk_codec_transform_query(tile->codec, tile->d_head, tile->sigma ? inverse : NULL, x, x);
}

/* Of the two functions that take most of the time: with sanitizers they would take ten times as
 * long. The same tests check the other tables' kernels, which read and write the same buffers. */
#define NOT_SANITIZED __attribute__((no_sanitize("address", "undefined")))

/* Four sums do not wait for each other. a, b: [n] */
NOT_SANITIZED static double dot(const float *a, const float *b, int n) {
    double sum[4] = {0};
    int c = 0;
    for (; c + 4 <= n; c += 4)
        for (int i = 0; i < 4; i++) sum[i] += (double)a[c + i] * b[c + i];
    for (; c < n; c++) sum[0] += (double)a[c] * b[c];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* sum += w x; both [n] */
NOT_SANITIZED static void add_scaled(float *sum, float w, const float *x, int n) {
    for (int c = 0; c < n; c++) sum[c] += w * x[c];
}

static void score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                  const struct lk_queries *q, float *s, size_t stride) {
    (void)kernels;
    float x[LK_MAX_D_HEAD];
    for (int j = 0; j < lk_rows_n_tile(rows); j++, s += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, j);
        for (int t = 0; t < tile.n; t++) {
            decode_in_domain(&tile, LK_K, t, x);
            for (int i = 0; i < q->n_q; i++)
                s[i * stride + t] = (float)dot(q->q + (size_t)i * tile.d_head, x, tile.d_head);
        }
    }
}

static void score_tiles(const struct lk_rows *rows, const struct lk_queries *q, const float *spread,
                        float *s, size_t stride) {
    for (int j = 0; j < lk_rows_n_tile(rows); j++) {
        struct lk_tile tile = lk_rows_tile(rows, j);
        const uint16_t *scale = lk_rot_scales(tile.codec, tile.head, tile.d_head);
        const int8_t *mean = lk_rot_mean(tile.codec, tile.head, tile.d_head);
        float mean_scale = lk_rot_load_mean_scale(scale);
        double square = 0;
        for (int t = 0; t < LK_TILE; t++) {
            double x = lk_f16_to_f32(scale[t] & 0x7fff);
            square += x * x / LK_TILE;
        }
        for (int i = 0; i < q->n_q; i++) {
            double sum = 0;
            for (int c = 0; c < tile.d_head; c++)
                sum += (double)q->q[(size_t)i * tile.d_head + c] * mean[c];
            s[i * stride + j] = (float)(mean_scale * sum + spread[i] * square);
        }
    }
}

static void accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows, const float *p,
                       size_t stride, int n_q, float *acc) {
    (void)kernels;
    float x[LK_MAX_D_HEAD];
    for (int j = 0; j < lk_rows_n_tile(rows); j++, p += LK_TILE) {
        struct lk_tile tile = lk_rows_tile(rows, j);
        for (int t = 0; t < tile.n; t++) {
            decode_in_domain(&tile, LK_V, t, x);
            for (int i = 0; i < n_q; i++)
                add_scaled(acc + (size_t)i * tile.d_head, p[i * stride + t], x, tile.d_head);
        }
    }
}

static float max_f32(const float *s, int n) {
    float max = s[0];
    for (int i = 1; i < n; i++) max = fmaxf(max, s[i]);
    return max;
}

static float exp_sum(float *s, int n, float scale, float max) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        s[i] = expf(scale * s[i] - max);
        sum += s[i];
    }
    return (float)sum;
}

static double key_at(const struct lk_rope_keys *keys, int c, int t) {
    return keys->k[c * LK_TILE + t] + (keys->mean ? (double)keys->mean[c] : 0);
}

static void score_rope(const struct lk_rope_keys *keys, const float *q, size_t q_stride, int n_q,
                       float *s, size_t stride) {
    const struct lk_rope_table *rope = keys->rope;
    int d = keys->d, n_pair = rope ? rope->n_pair : 0;
    for (int i = 0; i < n_q; i++, q += q_stride)
        for (int t = 0; t < LK_TILE; t++) {
            double sum = 0;
            for (int j = 0; j < n_pair; j++) {
                int a = 2 * j, b = 2 * j + 1;
                double cos = rope->cos_sin[j][0][t], sin = rope->cos_sin[j][1][t];
                double x = key_at(keys, a, t), y = key_at(keys, b, t);
                sum += q[a] * (cos * x - sin * y) + q[b] * (sin * x + cos * y);
            }
            for (int c = 2 * n_pair; c < d; c++) sum += q[c] * key_at(keys, c, t);
            for (int m = 0; m < keys->n_fold; m++) {
                int at = i * keys->n_fold + m;
                sum += keys->basis[m * keys->basis_stride + t] *
                       ((double)keys->fold[at * LK_TILE + t] + keys->offset[at]);
            }
            s[i * stride + t] = (float)sum;
        }
}

static void combine_queries(const struct lk_queries *x, const float *w, int n,
                            const struct lk_queries *out) {
    int rank = x->d_head, pad = lk_queries_pad(rank);
    for (int i = 0; i < n; i++, w += x->n_q) {
        double sum[LK_MAX_D_HEAD] = {0};
        for (int j = 0; j < x->n_q; j++)
            for (int c = 0; c < rank; c++)
                sum[c] += (double)w[j] * x->scale8[j] * x->q8[(size_t)j * pad + c];
        float row[LK_MAX_D_HEAD];
        for (int c = 0; c < rank; c++) row[c] = (float)sum[c];
        lk_queries_set8(out, i, row);
    }
}

static void gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    const double root = 0.7978845608028654; /* sqrt(2/pi) */
    for (int o = 0; o < n_out; o++) {
        double sum = 0;
        for (int i = 0; i < n_in; i++)
            sum += (double)x[i] * lk_f16_to_f32(w[(size_t)i * n_out + o]);
        y[o] = (float)(sum / 2 * (1 + tanh(root * (sum + 0.044715 * sum * sum * sum))));
    }
}

static void add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                        int first, int n, float *y) {
    for (int t = 0; t < n_tok; t++, x += n_in, y += n_out)
        for (int b = 0; b < n_in / LK_OFFSET_BLOCK; b++) {
            double sum = 0;
            for (int i = 0; i < LK_OFFSET_BLOCK; i++) sum += x[b * LK_OFFSET_BLOCK + i];
            for (int o = first; o < first + n; o++)
                y[o] += (float)(sum * lk_f16_to_f32(offset[lk_offset_index(n_in, b, o)]));
        }
}

static void delta_step(const float *from, float *to, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out) {
    for (int c = 0; c < d; c++) {
        float held = 0, sum = 0;
        for (int i = 0; i < d; i++) held += k[i] * from[(size_t)i * d + c];
        float change = beta * (v[c] - decay * held);
        for (int i = 0; i < d; i++) {
            size_t at = (size_t)i * d + c;
            to[at] = decay * from[at] + k[i] * change;
            sum += q[i] * to[at];
        }
        out[c] = sum;
    }
}

static void scan_step(const float *from, float *to, int n, int d, const float *q, const float *k,
                      const float *v, float decay, float beta, float *out) {
    for (int c = 0; c < d; c++) {
        float sum = 0;
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)i * d + c;
            to[at] = decay * from[at] + k[i] * (beta * v[c]);
            sum += q[i] * to[at];
        }
        out[c] = sum;
    }
}

/* Of every codec. */
#define ALL                                                                                        \
    { score, score, accumulate, accumulate }

const struct lk_kernels lk_kernels_reference = {.name = "reference",
                                                .coding = {[LK_F16] = ALL,
                                                           [LK_INT8] = ALL,
                                                           [LK_KIVI] = ALL,
                                                           [LK_ROT] = ALL,
                                                           [LK_ASYM] = ALL,
                                                           [LK_ADDED] = ALL},
                                                .score_tiles = score_tiles,
                                                .score_rope = score_rope,
                                                .combine_queries = combine_queries,
                                                .encode = lk_codec_encode,
                                                .decode = lk_codec_decode,
                                                .max = max_f32,
                                                .exp_sum = exp_sum,
                                                .gelu_layer = gelu_layer,
                                                .delta_step = delta_step,
                                                .scan_step = scan_step,
                                                .add_offsets = add_offsets};
