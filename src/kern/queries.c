#include <math.h>
#include <string.h>

#include "kern/kern.h"

size_t lk_queries_bytes(int n_q, int d_head) {
    size_t row = lk_queries_pad(d_head) * (sizeof(int16_t) + 3 * sizeof(int8_t));
    return n_q * (row + 2 * sizeof(float) + 2 * sizeof(int32_t));
}

static inline int nearest(float x) { return (int)(x < 0 ? x - 0.5f : x + 0.5f); }

static void prepare_row(const struct lk_queries *out, int i) {
    int d = out->d_head, pad = lk_queries_pad(d);
    const float *q = out->q + (size_t)i * d;
    int16_t *q16 = out->q16 + (size_t)i * pad;
    int8_t *q8 = out->q8 + (size_t)i * pad, *high = out->planes + (size_t)i * 2 * pad, *low = high + pad;
    float most = 0, most16 = lk_most_x16(d);
    bool finite = true;
    for (int c = 0; c < d; c++) most = fmaxf(most, fabsf(q[c])), finite &= isfinite(q[c]) != 0;
    float to8 = most > 0 ? 127 / most : 0, to16 = most > 0 ? most16 / most : 0;
    if (!(to16 <= 3e38f)) to8 = to16 = 0; /* so small that it is zero in effect */
    int32_t sum8 = 0, sum16 = 0;
    for (int c = 0; finite && c < d; c++) {
        q8[c] = (int8_t)nearest(q[c] * to8);
        q16[c] = (int16_t)nearest(q[c] * to16);
        high[c] = lk_high_byte(q16[c]);
        low[c] = lk_low_byte(q16[c]);
        sum8 += q8[c];
        sum16 += q16[c];
    }
    if (!finite) d = 0, most = NAN; /* every code is 0 and every score NaN */
    memset(q8 + d, 0, (pad - d) * sizeof *q8);
    memset(q16 + d, 0, (pad - d) * sizeof *q16);
    memset(high + d, 0, pad - d);
    memset(low + d, 0, pad - d);
    out->scale8[i] = most / 127;
    out->scale16[i] = most / most16;
    out->sum8[i] = sum8;
    out->sum16[i] = sum16;
}

void lk_queries_prepare(struct lk_queries *out, const float *q, int n_q, int d_head, void *mem) {
    size_t n_code = (size_t)n_q * lk_queries_pad(d_head);
    out->n_q = n_q;
    out->d_head = d_head;
    out->q = q;
    out->q16 = mem; /* rows of 64 bytes' multiples first, so that they stay aligned */
    out->q8 = (int8_t *)(out->q16 + n_code);
    out->planes = out->q8 + n_code;
    out->scale8 = (float *)(out->planes + 2 * n_code);
    out->scale16 = out->scale8 + n_q;
    out->sum8 = (int32_t *)(out->scale16 + n_q);
    out->sum16 = out->sum8 + n_q;
    for (int i = 0; i < n_q; i++) prepare_row(out, i);
}
