/* Adapters in training: their weights, and a model with them as ggml graphs, forward and backward.
 *
 *   h = rms(x) norm      q k v = W h + B A h, maybe RoPE      y = x + W_O o + B A o,
 *   o = attention, maybe with ALiBi
 *   out = y + W_down (silu(W_gate h2) W_up h2),          h2 = rms(y) norm2
 *
 * Attention sees exact keys and values and those of the cache's body side by side, with a mask that
 * hides one of the two (lora_cache.h). The gradient of each layer is a graph of its own: only the
 * inputs of all layers are kept, and a layer is computed again before it is differentiated.
 *
 * The backward graph is written out here instead of built by ggml_build_backward_expand, whose
 * gradient of a product with respect to its input is a slow outer product, and which would hold the
 * activations of all layers. It needs weights in f32 and the block of llama, qwen2, qwen3 and
 * refact. */
#ifndef LK_TRAINING_LORA_NET_H
#define LK_TRAINING_LORA_NET_H

#include "engine/graph.h"
#include "model/adapter.h"
#include "training/lora_cache.h"

/* The factors of one adapter, in floats: offsets into weight, mean, square, best and gradient. */
struct lk_lora_param {
    int32_t n_in, n_out;
    size_t a, b; /* of A [rank][n_in], and of B [n_out][rank] */
};

struct lk_lora_net {
    struct lk_model *model; /* borrowed */
    struct lk_lora_cache *cache;
    struct lk_ledger *ledger;
    int n_tok, rank;
    float scale;                                 /* alpha / rank */
    struct lk_lora_param (*param)[LK_N_ADAPTED]; /* [n_layer] */
    size_t n_weight;
    float *weight, *mean, *square; /* [n_weight] and Adam's two moments */
    float *best;                   /* [n_weight] copy of the weights that did best so far */
    float *gradient;               /* [n_weight] sum since the last step */
    float *mask, *causal;          /* [n_tok][2 n_tok], [n_tok][n_tok]; with ALiBi for each head */
    int32_t *pos;                  /* [n_tok] */
    float *delta;                  /* [n_layer][2][n_tok][n_row] of the window, or NULL */
    float *rows;                   /* [n_tok][n_head + 4 n_head_kv][d_head]; with delta */
    struct lk_graph graph;
};

/* LK_E_UNSUPPORTED if the model has another block, or weights that are not f32. */
lk_status lk_lora_check(const struct lk_net *net, lk_err *err);

/* A net for windows of n_tok tokens. A is uniform in +-1/sqrt(n_in), from `seed`; B is 0. Also
 * checks. `model` and `cache` are borrowed. *out is owned: lk_lora_net_free. */
lk_status lk_lora_net_new(struct lk_lora_net **out, struct lk_model *model,
                          struct lk_lora_cache *cache, int n_tok, int rank, float alpha,
                          uint64_t seed, struct lk_ledger *ledger, lk_err *err);
void lk_lora_net_free(struct lk_lora_net *net);

/* Token embeddings x [n_tok][n_embd]. */
lk_status lk_lora_embed(struct lk_lora_net *net, const int32_t *tok, float *x, lk_err *err);

/* The layer without adapters and with exact rows: attn [n_tok][n_embd], what attention adds to the
 * residual stream, and out [n_tok][n_embd]. */
lk_status lk_lora_teach(struct lk_lora_net *net, int layer, const float *x, float *attn, float *out,
                        lk_err *err);

/* The layer with adapters and the lossy cache. With a quantized cache this measures the deltas,
 * which lk_lora_backward of the same window uses: call lk_lora_cache_start before a window. */
lk_status lk_lora_forward(struct lk_lora_net *net, int layer, const float *x, float *out,
                          lk_err *err);

/* Given the gradient dy of the loss with respect to `out`, add that of the adapters and compute dx.
 * All [n_tok][n_embd]; dx may be dy. */
lk_status lk_lora_backward(struct lk_lora_net *net, int layer, const float *x, const float *dy,
                           float *dx, lk_err *err);

/* The loss of the layer's attention alone, |a - target|^2 / |target|^2, of what it adds to the
 * residual stream, with the gradient added times `weight`. target: lk_lora_teach's attn. */
lk_status lk_lora_match(struct lk_lora_net *net, int layer, const float *x, const float *target,
                        float weight, float *loss, lk_err *err);

/* Mean KL(teacher || student) of the next-token distributions, in nats, from the last layer's
 * outputs [n_tok][n_embd]; and its gradient dx, or NULL: none. */
lk_status lk_lora_divergence(struct lk_lora_net *net, const float *teacher, const float *student,
                             double *kl, float *dx, lk_err *err);

/* One step of Adam without weight decay, the nth from 1, along the gradient / n_window. Clears the
 * gradient. */
void lk_lora_step(struct lk_lora_net *net, float rate, int64_t nth, int n_window);

#endif
