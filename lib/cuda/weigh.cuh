/* Attention weights of rows, from which a policy chooses the rows that leave. */
#ifndef LK_CUDA_WEIGH_CUH
#define LK_CUDA_WEIGH_CUH

#include "cuda/restore.cuh"

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

#endif
