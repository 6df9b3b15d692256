/* The V warps: softmax, and sums of V's latents. See latent_shape.h. */
#ifndef LK_CUDA_LATENT_VALUES_H
#define LK_CUDA_LATENT_VALUES_H

#include "cuda/latent_shape.h"
#include "cuda/rot_bytes.h"

/* What a V warp keeps: of its columns (warp, warp + 4, ...) and of its channels (a quarter). */
template <class sh> struct latent_sums {
    F max[sh::SETS], sum[sh::SETS], offset[sh::SETS]; /* sum, offset: of this lane's tokens */
    F acc[sh::SETS][sh::NV][4]; /* column t of a set, channels 32 n + 8 (g / 2) + 4 (g % 2) + i */
};
template <class sh> WF void latent_begin(latent_sums<sh> &x) {
    for (int s = 0; s < sh::SETS; s++) {
        x.max[s] = splatf(-1e30f), x.sum[s] = splatf(0), x.offset[s] = splatf(0);
        for (int n = 0; n < sh::NV; n++)
            for (int i = 0; i < 4; i++) x.acc[s][n][i] = splatf(0);
    }
}

/* Softmax of the warp's columns, relative to the chunk's maximum: scores -> weights times V's
 * scales, in 16 bits as two byte planes, and the factors of the sums before and of the chunk.
 * `first`: the chunk's first row, counted from chunk 0. */
template <class sh>
WF void latent_softmax(const struct lk_device_latent_launch &a, const latent_work &w, S shared,
                       S scores, S v_tiles, S weights, S factors, int first, int warp,
                       latent_sums<sh> &x) {
    U lane = lane_id(), row = lane * 4u + (uint32_t)first;
    uint32_t v_tile = 4u * sh::VB * w.v_rank + 64u;
    U2 vs = lds64(v_tiles, (lane >> 3) * v_tile + (lane & 7u) * 8u + (v_tile - 64u));
    int begin = w.skip, end = w.skip + w.call->segment.n_row;
    F scale[4], v_max = splatf(6e-8f);
#pragma unroll
    for (int i = 0; i < 4; i++) { /* rows that are not the segment's are not read */
        U h = vs.v[i / 2];
        M there = both(row + (uint32_t)i >= (uint32_t)begin, row + (uint32_t)i < (uint32_t)end);
        scale[i] = self(there, abs_(i % 2 ? h_hi(h) : h_lo(h)), splatf(0));
        v_max = max_(v_max, scale[i]);
    }
    v_max = max_lanes(v_max);
    F inverse = rcp_approx(v_max) * 65528.0f;
#pragma unroll
    for (int s = 0; s < sh::SETS; s++) {
        int col = 4 * s + warp, lo, hi;
        if (col >= sh::COLS) continue;
        latent_visible(a, w, col % sh::NQ, &lo, &hi);
        F sc[4], max = splatf(-1e30f), sum = splatf(0);
        U4 raw = lds128(scores, lane * 16u + (uint32_t)(col * 512));
        F q_scale = ldsf(shared + sh::q_scale, splat((uint32_t)(4 * col)));
#pragma unroll
        for (int i = 0; i < 4; i++) sc[i] = bits_f(raw.v[i]) * q_scale;
        if (first < lo || first + 128 > hi)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sc[i] =
                    self(both(row + (uint32_t)i >= (uint32_t)lo, row + (uint32_t)i < (uint32_t)hi),
                         sc[i], splatf(-1e30f));
#pragma unroll
        for (int i = 0; i < 4; i++) max = max_(max, sc[i]);
        max = max_lanes(max);
        U n[4], total = splat(0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            F p = exp2_(sc[i] - max);
            sum = sum + p;
            n[i] = f_bits(fma_(p, scale[i] * inverse, splatf(8388608.0f)));
            total = total + n[i];
        }
        U lows = prmt(n[0], n[1], splat(0x5140u)), highs = prmt(n[2], n[3], splat(0x5140u));
        U to = lane * 4u + (uint32_t)((8 * s + warp) * sh::WEIGHT_STRIDE);
        sts32(weights, to + (uint32_t)(4 * sh::WEIGHT_STRIDE), prmt(lows, highs, splat(0x5410u)));
        sts32(weights, to, prmt(lows, highs, splat(0x7632u)));
        F joint = max_(x.max[s], max), alpha = exp2_(x.max[s] - joint), grow = exp2_(max - joint);
        F beta = grow * v_max * (0.5f / 65528.0f);
        x.max[s] = joint;
        x.sum[s] = fma_(x.sum[s], alpha, sum * grow);
        if constexpr (sh::VB == 4) /* 4 * 0x4b000000 */
            x.offset[s] = fma_(x.offset[s], alpha, i2f(as_i(total - 0x2c000000u)) * beta);
        stsf_if(lane == 0u, factors, splat((uint32_t)(8 * col)), alpha);
        stsf_if(lane == 0u, factors, splat((uint32_t)(8 * col + 4)), beta);
    }
}

/* Weights in the order of the codes below: [set][8] words of the lane's column and plane. */
template <class sh> WF void latent_weights(S weights, int s, U *b) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u;
    U col = ((g >> 1) + (g & 1u) * 4u + (uint32_t)(8 * s)) * (uint32_t)sh::WEIGHT_STRIDE;
    if constexpr (sh::VB < 4) { /* tile 2 two + t / 2, tokens 16 (t % 2) .. */
#pragma unroll
        for (int two = 0; two < 2; two++) {
            U4 w = lds128(weights, col + t * 16u + (uint32_t)(64 * two));
            b[4 * two] = prmt(w.v[0], w.v[2], splat(0x5140u));
            b[4 * two + 1] = prmt(w.v[0], w.v[2], splat(0x7362u));
            b[4 * two + 2] = prmt(w.v[1], w.v[3], splat(0x5140u));
            b[4 * two + 3] = prmt(w.v[1], w.v[3], splat(0x7362u));
        }
    } else {
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            U2 w = lds64(weights, col + t * 8u + (uint32_t)(32 * tile));
            b[2 * tile] = prmt(w.v[0], w.v[1], splat(0x5140u));
            b[2 * tile + 1] = prmt(w.v[0], w.v[1], splat(0x7362u));
        }
    }
}

/* The warp's channels: acc = acc * alpha + beta * sums of weights times codes. */
template <class sh>
WF void latent_values(S v_tiles, uint32_t rank, S weights, S factors, int warp,
                      latent_sums<sh> &x) {
    constexpr int VB = sh::VB, VU = VB == 4 ? 4 : 2, PER = VB == 4 ? 2 : 4;
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, u = g & 1u;
    U t0 = opaque_u(splat(rot_book<VB>::t0)), half = (t & 1u) * 4u;
    uint32_t tile = 4u * VB * rank + 64u;
    U at2 = VB == 4 ? t * 32u + (g >> 1) * 128u + u * 16u
                    : (t >> 1) * tile + (t & 1u) * 32u + (g >> 1) * 64u + u * 16u;
    U at1 = (t >> 1) * tile + (g >> 1) * 32u + u * 16u + 8u * rank;
    U b[sh::SETS][8];
    F alpha[sh::SETS], beta[sh::SETS];
#pragma unroll
    for (int s = 0; s < sh::SETS; s++) {
        latent_weights<sh>(weights, s, b[s]);
        U2 f = lds64(factors, t * 8u + (uint32_t)(32 * s));
        alpha[s] = bits_f(f.v[0]), beta[s] = bits_f(f.v[1]);
    }
#pragma unroll
    for (int n = 0; n < sh::NV; n++) {
        int step = warp * sh::NV + n;
        U4 piece[VU], third[2];
#pragma unroll
        for (int i = 0; i < VU; i++)
            piece[i] = lds128(v_tiles, at2 + ((VB == 4 ? i : 2 * i) * tile +
                                              (uint32_t)(step * (VB == 4 ? 512 : 256))));
        if constexpr (VB == 3)
            for (int i = 0; i < 2; i++)
                third[i] = lds128(v_tiles, at1 + (2 * i * tile + (uint32_t)(step * 128)));
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            I4 c[sh::SETS];
            for (int s = 0; s < sh::SETS; s++) c[s] = izero();
#pragma unroll
            for (int k = 0; k < VU; k++) {
                U r[2][4];
#pragma unroll
                for (int j = 0; j < 2; j++)
                    rot_v_bytes<VB>(piece[k].v[i + j],
                                    VB == 3 ? shrv(third[k & 1].v[i + j], half) : splat(0), r[j],
                                    t0);
#pragma unroll
                for (int s = 0; s < sh::SETS; s++) {
                    mma_su(c[s], r[0][0], r[1][0], r[0][1], r[1][1], b[s][PER * k],
                           b[s][PER * k + 1]);
                    if constexpr (VB < 4)
                        mma_su(c[s], r[0][2], r[1][2], r[0][3], r[1][3], b[s][PER * k + 2],
                               b[s][PER * k + 3]);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int s = 0; s < sh::SETS; s++)
                    x.acc[s][n][i + j] =
                        fma_(x.acc[s][n][i + j], alpha[s],
                             i2f(c[s].v[2 * j] * 256 + c[s].v[2 * j + 1]) * beta[s]);
        }
    }
}

/* The warp's sums to shared memory: [COLS][RV + 2] floats: acc, max, sum. offsets: [SETS][4].
 * All V warps call the first, then the second. */
template <class sh> WF void latent_put_columns(S to, S offsets, int warp, latent_sums<sh> &x) {
    M one = lane_id() == 0u;
    for (int s = 0; s < sh::SETS; s++) {
        int col = 4 * s + warp;
        F sum = sum_lanes(x.sum[s]), offset = sum_lanes(x.offset[s]);
        stsf_if(one, offsets, splat((uint32_t)(4 * col)), offset);
        if (col >= sh::COLS) continue;
        stsf_if(one, to, splat((uint32_t)(col * sh::SUM + 4 * sh::RV)), x.max[s]);
        stsf_if(one, to, splat((uint32_t)(col * sh::SUM + 4 * sh::RV + 4)), sum);
    }
}
template <class sh> WF void latent_put_channels(S to, S offsets, int warp, latent_sums<sh> &x) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u;
    for (int s = 0; s < sh::SETS; s++) {
        U col = t + (uint32_t)(4 * s), row = col * (uint32_t)sh::SUM;
        F offset = ldsf(offsets, col * 4u) * (float)-rot_center(sh::VB);
        for (int n = 0; n < sh::NV; n++)
            for (int i = 0; i < 4; i++)
                stsf_if(col < (uint32_t)sh::COLS, to,
                        row + (g >> 1) * 32u + (g & 1u) * 16u +
                            (uint32_t)((warp * sh::NV + n) * 128 + 4 * i),
                        x.acc[s][n][i] + offset);
    }
}

#endif
