/* Rows and latents: what a level of latents holds instead of heads' rows.
 *
 * A level's block has parts. Of a plain level a part is a KV head with rows of d_head. Of a level of
 * latents it is a group of heads with latents z = down (x - mean) of rank d_part, the first components of
 * a basis (sidecar/basis.h). Rows are projected once, when they enter such a level; into an older level
 * of lower rank they go by truncation. Reading them never brings them back one by one:
 *
 *   K   q.x ~ q.mean + (up q).z         up q once per query head
 *   V   sum p x ~ mean sum p + up^T (sum p z)      up^T once per query head
 *
 * This is the elimination of reconstruction of Palu (section 3.3) and TALE (Eq. 20-21), who multiply up
 * into W_Q and W_O beforehand. We keep the two products apart: up costs rank x d_head multiply-adds per
 * head and token, whatever the context, while a fused W_O is a second matrix of n_embd x n_head x rank
 * numbers that has to be kept and read beside the first one, larger than it where rank > d_head. */
#ifndef LK_CACHE_PROJECT_H
#define LK_CACHE_PROJECT_H

#include "cache/cache.h"

/* z [n][rank] += down x for rows x [n][d_head] of one head of a group; rows lie z_stride and x_stride floats
 * apart. Over all heads of the group, from z = 0, this is the projection but for the mean. */
void lk_project_add(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                    const float *x, size_t x_stride, int64_t n, float *z, size_t z_stride);

/* The query q [d_head] of a head as latents [rank] meet it: out = up q. */
void lk_project_query(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                      const float *q, float *out);

/* A head's row [d_head] from latents z [rank]: out = up^T z. */
void lk_project_back(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                     const float *z, float *out);

/* The mean [d_head] of a head, or NULL: zero. */
const float *lk_basis_mean(const struct lk_basis *basis, int group, int head, int d_head);

/* The basis of a stream for a codec of its levels, or NULL where rows stay rows. */
const struct lk_basis *lk_basis_for(const struct lk_cache_shape *shape, int layer,
                                    enum lk_side side, const struct lk_codec *codec);

/* Fill in what a level's block looks like by its rule. LK_E_ARG where the recipe asks for what the sidecar
 * has not, LK_E_UNSUPPORTED where the codec cannot hold such parts. */
lk_status lk_level_shape(struct lk_level *level, const struct lk_level_rule *rule,
                         const struct lk_cache_shape *shape, int layer, enum lk_side side,
                         lk_err *err);

/* Rows [at, at + n) of a level of `from` as part `part` of level `to` takes them, that is projected if `to`
 * holds latents and `from` does not, into x: rows `stride` floats apart, with room for from's own d_part.
 * room: scratch [n] rows of d_head, `stride` apart too; unused where nothing is projected. */
void lk_read_part(const struct lk_kv *from, int level, int64_t at, int64_t n,
                  const struct lk_level *to, int part, int d_head, const struct lk_kernels *kernels,
                  float *room, float *x, size_t stride);

/* For tests and inspection: row `at` of a level for one KV head, brought back. x: [d_head] */
void lk_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                  const struct lk_kernels *kernels, float *x);

#endif
