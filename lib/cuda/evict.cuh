/* Eviction: attention weights of rows, and the rows that a policy gives up. */
#ifndef LK_CUDA_EVICT_CUH
#define LK_CUDA_EVICT_CUH

#include "cuda/restore.cuh"

/* ---- weights ---- */

/* Score of a row for query head h of token t: k and v are its columns of the tiles. distance:
 * positions from the row to the token. */
WF float weigh_score(const lk_device_weigh &w, int t, int h, const float *k, const float *v,
                     int distance) {
    int d = w.k.coding.d, d_v = w.v.coding.d;
    const float *q = at<const float>(w.q) + ((size_t)t * w.n_head + h) * (size_t)(d_v + d);
    float dot = 0;
    for (int c = 0; c < d_v; c++) dot += q[c] * v[c * TILE_STRIDE];
    for (int c = 0; c < d; c++) dot += q[d_v + c] * k[c * TILE_STRIDE];
    float s = dot * w.scale;
    if (w.softcap > 0) s = w.softcap * tanhf(s / w.softcap);
    if (w.slope) s -= at<const float>(w.slope)[h] * (float)distance;
    return s;
}

/* Maximum and sum of the softmax of query head h of token t, over all ranges and the sink. */
struct softmax {
    float max, sum;
};
WF softmax join_ranges(const lk_device_weigh &w, int t, int h) {
    const float *partial =
        at<const float>(w.partial) + ((size_t)t * w.n_head + h) * (size_t)w.stride + w.at;
    softmax all = {-INFINITY, 0};
    for (int r = 0; r < w.n_range; r++) all.max = fmaxf(all.max, partial[r * w.range_stride]);
    if (w.sink) all.max = fmaxf(all.max, at<const float>(w.sink)[h]);
    for (int r = 0; r < w.n_range; r++)
        if (partial[r * w.range_stride] > -INFINITY)
            all.sum +=
                expf(partial[r * w.range_stride] - all.max) * partial[r * w.range_stride + 1];
    if (w.sink) all.sum += expf(at<const float>(w.sink)[h] - all.max);
    return all;
}

/* Item `item` of `w`: 32 rows of a KV head. */
WF void weigh_item(const lk_device_weigh &w, int item, char *shared) {
    tile_memory k = tile_to_read(w.k.coding, shared), v = tile_to_read(w.v.coding, shared + w.v_at);
    int part = item % w.n_part, i0 = item / w.n_part * TILE_ROWS, head_kv = w.first_part + part;
    int n = w.n_row - i0 < TILE_ROWS ? w.n_row - i0 : TILE_ROWS, group = w.n_head / w.n_head_kv;
    const float *key = k.x;
    if (w.restore)
        key = restore_read_keys(*at<const lk_device_restore>(w.restore), shared,
                                (float *)(shared + w.v_at), head_kv, w.n_head_kv, w.k.coding.d,
                                w.k.first + i0, n);
    else
        read_rows(w.k, k, part, i0, 0xffffffffu >> (32 - n));
    if (w.v.coding.d > 0) read_rows(w.v, v, part, i0, 0xffffffffu >> (32 - n));
    lanes([&](int i) {
        if (i >= n) return;
        float *score = at<float>(w.score) + (size_t)(i0 + i) * w.n_head_kv + head_kv;
        float sum = w.last ? 0 : *score;
        for (int t = w.last ? w.n_tok - 1 : 0; t < w.n_tok; t++) {
            int behind = w.before + t - (i0 + i);
            if (behind < 0 || (w.window && behind >= w.window)) continue;
            for (int h = head_kv * group; h < (head_kv + 1) * group; h++) {
                softmax all = join_ranges(w, t, h);
                float s = weigh_score(w, t, h, key + i, v.x + i, w.distance + t - (i0 + i));
                sum += expf(s - all.max) * (1 / all.sum);
            }
        }
        *score = sum;
    });
}

/* ---- victims ---- */

/* Score of row i of the level for the unit that starts with `head` (lk_policy_score). */
WF float policy_score(const lk_device_evict &e, int64_t i, int head) {
    int32_t pos = at<const int32_t>(e.pos)[(e.base + i) * e.n_head + head];
    int first = head / e.summed * e.summed;
    if (e.policy == LK_DEVICE_RANDOM) {
        uint64_t z = ((uint64_t)e.seed << 40) + ((uint64_t)first << 32) + (uint32_t)pos +
                     0x9e3779b97f4a7c15u;
        return mul((float)(splitmix64(z) >> 40), 0x1p-24f);
    }
    if (e.policy == LK_DEVICE_NEWEST) return 0;
    const float *score = at<const float>(e.score) + (e.base + i) * e.n_head + first;
    float sum = 0;
    for (int h = 0; h < e.summed; h++) sum = add(sum, score[h]);
    return e.mean ? divide(sum, (float)(e.n_tok - pos)) : sum;
}

/* A row that may be evicted. */
struct candidate {
    float score;
    int32_t pos, row;
};
WF candidate candidate_of(const lk_device_evict &e, int64_t i, int head) {
    return {policy_score(e, i, head), at<const int32_t>(e.pos)[(e.base + i) * e.n_head + head],
            (int32_t)i};
}
/* Is `a` evicted rather than `b`? The oldest of equal ones is. */
WF bool goes_first(const candidate &a, const candidate &b) {
    return a.score < b.score || (a.score == b.score && a.pos <= b.pos);
}

/* Row r of the batch evicts row `victim` of the level, or itself, from the heads of a unit. */
WF void record_victim(const lk_device_evict &e, int64_t r, int head, int32_t victim) {
    int64_t arrival = e.n_held + r;
    bool itself = victim == arrival;
    for (int h = head; h < head + e.unit; h++) {
        at<int32_t>(e.victim)[r * e.n_head + h] = itself ? -1 : victim;
        at<int32_t>(e.evicted)[r * e.n_head + h] = itself ? (int32_t)r : -1;
        int64_t to = (e.base + victim) * e.n_head + h, from = (e.base + arrival) * e.n_head + h;
        at<int32_t>(e.pos)[to] = at<int32_t>(e.pos)[from];
        if (e.score) at<float>(e.score)[to] = at<float>(e.score)[from];
    }
}

/* Remove the batch's entries of one head from an array of the state. buffer: [32] */
WF void close_gap(const lk_device_evict &e, int32_t *column, int32_t *buffer) {
    int64_t gap = e.base + e.n_held;
    for (int64_t i = gap; i + e.n_left < e.n; i += 32) {
        lanes([&](int lane) {
            int64_t from = i + e.n_left + lane;
            if (from < e.n) buffer[lane] = column[from * e.n_head];
        });
        lanes([&](int lane) {
            if (i + e.n_left + lane < e.n) column[(i + lane) * e.n_head] = buffer[lane];
        });
    }
}

enum { EVICT_SHARED = 33 * sizeof(candidate) };

/* Choose the victims of one unit, or of all units of the layer if the policy sums over all heads
 * (the units then keep the same rows): the unit that starts with `head`. */
WF void evict_rows(const lk_device_evict &e, int head, bool all_units, char *shared) {
    candidate *best = (candidate *)shared;
    int end = all_units ? e.n_head : head + e.unit;
    for (int64_t r = 0; r < e.n_left; r++) {
        lanes([&](int lane) {
            int64_t i = lane < e.n_held ? lane : e.n_held + r;
            best[lane] = candidate_of(e, i, head);
            for (i += 32; i < e.n_held; i += 32) {
                candidate other = candidate_of(e, i, head);
                if (goes_first(other, best[lane])) best[lane] = other;
            }
        });
        lanes([&](int lane) {
            if (lane) return;
            candidate first = candidate_of(e, e.n_held + r, head);
            for (int i = 0; i < 32; i++)
                if (goes_first(best[i], first)) first = best[i];
            best[32] = first;
            for (int h = head; h < end; h += e.unit) record_victim(e, r, h, first.row);
        });
    }
    for (int h = head; h < end; h++) {
        close_gap(e, at<int32_t>(e.pos) + h, (int32_t *)shared);
        if (e.score) close_gap(e, at<int32_t>(e.score) + h, (int32_t *)shared);
    }
}

WF void arrive_rows(const lk_device_arrive &a) {
    lanes([&](int lane) {
        for (int64_t i = lane; i < a.n * a.n_head; i += 32) {
            at<int32_t>(a.pos)[a.at * a.n_head + i] = a.first_pos + (int32_t)(i / a.n_head);
            if (a.score) at<float>(a.score)[a.at * a.n_head + i] = 0;
        }
    });
}

/* ---- kernels ---- */

/* grid.x: lk_device_weigh_items; shared: lk_device_weigh_shared. */
struct weigh_kernel {
    struct args {
        uint64_t weigh; /* struct lk_device_weigh [n_weigh] */
        int32_t n_weigh;
    };
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        const lk_device_weigh *list = at<const lk_device_weigh>(a.weigh);
        int i = item_of(list, a.n_weigh, place.x);
        weigh_item(list[i], place.x - list[i].first_item, shared_memory(shared));
    }
};

/* grid.x: commands; grid.y: at least as many as a layer has units; shared: EVICT_SHARED. */
struct evict_kernel {
    struct args {
        uint64_t evict; /* struct lk_device_evict [] */
    };
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        const lk_device_evict &e = at<const lk_device_evict>(a.evict)[place.x];
        bool all = e.policy == LK_DEVICE_SCORES && e.summed == e.n_head;
        if (place.y < (all ? 1 : e.n_head / e.unit))
            evict_rows(e, place.y * e.unit, all, shared_memory(shared));
    }
};

/* grid.x: commands. */
struct arrive_kernel {
    struct args {
        uint64_t arrive; /* struct lk_device_arrive [] */
    };
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S, const gpu_place &place) {
        arrive_rows(at<const lk_device_arrive>(a.arrive)[place.x]);
    }
};

#endif
