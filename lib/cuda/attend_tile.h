/* Attention over tiles of 32 rows in any coding: a lane decodes a row of K for its scores, and some
 * channels of V for the sums. For few rows (sinks, windows), tiles that start anywhere, and codings
 * without a kernel of their own.
 *
 * Each warp has sums in shared memory for two domains: rows as they are, and rotated rows. */
#ifndef LK_CUDA_ATTEND_TILE_H
#define LK_CUDA_ATTEND_TILE_H

extern "C" {
#include "codec/codec.h"
}
#include "cuda/attend_chunk.h"
#include "device/commands.h"

/* ---- codes ---- */

/* Four codes, as bytes, of cell `cell` of a tile of `width` channels: of word `word` of the 8 words
 * of 32 bytes (codec/bitplanes.h). Trellis codes become indices of levels (codec/rot.h). */
WF U attend_codes(P tile, const lk_device_coding &c, uint32_t width, const U &cell, const U &word) {
    U at4 = word * 4u, r = splat(0);
    if (c.bits == 8) return ldg32(offset(tile, cell * 32u + at4));
    uint32_t shift = 0;
    bool trellis = c.book == LK_DEVICE_TRELLIS;
    if (c.bits & 4) {
        U x = ldg32(offset(tile, (cell >> 1) * 32u + at4)), n = (cell & 1u) * 4u;
        if (trellis) return (shrv(x, n) | shlv(x, (splat(32) - n) & 31u)) & 0x3f3f3f3fu;
        r = shrv(x, n) & 0x0f0f0f0fu;
        tile = add(tile, 16 * width), shift = 4;
    }
    if (c.bits & 2) {
        U x = ldg32(offset(tile, (cell >> 2) * 32u + at4)), n = (cell & 3u) * 2u;
        if (trellis) {
            r = shrv(x, n) | shlv(x, (splat(32) - n) & 31u);
            if (c.bits == 2) return r & 0x3f3f3f3fu;
            r = r & 0x0f0f0f0fu, shift = 4;
        } else {
            r |= (shrv(x, n) & 0x03030303u) << (int)shift;
            shift += 2;
        }
        tile = add(tile, 8 * width);
    }
    if (c.bits & 1) {
        U x = ldg32(offset(tile, (cell >> 3) * 32u + at4)), n = cell & 7u;
        if (trellis && c.bits == 1)
            return (shrv(x, n) | shlv(x, (splat(32) - n) & 31u)) & 0x3f3f3f3fu;
        r |= (shrv(x, n) & 0x01010101u) << (int)shift;
    }
    return r;
}

/* The numbers that four codes stand for, in units of the row's scale. */
WF void attend_numbers(const lk_device_coding &c, uint64_t levels, const U &codes, F x[4]) {
    if (c.coding != LK_ROT) {
        for (int i = 0; i < 4; i++) x[i] = b2f(codes, i) - (c.coding == LK_INT8 ? 128.0f : 0.0f);
    } else if (c.book == LK_DEVICE_TRELLIS) {
        const char *table = (const char *)levels + 64 * c.bits;
        for (int i = 0; i < 4; i++)
            x[i] = u2f(ldg8(at(table, (codes >> 8 * i) & 255u, 1, splat(0)))) - 63.0f;
    } else if (c.book == LK_DEVICE_LLOYD) {
        U n = (codes & 15u) | ((codes >> 4) & 0xf0u) | ((codes >> 8) & 0xf00u) |
              ((codes >> 12) & 0xf000u);
        U r;
        if (c.bits == 2)
            r = prmt(splat(rot_book<2>::t0), splat(0), n);
        else if (c.bits == 3)
            r = prmt(splat(rot_book<3>::t0), splat(rot_book<3>::t1), n);
        else
            r = prmt(splat(rot_book<4>::t0), splat(rot_book<4>::t1), n) |
                prmt(splat(rot_book<4>::t2), splat(rot_book<4>::t3), n ^ 0x8888u);
        float missing = c.bits == 4 ? 63.0f : 0.0f;
        for (int i = 0; i < 4; i++) x[i] = (s2f(r, i) - missing) * 0.5f;
    } else {
        for (int i = 0; i < 4; i++) x[i] = b2f(codes, i) - 0.5f * (float)((1 << c.bits) - 1);
    }
}

WF void attend_halves(P p, F x[4]) {
    U2 w = ldg64(p);
    for (int i = 0; i < 4; i++) x[i] = half_of(w.v[i / 2], i % 2);
}

/* ---- rows ---- */

/* One side of a segment for one KV head. */
struct attend_side {
    lk_device_coding c;
    uint64_t table, levels;
    uint32_t first, width, group_bytes; /* width: channels that are packed together */
    int d;
};

WF attend_side attend_side_of(const lk_device_rows &rows, uint64_t levels, int head, int d) {
    attend_side x;
    x.c = rows.coding;
    x.c.offset = rows.coding.offset + (uint32_t)head * rows.coding.next;
    if (rows.part) x.c = ((const lk_device_coding *)rows.part)[head];
    x.table = rows.table, x.levels = levels, x.first = rows.first, x.d = d;
    x.width = x.c.coding == LK_ASYM && x.c.group > 0 ? x.c.group : (uint32_t)d;
    x.group_bytes = 4 * x.c.bits * x.width + 128; /* asym: codes, scales, zero points */
    return x;
}

/* Where the lanes' rows of the level are: the row of f16, else the tile. tile_row: in the tile. */
WF P attend_rows_at(const attend_side &x, const U &row, U *tile_row) {
    U block, in;
    if (x.c.block_rows == LK_TILE)
        block = row >> 5, in = row & 31u;
    else
        block = row / x.c.block_rows, in = row % x.c.block_rows;
    P p = add(ldtabp(x.table, block), x.c.offset);
    *tile_row = in & 31u;
    if (x.c.coding == LK_F16) return offset(p, in * (uint32_t)(2 * x.d));
    if (x.c.coding == LK_KIVI) return offset(p, (in >> 5) * (4 * x.c.bits * (uint32_t)x.d));
    return p;
}

/* The scale of a tile's mean: the signs of the tile's scales. p: the tile, for all lanes. */
WF F attend_tile_mean_scale(const attend_side &x, P p) {
    U raw = ldg16(offset(p, lane_id() * 2u + 4u * x.c.bits * (uint32_t)x.d));
    return bits_f(splat(lanes_of((raw & 0x8000u) != 0u)));
}

/* Channels c .. c + 3 of K's rows. p, t: of attend_rows_at, whose lanes are in one tile. kivi's
 * scales come after all tiles of the block: head. */
WF void attend_k_numbers(const attend_side &x, P p, P head, const U &t, const F &scale,
                         const F &mean_scale, uint32_t c, F y[4]) {
    if (x.c.coding == LK_F16) return attend_halves(add(p, 2 * c), y);
    uint32_t group = c / x.width, in = c - group * x.width;
    if (x.c.coding == LK_ASYM) p = add(p, group * x.group_bytes);
    U codes = attend_codes(p, x.c, x.width, (t >> 3) + in / 4 * 4, t & 7u);
    attend_numbers(x.c, x.levels, codes, y);
    if (x.c.coding == LK_KIVI) {
        F s[4], low[4];
        P at = add(head, x.c.group / LK_TILE * 4 * x.c.bits * (uint32_t)x.d + 2 * c);
        attend_halves(at, s), attend_halves(add(at, 2 * (uint32_t)x.d), low);
        for (int i = 0; i < 4; i++) y[i] = fma_(s[i], y[i], low[i]);
    } else if (x.c.coding == LK_ASYM) {
        P at = offset(add(p, 4 * x.c.bits * x.width), t * 2u);
        F s = h_lo(ldg16(at)), zero = h_lo(ldg16(add(at, 64)));
        for (int i = 0; i < 4; i++) y[i] = s * (y[i] - zero);
    } else {
        for (int i = 0; i < 4; i++) y[i] = y[i] * scale;
        if (!x.c.mean) return;
        U mean = ldg32(add(p, 4 * x.c.bits * (uint32_t)x.d + 64 + c));
        for (int i = 0; i < 4; i++) y[i] = fma_(s2f(mean, i), mean_scale, y[i]);
    }
}

/* Rows t .. t + 3 (a multiple of 4) of a tile of V, channel c of the lane. Not for f16. */
WF void attend_v_numbers(const attend_side &x, P p, const U &t, const F &mean_scale, const U &c,
                         F y[4]) {
    U group = splat(0), in = c;
    P base = p;
    if (x.c.coding == LK_KIVI) group = c / (uint32_t)x.c.group;
    if (x.c.coding == LK_ASYM) group = c / x.width;
    if (x.c.coding == LK_ASYM) base = offset(p, group * x.group_bytes), in = c - group * x.width;
    U codes = attend_codes(base, x.c, x.width, (in >> 3) * 8u + (t >> 2), in & 7u);
    attend_numbers(x.c, x.levels, codes, y);
    P at = offset(add(base, 4 * x.c.bits * x.width), t * 2u);
    F s[4], low[4];
    if (x.c.coding == LK_KIVI) {
        at = offset(at, group * 64u);
        attend_halves(at, s);
        attend_halves(add(at, (uint32_t)x.d / x.c.group * 64), low);
        for (int i = 0; i < 4; i++) y[i] = fma_(s[i], y[i], low[i]);
    } else if (x.c.coding == LK_ASYM) {
        attend_halves(at, s), attend_halves(add(at, 64), low);
        for (int i = 0; i < 4; i++) y[i] = s[i] * (y[i] - low[i]);
    } else {
        attend_halves(at, s);
        F mean = splatf(0);
        if (x.c.mean) {
            U byte = ldg8(offset(add(p, 4 * x.c.bits * (uint32_t)x.d + 64), c));
            mean = s2f(byte, 0) * mean_scale;
        }
        for (int i = 0; i < 4; i++)
            y[i] = fma_(y[i], x.c.coding == LK_ROT ? abs_(s[i]) : s[i], mean);
    }
}

/* ---- a tile ---- */

/* Shared memory of a warp: sums of both domains, and weights of a tile's rows. */
template <int D, int C> struct attend_slots {
    static constexpr uint32_t ROW = 4 * D + 16;     /* bytes of a column's sums: D, max, sum */
    static constexpr uint32_t SUMS = C * ROW;       /* of a domain */
    static constexpr uint32_t WEIGHTS = 40 * C * 4; /* [row][column] */
    static constexpr uint32_t BYTES = 2 * SUMS + WEIGHTS;
    S sums[2], weights; /* of rows as they are, of rotated rows */
};

/* Prepared queries in shared memory, times the scale of scores and log2 e: [channel][C]. */
struct attend_plain_queries {
    S k[2][2]; /* [shifted][rotated] */
    S v[2];    /* latent attention: [rotated] */
};

template <int D, int C> WF void attend_clear(S sums) {
    for (int h = 0; h < C; h++) {
        S row = sums + h * attend_slots<D, C>::ROW;
        for (int j = 0; j < D / 32; j++) stsf(row, lane_id() * 4u + (uint32_t)(128 * j), splatf(0));
        sts32_if(lane_id() < 1u, row, splat(4 * D), f_bits(splatf(ATTEND_NONE)));
        sts32_if(lane_id() < 1u, row, splat(4 * D + 4), splat(0));
    }
    sync_warp();
}

/* Add the product of four channels and the queries to the scores. */
template <int C> WF void attend_add_scores(S q, uint32_t c, const F y[4], F s[C]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < C; n += 4) {
            U4 w = lds128(q, splat((c + (uint32_t)i) * (uint32_t)(4 * C) + (uint32_t)(4 * n)));
#pragma unroll
            for (int h = 0; h < 4; h++) s[n + h] = fma_(y[i], bits_f(w.v[h]), s[n + h]);
        }
}

/* Scores of the lanes' rows of K, which are in one tile. */
template <int C> WF void attend_tile_scores(const attend_side &x, const U &row, S q, F s[C]) {
    U t;
    P p = attend_rows_at(x, row, &t), head = p;
    F scale = splatf(1), mean_scale = splatf(0);
    if (x.c.coding == LK_KIVI) head = add(ldtabp(x.table, row / x.c.block_rows), x.c.offset);
    if (x.c.coding == LK_ROT || x.c.coding == LK_INT8)
        scale = h_lo(ldg16(offset(p, t * 2u + 4u * x.c.bits * (uint32_t)x.d)) & 0x7fffu);
    if (x.c.mean) mean_scale = attend_tile_mean_scale(x, p);
#pragma unroll 2
    for (int c = 0; c < x.d; c += 4) {
        F y[4];
        attend_k_numbers(x, p, head, t, scale, mean_scale, (uint32_t)c, y);
        attend_add_scores<C>(q, (uint32_t)c, y, s);
    }
}

/* Scores of the lanes' rows of V as keys, in any tiles. */
template <int C> WF void attend_value_scores(const attend_side &x, const U &row, S q, F s[C]) {
    U t;
    P p = attend_rows_at(x, row, &t);
    for (int c = 0; c < x.d; c += 4) {
        F y[4];
        if (x.c.coding == LK_F16) {
            attend_halves(add(p, (uint32_t)(2 * c)), y);
        } else {
            for (int i = 0; i < 4; i++) {
                F four[4];
                attend_v_numbers(x, p, (t >> 2) * 4u, splatf(0), splat((uint32_t)(c + i)), four);
                U in = t & 3u;
                y[i] = self(in < 2u, self(in == 0u, four[0], four[1]),
                            self(in == 2u, four[2], four[3]));
            }
        }
        attend_add_scores<C>(q, (uint32_t)c, y, s);
    }
}

/* Weighted sums of rows [row, row + n) of V for channels lane + 32 j. weights: [row - base][C],
 * with base = row rounded down to 4, and zeros before `row`. */
template <int D, int C>
WF void attend_tile_values(const attend_side &x, uint32_t row, int n, S weights, const F *alpha,
                           S sums) {
    constexpr uint32_t ROW = attend_slots<D, C>::ROW;
    uint32_t base = row & ~3u, end = row + (uint32_t)n;
    F mean_scale[2] = {splatf(0), splatf(0)}; /* of the tiles that the rows are in */
    if (x.c.mean)
        for (uint32_t i = 0; i < 2; i++) {
            U t;
            uint32_t tile = (base & ~31u) + 32 * i;
            if (tile < end)
                mean_scale[i] = attend_tile_mean_scale(x, attend_rows_at(x, splat(tile), &t));
        }
#pragma unroll 1
    for (int j = 0; j < D / 32; j++) {
        if (32 * j >= x.d) break;
        U c = lane_id() + (uint32_t)(32 * j);
        M exists = c < (uint32_t)x.d;
        c = sel(exists, c, splat(0));
        F acc[C];
#pragma unroll
        for (int h = 0; h < C; h++) acc[h] = splatf(0);
#pragma unroll 2
        for (uint32_t r = base; r < end; r += 4) {
            F y[4];
            if (x.c.coding == LK_F16) {
                for (uint32_t i = 0; i < 4; i++) {
                    y[i] = splatf(0);
                    if (r + i < row || r + i >= end) continue;
                    U t;
                    P p = attend_rows_at(x, splat(r + i), &t);
                    y[i] = h_lo(ldg16(offset(p, c * 2u)));
                }
            } else {
                U t;
                P p = attend_rows_at(x, splat(r), &t);
                attend_v_numbers(x, p, t, mean_scale[(r >> 5) - (base >> 5)], c, y);
                for (uint32_t i = 0; i < 4; i++)
                    if (r + i < row || r + i >= end) y[i] = splatf(0); /* may hold anything */
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < C; k += 4) {
                    U4 w = lds128(weights, splat((r - base + (uint32_t)i) * (uint32_t)(4 * C) +
                                                 (uint32_t)(4 * k)));
#pragma unroll
                    for (int h = 0; h < 4; h++) acc[k + h] = fma_(y[i], bits_f(w.v[h]), acc[k + h]);
                }
        }
#pragma unroll
        for (int h = 0; h < C; h++) {
            U to = lane_id() * 4u + (uint32_t)(128 * j) + (uint32_t)h * ROW;
            F sum = fma_(ldsf(sums, to), alpha[h], acc[h]);
            stsf(sums, to, self(exists, sum, splatf(0)));
        }
    }
}

/* Add the segment's rows of tile `tile` of K, counted from the one that its first row is in, to the
 * sums of V's domain. */
template <int D, int C>
WF void attend_tile(const attend_side &k, const attend_side &v, int n_row, bool shifted,
                    bool latent, const attend_rules<C> &rules, const attend_plain_queries &q,
                    int tile, const attend_slots<D, C> &slots) {
    constexpr uint32_t ROW = attend_slots<D, C>::ROW;
    int from = 32 * tile - (int)(k.first & 31), to = from + 32; /* rows of the segment */
    if (from < 0) from = 0;
    if (to > n_row) to = n_row;
    U i = lane_id(); /* the lane's row; lanes without one take the first */
    M exists = i < (uint32_t)(to - from);
    i = sel(exists, i, splat(0)) + (uint32_t)from;
    F s[C];
    for (int h = 0; h < C; h++) s[h] = splatf(0);
    attend_tile_scores<C>(k, i + k.first, q.k[shifted][k.c.rotated], s);
    if (latent) attend_value_scores<C>(v, i + v.first, q.v[v.c.rotated], s);

    S sums = slots.sums[v.c.rotated];
    uint32_t row = (uint32_t)from + v.first, before = row & 3;
    for (uint32_t r = 0; r < 40; r += 32 / C) /* zeros around the weights */
        stsf(slots.weights, lane_id() * 4u + r * (uint32_t)(4 * C), splatf(0));
    sync_warp();
    F alpha[C];
#pragma unroll
    for (int h = 0; h < C; h++) {
        if (!rules.plain) s[h] = attend_adjust(rules, h, s[h], i);
        M seen = both(exists, attend_seen(rules, h, i));
        s[h] = self(seen, s[h], splatf(ATTEND_NONE));
        F old = ldsf(sums, splat((uint32_t)h * ROW + 4 * D));
        F sum = ldsf(sums, splat((uint32_t)h * ROW + 4 * D + 4));
        F max = max_(max_lanes(s[h]), old), p = self(seen, exp2_(s[h] - max), splatf(0));
        alpha[h] = exp2_(old - max);
        sum = fma_(sum, alpha[h], sum_lanes(p));
        sync_warp();
        stsf_if(lane_id() < 1u, sums, splat((uint32_t)h * ROW + 4 * D), max);
        stsf_if(lane_id() < 1u, sums, splat((uint32_t)h * ROW + 4 * D + 4), sum);
        stsf_if(exists, slots.weights, (lane_id() + before) * (uint32_t)(4 * C) + (uint32_t)(4 * h),
                p);
    }
    sync_warp();
    attend_tile_values<D, C>(v, row, to - from, slots.weights, alpha, sums);
    sync_warp();
}

#endif
