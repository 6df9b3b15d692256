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

/* Decode rows as part `part` of level `to` stores them, into x: rows `stride` floats apart, with
 * room for the source level's own channels. Plain levels have no more to do than lk_kv_read. Rows
 * are projected if `to` holds latents and their level does not: to `rank` components, usually the
 * part's own. scratch: [n] rows of d_head, `stride` apart; used only for projection. */
void lk_rows_read_for(const struct lk_row_range *range, const struct lk_level *to, int part,
                      int rank, const struct lk_kernels *kernels, float *scratch, float *x,
                      size_t stride);

/* Row `at` of a level for one KV head, reconstructed as attention sees it. Slow: for evicted rows,
 * inspection and tests. x: [d_head] */
void lk_project_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                          const struct lk_kernels *kernels, float *x);

/* The same from the row z of the head's part, which lk_kv_read has decoded. */
void lk_project_restore_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                             const float *z, float *x);

#endif
