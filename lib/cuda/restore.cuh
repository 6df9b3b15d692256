/* Attention over latents of all kinds: the plain kernel. It takes every codec and every rank, and
 * keys from before and behind RoPE: a warp decodes a tile of 32 rows to floats, turns latents into
 * heads' keys, and rotates them. Sums over V's latents become heads' rows once, at the end.
 *
 * Each block leaves a partial, and restore_join adds those to what the other segments have left. */
#ifndef LK_CUDA_RESTORE_CUH
#define LK_CUDA_RESTORE_CUH

#include "cuda/move.cuh"

enum { RESTORE_QUERIES = 8 }; /* of a KV head, in a block, at most */

/* What the blocks of a launch read. A block has the tiles x, x + n_split, ... of a call's restored
 * segments, for n_query queries of a KV head. */
struct restore_launch {
    uint64_t call; /* struct lk_device_attend [n_call] */
    uint64_t out;  /* float [n_call][n_part][n_tok][n_head][d_head + 2]: partials, n_split of this
                      kernel, then one for each segment that a fast kernel takes */
    int32_t n_call, n_split, n_part, n_tile, n_query; /* n_tile: sets of queries of a KV head */
    int32_t n_tok;                                    /* of the longest call */
    int32_t tile_bytes;                               /* of the call with the most */
};

/* Shared memory: the tile, heads' keys [d_head][33], scores and weights [queries][33], and sums. */
struct restore_memory {
    char *tile;
    float *key, *score, *max, *sum, *mean, *factor, *latent, *row;
};
inline int restore_shared(int tile_bytes, int d_head, int v_part, int n_query) {
    return tile_bytes + (int)sizeof(float) *
                            (d_head * TILE_STRIDE + n_query * (TILE_STRIDE + 4 + v_part + d_head));
}
WF restore_memory restore_at(char *shared, int tile_bytes, int d_head, int v_part, int n_query) {
    restore_memory m;
    m.tile = shared;
    m.key = (float *)(shared + tile_bytes);
    m.score = m.key + d_head * TILE_STRIDE;
    m.max = m.score + n_query * TILE_STRIDE;
    m.sum = m.max + n_query;
    m.mean = m.sum + n_query; /* sums of the weights of latents */
    m.factor = m.mean + n_query;
    m.latent = m.factor + n_query;       /* [queries][v_part] */
    m.row = m.latent + n_query * v_part; /* [queries][d_head] */
    return m;
}

/* ---- rows ---- */

/* The rows of the part of a KV head, and the number of the part in them. */
WF const lk_device_move_rows &restore_rows(const lk_device_restore &r, int head_kv, int *part) {
    int of_head = head_kv / r.n_head;
    *part = r.uniform ? of_head : 0;
    return at<const lk_device_move_rows>(r.rows)[r.uniform ? 0 : of_head];
}

/* Channel c of component j of the up-projection of a KV head. */
WF float restore_up(const lk_device_restore &r, int head_kv, int d_head, int j, int c) {
    size_t row = (size_t)(head_kv / r.n_head) * r.n_comp + j;
    size_t i = row * (size_t)(r.n_head * d_head) + (size_t)(head_kv % r.n_head) * d_head + c;
    if (r.type == LK_DEVICE_BASIS_F32) return at<const float>(r.up)[i];
    if (r.type == LK_DEVICE_BASIS_F16) return from_half(at<const uint16_t>(r.up)[i]);
    return (float)at<const int8_t>(r.up)[i] * at<const float>(r.scale)[row];
}

WF const float *restore_mean(const lk_device_restore &r, int head_kv, int d_head) {
    return r.mean ? at<const float>(r.mean) + (size_t)head_kv * d_head : NULL;
}

/* Rotate a key, one column, by its position. */
WF void restore_rotate(const lk_device_restore &r, int64_t pos, float *key) {
    const double turn = 6.283185307179586;
    for (int j = 0; j < r.n_pair; j++) {
        double angle = at<const double>(r.speed)[j] * (double)pos;
        float a = (float)(angle - turn * floor(angle / turn + 0.5));
        float c = r.magnitude * cosf(a), s = r.magnitude * sinf(a);
        float *x = key + (r.halves ? j : 2 * j) * TILE_STRIDE,
              *y = x + (r.halves ? r.n_pair : 1) * TILE_STRIDE, first = *x, second = *y;
        *x = c * first - s * second;
        *y = s * first + c * second;
    }
}

/* Keys of a KV head for the rows [number, number + n) of a level, whose latents are in the tile:
 * the columns of key [d_head][33]. */
WF void restore_keys(const lk_device_restore &r, const float *tile, int rank, int head_kv,
                     int n_head_kv, int d_head, int64_t number, int n, float *key) {
    const float *mean = restore_mean(r, head_kv, d_head);
    lanes([&](int t) {
        for (int c = 0; c < d_head; c += 8) {
            float sum[8];
            for (int i = 0; i < 8; i++) sum[i] = mean ? mean[c + i] : 0;
            for (int j = 0; j < rank; j++)
                for (int i = 0; i < 8; i++)
                    sum[i] += restore_up(r, head_kv, d_head, j, c + i) * tile[j * TILE_STRIDE + t];
            for (int i = 0; i < 8; i++) key[(c + i) * TILE_STRIDE + t] = sum[i];
        }
        if (!r.speed || t >= n) return;
        int64_t row = number + t, pos = r.position + row;
        if (r.pos) pos = at<const int32_t>(r.pos)[(row - r.skip) * n_head_kv + head_kv];
        restore_rotate(r, pos, key + t);
    });
}

/* Read the rows [number, number + n) of a KV head. Returns its keys [d_head][33], restored. */
WF const float *restore_read_keys(const lk_device_restore &r, char *shared, float *key, int head_kv,
                                  int n_head_kv, int d_head, int64_t number, int n) {
    int part;
    const lk_device_move_rows &rows = restore_rows(r, head_kv, &part);
    tile_memory tile = tile_to_read(rows.coding, shared);
    read_rows(rows, tile, part, (int)number, 0xffffffffu >> (32 - n));
    if (!r.up) return tile.x;
    restore_keys(r, tile.x, rows.coding.d, head_kv, n_head_kv, d_head, number, n, key);
    return key;
}

/* ---- attention ---- */

/* The queries of a block: i of n. */
struct restore_place {
    const lk_device_attend *call;
    int head_kv, group, first, n;
};
WF int restore_token(const restore_place &p, int i) { return (p.first + i) / p.group; }
WF int restore_head(const restore_place &p, int i) {
    return p.head_kv * p.group + (p.first + i) % p.group;
}

WF float restore_score(const restore_place &p, const lk_device_segment &s, const float *key, int i,
                       int row) {
    const lk_device_attend &a = *p.call;
    int token = restore_token(p, i), head = restore_head(p, i);
    int behind = s.before + token - row;
    if (row >= s.n_row || behind < 0 || (a.window && behind >= a.window)) return -INFINITY;
    const float *q = at<const float>(s.shifted ? a.q_shifted : a.q) +
                     ((size_t)token * a.n_head + head) * a.d_head;
    float dot = 0;
    for (int c = 0; c < a.d_head; c++) dot += q[c] * key[c * TILE_STRIDE];
    dot *= a.scale;
    if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
    if (a.slope) dot -= at<const float>(a.slope)[head] * (float)(s.distance + token - row);
    return dot;
}

/* Scores become weights; the sums so far are to be multiplied by `factor`. */
WF void restore_softmax(const restore_memory &m, int i, bool latents) {
    float *score = m.score + i * TILE_STRIDE, max = m.max[i], sum = 0;
    for (int t = 0; t < TILE_ROWS; t++) max = fmaxf(max, score[t]);
    float factor = m.max[i] > -INFINITY ? expf(m.max[i] - max) : 0;
    for (int t = 0; t < TILE_ROWS; t++) {
        score[t] = score[t] > -INFINITY ? expf(score[t] - max) : 0;
        sum += score[t];
    }
    m.max[i] = max;
    m.factor[i] = factor;
    m.sum[i] = m.sum[i] * factor + sum;
    m.mean[i] = m.mean[i] * factor + (latents ? sum : 0);
}

/* Multiply the sums of a query by its factor, and add the weighted rows of the tile if there is
 * one. */
WF void restore_add(const restore_memory &m, float *sums, int stride, int n, int i, const float *x,
                    int channels, int lane) {
    const float *weight = m.score + i * TILE_STRIDE;
    for (int c = lane; c < n; c += 32) {
        float sum = sums[i * stride + c] * m.factor[i];
        for (int t = 0; t < TILE_ROWS && c < channels; t++)
            sum += weight[t] > 0 ? weight[t] * x[c * TILE_STRIDE + t] : 0;
        sums[i * stride + c] = sum;
    }
}

/* Rows [row, row + n) of a segment. */
WF void restore_tile(const restore_place &p, const restore_memory &m, const lk_device_segment &s,
                     int row, int n) {
    const lk_device_attend &a = *p.call;
    const lk_device_restore &k = *at<const lk_device_restore>(s.k.restore),
                            &v = *at<const lk_device_restore>(s.v.restore);
    const float *key = restore_read_keys(k, m.tile, m.key, p.head_kv, a.n_head_kv, a.d_head,
                                         (int64_t)s.k.first + row, n);
    lanes([&](int t) {
        for (int i = 0; i < p.n; i++)
            m.score[i * TILE_STRIDE + t] =
                t < n ? restore_score(p, s, key + t, i, row + t) : -INFINITY;
    });
    lanes([&](int i) {
        if (i < p.n) restore_softmax(m, i, v.up != 0);
    });
    int part;
    const lk_device_move_rows &rows = restore_rows(v, p.head_kv, &part);
    tile_memory tile = tile_to_read(rows.coding, m.tile);
    read_rows(rows, tile, part, (int)s.v.first + row, 0xffffffffu >> (32 - n));
    lanes([&](int lane) {
        for (int i = 0; i < p.n; i++) {
            restore_add(m, m.latent, a.v_part, a.v_part, i, tile.x, v.up ? rows.coding.d : 0, lane);
            restore_add(m, m.row, a.d_head, a.d_head, i, tile.x, v.up ? 0 : a.d_head, lane);
        }
    });
}

/* The block's partial of query i: sums of rows, and sums of latents turned back. basis: of V's
 * latents, or NULL if the block has none. */
WF void restore_write(const restore_place &p, const restore_memory &m,
                      const lk_device_restore *basis, int i, float *out, int lane) {
    const lk_device_attend &a = *p.call;
    int n = basis ? (a.v_part < basis->n_comp ? a.v_part : basis->n_comp) : 0;
    const float *mean = basis ? restore_mean(*basis, p.head_kv, a.d_head) : NULL;
    for (int c = lane; c < a.d_head; c += 32) {
        float sum = m.row[i * a.d_head + c] + (mean ? m.mean[i] * mean[c] : 0);
        for (int j = 0; j < n; j++)
            sum += m.latent[i * a.v_part + j] * restore_up(*basis, p.head_kv, a.d_head, j, c);
        out[c] = sum;
    }
    if (lane > 0) return;
    out[a.d_head] = m.max[i];
    out[a.d_head + 1] = m.sum[i];
}

/* The restored segments of a call, tile by tile. */
WF const lk_device_restore *restore_segments(const restore_launch &launch, const restore_place &p,
                                             const restore_memory &m, int split) {
    const lk_device_restore *basis = NULL;
    int tile = 0;
    for (int i = 0; i < p.call->n_segment; i++) {
        const lk_device_segment &s = p.call->segment[i];
        if (!s.k.restore || s.fast) continue;
        const lk_device_restore *v = at<const lk_device_restore>(s.v.restore);
        if (v->up && (!basis || v->n_comp > basis->n_comp)) basis = v;
        for (int row = 0; row < s.n_row; row += TILE_ROWS, tile++) {
            int n = s.n_row - row < TILE_ROWS ? s.n_row - row : TILE_ROWS;
            if (tile % launch.n_split == split) restore_tile(p, m, s, row, n);
        }
    }
    return basis;
}

/* Grid: x splits; y KV heads * n_tile; z calls, which have one shape. */
struct restore_kernel {
    typedef restore_launch args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &launch, S shared, const gpu_place &place) {
        const lk_device_attend &a = at<const lk_device_attend>(launch.call)[place.z];
        restore_place p = {&a, place.y / launch.n_tile, a.n_head / a.n_head_kv,
                           place.y % launch.n_tile * launch.n_query, 0};
        p.n = p.group * a.n_tok - p.first;
        if (p.n > launch.n_query) p.n = launch.n_query;
        if (p.n <= 0) return; /* a sequence with fewer tokens than others */
        restore_memory m = restore_at(shared_memory(shared), launch.tile_bytes, a.d_head, a.v_part,
                                      launch.n_query);
        lanes([&](int lane) {
            for (int i = lane; i < p.n; i += 32) m.max[i] = -INFINITY, m.sum[i] = m.mean[i] = 0;
            for (int i = lane; i < p.n * a.v_part; i += 32) m.latent[i] = 0;
            for (int i = lane; i < p.n * a.d_head; i += 32) m.row[i] = 0;
        });
        const lk_device_restore *basis = restore_segments(launch, p, m, place.x);
        size_t rows = ((size_t)place.z * launch.n_part + place.x) * launch.n_tok * a.n_head;
        float *out = at<float>(launch.out) + rows * (size_t)(a.d_head + 2);
        lanes([&](int lane) {
            for (int i = 0; i < p.n; i++)
                restore_write(p, m, basis, i,
                              out + ((size_t)restore_token(p, i) * a.n_head + restore_head(p, i)) *
                                        (size_t)(a.d_head + 2),
                              lane);
        });
    }
};

/* The result of row `row` (token, head) of a call, from its partial, `extra` and `sink`. */
WF void restore_result(const lk_device_attend &a, int row, int lane) {
    int d = a.d_head;
    const float *own = at<const float>(a.partial) + (size_t)row * (size_t)(d + 2),
                *extra = at<const float>(a.extra) + (size_t)row * (size_t)(d + 2);
    size_t apart = (size_t)a.extra_stride;
    float sink = a.sink ? at<const float>(a.sink)[row % a.n_head] : -INFINITY;
    float max = fmaxf(own[d], sink);
    for (int e = 0; e < a.n_extra; e++) max = fmaxf(max, extra[e * apart + d]);
    float keep = expf(own[d] - max), sum = own[d + 1] * keep + expf(sink - max);
    for (int e = 0; e < a.n_extra; e++)
        sum += expf(extra[e * apart + d] - max) * extra[e * apart + d + 1];
    for (int c = lane; c < d; c += 32) {
        float x = own[c] * keep;
        for (int e = 0; e < a.n_extra; e++)
            x += expf(extra[e * apart + d] - max) * extra[e * apart + c];
        at<float>(a.out)[(size_t)row * d + c] = x / sum;
    }
}

/* Add the partials of a launch to the calls' own, or put them there if a call has no other
 * segments, and make results of them if they are wanted. Grid: x tokens * heads; y calls. */
struct restore_join {
    typedef restore_launch args;
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &launch, S, const gpu_place &place) {
        const lk_device_attend &a = at<const lk_device_attend>(launch.call)[place.y];
        if (place.x >= a.n_tok * a.n_head) return;
        size_t width = (size_t)a.d_head + 2, apart = (size_t)launch.n_tok * a.n_head * width;
        const float *from = at<const float>(launch.out) + (size_t)place.y * launch.n_part * apart +
                            (size_t)place.x * width;
        float *to = at<float>(a.partial) + (size_t)place.x * width;
        bool others = false;
        int d = a.d_head, n = launch.n_split;
        for (int i = 0; i < a.n_segment; i++) {
            others |= !a.segment[i].k.restore;
            n += a.segment[i].k.restore && a.segment[i].fast;
        }
        float max = others ? to[d] : -INFINITY;
        for (int s = 0; s < n; s++) max = fmaxf(max, from[s * apart + d]);
        float keep = others && to[d] > -INFINITY ? expf(to[d] - max) : 0;
        lanes([&](int lane) {
            for (int c = lane; c < d + 2; c += 32) {
                if (c == d) continue; /* the maximum is read until the end */
                float sum = keep > 0 ? keep * to[c] : 0;
                for (int s = 0; s < n; s++)
                    if (from[s * apart + d] > -INFINITY)
                        sum += expf(from[s * apart + d] - max) * from[s * apart + c];
                to[c] = sum;
            }
        });
        lanes([&](int lane) {
            if (lane == 0) to[d] = max;
        });
        if (a.out) lanes([&](int lane) { restore_result(a, place.x, lane); });
    }
};

#endif
