#include "codec/hadamard.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/mix.h"
#include "codec/codec.h"

/* H_n = S (x) W: a small orthogonal matrix S of order `small`, and Sylvester's Hadamard matrix W. */
enum kind {
    SYLVESTER, /* small = 1                                                                     */
    PALEY_1,   /* small = q + 1,     q prime, q = 3 mod 4: S = I + [0 1; -1 Q]                    */
    PALEY_2,   /* small = 2 (q + 1), q prime, q = 1 mod 4: S = C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1],
                                                           C = [0 1; 1 Q]                          */
    COSINE,    /* small odd: orthonormal DCT-II                                                 */
};

/* Q[i][j] = (j - i | q), Legendre's symbol. */
struct order {
    enum kind kind;
    int       small, width, q;
};

static bool is_prime(int n) {
    for (int i = 2; i * i <= n; i++)
        if (n % i == 0) return false;
    return n > 1;
}

static struct order find_order(int n) {
    int odd = n, width = 1;
    for (; odd % 2 == 0; odd /= 2) width *= 2;
    if (odd == 1) return (struct order){SYLVESTER, 1, n, 0};
    if (width % 4 == 0 && is_prime(4 * odd - 1)) return (struct order){PALEY_1, 4 * odd, width / 4, 4 * odd - 1};
    if (width % 4 == 0 && is_prime(2 * odd - 1)) return (struct order){PALEY_2, 4 * odd, width / 4, 2 * odd - 1};
    return (struct order){COSINE, odd, width, 0};
}

/* y = [0 1; border Q] x by rows; x, y: [q + 1][width]. */
static void conference(const float *x, float *y, int q, int width, float border) {
    int8_t legendre[2 * LK_MAX_D_HEAD]; /* [2 q], twice over, so that j - i needs no reduction */
    memset(legendre, -1, sizeof legendre);
    legendre[0] = legendre[q] = 0;
    for (int i = 1; i < q; i++) legendre[i * i % q] = legendre[i * i % q + q] = 1;
    memset(y, 0, (size_t)width * sizeof *y);
    for (int j = 1; j <= q; j++)
        for (int w = 0; w < width; w++) y[w] += x[j * width + w];
    for (int i = 0; i < q; i++) {
        float *row = y + (i + 1) * width;
        for (int w = 0; w < width; w++) row[w] = border * x[w];
        for (int j = 0; j < q; j++) {
            float sign = legendre[j - i + q];
            for (int w = 0; w < width; w++) row[w] += sign * x[(j + 1) * width + w];
        }
    }
}

static void paley_1(float *x, int q, int width, bool transpose) {
    float y[LK_MAX_D_HEAD], sign = transpose ? -1 : 1; /* [0 1; -1 Q] is skew */
    conference(x, y, q, width, -1);
    for (int i = 0; i < (q + 1) * width; i++) x[i] += sign * y[i];
}

/* Symmetric. x: [q + 1][2][width]. */
static void paley_2(float *x, int q, int width) {
    float u[LK_MAX_D_HEAD] = {0}, y[LK_MAX_D_HEAD];
    for (int i = 0; i <= q; i++) {
        float *a = x + 2 * i * width, *b = a + width, *sum = u + 2 * i * width, *difference = sum + width;
        for (int w = 0; w < width; w++) {
            sum[w] = a[w] + b[w];
            difference[w] = a[w] - b[w];
        }
    }
    conference(u, y, q, 2 * width, 1);
    for (int i = 0; i <= q; i++) {
        float *a = x + 2 * i * width, *b = a + width, *sum = u + 2 * i * width, *difference = sum + width;
        for (int w = 0; w < width; w++) {
            a[w] = y[2 * i * width + w] + difference[w];
            b[w] = y[(2 * i + 1) * width + w] - sum[w];
        }
    }
}

/* D[i][j] = sqrt((i ? 2 : 1) / n) cos(pi (2 j + 1) i / (2 n)). x: [n][width]. */
static void cosine(float *x, int n, int width, bool transpose) {
    float table[4 * LK_MAX_D_HEAD], y[LK_MAX_D_HEAD] = {0};
    for (int k = 0; k < 4 * n; k++) table[k] = (float)cos(3.14159265358979323846 * k / (2 * n));
    for (int i = 0; i < n; i++) {
        float norm = sqrtf((i ? 2.0f : 1.0f) / (float)n);
        for (int j = 0; j < n; j++) {
            float entry = norm * table[(2 * j + 1) * i % (4 * n)];
            const float *from = x + (transpose ? i : j) * width;
            float *to = y + (transpose ? j : i) * width;
            for (int w = 0; w < width; w++) to[w] += entry * from[w];
        }
    }
    memcpy(x, y, (size_t)n * width * sizeof *x);
}

/* Four lanes, as gcc and clang have them on every machine. */
typedef float   float4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store4(float *x, float4 v) { memcpy(x, &v, sizeof v); }

/* The matrix of order 4. The second term's signs turn a sum into a difference, which rounds as one does. */
static inline float4 sylvester4(float4 v) {
    const int4 odd = {0, INT32_MIN, 0, INT32_MIN}, upper = {0, 0, INT32_MIN, INT32_MIN};
    v = (float4){v[0], v[0], v[2], v[2]} + (float4)((int4)(float4){v[1], v[1], v[3], v[3]} ^ odd);
    return (float4){v[0], v[1], v[0], v[1]} + (float4)((int4)(float4){v[2], v[3], v[2], v[3]} ^ upper);
}

/* Sylvester's matrix, times `scale`, on each of the rows of x [n / width][width]. Symmetric. */
static void sylvester(float *x, int n, int width, float scale) {
    for (int i = 0; width == 2 && i < n; i += 2) {
        float a = x[i], b = x[i + 1];
        x[i] = a + b;
        x[i + 1] = a - b;
    }
    for (int i = 0; width > 2 && i < n; i += 4) store4(x + i, sylvester4(load4(x + i)));
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

/* Random but fixed signs, of n. */
static void flip_signs(float *x, int n) {
    const int4 bit = {1, 2, 4, 8};
    for (int i = 0; i < n; i += 64) {
        uint64_t z = lk_mix(((uint64_t)n * 0x100 + (uint64_t)i / 64 + 1) * lk_mix_step);
        int j = i;
        for (; j < i + 64 && j + 4 <= n; j += 4, z >>= 4) {
            int32_t low = (int32_t)(z & 15);
            int4 flip = (((int4){low, low, low, low} & bit) != 0) & INT32_MIN;
            store4(x + j, (float4)((int4)load4(x + j) ^ flip));
        }
        for (; j < n && j < i + 64; j++, z >>= 1) x[j] *= 1 - 2 * (float)(z & 1);
    }
}

static void apply(float *x, int n, bool transpose) {
    struct order order = find_order(n);
    if (order.kind == PALEY_1) paley_1(x, order.q, order.width, transpose);
    if (order.kind == PALEY_2) paley_2(x, order.q, order.width);
    if (order.kind == COSINE) cosine(x, order.small, order.width, transpose);
    /* A DCT is orthonormal already; a Hadamard matrix of order m has rows of length sqrt m. */
    sylvester(x, n, order.width, 1 / sqrtf((float)(order.kind == COSINE ? order.width : n)));
}

void lk_rotation_signs(float *sign, int n) {
    for (int i = 0; i < n; i++) sign[i] = 1;
    flip_signs(sign, n);
}

void lk_rotate(float *x, int n) {
    flip_signs(x, n);
    apply(x, n, false);
}

void lk_unrotate(float *x, int n) {
    apply(x, n, true);
    flip_signs(x, n);
}
