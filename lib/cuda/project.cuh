/* Projection of rows to latents, in the order of sums of cache/project.c. */
#ifndef LK_CUDA_PROJECT_CUH
#define LK_CUDA_PROJECT_CUH

#include "cuda/lanes.cuh"

enum { PROJECT_ROWS = 32, PROJECT_HELD = 8, PROJECT_COMPS = 32, PROJECT_TOGETHER = 4 };

/* Shared memory of a warp: the rows that it holds at a time, x [8][d_head], rows of `down`
 * [32][d_head + 1], products of `down` with the mean [32], and sums [32][33] by row and component:
 * 86 KB for heads of 512 channels. */
inline int project_shared(int d_head) {
    return (int)sizeof(float) * (PROJECT_HELD * d_head + PROJECT_COMPS * (d_head + 2) +
                                 PROJECT_ROWS * (PROJECT_COMPS + 1));
}

WF float load_basis(const lk_device_project &p, size_t row, int c) {
    size_t i = row * (size_t)(p.n_head * p.d_head) + (size_t)c;
    if (p.type == LK_DEVICE_BASIS_F32) return at<const float>(p.down)[i];
    if (p.type == LK_DEVICE_BASIS_F16) return from_half(at<const uint16_t>(p.down)[i]);
    return mul(at<const int8_t>(p.down)[i], at<const float>(p.scale)[row]);
}

/* The products of a row of `down` with N rows x, d apart: eight sums, as two vectors of four. */
template <int N> WF void dot_rows(const float *down, const float *x, int d, float *out) {
    float sum[N][8];
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum[t][i] = 0;
    for (int c = 0; c < d; c += 8)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int t = 0; t < N; t++)
                sum[t][i] = add(sum[t][i], mul(down[c + i], x[t * d + c + i]));
#pragma unroll
    for (int t = 0; t < N; t++) {
        float both[4];
#pragma unroll
        for (int i = 0; i < 4; i++) both[i] = add(sum[t][i], sum[t][i + 4]);
        out[t] = add(add(add(both[0], both[1]), both[2]), both[3]);
    }
}

/* Un-rotate the pairs of the rows x [n][d] (lk_rope_unrotate). */
WF void unrotate_pairs(const lk_device_project &p, int row0, int n, float *x) {
    lanes([&](int lane) {
        for (int i = lane; i < n * p.n_pair; i += 32) {
            int t = i / p.n_pair, j = i % p.n_pair;
            const float *turn =
                at<const float>(p.cos_sin) + ((size_t)(row0 + t) * p.n_pair + j) * 2;
            float *a = x + t * p.d_head + (p.halves ? j : 2 * j),
                  *b = a + (p.halves ? p.n_pair : 1);
            float y = *a, z = *b;
            *a = sub(mul(turn[0], y), mul(turn[1], z));
            *b = add(mul(turn[1], y), mul(turn[0], z));
        }
    });
}

/* What a warp has in shared memory. */
struct project_memory {
    float *x, *down, *offset, *sum;
};
WF project_memory project_at(char *shared, int d) {
    project_memory m;
    m.x = (float *)shared;
    m.down = m.x + PROJECT_HELD * d;
    m.offset = m.down + PROJECT_COMPS * (d + 1);
    m.sum = m.offset + PROJECT_COMPS;
    return m;
}

/* Read n rows of a head, from row `row0` of the command on; zeros follow them. */
WF void project_read_rows(const lk_device_project &p, int head, int row0, int n, float *x) {
    int d = p.d_head;
    lanes([&](int lane) {
        const float *from =
            at<const float>(p.from) + (size_t)row0 * p.from_stride + (size_t)head * d;
        for (int c = lane; c < d; c += 32)
            for (int t = 0; t < PROJECT_HELD; t++)
                x[t * d + c] = t < n ? from[(size_t)t * p.from_stride + c] : 0;
    });
    if (p.cos_sin) unrotate_pairs(p, row0, n, x);
}

/* Read n rows of `down` for head h of a part, and multiply them with the mean. */
WF void project_read_down(const lk_device_project &p, int part, int h, int comp0, int n,
                          const project_memory &m) {
    int d = p.d_head;
    lanes([&](int lane) {
        for (int c = lane; c < d; c += 32)
            for (int j = 0; j < n; j++)
                m.down[j * (d + 1) + c] =
                    load_basis(p, (size_t)part * p.n_comp + comp0 + j, h * d + c);
    });
    lanes([&](int j) {
        m.offset[j] = 0;
        if (p.mean && j < n)
            dot_rows<1>(m.down + j * (d + 1),
                        at<const float>(p.mean) + (size_t)(part * p.n_head + h) * d, d,
                        m.offset + j);
    });
}

/* Item `item` of projection `p`: 32 rows and 32 components of a part. */
WF void project_item(const lk_device_project &p, int item, char *shared) {
    int n_group = (p.n_row + PROJECT_ROWS - 1) / PROJECT_ROWS, part = item % p.n_part;
    int row0 = item / p.n_part % n_group * PROJECT_ROWS,
        comp0 = item / p.n_part / n_group * PROJECT_COMPS;
    int n = p.n_row - row0 < PROJECT_ROWS ? p.n_row - row0 : PROJECT_ROWS, d = p.d_head;
    int n_comp = p.rank - comp0 < PROJECT_COMPS ? p.rank - comp0 : PROJECT_COMPS;
    project_memory m = project_at(shared, d);
    lanes([&](int j) {
        for (int t = 0; t < PROJECT_ROWS; t++) m.sum[t * 33 + j] = 0;
    });
    for (int h = 0; h < p.n_head; h++) {
        project_read_down(p, part, h, comp0, n_comp, m);
        for (int first = 0; first < n; first += PROJECT_HELD) {
            int held = n - first < PROJECT_HELD ? n - first : PROJECT_HELD;
            project_read_rows(p, part * p.n_head + h, row0 + first, held, m.x);
            lanes([&](int j) {
                float out[PROJECT_TOGETHER], *sum = m.sum + first * 33 + j;
                for (int t = 0; t < held && j < n_comp; t += PROJECT_TOGETHER) {
                    dot_rows<PROJECT_TOGETHER>(m.down + j * (d + 1), m.x + t * d, d, out);
                    for (int i = 0; i < PROJECT_TOGETHER; i++)
                        sum[(t + i) * 33] = add(sum[(t + i) * 33], sub(out[i], m.offset[j]));
                }
            });
        }
    }
    lanes([&](int j) {
        for (int t = 0; t < n && j < n_comp; t++)
            at<float>(
                p.to)[(size_t)(row0 + t) * p.to_stride + (size_t)part * p.to_part + comp0 + j] =
                m.sum[t * 33 + j];
    });
}

struct project_kernel {
    struct args {
        uint64_t project; /* struct lk_device_project [n_project] */
        int32_t n_project;
    };
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        const lk_device_project *list = at<const lk_device_project>(a.project);
        int i = item_of(list, a.n_project, place.x);
        project_item(list[i], place.x - list[i].first_item, shared_memory(shared));
    }
};

#endif
