/* Latents: projection into a basis and back. */
#include "cache/project.h"

#include "cache/basis_rows.h"

#include <string.h>

/* Four lanes: gcc and clang support vector_size(16) on every machine. */
typedef float float4 __attribute__((vector_size(16)));

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store4(float *x, float4 v) { memcpy(x, &v, sizeof v); }

/* n is a multiple of 8, like all head widths and ranks. */
static float dot(const float *a, const float *b, int n) {
    float4 even = {0}, odd = {0};
    for (int i = 0; i < n; i += 8) {
        even += load4(a + i) * load4(b + i);
        odd += load4(a + i + 4) * load4(b + i + 4);
    }
    even += odd;
    return even[0] + even[1] + even[2] + even[3];
}

static void add_scaled(float *y, float a, const float *x, int n) {
    float4 all = {a, a, a, a};
    for (int i = 0; i < n; i += 4) store4(y + i, load4(y + i) + all * load4(x + i));
}

/* The head's d_head channels of a row of down or up. buf: [d_head] */
static const float *row_of(const struct lk_basis_head *h, enum lk_basis_factor factor, int comp,
                           float *buf) {
    return lk_basis_row(h->basis, factor, h->group, comp, h->head * h->d_head, h->d_head, buf);
}

const float *lk_basis_mean(const struct lk_basis_head *h) {
    const struct lk_basis *basis = h->basis;
    if (!basis->mean) return NULL;
    return basis->mean + (size_t)h->group * basis->width + (size_t)h->head * h->d_head;
}

void lk_project_add(const struct lk_basis_head *h, const float *x, size_t x_stride, int64_t n,
                    float *z, size_t z_stride) {
    const float *mean = lk_basis_mean(h);
    float buf[LK_MAX_D_HEAD];
    for (int j = 0; j < h->rank; j++) {
        const float *down = row_of(h, LK_BASIS_DOWN, j, buf);
        float offset = mean ? dot(down, mean, h->d_head) : 0;
        for (int64_t t = 0; t < n; t++)
            z[t * z_stride + j] += dot(down, x + t * x_stride, h->d_head) - offset;
    }
}

void lk_project_query(const struct lk_basis_head *h, const float *q, float *out) {
    float buf[LK_MAX_D_HEAD];
    for (int j = 0; j < h->rank; j++) out[j] = dot(row_of(h, LK_BASIS_UP, j, buf), q, h->d_head);
}

void lk_project_back(const struct lk_basis_head *h, const float *z, float *out) {
    float buf[LK_MAX_D_HEAD];
    memset(out, 0, h->d_head * sizeof *out);
    for (int j = 0; j < h->rank; j++)
        add_scaled(out, z[j], row_of(h, LK_BASIS_UP, j, buf), h->d_head);
}

/* ---- reading rows of a level ---- */

void lk_rows_read_for(const struct lk_row_range *range, const struct lk_level *to, int part,
                      int rank, const struct lk_kernels *kernels, float *scratch, float *x,
                      size_t stride) {
    if (range->kv->level[range->level].basis || !to->basis) {
        /* Both have the same parts. A lower rank is the first components. */
        lk_kv_read(range, part, kernels, x, stride);
        return;
    }
    for (int64_t t = 0; t < range->n; t++) memset(x + t * stride, 0, rank * sizeof *x);
    for (int i = 0; i < to->n_head; i++) {
        int head_kv = part * to->n_head + i;
        struct lk_basis_head head = lk_level_basis_head(to, head_kv);
        head.rank = rank;
        lk_kv_read(range, head_kv, kernels, scratch, stride);
        if (to->rope)
            lk_rope_unrotate(to->rope, lk_kv_position(range->kv, range->level, range->at, 0),
                             range->n, scratch, stride);
        lk_project_add(&head, scratch, stride, range->n, x, stride);
    }
}

void lk_project_restore_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                             const float *z, float *x) {
    const struct lk_level *from = &kv->level[level];
    if (!from->basis) {
        memcpy(x, z, d_head * sizeof *x);
        return;
    }
    struct lk_basis_head h = lk_level_basis_head(from, head);
    const float *mean = lk_basis_mean(&h);
    lk_project_back(&h, z, x);
    for (int c = 0; mean && c < d_head; c++) x[c] += mean[c];
    if (from->rope) lk_rope_rotate(from->rope, lk_kv_position(kv, level, at, head), 1, x, 0);
}

void lk_project_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                          const struct lk_kernels *kernels, float *x) {
    float z[LK_MAX_D_HEAD];
    lk_kv_read(&(struct lk_row_range){kv, level, at, 1}, head / kv->level[level].n_head, kernels, z,
               LK_MAX_D_HEAD);
    lk_project_restore_head(kv, level, at, head, d_head, z, x);
}
