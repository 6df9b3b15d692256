/* The K warps: queries, the fold of slow pairs, reconstruction, scores. See latent_shape.h. */
#ifndef LK_CUDA_LATENT_KEYS_H
#define LK_CUDA_LATENT_KEYS_H

#include "cuda/latent_shape.h"
#include "cuda/rot_bytes.h"

/* The table of the rotation holds cos and sin times 2^-7, so that keys fit f16. */
#define LATENT_KEY_SCALE 128.0f

/* Channel of the model of place 2 pair + e in the order of pairs (cache/rope.h). */
WF U latent_channel(const struct lk_device_latent_launch &a, const U &pair, int e) {
    U apart = pair + (uint32_t)(e ? a.n_pair : 0), together = pair * 2u + (uint32_t)e;
    if (!a.halves) return together;
    return sel(pair < (uint32_t)a.n_pair, apart, together);
}

/* One column's query: rotated back by the fine angle of the chunks' first positions, times the
 * scales of up's pairs; largest channel 1. Also the scales of the fold. By one warp. */
template <class sh>
WF void latent_query(const struct lk_device_latent_launch &a, const latent_work &w, S shared,
                     int col) {
    constexpr int P2 = sh::PAIRS / 32;
    U lane = lane_id();
    int h = col / sh::NQ, n = w.col0 + col % sh::NQ;
    n = n < w.n_col ? n : w.n_col - 1; /* a column that is not there repeats the last one */
    size_t row = ((size_t)(n / a.group) * a.n_head_kv + w.head + h) * a.group + n % a.group;
    const float *x = (const float *)w.call->q + row * sh::D;
    const float *fine = (const float *)a.fine + (size_t)w.fine * sh::D;
    S head = shared + sh::up + h * sh::UP_HEAD, to = shared + sh::q + col * sh::PAIRS * 8;
    F v[P2][2], m = splatf(0);
#pragma unroll
    for (int j = 0; j < P2; j++) {
        U pair = lane + (uint32_t)(32 * j);
        F qa = ldgf(x, latent_channel(a, pair, 0)), qb = ldgf(x, latent_channel(a, pair, 1));
        F c = ldgf(fine, pair * 2u), s = ldgf(fine, pair * 2u + 1u);
        F scale = ldsf(head + sh::up_scale, pair * 4u);
        v[j][0] = fma_(c, qa, s * qb) * scale, v[j][1] = fma_(c, qb, neg(s) * qa) * scale;
        m = max_(m, max_(abs_(v[j][0]), abs_(v[j][1])));
    }
    m = max_(max_lanes(m), splatf(1e-30f));
    F inverse = rcp_approx(m);
#pragma unroll
    for (int j = 0; j < P2; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            v[j][e] = v[j][e] * inverse;
            stsf(to, lane * 8u + (uint32_t)(256 * j + 4 * e), v[j][e]);
        }
    /* codes are doubled */
    stsf_if(lane == 0u, shared + sh::q_scale, splat((uint32_t)(4 * col)),
            m * (a.scale * 1.4426950408889634f * 0.5f * LATENT_KEY_SCALE));
    if constexpr (sh::FOLD) {
        F bound = ldsf(head + sh::up_norm, splat(0)); /* of a slow row's length */
        S fold = shared + sh::q_fold + col * 48;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            F most = splatf(1e-20f), square = splatf(1e-30f);
#pragma unroll
            for (int j = 0; j < P2; j++) {
                U pair = lane + (uint32_t)(32 * j), from = pair * 32u + (uint32_t)(4 * m);
                P fold4 = at((const char *)a.rope + sh::rope_fold, from, 1, splat(0));
                F c = bits_f(ldg32(fold4)), s = bits_f(ldg32(add(fold4, 16)));
                F length = fma_(c, c, s * s) * fma_(v[j][0], v[j][0], v[j][1] * v[j][1]);
                length = self(pair < (uint32_t)sh::FAST, splatf(0), length);
                most = max_(most, sqrt_rn(length)), square = square + length;
            }
            most = max_lanes(most);
            F all = bound * sqrt_rn(sum_lanes(square));
            M one = lane == 0u;
            stsf_if(one, fold, splat((uint32_t)(4 * m)), rcp_approx(most) * 32512.0f);
            stsf_if(one, fold, splat((uint32_t)(16 + 4 * m)), most * rcp_approx(all));
            stsf_if(one, fold, splat((uint32_t)(32 + 4 * m)),
                    all * (1.0f / (32512.0f * LATENT_KEY_SCALE)));
        }
    }
}

/* One column's projected query, for latents of rotated keys: 16 bits as two planes, in the place
 * and order of a folded vector; four columns are a set. */
template <class sh>
WF void latent_post_query(const struct lk_device_latent_launch &a, const latent_work &w, S shared,
                          int col) {
    U lane = lane_id(), c = lane & 7u;
    int h = col / sh::NQ, n = w.col0 + col % sh::NQ;
    n = n < w.n_col ? n : w.n_col - 1;
    size_t row = ((size_t)(n / a.group) * a.n_head_kv + w.head + h) * a.group + n % a.group;
    const float *x = (const float *)w.call->k_query + row * (size_t)a.k_rank;
    S to = shared + sh::folded + (col / 4 * 8 + col % 4 * 2) * sh::F_STRIDE;
    F v[sh::KS], m = splatf(1e-30f);
#pragma unroll
    for (int ks = 0; ks < sh::KS; ks++) {
        U r = lane + (uint32_t)(32 * ks);
        M there = r < w.k_rank;
        v[ks] = self(there, ldgf(x, sel(there, r, splat(0))), splatf(0));
        m = max_(m, abs_(v[ks]));
    }
    m = max_lanes(m);
    F inverse = rcp_approx(m) * 32512.0f;
    U place = (lane >> 3) * (uint32_t)(8 * sh::KS) + ((c >> 1) & 1u) * 4u + ((c >> 2) & 1u) +
              (c & 1u) * 2u;
#pragma unroll
    for (int ks = 0; ks < sh::KS; ks++) {
        U bits = f_bits(fma_(v[ks], inverse, splatf(12582912.0f + 128.0f)));
        sts8(to, place + (uint32_t)(8 * ks), bits >> 8);
        sts8(to, place + (uint32_t)(sh::F_STRIDE + 8 * ks), bits ^ 0x80u);
    }
    stsf_if(lane == 0u, shared + sh::q_scale, splat((uint32_t)(4 * col)),
            m * (a.scale * 1.4426950408889634f * 0.5f / 32512.0f));
}

/* Integers n of four lanes' or registers' numbers, plus 128, whose low 16 bits are meant: their
 * high and low bytes, both signed. */
WF void latent_planes(const U *n, U *high, U *low) {
    U x = prmt(n[0], n[1], splat(0x5140u)), y = prmt(n[2], n[3], splat(0x5140u));
    *low = prmt(x, y, splat(0x5410u)) ^ 0x80808080u;
    *high = prmt(x, y, splat(0x7632u));
}
#define LATENT_ROUND (12582912.0f + 128.0f) /* a float's last bits are its integer, plus 128 */

/* One column's query for a chunk: rotated back by the coarse angle `turn`. Fast pairs go to `back`
 * as f16 in the order of fragments, slow pairs become the bytes w [8 functions and planes][SLOW].
 * With means of keys (mean_of: of the block's heads; or NULL), `mean` receives X and Y
 * of fast pairs, then the sums of slow pairs for the four functions. */
template <class sh>
WF void latent_turn_query(const struct lk_device_latent_launch &a, S shared, int col,
                          const U2 *turn, S back, S w, S mean, const char *mean_of) {
    U lane = lane_id();
    int h = col / sh::NQ, n = col % sh::NQ;
    P fold = at((const char *)a.rope + sh::rope_fold, splat(0), 0, lane * 32u);
    F offset[4];
    for (int m = 0; m < 4; m++) offset[m] = splatf(0);
#pragma unroll
    for (int j = 0; j < sh::PAIRS / 32; j++) {
        U pair = lane + (uint32_t)(32 * j);
        U2 x = lds64(shared + sh::q + col * sh::PAIRS * 8, pair * 8u);
        F qa = bits_f(x.v[0]), qb = bits_f(x.v[1]), c = bits_f(turn[j].v[0]),
          s = bits_f(turn[j].v[1]);
        F ba = fma_(c, qa, s * qb), bb = fma_(c, qb, neg(s) * qa), straight, across;
        M fast = pair < (uint32_t)sh::FAST;
        if (mean_of) {
            U2 y = ldg64(at(mean_of, pair, 8, splat((uint32_t)(h * sh::D * 4))));
            F ma = bits_f(y.v[0]), mb = bits_f(y.v[1]);
            straight = fma_(ba, ma, bb * mb), across = fma_(bb, ma, neg(ba) * mb);
        }
        if (32 * j < sh::FAST) {
            sts32_if(fast, back,
                     (pair >> 3) * (uint32_t)(32 * sh::NQ) + (pair & 3u) * 8u +
                         ((pair >> 2) & 1u) * 4u + (uint32_t)(h * sh::N2 * sh::NQ * 32 + n * 32),
                     pack_halves(ba, bb));
            if (mean_of) {
                stsf_if(fast, mean, pair * 8u, straight);
                stsf_if(fast, mean, pair * 8u + 4u, across);
            }
        }
        if constexpr (sh::FOLD)
            if (32 * j + 32 > sh::FAST) {
                U4 cos4 = ldg128(add(fold, (uint32_t)(1024 * j))),
                   sin4 = ldg128(add(fold, (uint32_t)(1024 * j + 16)));
                U to = (pair - (uint32_t)sh::FAST) * 2u;
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    F cm = bits_f(cos4.v[m]), sm = bits_f(sin4.v[m]);
                    F scale = ldsf(shared + sh::q_fold + col * 48, splat((uint32_t)(4 * m)));
                    U na = f_bits(fma_(fma_(cm, ba, sm * bb), scale, splatf(LATENT_ROUND)));
                    U nb = f_bits(fma_(fma_(cm, bb, neg(sm) * ba), scale, splatf(LATENT_ROUND)));
                    U x = prmt(na, nb, splat(0x5140u)) ^ 0x8080u; /* low, low, high, high */
                    sts16_if(pair >= (uint32_t)sh::FAST, w, to + (uint32_t)(2 * m * sh::W_STRIDE),
                             x >> 16);
                    sts16_if(pair >= (uint32_t)sh::FAST, w,
                             to + (uint32_t)((2 * m + 1) * sh::W_STRIDE), x);
                    if (mean_of)
                        offset[m] =
                            offset[m] + self(fast, splatf(0), fma_(cm, straight, sm * across));
                }
            }
    }
    if (sh::FOLD && mean_of)
        for (int m = 0; m < 4; m++)
            stsf_if(lane == 0u, mean, splat((uint32_t)(8 * sh::FAST + 4 * m)),
                    sum_lanes(offset[m]));
}

/* A_m = up w_m of one column: [8 functions and planes][R] bytes in the order of fragments. */
template <class sh> WF void latent_fold(S shared, int col, S w, S to) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, lane16 = lane * 16u;
    S slow = shared + sh::up + col / sh::NQ * sh::UP_HEAD + sh::up_slow;
    F scale = ldsf(shared + sh::q_fold + col * 48, t * 4u + 16u);
    U w_at = g * (uint32_t)sh::W_STRIDE + t * 4u,
      to_at = t * (uint32_t)(2 * sh::F_STRIDE) + (g & 3u) * (uint32_t)(8 * sh::KS) + (g >> 2) * 4u;
    U b[sh::SL][2];
#pragma unroll
    for (int s = 0; s < sh::SL; s++)
        b[s][0] = lds32(w, w_at + (uint32_t)(32 * s)),
        b[s][1] = lds32(w, w_at + (uint32_t)(32 * s + 16));
    sync_warp(); /* w is in the place of the result */
#pragma unroll
    for (int u = 0; u < sh::KS; u++) {
        U n[4], high, low;
#pragma unroll
        for (int x = 0; x < 2; x++) {
            I4 c = izero();
#pragma unroll
            for (int s = 0; s < sh::SL; s++) {
                U4 f = lds128(slow, lane16 + (uint32_t)(((2 * u + x) * sh::SL + s) * 512));
                mma_ss(c, f.v[0], f.v[1], f.v[2], f.v[3], b[s][0], b[s][1]);
            }
#pragma unroll
            for (int y = 0; y < 2; y++)
                n[2 * x + y] = f_bits(
                    fma_(i2f(c.v[2 * y] * 256 + c.v[2 * y + 1]), scale, splatf(LATENT_ROUND)));
        }
        latent_planes(n, &high, &low);
        sts32(to, to_at + (uint32_t)(8 * u), high);
        sts32(to, to_at + (uint32_t)(sh::F_STRIDE + 8 * u), low);
    }
}

/* Four numbers of each lane of four -> lane t has the sum of all four lanes' number t. */
WF F latent_transpose_sum(const F *x) {
    U lane = lane_id();
    M odd = (lane & 1u) != 0u, upper = (lane & 2u) != 0u;
    F a = self(odd, x[1], x[0]) + shfl_xorf(self(odd, x[0], x[1]), 1);
    F b = self(odd, x[3], x[2]) + shfl_xorf(self(odd, x[2], x[3]), 1);
    return self(upper, b, a) + shfl_xorf(self(upper, a, b), 2);
}

/* Where the lane's tokens are in a chunk: token(s) = token + 8 s. */
WF U latent_token(int i) {
    U g = lane_id() >> 2;
    return (g >> 1) * 32u + (g & 1u) * 4u + (uint32_t)i;
}

/* The lane's words of step ks (32 channels) of a tile of K, for tokens 4u + i + 8s. at2, at1: of
 * the planes of 2 or 4 bits, and of 1 bit. */
template <int KB> WF void latent_k_words(S tiles, const U &at2, const U &at1, int ks, U *word) {
    if constexpr (KB == 4) {
#pragma unroll
        for (int x = 0; x < 4; x++)
            word[x] = lds32(tiles, at2 + (uint32_t)(ks * 512 + x / 2 * 64 + x % 2 * 32));
    } else {
        word[0] = lds32(tiles, at2 + (uint32_t)(ks * 256));
        word[1] = lds32(tiles, at2 + (uint32_t)(ks * 256 + 32));
        if constexpr (KB == 3) {
            U w = lds32(tiles, at1 + (uint32_t)(ks * 128));
            word[2] = opaque_u(w & 0x55555555u), word[3] = opaque_u(w & 0xaaaaaaaau);
        }
    }
}

/* Codes of the chunk's rows in fragments, [step][rows 16 p ..][4], and the rows' scales. */
template <class sh> struct latent_rows {
    U a[sh::KS][2][4];
    F scale[4];
};
template <class sh> WF void latent_load(S tiles, uint32_t rank, int i, latent_rows<sh> &x) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, u = g & 1u;
    U tile = (g >> 1) * (4u * sh::KB * rank + 64u), t0 = opaque_u(splat(rot_book<sh::KB>::t0));
    U at2 = tile + t * (sh::KB == 4 ? 128u : 64u) + u * 16u + (uint32_t)(4 * i);
    U at1 = tile + t * 32u + u * 16u + (8u * rank + (uint32_t)(4 * i));
#pragma unroll
    for (int ks = 0; ks < sh::KS; ks++) {
        U words[4];
        latent_k_words<sh::KB>(tiles, at2, at1, ks, words);
        auto word = [&](int n) { return words[n]; };
#pragma unroll
        for (int p = 0; p < 2; p++) {
            rot_k_bytes<sh::KB>(word, 2 * p, &x.a[ks][p][0], &x.a[ks][p][2], t0);
            rot_k_bytes<sh::KB>(word, 2 * p + 1, &x.a[ks][p][1], &x.a[ks][p][3], t0);
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++)
        x.scale[s] = abs_(
            h_lo(lds16(tiles, tile + u * 8u + (4u * sh::KB * rank + (uint32_t)(2 * i + 16 * s)))));
}

/* Cosines and sines, times 2^-7, of the lane's pair 4 tile + t and its four tokens. */
template <class sh> WF void latent_angles(S shared, int tile, int i, F *co, F *si) {
    U lane = lane_id();
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if constexpr (sh::HALF) {
            U x = lds32(shared + sh::rope, lane * 4u + (uint32_t)(((tile * 4 + s) * 4 + i) * 128));
            co[s] = h_lo(x), si[s] = h_hi(x);
        } else {
            U2 x = lds64(shared + sh::rope, lane * 8u + (uint32_t)(((tile * 4 + s) * 4 + i) * 256));
            co[s] = bits_f(x.v[0]), si[s] = bits_f(x.v[1]);
        }
    }
}

/* Products of the codes of a warp's rows with 8 columns of bytes at b_at, both halves of the rows.
 * Codes of 4 bits are made signed by a further row of constants. */
template <class sh>
WF void latent_products(const latent_rows<sh> &x, S b_at, const U &from, I4 (&sum)[2]) {
    U b[sh::KS][2];
    sum[0] = sum[1] = izero();
#pragma unroll
    for (int k2 = 0; k2 < sh::KS / 2; k2++) {
        U4 w = lds128(b_at, from + (uint32_t)(16 * k2));
        b[2 * k2][0] = w.v[0], b[2 * k2][1] = w.v[1];
        b[2 * k2 + 1][0] = w.v[2], b[2 * k2 + 1][1] = w.v[3];
    }
    if constexpr (sh::KB == 4) {
        U center = splat(0x01010101u * (256 - rot_center(4)));
#pragma unroll
        for (int ks = 0; ks < sh::KS; ks++)
            mma_ss(sum[0], center, center, center, center, b[ks][0], b[ks][1]);
        sum[1] = sum[0];
    }
#pragma unroll
    for (int ks = 0; ks < sh::KS; ks++)
#pragma unroll
        for (int p = 0; p < 2; p++)
            mma_ss(sum[p], x.a[ks][p][0], x.a[ks][p][1], x.a[ks][p][2], x.a[ks][p][3], b[ks][0],
                   b[ks][1]);
}

/* The scores of slow pairs and of means: [col][128] in place of what was there. */
template <class sh>
WF void latent_slow_scores(bool has_mean, S shared, S folded, S mean, const latent_rows<sh> &x,
                           S scores, int i) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, token = latent_token(i);
    U from = g * (uint32_t)sh::F_STRIDE + t * (uint32_t)(8 * sh::KS);
    F basis[4];
#pragma unroll
    for (int s = 0; s < 4; s++)
        basis[s] = sh::FOLD ? ldsf(shared + sh::rope + sh::rope_basis,
                                   t * 512u + token * 4u + (uint32_t)(32 * s))
                            : splatf(0);
#pragma unroll 1
    for (int set = 0; set < sh::SETS; set++) {
        F out[4];
        for (int s = 0; s < 4; s++) out[s] = splatf(0);
        U own = t + (uint32_t)(4 * set);
        M there = own < (uint32_t)sh::COLS;
        if constexpr (sh::FOLD) {
            F part[4][4]; /* [s][column] */
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (4 * (sh::SETS - 1) + c >= sh::COLS) { /* fewer than 4 columns */
                    for (int s = 0; s < 4; s++) part[s][c] = splatf(0);
                    continue;
                }
                S b_at = folded + (4 * set + c) * 8 * sh::F_STRIDE;
                I4 sum[2];
                latent_products(x, b_at, from, sum);
                F scale = ldsf(shared + sh::q_fold, t * 4u + (uint32_t)((4 * set + c) * 48 + 32));
#pragma unroll
                for (int s = 0; s < 4; s++)
                    part[s][c] = i2f(sum[s / 2].v[s % 2 * 2] * 256 + sum[s / 2].v[s % 2 * 2 + 1]) *
                                 scale * basis[s];
            }
#pragma unroll
            for (int s = 0; s < 4; s++) out[s] = latent_transpose_sum(part[s]) * x.scale[s];
        }
        if (has_mean) {
            F part[4][4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                S from = mean + (4 * set + c < sh::COLS ? 4 * set + c : 0) * (8 * sh::FAST + 16);
                F start = sh::FOLD ? ldsf(from, t * 4u + (uint32_t)(8 * sh::FAST)) : splatf(0);
                for (int s = 0; s < 4; s++) part[s][c] = start * basis[s];
            }
#pragma unroll 1
            for (int n = 0; n < sh::FAST / 4; n++) {
                F co[4], si[4];
                latent_angles<sh>(shared, n, i, co, si);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    S from =
                        mean + (4 * set + c < sh::COLS ? 4 * set + c : 0) * (8 * sh::FAST + 16);
                    U2 y = lds64(from, t * 8u + (uint32_t)(32 * n));
#pragma unroll
                    for (int s = 0; s < 4; s++)
                        part[s][c] =
                            fma_(co[s] * LATENT_KEY_SCALE, bits_f(y.v[0]),
                                 fma_(si[s] * LATENT_KEY_SCALE, bits_f(y.v[1]), part[s][c]));
                }
            }
#pragma unroll
            for (int s = 0; s < 4; s++) out[s] = out[s] + latent_transpose_sum(part[s]);
        }
#pragma unroll
        for (int s = 0; s < 4; s++)
            stsf_if(there, scores, own * 512u + token * 4u + (uint32_t)(32 * s), out[s]);
    }
}

/* The scores of latents of rotated keys. */
template <class sh>
WF void latent_post_scores(S shared, const latent_rows<sh> &x, S scores, int i) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, token = latent_token(i);
    U from = g * (uint32_t)sh::F_STRIDE + t * (uint32_t)(8 * sh::KS);
#pragma unroll 1
    for (int set = 0; set < sh::SETS; set++) {
        S b_at = shared + sh::folded + set * 8 * sh::F_STRIDE;
        I4 sum[2];
        latent_products(x, b_at, from, sum);
        U own = t + (uint32_t)(4 * set);
#pragma unroll
        for (int s = 0; s < 4; s++)
            stsf_if(own < (uint32_t)sh::COLS, scores, own * 512u + token * 4u + (uint32_t)(32 * s),
                    i2f(sum[s / 2].v[s % 2 * 2] * 256 + sum[s / 2].v[s % 2 * 2 + 1]) * x.scale[s]);
    }
}

/* Scores of fast pairs, added to what is there if `add`. */
template <class sh>
WF void latent_fast_scores(S shared, S back, const latent_rows<sh> &x, S scores, int i, bool add) {
    constexpr int KS = sh::KS, NQ = sh::NQ, HP = sh::HP;
    U lane = lane_id(), g = lane >> 2, t = lane & 3u, lane16 = lane * 16u;
    U q_at = sel(g < (uint32_t)NQ, g, splat(0)) * 32u + t * 8u, token = latent_token(i);
#pragma unroll 1
    for (int h0 = 0; h0 < sh::NH; h0 += HP) {
        F4 sum[HP][2];
        for (int h = 0; h < HP; h++)
            for (int p = 0; p < 2; p++) sum[h][p] = fzero();
        S up = shared + sh::up + h0 * sh::UP_HEAD, q = back + h0 * sh::N2 * NQ * 32;
#pragma unroll 1
        for (int n2 = 0; n2 < sh::N2; n2++) {
            F co[2][4], si[2][4], ca[2][4], cb[2][4];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                latent_angles<sh>(shared, 2 * n2 + e, i, co[e], si[e]);
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    ca[e][s] = (si[e][s] - co[e][s]) * 12582912.0f;
                    cb[e][s] = (si[e][s] + co[e][s]) * -12582912.0f;
                }
            }
#pragma unroll
            for (int h = 0; h < HP; h++) {
                U r[2][2][2]; /* [p][tile][y] */
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    I4 c[2];
                    if constexpr (sh::KB == 4) {
                        U4 b = lds128(up, t * 16u + (uint32_t)(h * sh::UP_HEAD + sh::up_start +
                                                               (2 * n2 + e) * 64));
                        for (int y = 0; y < 4; y++) c[0].v[y] = as_i(b.v[y]);
                    } else {
                        for (int y = 0; y < 4; y++) c[0].v[y] = as_i(splat(0x4b400000u));
                    }
                    c[1] = c[0];
#pragma unroll
                    for (int k2 = 0; k2 < KS / 2; k2++) {
                        U4 b = lds128(up, lane16 + (uint32_t)(h * sh::UP_HEAD +
                                                              ((2 * n2 + e) * KS + 2 * k2) * 256));
#pragma unroll
                        for (int p = 0; p < 2; p++) {
                            const U *a0 = x.a[2 * k2][p], *a1 = x.a[2 * k2 + 1][p];
                            mma_ss(c[p], a0[0], a0[1], a0[2], a0[3], b.v[0], b.v[1]);
                            mma_ss(c[p], a1[0], a1[1], a1[2], a1[3], b.v[2], b.v[3]);
                        }
                    }
#pragma unroll
                    for (int p = 0; p < 2; p++)
#pragma unroll
                        for (int y = 0; y < 2; y++) {
                            int s = 2 * p + y;
                            F xa = bits_f(as_u(c[p].v[2 * y])),
                              xb = bits_f(as_u(c[p].v[2 * y + 1]));
                            F ra = fma_(co[e][s], xa, fma_(neg(si[e][s]), xb, ca[e][s]));
                            F rb = fma_(si[e][s], xa, fma_(co[e][s], xb, cb[e][s]));
                            r[p][e][y] = pack_halves(ra, rb);
                        }
                }
                U2 b = lds64(q, q_at + (uint32_t)((h * sh::N2 + n2) * NQ * 32));
#pragma unroll
                for (int p = 0; p < 2; p++)
                    mma_f16(sum[h][p], r[p][0][0], r[p][0][1], r[p][1][0], r[p][1][1], b.v[0],
                            b.v[1]);
            }
        }
#pragma unroll
        for (int h = 0; h < HP; h++)
#pragma unroll
            for (int p = 0; p < 2; p++)
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    U col = t * 2u + (uint32_t)(r % 2);
                    M there = col < (uint32_t)NQ;
                    U to = (sel(there, col, splat(0)) + (uint32_t)((h0 + h) * NQ)) * 512u +
                           token * 4u + (uint32_t)(32 * (2 * p + r / 2));
                    F s = sum[h][p].v[r] * x.scale[2 * p + r / 2];
                    if (NQ == 1 && r % 2) continue;
                    if (add) s = s + ldsf(scores, to);
                    stsf_if(there, scores, to, s);
                }
    }
}

#endif
