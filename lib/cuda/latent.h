/* Attention over latents: the kernel. latent_shape.h says how a block works. A cluster of
 * successive splits merges their sums through distributed shared memory, clusters through global
 * memory. Then latent_back makes heads' rows of the sums. */
#ifndef LK_CUDA_LATENT_H
#define LK_CUDA_LATENT_H

#include "cuda/latent_keys.h"
#include "cuda/latent_values.h"
#include "cuda/launch.h"

/* The work of a block, y = (KV heads / NH) * n_tile + tile. */
template <class sh>
WF latent_work latent_work_of(const struct lk_device_latent_launch &a, const gpu_place &at) {
    latent_work w;
    const struct lk_device_latent *call = (const struct lk_device_latent *)a.call + at.z;
    const struct lk_device_segment &seg = call->segment;
    w.call = call, w.head = at.y / a.n_tile * sh::NH;
    w.col0 = at.y % a.n_tile * sh::NQ, w.n_col = call->n_tok * a.group;
    const struct lk_device_latent_part *k = (const struct lk_device_latent_part *)call->k_part +
                                            w.head / a.k_heads,
                                       *v = (const struct lk_device_latent_part *)call->v_part +
                                            w.head / a.v_heads;
    w.k_rank = k->rank, w.k_offset = k->offset, w.v_rank = v->rank, w.v_offset = v->offset;
    w.skip = (int)(seg.k.first % 128);
    int64_t position = call->position - w.skip; /* of the first row of chunk 0 */
    w.coarse = (int)(position / 128), w.fine = (int)(position % 128);
    int lo, hi, end, unused;
    latent_visible(a, w, 0, &lo, &unused);
    int last = w.n_col - w.col0 < sh::NQ ? w.n_col - w.col0 - 1 : sh::NQ - 1;
    latent_visible(a, w, last > 0 ? last : 0, &unused, &hi);
    end = (hi + 127) / 128, lo /= 128;
    int n = end > lo ? end - lo : 0;
    w.from = lo + (int)((long long)n * at.x / a.n_split);
    w.to = lo + (int)((long long)n * (at.x + 1) / a.n_split);
    return w;
}

/* Addresses of a part's tiles of a chunk in K's or V's blocks, in lanes 0 to 3. Tiles that have no
 * row of the segment are replaced by ones that do. */
WF P latent_tiles(const latent_work &w, bool of_v, int chunk) {
    const struct lk_device_segment &seg = w.call->segment;
    uint32_t first = seg.k.first / 32, end = (seg.k.first + (uint32_t)seg.n_row + 31) / 32;
    U tile = (lane_id() & 3u) + (seg.k.first / 128 * 4 + 4u * (uint32_t)chunk);
    tile = sel(tile < first, splat(first), tile);
    tile = sel(tile < end, tile, splat(end - 1));
    if (of_v) tile = tile + (seg.v.first / 32 - first);
    return add(ldtabp(of_v ? seg.v.table : seg.k.table, tile), of_v ? w.v_offset : w.k_offset);
}

/* A K warp: chunks half, half + 2, ... of the block. */
template <class sh>
WF void latent_k_warp(const struct lk_device_latent_launch &a, const latent_work &w,
                      const latent_bars<sh> &bar, S shared, int warp) {
    int half = warp >> 2, i = warp & 3, n_chunk = w.to > w.from ? w.to - w.from : 0;
    uint32_t bytes = 4u * sh::KB * w.k_rank + 64u;
    U lane = lane_id();
    int stage = half % sh::KST;
    S tiles = shared + sh::k + stage * 4 * sh::K_TILE, k_full = bar.k_full + 8 * stage,
      k_empty = bar.k_empty + 8 * stage, scores = shared + sh::scores + half * sh::COLS * 512,
      mean = shared + sh::q_mean + half * sh::COLS * (8 * sh::FAST + 16),
      folded = shared + sh::folded + half * sh::COLS * 8 * sh::F_STRIDE;
    bool slow = sh::FOLD || w.call->k_mean;
    const char *mean_of =
        w.call->k_mean ? (const char *)w.call->k_mean + (size_t)w.head * sh::D * 4 : NULL;
    if (warp == 0 && !sh::POST) {
        const char *up = (const char *)w.call->k_up + (size_t)w.head * sh::UP_HEAD;
        bulk(shared + sh::up, at(up, splat(0), 0, splat(0)), sh::NH * sh::UP_HEAD, bar.up, 0, 1);
        bulk(shared + sh::rope, at((const char *)a.rope, splat(0), 0, splat(0)), sh::ROPE_SHARED,
             bar.rope, 0, 1);
    }
    if (i == 0 && half < sh::KST && half < n_chunk)
        bulk(tiles, latent_tiles(w, false, w.from + half), bytes, k_full, 0, 4);
    if constexpr (sh::POST) {
        for (int c = warp; c < sh::COLS; c += sh::K_WARPS) latent_post_query<sh>(a, w, shared, c);
    } else {
        barrier_wait(bar.up, 0);
        barrier_wait(bar.rope, 0);
        for (int c = warp; c < sh::COLS; c += sh::K_WARPS) latent_query<sh>(a, w, shared, c);
    }
    block_sync();
    for (int n = half; n < n_chunk; n += 2) {
        int k = n / 2;
        uint32_t phase = (uint32_t)k & 1, before = phase ^ 1, loaded = (uint32_t)(n / sh::KST) & 1;
        /* queries and folds of the warp's own head */
        S back = shared + sh::q_back + (2 * half + k % 2) * sh::COLS * sh::FAST * 4;
        if constexpr (!sh::POST) {
            U2 turn[sh::PAIRS / 32];
            const char *coarse =
                (const char *)a.coarse + (size_t)(w.coarse + w.from + n) * sh::PAIRS * 8;
#pragma unroll
            for (int j = 0; j < sh::PAIRS / 32; j++)
                turn[j] = ldg64(at(coarse, lane, 8, splat((uint32_t)(256 * j))));
            if (k > 0) barrier_wait(bar.done + 8 * half, before);
            for (int h = i; h < sh::NH; h += 4)
                for (int c = h * sh::NQ; c < (h + 1) * sh::NQ; c++) {
                    S own = folded + c * 8 * sh::F_STRIDE;
                    latent_turn_query<sh>(a, shared, c, turn, back, own,
                                          mean + c * (8 * sh::FAST + 16), mean_of);
                    if constexpr (sh::FOLD) {
                        sync_warp();
                        latent_fold<sh>(shared, c, own, own);
                    }
                }
        }
        barrier_arrive(bar.ready + 8 * half);
        /* rows */
        latent_rows<sh> x;
        barrier_wait(k_full, loaded);
        latent_load<sh>(tiles, w.k_rank, i, x);
        barrier_arrive(k_empty);
        barrier_wait(bar.ready + 8 * half, phase);
        if (k > 0) barrier_wait(bar.s_empty + 8 * half, before);
        if constexpr (sh::POST)
            latent_post_scores<sh>(shared, x, scores, i);
        else if (slow)
            latent_slow_scores<sh>(w.call->k_mean != 0, shared, folded, mean, x, scores, i);
        barrier_arrive(bar.done + 8 * half);
        if (i == 0 && n + sh::KST < n_chunk) {
            P next = latent_tiles(w, false, w.from + n + sh::KST);
            barrier_wait(k_empty, loaded);
            bulk(tiles, next, bytes, k_full, 0, 4);
        }
        sync_warp();
        if constexpr (!sh::POST) latent_fast_scores<sh>(shared, back, x, scores, i, slow);
        barrier_arrive(bar.s_full + 8 * half);
    }
}

/* A V warp: all chunks of the block. Its sums end in shared memory from byte 0 on. */
template <class sh>
WF void latent_v_warp(const struct lk_device_latent_launch &a, const latent_work &w,
                      const latent_bars<sh> &bar, S shared, int warp) {
    int n_chunk = w.to > w.from ? w.to - w.from : 0;
    uint32_t bytes = 4u * sh::VB * w.v_rank + 64u;
    latent_sums<sh> x;
    latent_begin<sh>(x);
    if (warp == 0)
        for (int n = 0; n < sh::VST && n < n_chunk; n++)
            bulk(shared + sh::v + n * 4 * sh::V_TILE, latent_tiles(w, true, w.from + n), bytes,
                 bar.v_full + 8 * n, 0, 4);
    block_sync();
    for (int n = 0; n < n_chunk; n++) {
        int stage = n % sh::VST, half = n % 2;
        uint32_t phase = (uint32_t)(n / 2) & 1;
        S tiles = shared + sh::v + stage * 4 * sh::V_TILE,
          weights = shared + sh::weights + half * sh::SETS * 8 * sh::WEIGHT_STRIDE,
          factors = shared + sh::factors + half * sh::SETS * 32;
        barrier_wait(bar.v_full + 8 * stage, (uint32_t)(n / sh::VST) & 1);
        barrier_wait(bar.s_full + 8 * half, phase);
        latent_softmax<sh>(a, w, shared, shared + sh::scores + half * sh::COLS * 512, tiles,
                           weights, factors, 128 * (w.from + n), warp, x);
        barrier_arrive(bar.s_empty + 8 * half);
        barrier_arrive(bar.v_sync);
        barrier_wait(bar.v_sync, (uint32_t)n & 1);
        latent_values<sh>(tiles, w.v_rank, weights, factors, warp, x);
        barrier_arrive(bar.v_empty + 8 * stage);
        if (warp == 0 && n + sh::VST < n_chunk) {
            P next = latent_tiles(w, true, w.from + n + sh::VST);
            barrier_wait(bar.v_empty + 8 * stage, (uint32_t)(n / sh::VST) & 1);
            bulk(tiles, next, bytes, bar.v_full + 8 * stage, 0, 4);
        }
    }
    /* The sums reuse the shared memory of `up`: the last scores have been computed. */
    S offsets = shared + sh::COLS * sh::SUM;
    latent_put_columns<sh>(shared, offsets, warp, x);
    barrier_arrive(bar.v_sync);
    barrier_wait(bar.v_sync, (uint32_t)n_chunk & 1);
    latent_put_channels<sh>(shared, offsets, warp, x);
}

/* The sums of a column, 32 channels x of which the warp has: of the blocks of a cluster, and of all
 * clusters. Returns whether the warp has the last word. */
template <class sh, int CLUSTER>
WF bool latent_merge(const struct lk_device_latent_launch &a, S shared, const gpu_place &at,
                     size_t column, int col, int part, F *acc, F *most, F *weight) {
    constexpr int PARTS = sh::RV / 32;
    U lane = lane_id(), from = lane * 4u + (uint32_t)(128 * part);
    F max[CLUSTER], sum[CLUSTER], o[CLUSTER], m = splatf(-1e30f), l = splatf(0), y = splatf(0);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        S row = peer(shared + col * sh::SUM, (uint32_t)i);
        max[i] = ldsf_peer(row, splat(4 * sh::RV));
        sum[i] = ldsf_peer(row, splat(4 * sh::RV + 4));
        o[i] = ldsf_peer(row, from);
    }
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) m = max_(m, max[i]);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
        F f = exp2_(max[i] - m);
        l = fma_(sum[i], f, l), y = fma_(o[i], f, y);
    }
    int n_cluster = a.n_split / CLUSTER;
    if (n_cluster > 1) {
        size_t place = column * PARTS + (size_t)part;
        float *rows = (float *)a.scratch + place * (size_t)n_cluster * 34,
              *mine = rows + at.x / CLUSTER * 34;
        uint32_t *ticket = (uint32_t *)a.ticket + place;
        stgf(mine, lane, y);
        stgf_if(lane == 0u, mine, splat(32), m);
        stgf_if(lane == 0u, mine, splat(33), l);
        if (warp_ticket(ticket) != (uint32_t)n_cluster - 1) return false;
        reset_ticket(ticket);
        m = splatf(-1e30f), l = splatf(0), y = splatf(0);
        for (int i = 0; i < n_cluster; i++)
            m = max_(m, ldcgf(rows, splat((uint32_t)(34 * i + 32))));
        for (int i = 0; i < n_cluster; i++) {
            F f = exp2_(ldcgf(rows, splat((uint32_t)(34 * i + 32))) - m);
            l = fma_(ldcgf(rows, splat((uint32_t)(34 * i + 33))), f, l);
            y = fma_(ldcgf(rows, lane + (uint32_t)(34 * i)), f, y);
        }
    }
    *acc = y, *most = m, *weight = l;
    return true;
}

/* Sums of V's latents of all columns, in struct lk_device_latent_launch.sum. Blocks: x splits,
 * y (KV heads / NH) * n_tile, z calls. */
template <class sh, int CLUSTER_> struct latent_kernel {
    typedef struct lk_device_latent_launch args;
    static constexpr int WARPS = sh::WARPS, CLUSTER = CLUSTER_, PER_SM = 1;

    WF void warp(const args &a, S shared, const gpu_place &at) {
        latent_work w = latent_work_of<sh>(a, at);
        latent_bars<sh> bar = latent_bars_at<sh>(shared);
        if (at.warp == 0) latent_bars_init<sh>(bar);
        block_sync();
        if (at.warp < sh::K_WARPS)
            latent_k_warp<sh>(a, w, bar, shared, at.warp);
        else
            latent_v_warp<sh>(a, w, bar, shared, at.warp - sh::K_WARPS);
        block_sync();
        cluster_sync();
        constexpr int PARTS = sh::RV / 32;
        U lane = lane_id();
        int n_mine = (sh::COLS - at.rank + CLUSTER - 1) / CLUSTER; /* columns of this block */
        for (int x = at.warp; x < n_mine * PARTS; x += sh::WARPS) {
            int col = x / PARTS * CLUSTER + at.rank, part = x % PARTS;
            size_t column = ((size_t)at.z * a.n_head_kv + w.head + col / sh::NQ) * a.n_tile;
            column = (column + (size_t)(w.col0 / sh::NQ)) * sh::NQ + (size_t)(col % sh::NQ);
            F y, m, l;
            if (!latent_merge<sh, CLUSTER>(a, shared, at, column, col, part, &y, &m, &l)) continue;
            float *out = (float *)a.sum + column * (size_t)(a.v_rank + 2);
            stgf_if(lane + (uint32_t)(32 * part) < w.v_rank, out, lane + (uint32_t)(32 * part), y);
            M one = part == 0 ? lane == 0u : lane >= 32u;
            stgf_if(one, out, splat((uint32_t)a.v_rank), m);
            stgf_if(one, out, splat((uint32_t)a.v_rank + 1), l);
        }
        cluster_sync(); /* other blocks may still read this one's memory */
    }
};

/* Rows of heads from those sums: up^T of the latents, and the mean, as partials of lk_attn. A warp
 * has 32 channels of one KV head's queries. Blocks: x KV heads, y calls. NQ: as of the sums. */
template <int D, int NQ> struct latent_back {
    typedef struct lk_device_latent_launch args;
    static constexpr int WARPS = D / 32, CLUSTER = 1, PER_SM = 1;

    WF void warp(const args &a, S, const gpu_place &at) {
        const struct lk_device_latent *call = (const struct lk_device_latent *)a.call + at.y;
        const struct lk_device_latent_part *part =
            (const struct lk_device_latent_part *)call->v_part + at.x / a.v_heads;
        U lane = lane_id(), channel = lane + (uint32_t)(32 * at.warp);
        const char *up = (const char *)call->v_up + (size_t)at.x * a.v_rank * D * 2;
        const float *mean = (const float *)call->v_mean + (size_t)at.x * D;
        size_t stride = (size_t)a.v_rank + 2;
        for (int first = 0; first < call->n_tok * a.group; first += NQ) {
            const float *sum =
                (const float *)a.sum +
                (((size_t)at.y * a.n_head_kv + at.x) * a.n_tile + first / NQ) * NQ * stride;
            F y[NQ];
            for (int n = 0; n < NQ; n++) y[n] = splatf(0);
            for (int r = 0; r < (int)part->rank; r++) {
                F u = h_lo(ldg16(at_row(up, channel, r)));
#pragma unroll
                for (int n = 0; n < NQ; n++)
                    y[n] = fma_(ldgf(sum + n * stride, splat((uint32_t)r)), u, y[n]);
            }
            for (int n = 0; n < NQ && first + n < call->n_tok * a.group; n++) {
                int token = (first + n) / a.group, head = at.x * a.group + (first + n) % a.group;
                float *out = (float *)call->partial +
                             ((size_t)token * a.n_head_kv * a.group + head) * (D + 2);
                F m = ldgf(sum + n * stride, splat((uint32_t)a.v_rank)),
                  l = ldgf(sum + n * stride, splat((uint32_t)a.v_rank + 1));
                M any = m > -1e29f; /* else no row is visible */
                l = self(any, l, splatf(0));
                F mu = call->v_mean ? ldgf(mean, channel) : splatf(0);
                stgf(out, channel, self(any, fma_(l, mu, y[n]), splatf(0)));
                M one = at.warp == 0 ? lane == 0u : lane >= 32u;
                m = m * 0.69314718056f;
                if (call->k_query && call->k_mean) { /* the same for all rows */
                    const float *q = (const float *)call->q +
                                     ((size_t)token * a.n_head_kv * a.group + head) * D,
                                *k_mean = (const float *)call->k_mean + (size_t)at.x * D;
                    F dot = splatf(0);
                    for (int c = 0; c < D; c += 32)
                        dot = fma_(ldgf(q, lane + (uint32_t)c), ldgf(k_mean, lane + (uint32_t)c),
                                   dot);
                    m = fma_(self(any, sum_lanes(dot), splatf(0)), splatf(a.scale), m);
                }
                stgf_if(one, out, splat(D), m);
                stgf_if(one, out, splat(D + 1), l);
            }
        }
    }
    WF P at_row(const char *up, const U &channel, int r) {
        return at(up, channel, 2, splat((uint32_t)(r * D * 2)));
    }
};

/* Queries in the domain of K's codes, for latents of rotated keys: k_query = q k_up. A warp has
 * every fourth 32 components. Blocks: x KV heads, y calls. */
template <int D> struct latent_front {
    typedef struct lk_device_latent_launch args;
    static constexpr int WARPS = 4, CLUSTER = 1, PER_SM = 1;

    WF void warp(const args &a, S, const gpu_place &at) {
        const struct lk_device_latent *call = (const struct lk_device_latent *)a.call + at.y;
        const char *up = (const char *)call->k_up + (size_t)at.x * a.k_rank * D * 2;
        for (int r0 = 32 * at.warp; r0 < a.k_rank; r0 += 32 * WARPS) {
            U r = lane_id() + (uint32_t)r0, own = sel(r < (uint32_t)a.k_rank, r, splat(0));
            for (int n = 0; n < call->n_tok * a.group; n++) {
                size_t row = (size_t)(n / a.group * a.n_head_kv + at.x) * a.group + n % a.group;
                const float *q = (const float *)call->q + row * D;
                F y = splatf(0);
                for (int c = 0; c < D; c++) {
                    F u = h_lo(ldg16(place_of(up, own, c * a.k_rank)));
                    y = fma_(ldgf(q, splat((uint32_t)c)), u, y);
                }
                stgf_if(r < (uint32_t)a.k_rank, (float *)call->k_query + row * (size_t)a.k_rank,
                        own, y);
            }
        }
    }
    WF P place_of(const char *up, const U &r, int row) {
        return at(up, r, 2, splat((uint32_t)(row * 2)));
    }
};

#endif
