/* A GGUF model that has been checked and mapped, and its forward pass as ggml graphs.
 *
 * The graphs stop at attention, or at the recurrence of a recurrent layer. Each layer is two
 * pieces, so that the cache and the attention in between are lowkey's own and can run on another
 * device:
 *
 *   x -> pre: norm, q k v, biases, q/k norm, RoPE -> q k v -> | attention |
 *     -> post: W_O, residual, FFN -> x
 *
 * ggml aborts on bad inputs, so the caller guarantees that
 *   - token ids passed to `embed` are in [0, n_vocab);
 *   - positions are in [0, n_ctx_train) if pos_embd is not NULL.
 *
 * To add a family, write family_NAME.c with its struct lk_family: ARCHITECTURE.md has the steps. */
#ifndef LK_MODEL_NET_H
#define LK_MODEL_NET_H

#include "base/err.h"
#include "base/ledger.h"
#include "model/adapter.h"
#include "model/ggml_device.h"
#include "model/hparams.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <stddef.h>

/* Weights of a mixture of experts (experts.h). Each of gate, up and down has the matrices of all
 * experts. */
struct lk_experts {
    struct ggml_tensor *router, *gate, *up, *down, *router_b, *gate_b, *up_b, *down_b;
    struct ggml_tensor *gate_up;    /* rows of gate, then of up, of each expert: replaces the two */
    struct ggml_tensor *down_scale; /* [n_expert] factors of the experts' outputs, or NULL; f32 */
    struct ggml_tensor *bias;       /* [n_expert] added to probabilities for choosing; f32 */
    struct ggml_tensor *shared_gate; /* [n_embd] gate of the shared expert */
    /* Gemma 4: factors of the router's input, norms around the experts, and the norm of what the
     * dense network next to them computes; [n_embd] each. */
    struct ggml_tensor *router_scale, *norm, *post_norm, *dense_post_norm;
};

/* Weights of one layer. NULL if the family or the file does not have the tensor. */
struct lk_layer {
    struct ggml_tensor *attn_norm, *attn_norm_b, *attn_norm_2, *attn_norm_2_b;
    struct ggml_tensor *wq, *wk, *wv, *wqkv, *bq, *bk, *bv, *bqkv, *q_norm, *k_norm;
    struct ggml_tensor *wo, *bo, *attn_post_norm;
    struct ggml_tensor *wq_a, *wkv_a, *kv_a_norm, *wk_b, *wv_b; /* of latent attention */
    struct ggml_tensor *attn_sinks;                        /* [n_head] scores without a key; f32 */
    struct ggml_tensor *tok_gate, *tok_up, *tok_post_norm; /* of the layer's token embedding */
    struct ggml_tensor *out_scale;                         /* [1] of the layer's output */
    struct ggml_tensor *conv, *decay_scale, *decay_b, *w_decay, *w_beta, *w_gate; /* recurrent */
    struct ggml_tensor *w_beta_decay;         /* recurrent, instead of the two */
    struct ggml_tensor *state_norm, *w_mixed; /* recurrent */
    struct ggml_tensor *conv_b, *skip;        /* of state space models */
    struct ggml_tensor *ffn_norm, *ffn_norm_b, *ffn_post_norm;
    struct ggml_tensor *ffn_gate, *ffn_gate_b, *ffn_up, *ffn_up_b, *ffn_down, *ffn_down_b;
    /* Rows of gate followed by rows of up. Replaces the two. */
    struct ggml_tensor *ffn_gate_up, *ffn_gate_up_b;
    /* Instead of ffn_gate, ffn_up and ffn_down, which are then the shared expert, or NULL. */
    struct lk_experts experts;
};

/* Output of the first piece of a layer. A recurrent layer has `mixed`, `decay` and `beta` instead
 * of q, k and v (kernels/recurrence.h); a short convolution has `mixed` only. With latent
 * attention, rows of q have d_head + d_rope channels, and those of k d_rope. All tensors are f32.
 * Shapes are in C order; ggml's order of [n_tok][n_head][d_head] is d_head, n_head, n_tok. */
struct lk_qkv {
    struct ggml_tensor *q;            /* [n_tok][n_head][d_head], after RoPE */
    struct ggml_tensor *k;            /* [n_tok][n_head_kv][d_head], after RoPE */
    struct ggml_tensor *v;            /* [n_tok][n_head_kv][d_head] */
    struct ggml_tensor *mixed;        /* [n_tok][channels] projections before the convolution */
    struct ggml_tensor *decay, *beta; /* [n_tok][n_v_head] */
    struct ggml_tensor *step; /* [n_tok][n_v_head] of state space models: beta before softplus */
    struct ggml_tensor *x;    /* [n_tok][n_embd] residual stream, input of the second piece */
    struct ggml_tensor *tok;  /* token_input's result, or NULL */
    struct ggml_tensor *aux; /* what else the second piece needs: Falcon's normed input, the gate of
                              * Qwen 3.5 and LFM2, or NULL */
};

struct lk_kernels;     /* kernels of this CPU (kernels/kernels.h) */
struct lk_loader;      /* a file being loaded (bind.h) */
struct lk_weights_map; /* memory of the weights (weights.h) */

struct lk_net {
    char arch[32];
    char name[128];
    const struct lk_family *family;
    struct lk_hparams hp;
    struct ggml_tensor *tok_embd, *tok_norm, *tok_norm_b;
    struct ggml_tensor *pos_embd; /* if not NULL, positions are limited to n_ctx_train */
    struct ggml_tensor *output_norm, *output_norm_b, *output, *output_b;
    struct ggml_tensor *rope_factors; /* [n_rot / 2] divisors of the RoPE frequencies of layers with
                                       * full attention, or NULL */
    struct ggml_tensor *rope_factors_unused; /* those of other context lengths, or NULL */
    /* Embeddings of all layers [n_vocab][n_layer][n_embd_layer], a projection of the token's own
     * embedding to as many numbers, and the norm of each layer's part; or NULL. */
    struct ggml_tensor *layer_embd, *layer_proj, *layer_proj_norm;
    struct lk_layer *layer; /* [n_layer] */
    struct lk_weights_map *map;
    const struct lk_kernels *kernels;    /* for operations that ggml does not have */
    ggml_backend_buffer_type_t repacked; /* of matrices that kernels can read (many_tokens.h) */
    bool ggml_products;                  /* all products are ggml's, with its rounding */
    uint64_t n_param, file_bytes, weight_bytes;
    uint64_t adapter_bytes;             /* of weight_bytes: merged matrices, less the file's */
    int32_t first_layer, end_layer;     /* layers [first, end) are held here; usually all */
    uint64_t matrix_bytes, table_bytes; /* of its tensors, loaded or mapped: those that every token
                                         * is multiplied by, and tables whose rows are looked up */
    struct lk_ggml_device *device; /* with the weights of layers [first_on_device, end_layer) and of
                                    * what follows the last one; NULL: all are on the CPU */
    int32_t first_on_device;
    const char *recurrence_lack; /* why the CPU computes the recurrences of the device's layers;
                                  * NULL: it does not, or the device is_host */
    uint64_t device_bytes;       /* of weights on the device */
    /* Copies of rope_factors, layer_proj and layer_proj_norm there. */
    struct ggml_tensor *rope_factors_on_device, *layer_proj_on_device, *layer_proj_norm_on_device;
    bool header_only;     /* tensors have types and shapes, but no data */
    uint64_t fingerprint; /* hash of the header, the tensor table and samples of the data */
    uint64_t identity;    /* hash of the norms' weights; that of all quantizations of a model */
};

/* A family of architectures. The graph functions create nodes in ctx and cannot fail: the caller
 * provides a context with room for LK_LAYER_NODES nodes per layer. */
struct lk_family {
    const char *arch[4];    /* values of general.architecture, ending with NULL */
    bool has_experts;       /* the feed-forward network may be a mixture of experts */
    bool has_latents;       /* attention is of latents (struct lk_hparams.d_rope) */
    bool layers_vary;       /* KV heads and widths may differ between layers (lk_hparams_read) */
    const char *final_norm; /* name of the final norm's weights; NULL: output_norm.weight */
    /* Called after the common keys are read. Reads the family's own keys and binds its tensors. */
    lk_status (*load)(struct lk_net *net, struct lk_loader *loader, lk_err *err);
    /* tok, pos: i32 [n_tok] -> x [n_tok][n_embd] */
    struct ggml_tensor *(*embed)(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *pos);
    /* tok: i32 [n_tok] -> lk_qkv.tok of a layer, on the CPU: what it needs of the tokens, for
     * `post`, or NULL. No function: the family's layers do not need tokens */
    struct ggml_tensor *(*token_input)(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *tok);
    /* Without k and v if the layer attends to those of an earlier one (lk_hparams_shares). */
    struct lk_qkv (*pre)(const struct lk_net *net, struct ggml_context *ctx, int layer,
                         struct ggml_tensor *x, struct ggml_tensor *pos);
    /* attn: output of attention [n_tok][n_head * d_head], or of the recurrence [n_tok][n_v_head *
     * d_value] -> x of the next layer */
    struct ggml_tensor *(*post)(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                const struct lk_qkv *qkv, struct ggml_tensor *attn);
    /* x of the last layer -> final norm [n_tok][n_embd], which head applies too */
    struct ggml_tensor *(*norm)(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);
    /* x of the last layer -> logits [n_tok][n_vocab] */
    struct ggml_tensor *(*head)(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);
};

enum { LK_LAYER_NODES = 96 };

/* Is a layer computed by the device? By one that has only ggml's operators? */
static inline bool lk_net_on_device(const struct lk_net *net, int layer) {
    return net->device && layer >= net->first_on_device;
}
static inline bool lk_net_is_remote(const struct lk_net *net, int layer) {
    return lk_net_on_device(net, layer) && !net->device->is_host;
}

/* Is a layer recurrent, and does the device compute its recurrence, too? */
static inline bool lk_net_recurs_there(const struct lk_net *net, int layer) {
    return net->hp.is_recurrent[layer] && lk_net_is_remote(net, layer) && !net->recurrence_lack;
}

/* Is a layer held here? Are all? */
static inline bool lk_net_has(const struct lk_net *net, int layer) {
    return layer >= net->first_layer && layer < net->end_layer;
}
static inline bool lk_net_has_all(const struct lk_net *net) {
    return net->end_layer - net->first_layer == net->hp.n_layer;
}

/* Chooses the layers to load, [*first, *end), from the bytes of weights of each, bytes [n_layer],
 * without tables whose rows are looked up. The result depends on the file only. */
struct lk_layer_choice {
    lk_status (*choose)(const struct lk_hparams *hp, const uint64_t *bytes, void *user,
                        int32_t *first, int32_t *end, lk_err *err);
    void *user;
};

struct lk_net_opts {
    bool f32; /* dequantize matrices when loading */
    bool no_mmap, no_repack;
    int32_t n_ctx;    /* largest context, for RoPE that depends on it; 0: that of the training */
    bool header_only; /* load no weights: only what a plan needs */
    const struct lk_layer_choice *choice; /* which layers to load; NULL: all */
    const char *device;                   /* that computes the last n_on_device layers */
    int32_t n_on_device;                  /* 0: all; < 0: none */
    uint64_t max_device_bytes;            /* limit of the device's memory; 0: none */
    const struct lk_kernels *kernels;     /* NULL: the fastest */
    /* [n_layer][LK_N_ADAPTED] adapters that are merged into the weights, or NULL. Only read while
     * the model is loaded. LK_E_FORMAT if the sum is not finite. */
    const struct lk_adapter *adapter;
    const struct lk_adapter *ffn_adapter; /* [n_layer][LK_N_FFN_ADAPTED], or NULL */
    lk_progress progress;
    void *user;
};

/* Open, check and map a model. Everything read from the file is checked before ggml sees it.
 * *out is owned: lk_net_free. */
lk_status lk_net_open(struct lk_net **out, const char *path, const struct lk_net_opts *opts,
                      struct lk_ledger *ledger, lk_err *err);
void lk_net_free(struct lk_net *net, struct lk_ledger *ledger);

/* Write the name of a model that users see, for example "Qwen2.5-Coder-0.5B-Instruct", to out[cap],
 * cut to fit, with a terminating zero.
 *
 * `path`: the file's path. `general_name`: the value of general.name, "" if the file has none. Many
 * files have the name of a training run or of an intermediate format there ("Smollm2 135M 8k Lc100K
 * Mix1 Ep2"). So the file's name is used if general.name confirms it: the file's name contains a
 * digit, and its first word occurs in general.name. Otherwise general.name is used, and the file's
 * name only if general.name is empty. The extension, shard numbers and the quantization ("Q4_K_M")
 * are not part of a file's name. */
void lk_model_name(char *out, size_t cap, const char *path, const char *general_name);

/* The model families that lowkey supports. Each is defined in family_NAME.c. */
extern const struct lk_family lk_family_llama, lk_family_qwen2, lk_family_qwen3, lk_family_qwen3moe,
    lk_family_gemma2, lk_family_gemma3, lk_family_gemma4, lk_family_phi3, lk_family_smollm3,
    lk_family_mistral3, lk_family_granite, lk_family_olmo2, lk_family_stablelm, lk_family_falcon,
    lk_family_bloom, lk_family_gpt2, lk_family_gpt_oss, lk_family_qwen35, lk_family_deepseek2,
    lk_family_lfm2, lk_family_refact;

#endif
