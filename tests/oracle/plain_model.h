/* A forward pass in double precision over a GGUF file with f32 weights. It is the model half of the
 * oracle: plain loops, one token at a time, and no code of the library. */
#ifndef LK_TESTS_PLAIN_MODEL_H
#define LK_TESTS_PLAIN_MODEL_H

#include <stdbool.h>

struct ggml_context;
struct gguf_context;

/* y = W x + b, W [n_out][n_in]. b may be NULL. */
struct plain_matrix {
    const float *w, *b;
    int n_in, n_out;
};

/* Weight and bias [n_embd] or [d_head] of a norm. b is NULL for RMS norms. */
struct plain_norm {
    const float *w, *b;
};

struct plain_layer {
    struct plain_norm attn_norm, attn_norm_2, ffn_norm, attn_post_norm, ffn_post_norm;
    struct plain_norm q_norm, k_norm;
    struct plain_matrix qkv, q, k, v, o, gate, up, down; /* of the first expert, if there are any */
    struct plain_matrix router;
    const float *sinks; /* [n_head] or NULL */
};

struct plain_model {
    struct gguf_context *gguf;
    struct ggml_context *ctx; /* the tensors */
    char arch[16];
    int n_rot; /* channels of a head that are rotated */
    int n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx;
    int n_expert, n_expert_used;
    int n_swa;      /* sliding window, 0: none */
    int swa_period; /* the last of this many layers has full attention */
    double eps, embd_scale, residual_scale, attn_scale, logit_scale, softcap;
    double attn_softcap;
    double attn_temp; /* q grows with the logarithm of its position, in units of n_ctx_orig */
    bool layer_norms;
    int rope_period; /* the last of this many layers does not rotate; 0: all do */
    bool alibi;
    int rope; /* 0: none, 1: pairs of neighbors, 2: halves */
    double rope_base, rope_base_swa, rope_scale, rope_magnitude[2];
    bool yarn;
    double yarn_fast, yarn_slow; /* turns that decide whether a pair is fast or slow */
    int n_ctx_orig;
    const float *rope_factor; /* [n_rot / 2] or NULL */
    double *speed[2];         /* [n_rot / 2] radians per position: full attention, sliding window */
    const float *tok_embd, *pos_embd;
    struct plain_norm tok_norm, output_norm;
    struct plain_matrix output;
    struct plain_layer *layer;
};

/* Read the model. False if the file cannot be read or is not of a known family. */
bool plain_model_open(struct plain_model *model, const char *path);
void plain_model_close(struct plain_model *model);

bool plain_is_swa(const struct plain_model *model, int layer);

/* ALiBi slope of a query head: 0 without ALiBi. */
double plain_slope(const struct plain_model *model, int head);

/* x [n_embd]: the embedding of a token. */
void plain_embed(const struct plain_model *model, int tok, int pos, double *x);

/* q [n_head][d_head] and k [n_head_kv][d_head] after RoPE, v [n_head_kv][d_head]. */
void plain_qkv(const struct plain_model *model, int layer, const double *x, int pos, double *q,
               double *k, double *v);

/* The rest of a layer: x [n_embd] is the layer's input and becomes its output. */
void plain_post(const struct plain_model *model, int layer, const double *attn, double *x);

/* out [n_vocab] */
void plain_logits(const struct plain_model *model, const double *x, double *out);

/* Rotate a head's row [d_head] to position pos and multiply it by `scale`. Negative positions
 * rotate back. */
void plain_rotate(const struct plain_model *model, int layer, double pos, double scale,
                  double *row);

/* Nearest half precision number, ties to even. */
double plain_f16(double x);

#endif
