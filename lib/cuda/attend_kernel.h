/* Attention of decoding steps: one launch for all sequences, all levels of a layer.
 *
 * A block is one (split, KV head and tile of its columns, sequence). A column is one query: of a
 * query token and a query head of the KV head, in the order of attention/attn_item.h. The rows of a
 * sequence come in segments that are in one level of K and one of V. Segments of rot codes that
 * start with a tile on both sides are divided into chunks of 128 rows (attend_chunk.h). All their
 * chunks are one list, which the blocks (splits) and the warps of a sequence share. All other rows
 * come in tiles of 32 (attend_tile.h), which are given to the warps from the end of the list.
 *
 * The sums of all warps of a block are joined in shared memory, the blocks of a cluster join theirs
 * through distributed shared memory, one column in each block, and several clusters join theirs
 * through global memory by the cluster that is last. On cards without clusters a cluster is one
 * block.
 *
 * Template parameters: D the most channels of a head (of V's rows); HPL columns: 4 or 8; PAIRS bits
 * of K and V with a kernel of their own, attend_pair(kb, vb) each, whose heads have exactly D
 * channels. */
#ifndef LK_CUDA_ATTEND_KERNEL_H
#define LK_CUDA_ATTEND_KERNEL_H

#include "cuda/attend_chunk.h"
#include "cuda/attend_tile.h"
#include "cuda/launch.h"
#include "device/commands.h"

constexpr uint32_t attend_pair(int kb, int vb) { return 1u << (3 * (kb - 2) + (vb - 2)); }

constexpr uint32_t attend_max(uint32_t a, uint32_t b) { return a > b ? a : b; }
constexpr uint32_t attend_up(uint32_t n) { return (n + 127) / 128 * 128; }

/* Bytes of a ring for all pairs. */
constexpr uint32_t attend_rings(int d, int hpl, uint32_t pairs) {
    uint32_t most = 0;
    for (int kb = 2; kb <= 4; kb++)
        for (int vb = 2; vb <= 4; vb++)
            if (pairs & attend_pair(kb, vb))
                most = attend_max(most, (uint32_t)attend_ring(d, kb, vb, hpl));
    return most;
}

/* Shared memory of a block, in bytes: what warps have of their own (a ring, later sums), then what
 * they share. Queries lie at the end, because their number depends on the call; the block's sums
 * take their place. */
template <int D, int HPL, uint32_t PAIRS, int WARPS> struct attend_memory {
    static constexpr int C = 4 * HPL;
    typedef attend_slots<D, C> slots;
    static constexpr uint32_t OWN =
        attend_up(attend_max(attend_rings(D, HPL, PAIRS), slots::BYTES));
    static constexpr uint32_t BARS = WARPS * OWN;
    static constexpr uint32_t PLANES = attend_up(BARS + WARPS * 16); /* [2][8][D], steps, sums */
    static constexpr uint32_t CALL = attend_up(PLANES + (PAIRS ? 16 * D + 64 : 0));
    static constexpr uint32_t QUERIES = attend_up(CALL + sizeof(lk_device_attend)),
                              MERGED = QUERIES;
};

/* What a block works on. */
struct attend_place {
    const lk_device_attend *call; /* in shared memory */
    int head_kv, group;
    int column, n_column; /* its first column of the KV head, and how many exist */
};

WF int attend_token(const attend_place &x, int i) { return (x.column + i) / x.group; }
WF int attend_head(const attend_place &x, int i) {
    return x.head_kv * x.group + (x.column + i) % x.group;
}

constexpr float ATTEND_LOG2E = 1.44269504088896341f;

/* ---- rotation ---- */

/* Product of a vector with the rotation, or back, in shared memory: number c is at x + c * stride.
 * By one warp. */
template <int D>
WF void attend_rotate(const lk_device_rotation &r, S x, uint32_t stride, int d, bool back) {
    if (r.matrix) {
        F y[D / 32];
        const float *h = (const float *)r.matrix;
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            y[j] = splatf(0);
            U c = lane_id() + (uint32_t)(32 * j);
            c = sel(c < (uint32_t)d, c, splat(0));
            for (uint32_t i = 0; 32 * j < d && i < (uint32_t)d; i++) {
                U entry = back ? c + i * (uint32_t)d : c * (uint32_t)d + i;
                y[j] = fma_(ldgf(h, entry), ldsf(x, splat(i * stride)), y[j]);
            }
        }
        sync_warp();
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            U c = lane_id() + (uint32_t)(32 * j);
            stsf_if(c < (uint32_t)d, x, c * stride, y[j]);
        }
        sync_warp();
        return;
    }
    float scale = 1;
    for (int n = d; n > 1; n /= 2) scale *= 0.70710678118654752f;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == (int)back) { /* signs: before the product, or after it */
            for (int first = 0; first < d; first += 32) {
                U c = lane_id() + (uint32_t)first;
                U sign = (shrv(splat(r.sign[first / 32]), lane_id()) << 31);
                M exists = c < (uint32_t)d;
                U at = sel(exists, c, splat(0)) * stride;
                F y = bits_f(f_bits(ldsf(x, at)) ^ sign) * scale;
                stsf_if(exists, x, at, y);
            }
            sync_warp();
            if (back) return;
        }
        for (int k = 0; (1 << k) < d; k++) {
            uint32_t half = 1u << k;
            for (int first = 0; first < d / 2; first += 32) {
                U i = lane_id() + (uint32_t)first;
                M exists = i < (uint32_t)(d / 2);
                i = sel(exists, i, splat(0));
                U a = (((i >> k) << (k + 1)) | (i & (half - 1))) * stride, b = a + half * stride;
                F p = ldsf(x, a), q = ldsf(x, b);
                stsf_if(exists, x, a, p + q);
                stsf_if(exists, x, b, p - q);
            }
            sync_warp();
        }
        if (!back) return;
    }
}

/* ---- queries ---- */

/* The queries of column i for K, or for V as keys. */
WF const float *attend_query(const attend_place &x, int i, bool shifted, bool of_v) {
    const lk_device_attend &a = *x.call;
    size_t row = (size_t)attend_token(x, i) * a.n_head + attend_head(x, i);
    const float *q = (const float *)(shifted ? a.q_shifted : a.q) + row * (a.d_head + a.d_rope);
    return a.d_rope > 0 && !of_v ? q + a.d_head : q;
}

/* Column i of a set of attend_plain_queries: q or, if `rotated`, H (sigma q), scaled. */
template <int D, int C>
WF void attend_put_plain(const attend_place &x, int i, bool shifted, bool rotated, bool of_v,
                         S to) {
    const lk_device_attend &a = *x.call;
    int d = a.d_rope > 0 && !of_v ? a.d_rope : a.d_head;
    const float *q = attend_query(x, i < x.n_column ? i : 0, shifted, of_v);
    uint64_t sigmas = of_v ? a.v_sigma : a.k_sigma;
    const float *sigma = rotated && sigmas ? (const float *)sigmas + (size_t)x.head_kv * d : NULL;
    float scale = i < x.n_column ? a.scale * ATTEND_LOG2E : 0;
    for (int first = 0; first < d; first += 32) {
        U c = lane_id() + (uint32_t)first;
        M exists = c < (uint32_t)d;
        c = sel(exists, c, splat(0));
        F y = ldgf(q, c) * scale;
        if (sigma) y = y * ldgf(sigma, c);
        stsf_if(exists, to, c * (uint32_t)(4 * C) + (uint32_t)(4 * i), y);
    }
    sync_warp();
    if (rotated) attend_rotate<D>(of_v ? a.v_rotation : a.k_rotation, to + 4 * i, 4 * C, d, false);
}

/* Product with Sylvester's matrix of a vector of which a lane has numbers N lane .. */
template <int N> WF void attend_hadamard(F *y) {
    U lane = lane_id();
#pragma unroll
    for (int half = 1; half < N; half *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!(i & half)) {
                F p = y[i], r = y[i + half];
                y[i] = add_rn(p, r);
                y[i + half] = sub_rn(p, r);
            }
#pragma unroll
    for (int m = 1; m < 32; m *= 2)
#pragma unroll
        for (int i = 0; i < N; i++) {
            F other = shfl_xorf(y[i], m);
            y[i] = self((lane & (uint32_t)m) != 0u, sub_rn(other, y[i]), add_rn(y[i], other));
        }
}

/* -1 or 1 for channel c. */
template <int D> WF F attend_sign(const lk_device_rotation &r, const U &c) {
    U word = splat(r.sign[0]);
#pragma unroll
    for (int i = 1; i < D / 32; i++) word = sel(c >= (uint32_t)(32 * i), splat(r.sign[i]), word);
    return bits_f((shrv(word, c & 31u) << 31) | 0x3f800000u);
}

/* Column i for attend_chunk.h: the rotated query in 16 bits, as planes [high, low][8][D] of bytes
 * in the order of the fragments, then f32 steps [8] and the sums of the numbers, i32 [8]. */
template <int D> WF void attend_put_planes(const attend_place &x, int i, S planes) {
    constexpr int N = D / 32;
    constexpr float ROOT = D == 128 ? 11.3137085f : D == 64 ? 8.0f : 16.0f;
    const lk_device_attend &a = *x.call;
    bool exists = i < x.n_column;
    const float *q = attend_query(x, exists ? i : 0, false, false);
    const float *sigma = (const float *)a.k_sigma;
    S high = planes + i * D, low = planes + (8 + i) * D;
    F y[N], max = splatf(0);
#pragma unroll
    for (int j = 0; j < N; j++) {
        U c = lane_id() * (uint32_t)N + (uint32_t)j;
        y[j] = ldgf(q, c) * attend_sign<D>(a.k_rotation, c);
        if (!exists) y[j] = splatf(0);
        if (sigma) y[j] = y[j] * ldgf(sigma + (size_t)x.head_kv * D, c);
    }
    attend_hadamard<N>(y);
#pragma unroll
    for (int j = 0; j < N; j++) max = max_(max, abs_(y[j]));
    max = max_(max_lanes(max), splatf(1e-30f));
    F inverse = rcp_(max) * 32512.0f;
    I total = as_i(splat(0));
#pragma unroll
    for (int j = 0; j < N; j++) {
        U c = lane_id() * (uint32_t)N + (uint32_t)j, e = c & 7u;
        I n = f2i_rn(y[j] * inverse), h = (n + 128) >> 8, l = n - h * 256;
        U to = (c - e) + ((e >> 1) & 1u) * 4u + (e & 1u) * 2u + (e >> 2);
        total = total + n;
        sts8(high, to, as_u(h));
        sts8(low, to, as_u(l));
    }
    for (int m = 1; m < 32; m *= 2) total = total + as_i(shfl_xor(as_u(total), m));
    M one = lane_id() < 1u;
    stsf_if(one, planes + 16 * D + 4 * i, splat(0),
            max * (a.scale * ATTEND_LOG2E / (32512.0f * ROOT)));
    sts32_if(one, planes + 16 * D + 32 + 4 * i, splat(0), as_u(total));
}

template <int D, int HPL> WF void attend_get_planes(S planes, attend_queries<D, HPL> &q) {
    U lane = lane_id(), g = lane >> 2, t = lane & 3u;
#pragma unroll
    for (int h = 0; h < HPL; h++) {
        U row = HPL == 1 ? (g & 1u) * 8u + (g >> 1) : g + (uint32_t)(8 * h);
#pragma unroll
        for (int ks = 0; ks < D / 32; ks++)
            q.b[h][ks] = lds64(planes, row * (uint32_t)D + t * 8u + (uint32_t)(32 * ks));
        U own = (HPL == 1 ? t : t * 2u + (uint32_t)h) * 4u + (uint32_t)(16 * D);
        q.scale[h] = ldsf(planes, own);
        q.offset[h] = as_i(lds32(planes, own + 32u)) * -rot_center(4);
    }
}

/* The sets of queries that a call needs: bit 2 shifted + rotated of K, bit 4 + rotated of V. */
WF uint32_t attend_sets(const lk_device_attend &a) {
    uint32_t sets = 0;
    for (int i = 0; i < a.n_segment; i++) {
        const lk_device_segment &s = a.segment[i];
        sets |= 1u << (2 * (s.shifted != 0) + (s.k.coding.rotated != 0));
        if (a.d_rope > 0) sets |= 1u << (4 + (s.v.coding.rotated != 0));
    }
    return sets;
}

/* Where the sets are. */
template <int C> WF attend_plain_queries attend_plain_of(const lk_device_attend &a, S queries) {
    attend_plain_queries q;
    uint32_t k = (uint32_t)(4 * C * (a.d_rope > 0 ? a.d_rope : a.d_head));
    uint32_t n = a.q_shifted ? 4 : 2;
    for (uint32_t i = 0; i < 4; i++) q.k[i / 2][i % 2] = queries + i % n * k;
    for (uint32_t i = 0; i < 2; i++)
        q.v[i] = queries + n * k + i * (uint32_t)(a.d_rope > 0 ? 4 * C * a.d_head : 0);
    return q;
}

/* Prepare all queries of the block. */
template <int D, int HPL, uint32_t PAIRS, int WARPS>
WF void attend_put_queries(const attend_place &x, S shared, int warp) {
    typedef attend_memory<D, HPL, PAIRS, WARPS> memory;
    constexpr int C = 4 * HPL;
    const lk_device_attend &a = *x.call;
    attend_plain_queries q = attend_plain_of<C>(a, shared + memory::QUERIES);
    uint32_t sets = attend_sets(a);
    int item = 0;
    if constexpr (PAIRS != 0)
        if (a.d_head == D && a.d_rope == 0) /* chunks are not of latent attention */
            for (int i = 0; i < 8; i++, item++)
                if (item % WARPS == warp) attend_put_planes<D>(x, i, shared + memory::PLANES);
    for (int set = 0; set < 6; set++)
        for (int i = 0; (sets >> set & 1) && i < C; i++, item++)
            if (item % WARPS == warp)
                attend_put_plain<D, C>(x, i, set >= 2 && set < 4, set & 1, set >= 4,
                                       set < 4 ? q.k[set / 2][set % 2] : q.v[set % 2]);
}

/* ---- rows ---- */

/* What columns see of a segment; columns: of lane's registers, i -> its number. */
template <int N, class COLUMN>
WF void attend_set_rules(const attend_place &x, const lk_device_segment &s, COLUMN column,
                         attend_rules<N> &r) {
    const lk_device_attend &a = *x.call;
    r.plain = a.softcap == 0 && !a.slope;
    r.cap = a.softcap * ATTEND_LOG2E;
    int last = attend_token(x, x.n_column - 1);
    r.all_end = s.before + attend_token(x, 0) + 1;
    r.all_first = a.window > 0 ? s.before + last - a.window + 1 : 0;
    if (r.all_end > s.n_row) r.all_end = s.n_row;
#pragma unroll
    for (int h = 0; h < N; h++) {
        U i = column(h), last_column = splat((uint32_t)(x.n_column - 1));
        i = sel(i < last_column, i, last_column) + (uint32_t)x.column;
        U token = i / (uint32_t)x.group;
        I end = as_i(token) + (s.before + 1), n_row = as_i(splat((uint32_t)s.n_row)),
          zero = as_i(splat(0)), first = zero;
        end = as_i(sel(end < s.n_row, as_u(end), as_u(n_row)));
        if (a.window > 0) first = as_i(token) + (s.before - a.window + 1);
        first = as_i(sel(first < 0, splat(0), as_u(first)));
        I n = end - first;
        r.first[h] = as_u(first);
        r.n_seen[h] = sel(n < 0, splat(0), as_u(n));
        r.slope[h] = r.bias[h] = splatf(0);
        if (a.slope) {
            U head = i - token * (uint32_t)x.group + (uint32_t)(x.head_kv * x.group);
            r.slope[h] = ldgf((const float *)a.slope, head) * ATTEND_LOG2E;
            r.bias[h] = r.slope[h] * i2f(as_i(token) + s.distance);
        }
    }
}

/* The pair of a segment's codecs, a bit of PAIRS; 0: its rows come in tiles. */
template <int D, uint32_t PAIRS>
WF uint32_t attend_pair_of(const lk_device_attend &a, const lk_device_segment &s,
                           const attend_side &k, const attend_side &v) {
    if (PAIRS == 0 || a.d_head != D || a.d_rope > 0 || s.shifted) return 0;
    const lk_device_coding &x = k.c, &y = v.c;
    bool ours = x.coding == LK_ROT && y.coding == LK_ROT && x.book == LK_DEVICE_LLOYD &&
                y.book == LK_DEVICE_LLOYD && x.mean && !y.mean && x.block_rows == LK_TILE &&
                y.block_rows == LK_TILE && (k.first | v.first) % LK_TILE == 0;
    return ours ? attend_pair(x.bits, y.bits) & PAIRS : 0;
}

/* Rows as chunks: the warp's ones of all segments. */
template <int D, int HPL, uint32_t PAIRS, int WARPS>
WF void attend_rows_in_chunks(const attend_place &x, S shared, int warp, int split, int n_split,
                              attend_sums<D, HPL> &sums) {
    typedef attend_memory<D, HPL, PAIRS, WARPS> memory;
    const lk_device_attend &a = *x.call;
    attend_queries<D, HPL> q;
    attend_get_planes<D, HPL>(shared + memory::PLANES, q);
    S ring = shared + warp * memory::OWN, bars = shared + memory::BARS + warp * 16;
    uint32_t phase = 0;
    int n_chunk = 0;
    for (int i = 0; i < a.n_segment; i++) {
        const lk_device_segment &s = a.segment[i];
        attend_side k = attend_side_of(s.k, 0, x.head_kv, D),
                    v = attend_side_of(s.v, 0, x.head_kv, D);
        if (attend_pair_of<D, PAIRS>(a, s, k, v)) n_chunk += (s.n_row + 127) / 128;
    }
    int from = (int)((long long)n_chunk * split / n_split) + warp;
    int to = (int)((long long)n_chunk * (split + 1) / n_split), base = 0;
    for (int i = 0; i < a.n_segment; i++) {
        const lk_device_segment &s = a.segment[i];
        attend_side k = attend_side_of(s.k, 0, x.head_kv, D),
                    v = attend_side_of(s.v, 0, x.head_kv, D);
        uint32_t pair = attend_pair_of<D, PAIRS>(a, s, k, v);
        if (!pair) continue;
        int n = (s.n_row + 127) / 128, first = from - base, end = to - base < n ? to - base : n;
        base += n;
        if (first < 0) first += (-first + WARPS - 1) / WARPS * WARPS;
        if (first >= end) continue;
        attend_rules<HPL> rules;
        U t = lane_id() & 3u;
        attend_set_rules<HPL>(
            x, s, [t](int h) { return HPL == 1 ? t : t * 2u + (uint32_t)h; }, rules);
        attend_source source = {k.table + k.first / LK_TILE * 8, v.table + v.first / LK_TILE * 8,
                                k.c.offset, v.c.offset, s.n_row};
#define ATTEND_CASE(KB, VB)                                                                        \
    if constexpr ((PAIRS & attend_pair(KB, VB)) != 0)                                              \
        if (pair == attend_pair(KB, VB))                                                           \
            attend_chunks<D, KB, VB, HPL>(source, q, rules, first, end, WARPS, ring, bars, phase,  \
                                          sums);
        ATTEND_CASE(2, 2)
        ATTEND_CASE(3, 2)
        ATTEND_CASE(3, 3)
        ATTEND_CASE(4, 2)
        ATTEND_CASE(4, 3)
        ATTEND_CASE(4, 4)
#undef ATTEND_CASE
    }
}

/* Rows as tiles: every n_worker-th one of all segments. */
template <int D, int HPL, uint32_t PAIRS, int WARPS>
WF void attend_rows_in_tiles(const attend_place &x, S shared, int worker, int n_worker,
                             const attend_slots<D, 4 * HPL> &slots) {
    constexpr int C = 4 * HPL;
    typedef attend_memory<D, HPL, PAIRS, WARPS> memory;
    const lk_device_attend &a = *x.call;
    attend_plain_queries q = attend_plain_of<C>(a, shared + memory::QUERIES);
    int base = 0;
    for (int i = 0; i < a.n_segment; i++) {
        const lk_device_segment &s = a.segment[i];
        attend_side k =
            attend_side_of(s.k, a.levels, x.head_kv, a.d_rope > 0 ? a.d_rope : a.d_head);
        attend_side v = attend_side_of(s.v, a.levels, x.head_kv, a.d_head);
        if (attend_pair_of<D, PAIRS>(a, s, k, v)) continue;
        int n = ((int)(k.first & 31) + s.n_row + 31) / 32;
        int tile = (worker - base % n_worker + n_worker) % n_worker;
        base += n;
        if (tile >= n) continue;
        attend_rules<C> rules;
        attend_set_rules<C>(
            x, s, [](int h) { return splat((uint32_t)h); }, rules);
        for (; tile < n; tile += n_worker)
            attend_tile<D, C>(k, v, s.n_row, s.shifted != 0, a.d_rope > 0, rules, q, tile, slots);
    }
}

/* ---- joining ---- */

/* A column's sums: channels lane + 32 j. */
template <int D> struct attend_column { F acc[D / 32], max, sum; };

template <int D> WF void attend_column_clear(attend_column<D> &x) {
    x.max = splatf(ATTEND_NONE), x.sum = splatf(0);
    for (int j = 0; j < D / 32; j++) x.acc[j] = splatf(0);
}

/* Join a row of shared memory (attend_slots), of this block or of a peer. */
template <int D, bool PEER> WF void attend_join(attend_column<D> &x, S row) {
    U at4 = lane_id() * 4u;
    F max = PEER ? ldsf_peer(row, splat(4 * D)) : ldsf(row, splat(4 * D));
    F sum = PEER ? ldsf_peer(row, splat(4 * D + 4)) : ldsf(row, splat(4 * D + 4));
    F joint = max_(x.max, max), a = exp2_(x.max - joint), b = exp2_(max - joint);
    x.max = joint, x.sum = fma_(x.sum, a, sum * b);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        U at = at4 + (uint32_t)(128 * j);
        F y = PEER ? ldsf_peer(row, at) : ldsf(row, at);
        x.acc[j] = fma_(x.acc[j], a, y * b);
    }
}

template <int D> WF void attend_put_column(const attend_column<D> &x, S row) {
#pragma unroll
    for (int j = 0; j < D / 32; j++) stsf(row, lane_id() * 4u + (uint32_t)(128 * j), x.acc[j]);
    M one = lane_id() < 1u;
    stsf_if(one, row, splat(4 * D), x.max);
    stsf_if(one, row, splat(4 * D + 4), x.sum);
}

/* Rotate the warp's sums of rotated rows back and join them with the others. */
template <int D, int C>
WF void attend_turn_back(const attend_place &x, const attend_slots<D, C> &slots) {
    constexpr uint32_t ROW = attend_slots<D, C>::ROW;
    const lk_device_attend &a = *x.call;
    for (int h = 0; h < x.n_column; h++) {
        S plain = slots.sums[0] + h * ROW, rotated = slots.sums[1] + h * ROW;
        attend_rotate<D>(a.v_rotation, rotated, 4, a.d_head, true);
        if (a.v_sigma)
            for (int first = 0; first < a.d_head; first += 32) {
                U c = lane_id() + (uint32_t)first;
                M exists = c < (uint32_t)a.d_head;
                c = sel(exists, c, splat(0));
                F sigma = ldgf((const float *)a.v_sigma + (size_t)x.head_kv * a.d_head, c);
                stsf_if(exists, rotated, c * 4u, ldsf(rotated, c * 4u) * sigma);
            }
        sync_warp();
        attend_column<D> column;
        attend_column_clear(column);
        attend_join<D, false>(column, plain);
        attend_join<D, false>(column, rotated);
        sync_warp();
        attend_put_column(column, plain);
    }
}

/* Join what other clusters have. False: another cluster goes on. */
template <int D, int C>
WF bool attend_join_clusters(const lk_device_attend_launch &launch, const gpu_place &at, int column,
                             int cluster, int n_cluster, attend_column<D> &x) {
    constexpr uint32_t ROW = D + 2;
    size_t pair = ((size_t)at.z * launch.n_head_kv * launch.n_tile + at.y) * C;
    float *rows = (float *)launch.scratch + (pair * n_cluster + column) * ROW;
    size_t step = (size_t)C * ROW; /* [cluster][column][D + 2] */
    float *row = rows + (size_t)cluster * step;
    uint32_t *ticket = (uint32_t *)launch.ticket + pair + column, early = 0;
    if (lk_planted == 6) early = warp_ticket(ticket);
#pragma unroll
    for (int j = 0; j < D / 32; j++) stgf(row, lane_id() + (uint32_t)(32 * j), x.acc[j]);
    M one = lane_id() < 1u;
    stgf_if(one, row, splat(D), x.max);
    stgf_if(one, row, splat(D + 1), x.sum);
    uint32_t order = lk_planted == 6 ? early : warp_ticket(ticket);
    if (order != (uint32_t)n_cluster - 1) return false;
    reset_ticket(ticket);
    F max = splatf(ATTEND_NONE);
    for (int i = 0; i < n_cluster; i++) max = max_(max, ldcgf(rows + i * step, splat(D)));
    attend_column_clear(x);
    x.max = max;
#pragma unroll 4
    for (int i = 0; i < n_cluster; i++) {
        const float *from = rows + i * step;
        F f = exp2_(ldcgf(from, splat(D)) - max);
        x.sum = fma_(ldcgf(from, splat(D + 1)), f, x.sum);
#pragma unroll
        for (int j = 0; j < D / 32; j++)
            x.acc[j] = fma_(ldcgf(from, lane_id() + (uint32_t)(32 * j)), f, x.acc[j]);
    }
    return true;
}

/* Write a column's result, or its partial. */
template <int D> WF void attend_write(const attend_place &p, int i, attend_column<D> &x) {
    const lk_device_attend &a = *p.call;
    int head = attend_head(p, i);
    size_t row = (size_t)attend_token(p, i) * a.n_head + head, d = (size_t)a.d_head;
    M one = lane_id() < 1u;
    if (a.partial) {
        float *to = (float *)a.partial + row * (d + 2);
        F max = self(x.max > ATTEND_NONE / 2, x.max * (1 / ATTEND_LOG2E), splatf(-INFINITY));
        for (int j = 0; j < D / 32 && !a.out; j++) {
            U c = lane_id() + (uint32_t)(32 * j);
            stgf_if(c < (uint32_t)d, to, c, x.acc[j]);
        }
        stgf_if(one, to, splat((uint32_t)d), max);
        stgf_if(one, to, splat((uint32_t)d + 1), x.sum);
        if (!a.out) return;
    }
    for (int e = 0; e < a.n_extra; e++) {
        const float *from =
            (const float *)a.extra + (size_t)e * (size_t)a.extra_stride + row * (d + 2);
        F max = max_(ldgf(from, splat((uint32_t)d)) * ATTEND_LOG2E, splatf(ATTEND_NONE));
        F joint = max_(x.max, max), f = exp2_(x.max - joint), g = exp2_(max - joint);
        x.max = joint, x.sum = fma_(x.sum, f, ldgf(from, splat((uint32_t)d + 1)) * g);
        for (int j = 0; j < D / 32; j++) {
            U c = lane_id() + (uint32_t)(32 * j);
            c = sel(c < (uint32_t)d, c, splat(0));
            x.acc[j] = fma_(x.acc[j], f, ldgf(from, c) * g);
        }
    }
    F sum = x.sum, f = splatf(1);
    if (a.sink) {
        F sink = ldgf((const float *)a.sink, splat((uint32_t)head)) * ATTEND_LOG2E;
        F joint = max_(x.max, sink);
        f = exp2_(x.max - joint), sum = fma_(sum, f, exp2_(sink - joint));
    }
    f = f * rcp_(sum);
    float *to = (float *)a.out + row * d;
    for (int j = 0; j < D / 32; j++) {
        U c = lane_id() + (uint32_t)(32 * j);
        stgf_if(c < (uint32_t)d, to, c, x.acc[j] * f);
    }
}

/* ---- the kernel ---- */

template <int D, int HPL, uint32_t PAIRS, int N_WARP, int N_CLUSTER> struct attend_kernel {
    typedef lk_device_attend_launch args;
    enum { WARPS = N_WARP, CLUSTER = N_CLUSTER, PER_SM = 1, C = 4 * HPL, CHANNELS = D };
    typedef attend_memory<D, HPL, PAIRS, WARPS> memory;
    typedef attend_slots<D, C> slots_of;

    /* Bytes of shared memory for calls with these channels of a head. */
    static int shared(int d_head, int d_rope, bool shifted) {
        uint32_t k = (uint32_t)(d_rope > 0 ? d_rope : d_head),
                 v = d_rope > 0 ? (uint32_t)d_head : 0;
        uint32_t queries = 4 * C * ((shifted ? 4 : 2) * k + 2 * v);
        return (int)(memory::QUERIES + attend_max(queries, slots_of::SUMS));
    }

    /* Grid: x splits, a multiple of CLUSTER; y KV heads * tiles of columns; z calls. */
    WF void warp(const args &launch, S shared, const gpu_place &at) {
        U lane = lane_id();
        const char *call = (const char *)launch.call + (size_t)at.z * sizeof(lk_device_attend);
        for (uint32_t i = 32 * at.warp; i < sizeof(lk_device_attend) / 4; i += 32 * WARPS) {
            U word = lane + i;
            M exists = word < (uint32_t)(sizeof(lk_device_attend) / 4);
            word = sel(exists, word, splat(0)) * 4u;
            sts32_if(exists, shared + memory::CALL, word, ldg32(offset(at_lane(call), word)));
        }
        S own = shared + at.warp * memory::OWN, bars = shared + memory::BARS + at.warp * 16;
        copy_init(bars);
        copy_init(bars + 8);
        block_sync();

        attend_place x;
        x.call = (const lk_device_attend *)shared_address(shared + memory::CALL);
        x.head_kv = at.y / launch.n_tile, x.group = x.call->n_head / x.call->n_head_kv;
        x.column = at.y % launch.n_tile * C;
        x.n_column = x.group * x.call->n_tok - x.column;
        if (x.n_column > C) x.n_column = C;
        bool idle = x.n_column <= 0; /* a sequence with fewer columns than others */
        if (!idle) attend_put_queries<D, HPL, PAIRS, WARPS>(x, shared, at.warp);
        if (lk_planted != 2) block_sync();

        slots_of slots;
        slots.sums[0] = own, slots.sums[1] = own + slots_of::SUMS;
        slots.weights = own + 2 * slots_of::SUMS;
        if (!idle) rows(launch, x, shared, at, slots);
        if (lk_planted != 3) block_sync();
        for (int h = at.warp; h < x.n_column; h += WARPS) {
            attend_column<D> column;
            attend_column_clear(column);
            for (int w = 0; w < WARPS; w++)
                attend_join<D, false>(column, shared + w * memory::OWN + h * slots_of::ROW);
            attend_put_column(column, shared + memory::MERGED + h * slots_of::ROW);
        }
        if (CLUSTER == 1)
            block_sync();
        else if (lk_planted != 4)
            cluster_sync();
        for (int h = at.rank + CLUSTER * at.warp; h < x.n_column; h += CLUSTER * WARPS) {
            attend_column<D> column;
            attend_column_clear(column);
            for (uint32_t i = 0; i < CLUSTER; i++)
                attend_join<D, (CLUSTER > 1)>(column, merged(shared, h, i));
            int n_cluster = launch.n_split / CLUSTER;
            if (n_cluster > 1 &&
                !attend_join_clusters<D, C>(launch, at, h, at.x / CLUSTER, n_cluster, column))
                continue;
            attend_write<D>(x, h, column);
        }
        if (lk_planted != 5 && CLUSTER > 1) cluster_sync(); /* others may read this memory */
    }

    /* The sums of block `rank` of the cluster. */
    WF S merged(S shared, int h, uint32_t rank) {
        S row = shared + memory::MERGED + h * slots_of::ROW;
        if constexpr (CLUSTER > 1) return peer(row, rank);
        return row;
    }

    /* The warp's rows, summed into slots.sums[0]. */
    WF void rows(const args &launch, const attend_place &x, S shared, const gpu_place &at,
                 const slots_of &slots) {
        if constexpr (PAIRS != 0) {
            if (x.call->d_head == D) {
                attend_sums<D, HPL> sums;
                attend_begin<D, HPL>(sums);
                attend_rows_in_chunks<D, HPL, PAIRS, WARPS>(x, shared, at.warp, at.x,
                                                            launch.n_split, sums);
                sync_warp();
                attend_put_sums<D, HPL>(sums, slots.sums[1], slots_of::ROW);
            } else {
                attend_clear<D, C>(slots.sums[1]);
            }
        } else {
            attend_clear<D, C>(slots.sums[1]);
        }
        attend_clear<D, C>(slots.sums[0]);
        int worker = (launch.n_split - 1 - at.x) * WARPS + (WARPS - 1 - at.warp);
        attend_rows_in_tiles<D, HPL, PAIRS, WARPS>(x, shared, worker, launch.n_split * WARPS,
                                                   slots);
        attend_turn_back<D, C>(x, slots);
    }
};

#endif
