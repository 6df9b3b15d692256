/* A GGUF model: checked, mapped, with its forward pass as ggml graphs that stop at attention.
 *
 * A layer is two pieces of graph, so that what happens between them (cache and attention) is ours
 * and can be on another device:
 *
 *   x -> pre: norm, q k v, biases, q/k norm, rope -> q k v | attention | -> post: W_O, residual, ffn -> x
 *
 * Token ids given to embed must lie in [0, n_vocab), positions in [0, n_ctx_train) where pos_embd is set:
 * ggml aborts on others.
 *
 * Adding a family: one file family_NAME.c with its struct lk_family and a line in family.c. */
#ifndef LK_MODEL_NET_H
#define LK_MODEL_NET_H

#include "base/err.h"
#include "base/ledger.h"

#include "ggml-backend.h"
#include "ggml.h"

struct lk_hparams {
    int32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx_train, n_rot;
    int32_t rope_mode;                   /* ggml_rope_ext's mode, or -1: no rope */
    float rope_base, rope_scale;         /* theta and 1/factor of linear scaling */
    float rope_base_swa, rope_scale_swa; /* of sliding-window layers */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t n_ctx_orig;
    float norm_eps;
    float attn_scale;     /* factor of q.k before softmax */
    float alibi_max_bias; /* 0: no ALiBi */
    float embd_scale;     /* factor of token embeddings, 1 for most */
    float logit_softcap;  /* logits become cap * tanh(logits / cap); 0: they do not */
    int32_t n_swa;        /* window of sliding-window layers: a query at position p sees
                                 positions > p - n_swa; 0: none */
    uint8_t *is_swa;      /* [n_layer] */
};

struct lk_layer { /* NULL where the family has none */
    struct ggml_tensor *attn_norm, *attn_norm_b, *attn_norm_2, *attn_norm_2_b;
    struct ggml_tensor *wq, *wk, *wv, *wqkv, *bq, *bk, *bv, *bqkv, *q_norm, *k_norm;
    struct ggml_tensor *wo, *bo, *attn_post_norm;
    struct ggml_tensor *ffn_norm, *ffn_norm_b, *ffn_gate, *ffn_gate_b, *ffn_up, *ffn_up_b,
        *ffn_down, *ffn_down_b, *ffn_post_norm;
    struct ggml_tensor *ffn_gate_up,
        *ffn_gate_up_b; /* gate's rows and then up's, in place of the two */
};

struct lk_pre {
    struct ggml_tensor
        *q; /* [n_tok][n_head][d_head], f32, rope applied (ggml order: d_head, n_head, n_tok) */
    struct ggml_tensor *k; /* [n_tok][n_head_kv][d_head], f32, rope applied */
    struct ggml_tensor *v; /* [n_tok][n_head_kv][d_head], f32 */
    struct ggml_tensor *x; /* residual stream that post continues from, [n_tok][n_embd] */
    struct ggml_tensor
        *aux; /* what a parallel block needs in post (falcon's normed input), or NULL */
};

struct lk_kernels;     /* kernels of this CPU (kern/kern.h) */
struct lk_loader;      /* an open file during lk_net_open (loader.h) */
struct lk_weights_map; /* where the tensors live: mapping, repack buffers, contexts (weights.c) */

struct lk_net {
    char arch[32];
    char name[128];
    const struct lk_family *family;
    struct lk_hparams hp;
    struct ggml_tensor *tok_embd,
        *pos_embd, /* pos_embd, if not NULL, limits positions to n_ctx_train */
        *tok_norm, *tok_norm_b;
    struct ggml_tensor *output_norm, *output_norm_b, *output, *output_b;
    struct ggml_tensor
        *rope_factors;      /* [n_rot / 2] divisors of the rotation frequencies, or NULL */
    struct lk_layer *layer; /* [n_layer] */
    struct lk_weights_map *map;
    const struct lk_kernels *kernels; /* for what ggml has no operator for */
    uint64_t n_param, file_bytes, weight_bytes;
    uint64_t fingerprint; /* of header, tensor table and sampled data */
};

/* A family of architectures. Graph functions create nodes in ctx and cannot fail (the caller gives
 * a context big enough for LK_LAYER_NODES nodes a layer). */
struct lk_family {
    const char *arch; /* general.architecture */
    /* Read what is particular to the family after the common keys are read; check tensors' shapes. */
    lk_status (*load)(struct lk_net *net, struct lk_loader *loader, lk_err *err);
    /* tok, pos: i32 [n_tok] -> x [n_tok][n_embd] */
    struct ggml_tensor *(*embed)(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *pos);
    struct lk_pre (*pre)(const struct lk_net *net, struct ggml_context *ctx, int layer,
                         struct ggml_tensor *x, struct ggml_tensor *pos);
    /* attn: attention's output [n_tok][n_head * d_head] -> next x */
    struct ggml_tensor *(*post)(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                const struct lk_pre *pre, struct ggml_tensor *attn);
    /* x -> logits [n_tok][n_vocab] */
    struct ggml_tensor *(*head)(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x);
};

enum { LK_LAYER_NODES = 64 };

struct lk_net_opts {
    bool f32; /* dequantise matrices at load */
    bool no_mmap, no_repack;
    const struct lk_kernels *kernels; /* NULL: the fastest */
    lk_progress progress;
    void *user;
};

/* Open, check and map a model. Everything that comes from the file is checked before ggml sees it.
 * *out is owned: lk_net_free. */
lk_status lk_net_open(struct lk_net **out, const char *path, const struct lk_net_opts *opts,
                      struct lk_ledger *ledger, lk_err *err);
void lk_net_free(struct lk_net *net, struct lk_ledger *ledger);

/* Bytes of the largest matrix that a graph of n_tok tokens widens to f32 (see lk_linear); 0: none. */
uint64_t lk_widened_bytes(const struct lk_net *net, int64_t n_tok);

#endif
