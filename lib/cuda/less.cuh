/* LESS: features of keys and queries, the sums that stand for evicted rows, and their attention
 * (absorb/less.h has the equations). */
#ifndef LK_CUDA_LESS_CUH
#define LK_CUDA_LESS_CUH

#include "cuda/lanes.cuh"

enum { LESS_MAX_FEATURE = 64 };

/* Floats of shared memory of a warp: the hidden layer, two vectors of features, and two numbers. */
inline int less_shared(int n_hidden) {
    return (int)sizeof(float) * (n_hidden + 2 * LESS_MAX_FEATURE + 2);
}

WF float gelu(float x) { return x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

/* y[o] = gelu(sum over i of x[i] w[i][o]), w f16 [n_in][n_out]: a phase. */
WF void gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    lanes([&](int lane) {
        for (int o = lane; o < n_out; o += 32) {
            float sum = 0;
            for (int i = 0; i < n_in; i++) sum += x[i] * from_half(w[(size_t)i * n_out + o]);
            y[o] = gelu(sum);
        }
    });
}

/* gelu(gelu(x W1) W2) of network `which` into out [n_feature]. */
WF void two_layers(const lk_device_less &s, uint64_t w1, uint64_t w2, int which, const float *x,
                   float *hidden, float *out) {
    gelu_layer(x, at<const uint16_t>(w1) + (size_t)which * s.d_head * s.n_hidden, s.d_head,
               s.n_hidden, hidden);
    gelu_layer(hidden, at<const uint16_t>(w2) + (size_t)which * s.n_hidden * s.n_feature,
               s.n_hidden, s.n_feature, out);
}

/* Features of the key of row `row` and KV head `head`, into s.feature. */
WF void less_key(const lk_device_less &s, int row, int head, char *shared) {
    float *hidden = (float *)shared, *u = hidden + s.n_hidden;
    int n = s.n_feature, which = head * s.n_psi / s.n_head_kv;
    size_t index = (size_t)row * s.n_head_kv + head;
    two_layers(s, s.psi_w1, s.psi_w2, which, at<const float>(s.k) + index * s.d_head, hidden, u);
    lanes([&](int lane) {
        for (int r = lane; r < n; r += 32)
            u[r] *= fabsf(at<const float>(s.psi_s1)[(size_t)which * n + r]);
    });
    lanes([&](int lane) {
        const float *w3 = at<const float>(s.psi_w3) + (size_t)which * n * n;
        for (int r = lane; r < n; r += 32) {
            float sum = 0;
            for (int i = 0; i < n; i++) sum += u[i] * w3[i * n + r];
            float scaled = sum * at<const float>(s.psi_s2)[(size_t)which * n + r];
            at<float>(s.feature)[index * n + r] = fabsf(u[r] + scaled);
        }
    });
}

/* Add the rows, in their order, to feature `r` of the state of a KV head. */
WF void less_absorb(const lk_device_less &s, int head, int r) {
    lanes([&](int lane) {
        int d = s.d_head;
        float *state = at<float>(s.state) + ((size_t)head * s.n_feature + r) * (d + 1);
        for (int c = lane; c <= d; c += 32) {
            float sum = state[c];
            for (int row = 0; row < s.n_row; row++) {
                size_t index = (size_t)row * s.n_head_kv + head;
                float psi = at<const float>(s.feature)[index * s.n_feature + r];
                sum = add(sum, c < d ? mul(psi, at<const float>(s.v)[index * d + c]) : psi);
            }
            state[c] = sum;
        }
    });
}

/* Attention of query head `head` of token t to the state of its KV head. */
WF void less_attend(const lk_device_less &s, int t, int head, char *shared) {
    float *hidden = (float *)shared, *phi = hidden + s.n_hidden, *sum = phi + 2 * LESS_MAX_FEATURE;
    int d = s.d_head, n = s.n_feature;
    size_t row = (size_t)t * s.n_head + head;
    const float *state =
        at<const float>(s.state) + (size_t)(head * s.n_head_kv / s.n_head) * n * (d + 1);
    float *out = at<float>(s.partial) + row * (d + 2);
    two_layers(s, s.phi_w1, s.phi_w2, head * s.n_phi / s.n_head, at<const float>(s.q) + row * d,
               hidden, phi);
    lanes([&](int lane) {
        if (lane) return;
        sum[0] = 0;
        for (int r = 0; r < n; r++) {
            phi[r] = fabsf(phi[r]);
            sum[0] += phi[r] * state[(size_t)r * (d + 1) + d];
        }
        out[d] = sum[0] > 0 ? logf(sum[0]) + at<const float>(s.phi_bias)[head] : -INFINITY;
        out[d + 1] = sum[0] > 0 ? 1 : 0;
    });
    lanes([&](int lane) {
        for (int c = lane; c < d; c += 32) {
            float all = 0;
            for (int r = 0; r < n; r++) all += phi[r] * state[(size_t)r * (d + 1) + c];
            out[c] = sum[0] > 0 ? all / sum[0] : 0;
        }
    });
}

struct less_args {
    uint64_t less; /* struct lk_device_less [] */
};

/* grid: (command, row, KV head); shared: less_shared */
struct less_key_kernel {
    typedef less_args args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        const lk_device_less &s = at<const lk_device_less>(a.less)[place.x];
        if (place.y < s.n_row && place.z < s.n_head_kv)
            less_key(s, place.y, place.z, shared_memory(shared));
    }
};

/* grid: (command, KV head, feature) */
struct less_absorb_kernel {
    typedef less_args args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S, const gpu_place &place) {
        const lk_device_less &s = at<const lk_device_less>(a.less)[place.x];
        if (place.y < s.n_head_kv && place.z < s.n_feature) less_absorb(s, place.y, place.z);
    }
};

/* grid: (command, token, query head); shared: less_shared */
struct less_attend_kernel {
    typedef less_args args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        const lk_device_less &s = at<const lk_device_less>(a.less)[place.x];
        if (place.y < s.n_tok && place.z < s.n_head)
            less_attend(s, place.y, place.z, shared_memory(shared));
    }
};

#endif
