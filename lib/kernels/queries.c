/* Quantizes queries to 8 and 16 bits, for the integer kernels of all CPUs. */
#include "kernels/queries.h"

#include "codec/codec.h"

#include <math.h>
#include <string.h>

size_t lk_queries_bytes(int n_q, int d_head) {
    size_t row = lk_queries_pad(d_head) * (sizeof(int16_t) + 3 * sizeof(int8_t));
    return n_q * (row + 2 * sizeof(float) + 2 * sizeof(int32_t));
}

/* Channels of one step. Every compiler vectorizes loops over a fixed number of channels. */
enum { CHANNELS = 32 };

/* Bits of the largest magnitude of x [pad]. If x has a NaN, the result is a NaN's bits. */
static int32_t max_abs_bits(const float *x, int pad) {
    int32_t max = 0;
    for (int c = 0; c < pad; c += CHANNELS) {
        int32_t bits[CHANNELS];
        memcpy(bits, x + c, sizeof bits);
        for (int j = 0; j < CHANNELS; j++) {
            int32_t magnitude = bits[j] & INT32_MAX;
            max = magnitude > max ? magnitude : max;
        }
    }
    return max;
}

/* out = x * factor for CHANNELS channels, rounded to the nearest integer. */
static void scale_and_round(const float *x, float factor, int32_t *out) {
    for (int j = 0; j < CHANNELS; j++) {
        float y = x[j] * factor;
        out[j] = (int32_t)(y + (y < 0 ? -0.5f : 0.5f));
    }
}

static int32_t sum_i32(const int32_t *x) {
    int32_t sum = 0;
    for (int j = 0; j < CHANNELS; j++) sum += x[j];
    return sum;
}

static void quantize_query(const struct lk_queries *out, int i) {
    int d = out->d_head, pad = lk_queries_pad(d);
    int16_t *q16 = out->q16 + (size_t)i * pad;
    int8_t *q8 = out->q8 + (size_t)i * pad;
    int8_t *high = out->planes + (size_t)i * 2 * pad, *low = high + pad;
    float x[LK_MAX_D_HEAD], max, max16 = lk_max_x16(d);
    memcpy(x, out->q + (size_t)i * d, d * sizeof *x);
    memset(x + d, 0, (pad - d) * sizeof *x);
    int32_t bits = max_abs_bits(x, pad);
    memcpy(&max, &bits, sizeof max);
    float to8 = max > 0 ? 127 / max : 0, to16 = max > 0 ? max16 / max : 0;
    if (!(to16 <= 3e38f)) to8 = to16 = 0; /* the row is so small that it counts as zero */
    if (!isfinite(max)) {                 /* every code is 0 and every score NaN */
        max = NAN;
        memset(x, 0, pad * sizeof *x);
    }
    out->sum8[i] = out->sum16[i] = 0;
    for (int c = 0; c < pad; c += CHANNELS) {
        int32_t y[CHANNELS];
        scale_and_round(x + c, to8, y);
        for (int j = 0; j < CHANNELS; j++) q8[c + j] = (int8_t)y[j];
        out->sum8[i] += sum_i32(y);
        scale_and_round(x + c, to16, y);
        for (int j = 0; j < CHANNELS; j++) {
            q16[c + j] = (int16_t)y[j];
            high[c + j] = lk_high_byte((int16_t)y[j]);
            low[c + j] = lk_low_byte((int16_t)y[j]);
        }
        out->sum16[i] += sum_i32(y);
    }
    out->scale8[i] = max / 127;
    out->scale16[i] = max / max16;
}

void lk_queries_set8(const struct lk_queries *out, int i, const float *x) {
    int d = out->d_head, pad = lk_queries_pad(d);
    int8_t *q8 = out->q8 + (size_t)i * pad;
    float row[LK_MAX_D_HEAD], max;
    memcpy(row, x, d * sizeof *row);
    memset(row + d, 0, (pad - d) * sizeof *row);
    int32_t bits = max_abs_bits(row, pad);
    memcpy(&max, &bits, sizeof max);
    float to8 = max > 0 ? 127 / max : 0;
    if (!(to8 <= 3e38f)) to8 = 0;
    if (!isfinite(max)) {
        max = NAN;
        memset(row, 0, pad * sizeof *row);
    }
    out->sum8[i] = 0;
    for (int c = 0; c < pad; c += CHANNELS) {
        int32_t y[CHANNELS];
        scale_and_round(row + c, to8, y);
        for (int j = 0; j < CHANNELS; j++) q8[c + j] = (int8_t)y[j];
        out->sum8[i] += sum_i32(y);
    }
    out->scale8[i] = max / 127;
}

void lk_queries_prepare(struct lk_queries *out, const float *q, int n_q, int d_head, void *mem) {
    size_t n_code = (size_t)n_q * lk_queries_pad(d_head);
    out->n_q = n_q;
    out->d_head = d_head;
    out->q = q;
    out->q16 = mem; /* rows of a multiple of 64 bytes come first, so that they stay aligned */
    out->q8 = (int8_t *)(out->q16 + n_code);
    out->planes = out->q8 + n_code;
    out->scale8 = (float *)(out->planes + 2 * n_code);
    out->scale16 = out->scale8 + n_q;
    out->sum8 = (int32_t *)(out->scale16 + n_q);
    out->sum16 = out->sum8 + n_q;
    for (int i = 0; i < n_q; i++) quantize_query(out, i);
}
