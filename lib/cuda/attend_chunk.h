/* Attention over chunks of four tiles of rot codes, on integer matrix units.
 *
 * A warp takes chunks of 128 rows of one KV head:
 *   scores   A = codes of K as signed bytes (16 rows x 32 channels, from planes of 2, 3 or 4 bits
 *            by byte permutes), B = queries in 16 bits as two planes of bytes. Sums are exact.
 *   softmax  relative to the chunk's own maximum; weights * V's scales are rounded to 16 bits,
 *            again two planes of bytes
 *   values   A = codes of V as signed bytes (16 channels x 32 rows), B = the weights
 *
 * The layout of codec/bitplanes.h gives 16-byte pieces that are fragments of mma.m16n8k32, if rows
 * are numbered suitably: row g of a fragment is tile g / 2 of the chunk, row 4 (g % 2) + i + 8 s of
 * it. So codes go from shared memory to registers without any exchange between lanes.
 *
 * Template parameters: D channels of a head; KB, VB bits of K and of V; HPL columns of a lane. A
 * column is one query. HPL 1: up to 4 columns, whose two planes are neighboring columns of the
 * product. HPL 2: up to 8 columns, one product for each plane. */
#ifndef LK_CUDA_ATTEND_CHUNK_H
#define LK_CUDA_ATTEND_CHUNK_H

#include "cuda/rot_bytes.h"

#define ATTEND_NONE (-1e30f) /* the maximum of no scores */

enum { ATTEND_WEIGHTS = 144 }; /* bytes of the weights of a column and plane: 128 rows, padded */

constexpr int attend_k_bytes(int d, int kb) { return 4 * kb * d + 64 + d; }
constexpr int attend_v_bytes(int d, int vb) { return 4 * vb * d + 64; }

/* Bytes of a warp's ring: a chunk's tiles of K and of V, and the weights. */
constexpr int attend_ring(int d, int kb, int vb, int hpl) {
    return 4 * attend_k_bytes(d, kb) + 4 * attend_v_bytes(d, vb) + 8 * hpl * ATTEND_WEIGHTS;
}

/* A segment whose rows start with a tile in K and in V. */
struct attend_source {
    uint64_t k_table, v_table;   /* addresses of the tiles' blocks */
    uint32_t k_offset, v_offset; /* of the head in them */
    int n_row;
};

/* Queries of a KV head as fragments. */
template <int D, int HPL> struct attend_queries {
    U2 b[HPL][D / 32];
    F scale[HPL];  /* of the lane's columns: step of the query * scale of scores * log2 e */
    I offset[HPL]; /* start of the sums: -rot_center times the sum of the query */
};

/* Sums of columns t (HPL 1) or 2 t + h (HPL 2), of channels 32 n + 8 (g / 2) + 4 (g % 2) + i. */
template <int D, int HPL> struct attend_sums {
    F acc[HPL][D / 32][4];
    F max[HPL], sum[HPL]; /* sum: of this lane's rows only */
    F offset[HPL];        /* sum of weights, to be subtracted from acc with rot_center */
};

/* What is done to scores besides scaling, for the columns of a lane. */
template <int HPL> struct attend_rules {
    bool plain;                /* neither cap nor bias */
    float cap;                 /* soft cap * log2 e, or 0 */
    F slope[HPL], bias[HPL];   /* ALiBi's, * log2 e: score of row i gets slope * i - bias */
    U first[HPL], n_seen[HPL]; /* rows [first, first + n_seen) of the segment are seen */
    int all_first, all_end;    /* rows that all columns see */
};

/* cap tanh(s / cap), s and cap in units of log2 e: absolute errors are below 1e-6 cap. */
WF F attend_cap(F s, float cap) {
    F e = exp2_(s * (2 / cap * 1.44269504088896341f));
    return fma_(rcp_approx(e + 1.0f), splatf(-2 * cap), splatf(cap));
}

/* Cap and bias of a score of row `row`. */
template <int HPL> WF F attend_adjust(const attend_rules<HPL> &rules, int h, F s, const U &row) {
    if (rules.cap > 0) s = attend_cap(s, rules.cap);
    return fma_(u2f(row), rules.slope[h], s) - rules.bias[h];
}
template <int HPL> WF M attend_seen(const attend_rules<HPL> &rules, int h, const U &row) {
    return row - rules.first[h] < rules.n_seen[h];
}

/* ---- places ---- */

/* What depends on the lane alone. lane = 4 g + t. */
template <int D, int KB, int VB> struct attend_lane {
    U g, t, u;      /* u = g % 2 */
    U k_at, v_at;   /* the lane's tile of K, of V, for scores and scales */
    U k2_at, k1_at; /* its pieces of K's codes, of the plane of third bits */
    U v2_at, v1_at; /* its pieces of V's codes, of the plane of third bits */
    S k_tiles, v_tiles, weights;
    U k_t0, v_t0; /* first words of the codebooks, kept in registers */
};

template <int D, int KB, int VB> WF attend_lane<D, KB, VB> attend_lane_of(S ring) {
    attend_lane<D, KB, VB> x;
    U lane = lane_id();
    x.g = lane >> 2, x.t = lane & 3u, x.u = x.g & 1u;
    x.k_at = (x.g >> 1) * (uint32_t)attend_k_bytes(D, KB);
    x.v_at = (x.g >> 1) * (uint32_t)attend_v_bytes(D, VB);
    x.k2_at = x.k_at + x.t * (KB == 4 ? 128u : 64u) + x.u * 16u;
    x.k1_at = x.k_at + x.t * 32u + x.u * 16u + (uint32_t)(8 * D);
    if constexpr (VB < 4)
        x.v2_at = (x.t >> 1) * (uint32_t)attend_v_bytes(D, VB) + (x.t & 1u) * 32u +
                  (x.g >> 1) * 64u + x.u * 16u;
    else
        x.v2_at = x.t * 32u + (x.g >> 1) * 128u + x.u * 16u;
    x.v1_at = (x.t >> 1) * (uint32_t)attend_v_bytes(D, VB) + (x.g >> 1) * 32u + x.u * 16u +
              (uint32_t)(8 * D);
    x.k_tiles = ring, x.v_tiles = ring + 4 * attend_k_bytes(D, KB);
    x.weights = x.v_tiles + 4 * attend_v_bytes(D, VB);
    x.k_t0 = opaque_u(splat(rot_book<KB>::t0)), x.v_t0 = opaque_u(splat(rot_book<VB>::t0));
    return x;
}

/* Lanes 0..3: the chunk's tiles of K, lanes 4..7: of V. After the last tile, the last one again. */
WF P attend_tiles_of(const attend_source &from, int chunk) {
    U lane = lane_id(), tile = (lane & 3u) + (uint32_t)(4 * chunk);
    uint32_t last = (uint32_t)(from.n_row + 31) / 32 - 1;
    tile = sel(tile < last, tile, splat(last));
    M is_k = lane < 4u;
    return selp(is_k, add(ldtabp(from.k_table, tile), from.k_offset),
                add(ldtabp(from.v_table, tile), from.v_offset));
}

/* ---- scores ---- */

/* The lane's pieces of step ks over the channels. */
template <int D, int KB, int VB>
WF void attend_load_k(const attend_lane<D, KB, VB> &x, int ks, U4 *piece) {
    if constexpr (KB == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            piece[i] = lds128(x.k_tiles, x.k2_at + (uint32_t)(ks * 512 + i / 2 * 64 + i % 2 * 32));
    } else {
        piece[0] = lds128(x.k_tiles, x.k2_at + (uint32_t)(ks * 256));
        piece[1] = lds128(x.k_tiles, x.k2_at + (uint32_t)(ks * 256 + 32));
        if constexpr (KB == 3) {
            U4 w = lds128(x.k_tiles, x.k1_at + (uint32_t)(ks * 128));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                piece[2].v[i] = opaque_u(w.v[i] & 0x55555555u);
                piece[3].v[i] = opaque_u(w.v[i] & 0xaaaaaaaau);
            }
        }
    }
}

/* Sums of a high and a low plane of bytes. */
WF I attend_whole(const I &high, const I &low) { return high * 256 + low; }

/* Products of the codes of K with the queries: sc[column][i][s]. */
template <int D, int KB, int VB, int HPL>
WF void attend_products(const attend_lane<D, KB, VB> &x, const attend_queries<D, HPL> &q,
                        F sc[HPL][4][4]) {
    constexpr int KS = D / 32;
    if constexpr (HPL == 1) {
        I4 c[4][2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            c[i / 2][i % 2] = izero();
            if constexpr (KB == 4)
                c[i / 2][i % 2].v[1] = q.offset[0], c[i / 2][i % 2].v[3] = q.offset[0];
        }
#pragma unroll
        for (int ks = 0; ks < KS; ks++) {
            U4 piece[4];
            attend_load_k(x, ks, piece);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                U a0, a1, a2, a3;
                auto word = [&](int n) { return piece[n].v[i / 2]; };
                rot_k_bytes<KB>(word, i % 2 * 2, &a0, &a2, x.k_t0);
                rot_k_bytes<KB>(word, i % 2 * 2 + 1, &a1, &a3, x.k_t0);
                mma_ss(c[i / 2][i % 2], a0, a1, a2, a3, q.b[0][ks].v[0], q.b[0][ks].v[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int s = 0; s < 4; s++)
                sc[0][i][s] =
                    i2f(attend_whole(c[i][s / 2].v[s % 2 * 2], c[i][s / 2].v[s % 2 * 2 + 1]));
    } else {
        U4 piece[KS][4];
#pragma unroll
        for (int ks = 0; ks < KS; ks++) attend_load_k(x, ks, piece[ks]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            I4 high = izero(), low = izero();
            if constexpr (KB == 4)
                for (int r = 0; r < 4; r++) low.v[r] = q.offset[r % 2];
#pragma unroll
            for (int ks = 0; ks < KS; ks++) {
                U a0, a1, a2, a3;
                auto word = [&](int n) { return piece[ks][n].v[i / 2]; };
                rot_k_bytes<KB>(word, i % 2 * 2, &a0, &a2, x.k_t0);
                rot_k_bytes<KB>(word, i % 2 * 2 + 1, &a1, &a3, x.k_t0);
                mma_ss(high, a0, a1, a2, a3, q.b[0][ks].v[0], q.b[0][ks].v[1]);
                mma_ss(low, a0, a1, a2, a3, q.b[1][ks].v[0], q.b[1][ks].v[1]);
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
                sc[r % 2][i / 2][i % 2 * 2 + r / 2] = i2f(attend_whole(high.v[r], low.v[r]));
        }
    }
}

/* The scale of row 4 u + i + 8 s of the lane's tile. */
WF F attend_scale(const U2 *scale, int s, int i) { return half_of(scale[s].v[i / 2], i % 2); }

/* The signs of a tile's scales are the bits of its mean's scale: 8 s + 4 u + i. The lane with the
 * other u has the other half of them. */
WF F attend_mean_scale(const U2 *scale, const U &u) {
    U bits = splat(0);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const U *v = scale[s].v;
        U four =
            ((v[0] >> 15) & 1u) | ((v[0] >> 30) & 2u) | ((v[1] >> 13) & 4u) | ((v[1] >> 28) & 8u);
        bits = bits | (four << (8 * s));
    }
    bits = sel(u != 0u, bits << 4, bits);
    return bits_f(bits | shfl_xor(bits, 4));
}

/* Scale the products and add what the tiles' means contribute. scale, mean: of the lane's tile. */
template <int D, int HPL>
WF void attend_add_means(const attend_queries<D, HPL> &q, const U2 *scale, const U2 *mean,
                         const U &u, F sc[HPL][4][4]) {
    I4 m[HPL];
    for (int h = 0; h < HPL; h++) m[h] = izero();
    U zero = splat(0);
#pragma unroll
    for (int ks = 0; ks < D / 32; ks++) { /* channels in the order of rot_k_bytes */
        U r0 = prmt(mean[ks].v[0], mean[ks].v[1], splat(0x5140u));
        U r1 = prmt(mean[ks].v[0], mean[ks].v[1], splat(0x7362u));
        for (int h = 0; h < HPL; h++)
            mma_ss(m[h], r0, zero, r1, zero, q.b[h][ks].v[0], q.b[h][ks].v[1]);
    }
    F mean_scale = attend_mean_scale(scale, u), from_mean[HPL], step[HPL];
    for (int h = 0; h < HPL; h++) {
        I sum = HPL == 1 ? attend_whole(m[0].v[0], m[0].v[1])
                         : attend_whole(m[0].v[h], m[HPL - 1].v[h]);
        from_mean[h] = i2f(sum) * mean_scale * q.scale[h];
        step[h] = q.scale[h] * 0.5f;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        F row = abs_(attend_scale(scale, i / 4, i % 4));
#pragma unroll
        for (int h = 0; h < HPL; h++)
            sc[h][i % 4][i / 4] = fma_(sc[h][i % 4][i / 4], row * step[h], from_mean[h]);
    }
}

/* Caps, biases, and rows that are not seen. */
template <int HPL>
WF void attend_apply_rules(const attend_rules<HPL> &rules, const U &g, int chunk, F sc[HPL][4][4]) {
    bool all = 128 * chunk >= rules.all_first && 128 * chunk + 128 <= rules.all_end;
    if (all && rules.plain) return;
    U first = opaque_u((g >> 1) * 32u + (g & 1u) * 4u + (uint32_t)(128 * chunk));
    if (!rules.plain) {
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int h = 0; h < HPL; h++)
                sc[h][i % 4][i / 4] = attend_adjust(rules, h, sc[h][i % 4][i / 4],
                                                    first + (uint32_t)(i % 4 + 8 * (i / 4)));
    }
    if (all) return;
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int h = 0; h < HPL; h++) {
            M seen = attend_seen(rules, h, first + (uint32_t)(i % 4 + 8 * (i / 4)));
            sc[h][i % 4][i / 4] = self(seen, sc[h][i % 4][i / 4], splatf(ATTEND_NONE));
        }
}

/* ---- weights ---- */

/* What the sums of a chunk are multiplied with when they join the others. */
template <int HPL> struct attend_factors { F alpha[HPL], beta[HPL]; };

/* Weights of the chunk's rows as two planes of bytes in shared memory; joins the sums' maxima.
 * left: rows from the chunk's first one to the segment's end. */
template <int D, int KB, int VB, int HPL>
WF attend_factors<HPL> attend_put_weights(const attend_lane<D, KB, VB> &x, const F sc[HPL][4][4],
                                          int left, attend_sums<D, HPL> &out) {
    U2 scale[4];
    U most = splat(0);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        scale[s] = lds64(x.v_tiles, x.v_at + x.u * 8u + (uint32_t)(4 * VB * D + 16 * s));
        for (int i = 0; i < 2; i++) scale[s].v[i] = scale[s].v[i] & 0x7fff7fffu;
    }
    if (left < 128) { /* scales of rows that do not exist may be anything */
        U row = opaque_u((x.g >> 1) * 32u + x.u * 4u), zero = splat(0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            U first = row + (uint32_t)(i / 2 * 8 + i % 2 * 2);
            scale[i / 2].v[i % 2] = scale[i / 2].v[i % 2] &
                                    (sel(first < (uint32_t)left, splat(0x7fffu), zero) |
                                     sel(first + 1u < (uint32_t)left, splat(0x7fff0000u), zero));
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++) most = hmax2(most, hmax2(scale[s].v[0], scale[s].v[1]));
    for (int m = 4; m < 32; m *= 2) most = hmax2(most, shfl_xor(most, m));
    F v_max = max_(max_(h_lo(most), h_hi(most)), splatf(6e-8f));
    F inverse = rcp_approx(v_max) * 65528.0f, max[HPL], sum[HPL];
    U total[HPL]; /* of the lane's weights as integers, with the bits of 2^23 */
#pragma unroll
    for (int h = 0; h < HPL; h++) {
        max[h] = splatf(ATTEND_NONE), sum[h] = splatf(0), total[h] = splat(0);
#pragma unroll
        for (int i = 0; i < 16; i++) max[h] = max_(max[h], sc[h][i / 4][i % 4]);
        max[h] = max_lanes(max[h], 4);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        U n[HPL][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            F factor = attend_scale(scale, s, i) * inverse;
#pragma unroll
            for (int h = 0; h < HPL; h++) {
                F p = exp2_(sc[h][i][s] - max[h]);
                sum[h] = sum[h] + p;
                n[h][i] = f_bits(fma_(p, factor, splatf(8388608.0f)));
            }
        }
#pragma unroll
        for (int h = 0; h < HPL; h++) {
            if constexpr (VB == 4) total[h] = total[h] + n[h][0] + n[h][1] + n[h][2] + n[h][3];
            U a = prmt(n[h][0], n[h][1], splat(0x5140u)),
              b = prmt(n[h][2], n[h][3], splat(0x5140u));
            U column = HPL == 1 ? x.t : x.t * 2u + (uint32_t)h;
            U to =
                column * (uint32_t)ATTEND_WEIGHTS + (x.g >> 1) * 32u + x.u * 4u + (uint32_t)(8 * s);
            sts32(x.weights, to + (uint32_t)(4 * HPL * ATTEND_WEIGHTS), prmt(a, b, splat(0x5410u)));
            sts32(x.weights, to, prmt(a, b, splat(0x7632u)));
        }
    }
    attend_factors<HPL> f;
#pragma unroll
    for (int h = 0; h < HPL; h++) {
        F joint = max_(out.max[h], max[h]), grow = exp2_(max[h] - joint);
        f.alpha[h] = exp2_(out.max[h] - joint);
        f.beta[h] = grow * v_max * (0.5f / 65528.0f);
        out.max[h] = joint;
        out.sum[h] = fma_(out.sum[h], f.alpha[h], sum[h] * grow);
        out.offset[h] = out.offset[h] * f.alpha[h]; /* of chunks with 4-bit values */
        if constexpr (VB == 4)                      /* 16 * 0x4b000000 */
            out.offset[h] = fma_(i2f(as_i(total[h] - 0xb0000000u)), f.beta[h], out.offset[h]);
    }
    return f;
}

/* Fragments of the weights: 8 words of a column. HPL 1: column 2 head + plane, high plane first. */
template <int D, int KB, int VB, int HPL>
WF void attend_get_weights(const attend_lane<D, KB, VB> &x, U w[HPL][8]) {
    U even = splat(0x5140u), odd = splat(0x7362u);
#pragma unroll
    for (int h = 0; h < HPL; h++) {
        U column = HPL == 1 ? (x.g >> 1) + (x.g & 1u) * 4u : x.g + (uint32_t)(8 * h);
        U from = column * (uint32_t)ATTEND_WEIGHTS;
        if constexpr (VB < 4) { /* tile 2 two + t / 2, rows 16 (t % 2) .. */
#pragma unroll
            for (int two = 0; two < 2; two++) {
                U4 y = lds128(x.weights, from + x.t * 16u + (uint32_t)(64 * two));
                w[h][4 * two] = prmt(y.v[0], y.v[2], even);
                w[h][4 * two + 1] = prmt(y.v[0], y.v[2], odd);
                w[h][4 * two + 2] = prmt(y.v[1], y.v[3], even);
                w[h][4 * two + 3] = prmt(y.v[1], y.v[3], odd);
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
                U2 y = lds64(x.weights, from + x.t * 8u + (uint32_t)(32 * tile));
                w[h][2 * tile] = prmt(y.v[0], y.v[1], even);
                w[h][2 * tile + 1] = prmt(y.v[0], y.v[1], odd);
            }
        }
    }
}

/* ---- values ---- */

/* Add the products of weights and codes of V. */
template <int D, int KB, int VB, int HPL>
WF void attend_add_values(const attend_lane<D, KB, VB> &x, const U w[HPL][8],
                          const attend_factors<HPL> &f, attend_sums<D, HPL> &out) {
    constexpr uint32_t STEP = VB < 4 ? 256 : 512, PIECE = attend_v_bytes(D, VB);
#pragma unroll
    for (int n = 0; n < D / 32; n++) {
        constexpr int N = VB < 4 ? 2 : 4;
        U4 piece[N], third[N]; /* VB < 4: of tiles 2 i and 2 i + 1; else of tile i */
#pragma unroll
        for (int i = 0; i < N; i++)
            piece[i] = lds128(x.v_tiles, x.v2_at + (VB < 4 ? 2u : 1u) * (uint32_t)i * PIECE +
                                             (uint32_t)n * STEP);
#pragma unroll
        for (int i = 0; VB == 3 && i < N; i++) {
            third[i] = lds128(x.v_tiles, x.v1_at + (uint32_t)(2 * i) * PIECE + (uint32_t)(128 * n));
            for (int j = 0; j < 4; j++) third[i].v[j] = shrv(third[i].v[j], (x.t & 1u) * 4u);
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            I4 c[HPL];
            for (int h = 0; h < HPL; h++) c[h] = izero();
#pragma unroll
            for (int k = 0; k < N; k++) {
                U r[2][4]; /* [set of rows][registers] */
#pragma unroll
                for (int j = 0; j < 2; j++)
                    rot_v_bytes<VB>(piece[k].v[i + j], third[VB == 3 ? k : 0].v[i + j], r[j],
                                    x.v_t0);
#pragma unroll
                for (int h = 0; h < HPL; h++) {
                    constexpr int PER = VB < 4 ? 4 : 2;
                    mma_su(c[h], r[0][0], r[1][0], r[0][1], r[1][1], w[h][PER * k],
                           w[h][PER * k + 1]);
                    if constexpr (VB < 4)
                        mma_su(c[h], r[0][2], r[1][2], r[0][3], r[1][3], w[h][PER * k + 2],
                               w[h][PER * k + 3]);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int h = 0; h < HPL; h++) {
                    I v = HPL == 1 ? attend_whole(c[0].v[2 * j], c[0].v[2 * j + 1])
                                   : attend_whole(c[0].v[2 * j + h], c[HPL - 1].v[2 * j + h]);
                    out.acc[h][n][i + j] =
                        fma_(out.acc[h][n][i + j], f.alpha[h], i2f(v) * f.beta[h]);
                }
        }
    }
}

/* ---- chunks ---- */

template <int D, int HPL> WF void attend_begin(attend_sums<D, HPL> &out) {
    for (int h = 0; h < HPL; h++) {
        out.max[h] = splatf(ATTEND_NONE);
        out.sum[h] = splatf(0);
        out.offset[h] = splatf(0);
        for (int n = 0; n < D / 32; n++)
            for (int i = 0; i < 4; i++) out.acc[h][n][i] = splatf(0);
    }
}

/* Add chunks first, first + step, ... < end of a segment to the sums, which may hold chunks of
 * other bits: all share the rotated domain. ring: attend_ring() bytes of this warp. bars: its two
 * barriers; phase: their phase, 0 at first. */
template <int D, int KB, int VB, int HPL>
WF void attend_chunks(const attend_source &from, const attend_queries<D, HPL> &q,
                      const attend_rules<HPL> &rules, int first, int end, int step, S ring, S bars,
                      uint32_t &phase, attend_sums<D, HPL> &out) {
    constexpr int K_BYTES = attend_k_bytes(D, KB), V_BYTES = attend_v_bytes(D, VB), KS = D / 32;
    attend_lane<D, KB, VB> x = attend_lane_of<D, KB, VB>(ring);
    S k_bar = bars, v_bar = bars + 8;
    if (first >= end) return;

    P place = attend_tiles_of(from, first);
    copy_begin(x.k_tiles, place, K_BYTES, k_bar, 0);
    copy_begin(x.v_tiles, place, V_BYTES, v_bar, 4);
    P next = attend_tiles_of(from, first + step < end ? first + step : first);

    for (int chunk = first; chunk < end; chunk += step, phase ^= 1) {
        bool more = chunk + step < end;
        place = next;
        next = attend_tiles_of(from, chunk + 2 * step < end ? chunk + 2 * step : first);
        F sc[HPL][4][4];
        U2 scale[4], mean[KS];
        copy_wait(k_bar, phase);
        if (lk_planted == 1 && more) copy_begin(x.k_tiles, place, K_BYTES, k_bar, 0);
        attend_products(x, q, sc);
#pragma unroll
        for (int s = 0; s < 4; s++)
            scale[s] = lds64(x.k_tiles, x.k_at + x.u * 8u + (uint32_t)(4 * KB * D + 16 * s));
#pragma unroll
        for (int ks = 0; ks < KS; ks++)
            mean[ks] = lds64(x.k_tiles, x.k_at + x.t * 8u + (uint32_t)(4 * KB * D + 64 + 32 * ks));
        sync_warp();
        if (!more)
            copy_none();
        else if (lk_planted != 1)
            copy_begin(x.k_tiles, place, K_BYTES, k_bar, 0);
        attend_add_means<D, HPL>(q, scale, mean, x.u, sc);
        attend_apply_rules<HPL>(rules, x.g, chunk, sc);
        copy_wait(v_bar, phase);
        attend_factors<HPL> f =
            attend_put_weights<D, KB, VB, HPL>(x, sc, from.n_row - 128 * chunk, out);
        sync_warp();
        U w[HPL][8];
        attend_get_weights<D, KB, VB, HPL>(x, w);
        sync_warp();
        attend_add_values<D, KB, VB, HPL>(x, w, f, out);
        sync_warp();
        if (more)
            copy_begin(x.v_tiles, place, V_BYTES, v_bar, 4);
        else
            copy_none();
    }
}

/* Write the sums to rows of shared memory, `stride` bytes apart: D floats, the maximum, the sum. A
 * column that saw nothing has zeros and ATTEND_NONE. */
template <int D, int HPL> WF void attend_put_sums(attend_sums<D, HPL> &x, S to, uint32_t stride) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u;
#pragma unroll
    for (int h = 0; h < HPL; h++) {
        U row = (HPL == 1 ? t : t * 2u + (uint32_t)h) * stride;
        M any = x.max[h] > ATTEND_NONE / 2;
        F zero = splatf(0), offset = sum_lanes(x.offset[h], 4);
#pragma unroll
        for (int n = 0; n < D / 32; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                F acc = fma_(offset, splatf(-rot_center(4)), x.acc[h][n][i]);
                stsf(to, row + (g >> 1) * 32u + (g & 1u) * 16u + (uint32_t)(128 * n + 4 * i),
                     self(any, acc, zero));
            }
        F sum = sum_lanes(x.sum[h], 4);
        stsf(to, row + (uint32_t)(4 * D), x.max[h]);
        stsf(to, row + (uint32_t)(4 * D + 4), self(any, sum, zero));
    }
}

#endif
