/* The up-projection of K before RoPE, prepared for scoring.
 *
 * For each KV head these are the rows of up: d_head vectors with a channel per component, in the
 * order of RoPE's pairs (cache/rope.h), transformed into the domain of the level's codec and
 * prepared as queries to its codes. Only the forms that these codes' kernels read are kept.
 *
 * A codec's channel statistics (sigma) are part of its domain. With them, each session has its own
 * copy, prepared once they are known. Without them, all sessions share one (latent_levels.h). */
#ifndef LK_CACHE_K_UP_H
#define LK_CACHE_K_UP_H

#include "cache/kv.h"

struct lk_k_up {
    struct lk_queries up; /* n_q = d_head; arrays that are not kept are NULL */
    /* Of the first head only: what the vectors of all heads were made for. */
    const struct lk_basis *basis;
    struct lk_codec codec;
    const struct lk_kernels *kernels;
};

/* How a level's up-projection will be read. */
struct lk_k_up_use {
    const struct lk_codec *codec;
    const struct lk_kernels *kernels; /* that will score keys; NULL: any */
    int n_head_kv;
};

/* Bytes for all heads of a level. */
size_t lk_k_up_bytes(const struct lk_level *level, const struct lk_k_up_use *use);

/* Lay out the heads' vectors in `mem`, of lk_k_up_bytes and aligned to 64 bytes. Returns
 * [n_head_kv], in `mem`. */
struct lk_k_up *lk_k_up_init(void *mem, const struct lk_level *level,
                             const struct lk_k_up_use *use);

/* Whether vectors that were made for one level, without sigma, serve another use. */
bool lk_k_up_serves(const struct lk_k_up *k_up, const struct lk_level *level,
                    const struct lk_k_up_use *use);

/* Whether two codecs need the same vectors for equal ranks and a known basis. */
bool lk_k_up_same_codec(const struct lk_codec *a, const struct lk_codec *b);

/* Compute the vectors of the heads of one part. sigma: of the part, or NULL. */
void lk_k_up_prepare(struct lk_k_up *k_up, const struct lk_level *level,
                     const struct lk_codec *codec, int part, const float *sigma);

#endif
