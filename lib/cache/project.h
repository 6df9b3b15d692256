/* Latents: what a level stores instead of heads' rows if its codec projects.
 *
 * A level's block has parts. In a plain level a part is a KV head with rows of d_head channels. In
 * a level of latents it is a group of heads with latents z = down (x - mean): the first components
 * of a basis (sidecar/basis.h), as many as the group's rank. Rows are projected once, when they
 * enter such a level. They enter an older level of lower rank by truncation. Attention never
 * reconstructs them one by one:
 *
 *   K   q.x ~ q.mean + (up q).z                    up q once per query head
 *   V   sum p x ~ mean sum p + up^T (sum p z)      up^T once per query head
 *
 * This is the elimination of reconstruction of Palu (section 3.3) and TALE (Eq. 20-21). Both fold
 * up into W_Q and W_O ahead of time. Here the two products stay separate. up costs rank x d_head
 * multiply-adds per head and token, whatever the context. A folded W_O would be a second matrix of
 * n_embd x n_head x rank numbers to keep and to read, larger than W_O itself if rank > d_head. */
#ifndef LK_CACHE_PROJECT_H
#define LK_CACHE_PROJECT_H

#include "cache/kv.h"
#include "sidecar/basis.h"

/* ---- rows of a basis as floats, whatever type they are stored in, and compact copies ---- */

enum lk_basis_factor { LK_BASIS_DOWN, LK_BASIS_UP };

/* Convert n numbers, a multiple of 4. Half floats are finite. */
void lk_basis_halves_to_floats(const uint16_t *x, int n, float *out);
void lk_basis_bytes_to_floats(const int8_t *x, int n, float scale, float *out);

/* Channels [first, first + n) of row `comp` of a group's matrix: a pointer into the basis if it
 * holds floats, otherwise buf [n], to which they are converted. n is a multiple of 4. */
static inline const float *lk_basis_row(const struct lk_basis *basis, enum lk_basis_factor factor,
                                        int group, int comp, int first, int n, float *buf) {
    const struct lk_basis_matrix *x = factor == LK_BASIS_DOWN ? &basis->down : &basis->up;
    size_t row = (size_t)group * basis->n_comp + comp, at = row * basis->width + first;
    if (basis->type == LK_BASIS_F32) return x->f32 + at;
    if (basis->type == LK_BASIS_F16)
        lk_basis_halves_to_floats(x->f16 + at, n, buf);
    else
        lk_basis_bytes_to_floats(x->q8 + at, n, x->scale[row], buf);
    return buf;
}

/* A copy of the first n_comp components: its matrices and scales lie in `mem`, of
 * lk_basis_copy_bytes and aligned to 64 bytes. The mean and the ranks are borrowed from `of`, and
 * errors are not kept. */
size_t lk_basis_copy_bytes(const struct lk_basis *of, int n_comp);
struct lk_basis lk_basis_copy(const struct lk_basis *of, int n_comp, void *mem);

/* Numbers x [n_row][n] as LK_BASIS_F16 or LK_BASIS_Q8: out [n_row][n], and scale [n_row] for Q8.
 * Each row has one scale, and its largest magnitude becomes 127. */
void lk_basis_pack(enum lk_basis_type type, const float *x, size_t n_row, size_t n, void *out,
                   float *scale);

/* ---- projection ---- */

/* One KV head's share of a basis, cut to a rank. */
struct lk_basis_head {
    const struct lk_basis *basis;
    int group, head; /* group of the basis, head within the group */
    int d_head, rank;
};

/* The share of a model's KV head in a level of latents. */
static inline struct lk_basis_head lk_level_basis_head(const struct lk_level *level, int head_kv) {
    return (struct lk_basis_head){.basis = level->basis,
                                  .group = head_kv / level->n_head,
                                  .head = head_kv % level->n_head,
                                  .d_head = level->basis->width / level->n_head,
                                  .rank = lk_level_part_channels(level, head_kv / level->n_head)};
}

/* The mean [d_head] of the head, or NULL: zero. */
const float *lk_basis_mean(const struct lk_basis_head *head);

/* z [n][rank] += down (x - mean) for rows x [n][d_head] of the head. Rows are z_stride and
 * x_stride floats apart. Summed over all heads of the group from z = 0, this is the group's
 * latent. */
void lk_project_add(const struct lk_basis_head *head, const float *x, size_t x_stride, int64_t n,
                    float *z, size_t z_stride);

/* The query q [d_head] in the domain of the latents: out [rank] = up q. */
void lk_project_query(const struct lk_basis_head *head, const float *q, float *out);

/* A head's row without the mean from latents z [rank]: out [d_head] = up^T z. */
void lk_project_back(const struct lk_basis_head *head, const float *z, float *out);

/* Rows of a plain level as latents of part `part` of level `to`, cut to `rank` components, usually
 * the part's own: x, rows `stride` floats apart. scratch: [n] rows of d_head, `stride` apart. */
void lk_project_read(const struct lk_row_range *range, const struct lk_level *to, int part,
                     int rank, const struct lk_kernels *kernels, float *scratch, float *x,
                     size_t stride);

/* Decode rows as part `part` of level `to` stores them, into x, which has room for the source
 * level's own channels. If both hold heads' rows, or both latents, they have the same parts; a
 * lower rank is the first components. */
static inline void lk_rows_read_for(const struct lk_row_range *range, const struct lk_level *to,
                                    int part, int rank, const struct lk_kernels *kernels,
                                    float *scratch, float *x, size_t stride) {
    if (to->basis && !range->kv->level[range->level].basis)
        lk_project_read(range, to, part, rank, kernels, scratch, x, stride);
    else
        lk_kv_read(range, part, kernels, x, stride);
}

/* Row `at` of a level for one KV head, reconstructed as attention sees it. Slow: for evicted rows,
 * inspection and tests. x: [d_head] */
void lk_project_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                          const struct lk_kernels *kernels, float *x);

/* The same from the row z of the head's part, which lk_kv_read has decoded. */
void lk_project_restore_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                             const float *z, float *x);

#endif
