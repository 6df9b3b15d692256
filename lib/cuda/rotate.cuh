/* Rows of a tile as floats in shared memory, and their rotation, with the bits of codec/hadamard.c.
 *
 * Channel c of row t is x[c * TILE_STRIDE + t]: a lane that works on a row, and lanes that work on
 * successive channels of one row, use different banks. Column 32 is for one row more, the mean.
 * The functions here are for one lane and its column; `x` is the address of channel 0. */
#ifndef LK_CUDA_ROTATE_CUH
#define LK_CUDA_ROTATE_CUH

#include "cuda/lanes.cuh"

enum { TILE_ROWS = 32, TILE_STRIDE = TILE_ROWS + 1, TILE_MEAN = TILE_ROWS };

/* Shared memory of a warp for rows of up to d channels. */
struct tile_memory {
    float *scratch;        /* [4] the mean's scale; then addresses of 32 blocks */
    float *x;              /* [d][TILE_STRIDE] rows, and codes in their place */
    float *extra;          /* [d / 16 + 2][TILE_STRIDE] scales of the codes */
    float *spare;          /* [spare rows][TILE_STRIDE] for Paley matrices, and trellises */
    signed char *legendre; /* [q] and the Legendre symbols of j mod q */
};

/* Rows that a rotation needs: the order of its Paley matrix. Trellises need d / 4. */
WF int rotation_rows(const lk_device_packing &__restrict__ k) {
    return k.paley ? k.d / k.width : 0;
}

/* Lay it out; lk_device_move_shared (device/moves.h) counts the bytes. */
WF tile_memory tile_at(char *shared, int d, int n_spare) {
    tile_memory m;
    m.scratch = (float *)shared;
    m.x = m.scratch + 68;
    m.extra = m.x + d * TILE_STRIDE;
    m.spare = m.extra + (d / 16 + 2) * TILE_STRIDE;
    m.legendre = (signed char *)(m.spare + n_spare * TILE_STRIDE);
    return m;
}

WF uint64_t splitmix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The signs of channels 64 i to 64 i + 63 of rows of d channels: bit set: negated. */
WF uint64_t rotation_signs(int d, int i) {
    return splitmix64(((uint64_t)d * 0x100 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u);
}

/* x with its sign changed if bit `c % 64` of `signs` is set. */
WF float flip(float x, uint64_t signs, int c) {
    return from_bits(to_bits(x) ^ (uint32_t)(signs >> (c & 63) & 1) << 31);
}

/* R stages of Sylvester's butterflies from distance `half` on; results are multiplied by scale. */
template <int R> WF void butterflies(float *x, int d, int half, float scale) {
    for (int base = 0; base < d; base += half * R)
        for (int i = base; i < base + half; i++) {
            float v[R];
#pragma unroll
            for (int r = 0; r < R; r++) v[r] = x[(i + r * half) * TILE_STRIDE];
#pragma unroll
            for (int h = 1; h < R; h *= 2)
#pragma unroll
                for (int r = 0; r < R; r++)
                    if (!(r & h)) {
                        float a = v[r], b = v[r + h];
                        v[r] = add(a, b);
                        v[r + h] = sub(a, b);
                    }
#pragma unroll
            for (int r = 0; r < R; r++) x[(i + r * half) * TILE_STRIDE] = mul(v[r], scale);
        }
}

/* Sylvester's matrix of order k.width, scaled, times each row of x [d / width][width]. */
WF void multiply_sylvester(const lk_device_packing &__restrict__ k, float *x) {
    float scale = divide(1, root((float)k.d));
    int half = 1;
    for (; half * 8 <= k.width; half *= 8)
        butterflies<8>(x, k.d, half, half * 8 == k.width ? scale : 1.0f);
    if (half * 4 == k.width) butterflies<4>(x, k.d, half, scale);
    if (half * 2 == k.width) butterflies<2>(x, k.d, half, scale);
}

/* The sum over j < n of entry(j) x[j][w], x [n][width], in the order of codec/hadamard.c: vectors
 * of four numbers, and four of them at a time. */
template <class Entry> WF float weighted_sum(Entry entry, const float *x, int n, int width, int w) {
    auto term = [&](int j) { return mul(entry(j), x[(j * width + w) * TILE_STRIDE]); };
    float sum[4] = {0, 0, 0, 0};
    int j = 0;
    if (width >= 16) {
        for (; j < n; j++) sum[0] = add(sum[0], term(j));
        return sum[0];
    }
    if (width == 8) {
        for (; j + 2 <= n; j += 2)
#pragma unroll
            for (int k = 0; k < 2; k++) sum[k] = add(sum[k], term(j + k));
        for (; j < n; j++) sum[0] = add(sum[0], term(j));
        return add(sum[0], sum[1]);
    }
    if (width == 4) {
        for (; j + 4 <= n; j += 4)
#pragma unroll
            for (int k = 0; k < 4; k++) sum[k] = add(sum[k], term(j + k));
        for (; j < n; j++) sum[0] = add(sum[0], term(j));
        return add(add(add(sum[0], sum[1]), sum[2]), sum[3]);
    }
    /* width 2: number j is in lane 2 (j % 2) + w of a vector */
    float odd[4] = {0, 0, 0, 0};
    for (; j + 8 <= n; j += 8)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sum[k] = add(sum[k], term(j + 2 * k));
            odd[k] = add(odd[k], term(j + 2 * k + 1));
        }
    for (; j + 2 <= n; j += 2) {
        sum[0] = add(sum[0], term(j));
        odd[0] = add(odd[0], term(j + 1));
    }
    float total = add(add(add(sum[0], sum[1]), add(sum[2], sum[3])),
                      add(add(odd[0], odd[1]), add(odd[2], odd[3])));
    for (; j < n; j++) total = add(total, term(j));
    return total;
}

/* y = [0 1; border Q] x for number w of each row of x [q + 1][width]: y [q + 1]. */
WF void multiply_conference(const float *x, float *y, int q, int width, int w, float border,
                            const signed char *legendre) {
    const float *rest = x + width * TILE_STRIDE;
    auto one = [](int) { return 1.0f; };
    y[0] = weighted_sum(one, rest, q, width, w);
    for (int i = 0; i < q; i++) {
        auto symbol = [=](int j) { return (float)legendre[j >= i ? j - i : j - i + q]; };
        y[(i + 1) * TILE_STRIDE] =
            add(weighted_sum(symbol, rest, q, width, w), mul(border, x[w * TILE_STRIDE]));
    }
}

WF void multiply_paley_1(const lk_device_packing &__restrict__ k, float *x, float *y,
                         const signed char *legendre, bool transpose) {
    float sign = transpose ? -1.0f : 1.0f;
    for (int w = 0; w < k.width; w++) {
        multiply_conference(x, y, k.q, k.width, w, -1, legendre);
        for (int i = 0; i <= k.q; i++) {
            int at = (i * k.width + w) * TILE_STRIDE;
            x[at] = add(x[at], mul(sign, y[i * TILE_STRIDE]));
        }
    }
}

/* x: [q + 1][2][width] */
WF void multiply_paley_2(const lk_device_packing &__restrict__ k, float *x, float *y,
                         const signed char *legendre) {
    int pair = k.width * TILE_STRIDE;
    float *z = y + (k.q + 1) * TILE_STRIDE;
    for (int i = 0; i <= k.q; i++)
        for (int w = 0; w < k.width; w++) {
            float *a = x + (2 * i * k.width + w) * TILE_STRIDE, sum = add(a[0], a[pair]);
            a[pair] = sub(a[0], a[pair]);
            a[0] = sum;
        }
    for (int w = 0; w < k.width; w++) {
        multiply_conference(x, y, k.q, 2 * k.width, w, 1, legendre);
        multiply_conference(x, z, k.q, 2 * k.width, w + k.width, 1, legendre);
        for (int i = 0; i <= k.q; i++) {
            int at = (2 * i * k.width + w) * TILE_STRIDE;
            float sum = x[at], difference = x[at + pair];
            x[at] = add(y[i * TILE_STRIDE], difference);
            x[at + pair] = sub(z[i * TILE_STRIDE], sum);
        }
    }
}

/* H without its signs, or its transpose, times one column. */
CALLED void multiply_hadamard(const lk_device_packing &__restrict__ k, const tile_memory &m,
                              int column, bool transpose) {
    float *x = m.x + column;
    if (k.paley == 1) multiply_paley_1(k, x, m.spare + column, m.legendre, transpose);
    if (k.paley == 2) multiply_paley_2(k, x, m.spare + column, m.legendre);
    multiply_sylvester(k, x);
}

/* Fill in the Legendre symbols: a phase of the warp. */
WF void prepare_rotation(const lk_device_packing &__restrict__ k, const tile_memory &m) {
    if (!k.paley) return;
    lanes([&](int lane) {
        for (int j = lane; j < k.q; j += 32) m.legendre[j] = j ? -1 : 0;
    });
    /* Lanes may write the same square. */
    lanes([&](int lane) {
        for (int i = lane + 1; i <= k.q / 2; i += 32) m.legendre[i * i % k.q] = 1;
    });
}

#endif
