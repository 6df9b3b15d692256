/* What a recipe's cache does to the rows of a training window, so that it can be differentiated.
 *
 * A query sees its newest rows and the sinks exactly and all others as the oldest level holds them,
 * the body. Rows x of the body become
 *
 *   x' = P x + c + delta     P = up^T down,  c = mean - P mean,  or P = 1 without a basis
 *
 * P is the projection on the basis, before or after RoPE. `delta` is what quantization adds. It is
 * measured by appending the window's rows to a cache and reading them back. The gradient treats it
 * as a constant: straight-through (Bengio et al. 2013). It is not needed if the body holds f16.
 *
 * Rows of 8 bits count as exact. Other levels between the body and the exact rows count as body. */
#ifndef LK_TRAINING_LORA_CACHE_H
#define LK_TRAINING_LORA_CACHE_H

#include "engine/session_state.h"

/* K or V of a layer. n_row = n_head_kv * d_head. */
struct lk_lora_side {
    bool lossy; /* else x' = x */
    bool pre;   /* P applies to keys before RoPE */
    float *p;   /* [n_row][n_row], or NULL: 1 */
    float *c;   /* [n_row], or NULL: 0 */
    int body;   /* index of the level */
    int n_sink; /* rows of an older level */
};

struct lk_lora_cache {
    struct lk_model *model; /* borrowed */
    struct lk_ledger *ledger;
    struct lk_cache *cache;
    struct lk_lora_side (*side)[2]; /* [n_layer][K, V] */
    int n_sink;                     /* tokens that every query sees exactly */
    int n_exact;                    /* newest tokens that it sees exactly, its own included */
    bool coded;                     /* a body is quantized: deltas are needed */
    float *rows;                    /* [LK_MAX_MOVE][n_row] */
};

/* For windows of n_ctx tokens. `recipe`, `model` and `ledger` are borrowed. LK_E_UNSUPPORTED if the
 * recipe evicts or skips rows; other errors as lk_cache_new. *out is owned: lk_lora_cache_free. */
lk_status lk_lora_cache_new(struct lk_lora_cache **out, struct lk_model *model,
                            const struct lk_recipe *recipe, int n_ctx, struct lk_ledger *ledger,
                            lk_err *err);
void lk_lora_cache_free(struct lk_lora_cache *c);

/* Forget the rows of the last window. */
void lk_lora_cache_start(struct lk_lora_cache *c);

/* Once per layer and window: the rows k, v [n][n_row] (k after RoPE) of a layer as attention sees
 * them in the body. q: [n][n_head][d_head]. out: [2][n][n_row]. LK_E_NOMEM. */
lk_status lk_lora_cache_read(struct lk_lora_cache *c, int layer, const float *q, const float *k,
                             const float *v, int n, float *out, lk_err *err);

/* Additive mask [n][2 n] of attention: 0 if query i sees key j, -inf otherwise. Columns 0 to n - 1
 * are exact rows, the others those of the body. */
void lk_lora_cache_mask(const struct lk_lora_cache *c, int n, float *mask);

#endif
