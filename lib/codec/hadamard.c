/* Fast products with Hadamard matrices (Sylvester, Paley) and small DCTs. */
#include "codec/hadamard.h"

#include "base/hash.h"
#include "codec/codec.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool is_prime(int n) {
    for (int i = 2; i * i <= n; i++)
        if (n % i == 0) return false;
    return n > 1;
}

struct lk_rotation lk_rotation_of(int n) {
    int odd = n, width = 1;
    for (; odd % 2 == 0; odd /= 2) width *= 2;
    if (odd == 1) return (struct lk_rotation){LK_SYLVESTER, 1, n, 0};
    if (width % 4 == 0 && is_prime(4 * odd - 1))
        return (struct lk_rotation){LK_PALEY_1, 4 * odd, width / 4, 4 * odd - 1};
    if (width % 4 == 0 && is_prime(2 * odd - 1))
        return (struct lk_rotation){LK_PALEY_2, 4 * odd, width / 4, 2 * odd - 1};
    return (struct lk_rotation){LK_COSINE, odd, width, 0};
}

/* Vectors of four lanes: gcc and clang provide them on every CPU. */
typedef float float4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store4(float *x, float4 v) { memcpy(x, &v, sizeof v); }

/* How often each matrix entry is stored. Rows of less than four numbers need one copy of the entry
 * per number, so that four lanes of entries match four lanes of numbers. */
static int entry_repeats(int width) { return width < 4 ? width : 1; }

/* out[w] = sum over j of entry[j] x[j][w], for 4 * n_part of the `width` numbers in a row. Four
 * accumulators hold the partial sums of 4 / n_part rows. */
static inline void weighted_sum_blocks(const float *entry, const float *x, int n, int width,
                                       int n_part, float *out) {
    float4 sum[4] = {{0}, {0}, {0}, {0}};
    int j = 0, n_row = 4 / n_part;
    for (; j + n_row <= n; j += n_row)
        for (int k = 0; k < 4; k++)
            sum[k] +=
                entry[j + k / n_part] * load4(x + (j + k / n_part) * width + 4 * (k % n_part));
    for (; j < n; j++)
        for (int k = 0; k < n_part; k++) sum[k] += entry[j] * load4(x + j * width + 4 * k);
    for (int k = n_part; k < 4; k++) sum[k % n_part] += sum[k];
    for (int k = 0; k < n_part; k++) store4(out + 4 * k, sum[k]);
}

/* Like weighted_sum, for rows of one or two numbers. `entry` is repeated per number. */
static void weighted_sum_narrow(const float *entry, const float *x, int n, int width, float *out) {
    float4 sum[4] = {{0}, {0}, {0}, {0}};
    int i = 0, size = n * width;
    for (; i + 16 <= size; i += 16)
        for (int k = 0; k < 4; k++) sum[k] += load4(entry + i + 4 * k) * load4(x + i + 4 * k);
    for (; i + 4 <= size; i += 4) sum[0] += load4(entry + i) * load4(x + i);
    float4 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total[2] = {all[0] + all[2], all[1] + all[3]};
    for (; i < size; i++) total[i % 2] += entry[i] * x[i];
    out[0] = width == 1 ? total[0] + total[1] : total[0];
    if (width == 2) out[1] = total[1];
}

/* out[w] = sum over j of entry[j] x[j][w]. x: [n][width], width a power of two; out: [width]. */
static void weighted_sum(const float *entry, const float *x, int n, int width, float *out) {
    if (width < 4)
        weighted_sum_narrow(entry, x, n, width, out);
    else if (width == 4)
        weighted_sum_blocks(entry, x, n, width, 1, out);
    else if (width == 8)
        weighted_sum_blocks(entry, x, n, width, 2, out);
    else
        for (int w = 0; w < width; w += 16) weighted_sum_blocks(entry, x + w, n, width, 4, out + w);
}

/* y = [0 1; border Q] x, by rows. x, y: [q + 1][width]. */
static void multiply_conference(const float *x, float *y, int q, int width, float border) {
    /* The Legendre symbols [q], stored twice so that j - i needs no reduction, and ones [q] */
    float entry[3 * LK_MAX_D_HEAD];
    int n_repeat = entry_repeats(width), n = q * n_repeat;
    for (int i = 0; i < 2 * n; i++) entry[i] = -1;
    for (int i = 2 * n; i < 3 * n; i++) entry[i] = 1;
    for (int k = 0; k < n_repeat; k++) entry[k] = entry[n + k] = 0;
    for (int i = 1, square = 1; i <= q / 2; i++) {
        for (int k = square * n_repeat; k < (square + 1) * n_repeat; k++)
            entry[k] = entry[n + k] = 1;
        for (square += 2 * i + 1; square >= q;) square -= q;
    }
    weighted_sum(entry + 2 * n, x + width, q, width, y);
    for (int i = 0; i < q; i++) {
        float *row = y + (i + 1) * width;
        weighted_sum(entry + n - i * n_repeat, x + width, q, width, row);
        for (int w = 0; w < width; w++) row[w] += border * x[w];
    }
}

static void multiply_paley_1(float *x, int q, int width, bool transpose) {
    float y[LK_MAX_D_HEAD], sign = transpose ? -1 : 1; /* [0 1; -1 Q] is skew */
    multiply_conference(x, y, q, width, -1);
    for (int i = 0; i < (q + 1) * width; i++) x[i] += sign * y[i];
}

/* Symmetric. x: [q + 1][2][width]. */
static void multiply_paley_2(float *x, int q, int width) {
    float u[LK_MAX_D_HEAD] = {0}, y[LK_MAX_D_HEAD];
    for (int i = 0; i <= q; i++) {
        float *a = x + 2 * i * width, *b = a + width;
        float *sum = u + 2 * i * width, *difference = sum + width;
        for (int w = 0; w < width; w++) {
            sum[w] = a[w] + b[w];
            difference[w] = a[w] - b[w];
        }
    }
    multiply_conference(u, y, q, 2 * width, 1);
    for (int i = 0; i <= q; i++) {
        float *a = x + 2 * i * width, *b = a + width;
        float *sum = u + 2 * i * width, *difference = sum + width;
        for (int w = 0; w < width; w++) {
            a[w] = y[2 * i * width + w] + difference[w];
            b[w] = y[(2 * i + 1) * width + w] - sum[w];
        }
    }
}

/* D[i][j] = sqrt((i ? 2 : 1) / n) cos(pi (2 j + 1) i / (2 n)). x: [n][width]. */
static void multiply_cosine(float *x, int n, int width, bool transpose) {
    float table[4 * LK_MAX_D_HEAD], entry[LK_MAX_D_HEAD], y[LK_MAX_D_HEAD];
    const float first = sqrtf(1.0f / (float)n), scale = sqrtf(2.0f / (float)n);
    int n_repeat = entry_repeats(width);
    for (int k = 0; k <= n; k++) {
        float c = scale * (float)cos(3.14159265358979323846 * k / (2 * n));
        table[k] = c;
        table[2 * n - k] = -c;
        if (k > 0) table[4 * n - k] = c, table[2 * n + k] = -c;
    }
    for (int to = 0; to < n; to++) {
        int at = transpose ? 0 : to;
        int step = transpose ? 2 * to + 1 : 2 * to; /* of (2 j + 1) i; less than 4 n */
        for (int k = 0; k < n * n_repeat;) {
            float value = table[at];
            if ((at += step) >= 4 * n) at -= 4 * n;
            for (int end = k + n_repeat; k < end; k++) entry[k] = value;
        }
        for (int k = 0; k < (transpose ? 1 : to == 0 ? n : 0) * n_repeat; k++)
            entry[k] = first; /* i = 0 */
        weighted_sum(entry, x, n, width, y + to * width);
    }
    memcpy(x, y, (size_t)n * width * sizeof *x);
}

/* Multiply by Sylvester's matrix of order 4. Flipping a sign and adding rounds like a
 * subtraction. */
static inline float4 multiply_sylvester4(float4 v) {
    const int4 odd = {0, INT32_MIN, 0, INT32_MIN}, upper = {0, 0, INT32_MIN, INT32_MIN};
    v = (float4){v[0], v[0], v[2], v[2]} + (float4)((int4)(float4){v[1], v[1], v[3], v[3]} ^ odd);
    return (float4){v[0], v[1], v[0], v[1]} +
           (float4)((int4)(float4){v[2], v[3], v[2], v[3]} ^ upper);
}

/* Multiply each row of x [n / width][width] by `scale` times Sylvester's matrix, which is
 * symmetric. */
static void multiply_sylvester(float *x, int n, int width, float scale) {
    for (int i = 0; width == 2 && i < n; i += 2) {
        float a = x[i], b = x[i + 1];
        x[i] = a + b;
        x[i + 1] = a - b;
    }
    for (int i = 0; width > 2 && i < n; i += 4) store4(x + i, multiply_sylvester4(load4(x + i)));
    for (int half = 4; half < width; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j += 4) {
                float4 a = load4(x + j), b = load4(x + j + half);
                store4(x + j, a + b);
                store4(x + j + half, a - b);
            }
    int i = 0;
    for (; i + 4 <= n; i += 4) store4(x + i, load4(x + i) * (float4){scale, scale, scale, scale});
    for (; i < n; i++) x[i] *= scale;
}

/* Multiply x [n] by pseudo-random signs that depend only on n. */
static void flip_signs(float *x, int n) {
    const int4 bit = {1, 2, 4, 8};
    for (int i = 0; i < n; i += 64) {
        uint64_t z =
            lk_splitmix64(((uint64_t)n * 0x100 + (uint64_t)i / 64 + 1) * lk_splitmix64_step);
        int j = i;
        for (; j < i + 64 && j + 4 <= n; j += 4, z >>= 4) {
            int32_t low = (int32_t)(z & 15);
            int4 flip = (((int4){low, low, low, low} & bit) != 0) & INT32_MIN;
            store4(x + j, (float4)((int4)load4(x + j) ^ flip));
        }
        for (; j < n && j < i + 64; j++, z >>= 1) x[j] *= 1 - 2 * (float)(z & 1);
    }
}

static void multiply_hadamard(float *x, int n, bool transpose) {
    struct lk_rotation f = lk_rotation_of(n);
    if (f.kind == LK_PALEY_1) multiply_paley_1(x, f.q, f.width, transpose);
    if (f.kind == LK_PALEY_2) multiply_paley_2(x, f.q, f.width);
    if (f.kind == LK_COSINE) multiply_cosine(x, f.small, f.width, transpose);
    /* The DCT is orthonormal already. A Hadamard matrix of order m has rows of length sqrt m. */
    multiply_sylvester(x, n, f.width, 1 / sqrtf((float)(f.kind == LK_COSINE ? f.width : n)));
}

void lk_rotation_signs(float *sign, int n) {
    for (int i = 0; i < n; i++) sign[i] = 1;
    flip_signs(sign, n);
}

void lk_rotate(float *x, int n) {
    flip_signs(x, n);
    multiply_hadamard(x, n, false);
}

void lk_unrotate(float *x, int n) {
    multiply_hadamard(x, n, true);
    flip_signs(x, n);
}
