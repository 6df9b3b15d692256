/* Writes tiny models: random weights, metadata and small tokenizers. */
#include "tiny_gguf.h"

#include "base/hash.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ---- */

static double uniform(uint64_t *state) {
    return ((double)(lk_splitmix64_next(state) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t *state) {
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

/* ---- tensors ---- */

struct model_writer {
    const struct tiny_spec *spec;
    struct gguf_context *gguf;
    struct ggml_context *ctx;
    uint64_t rng;
    int n_embd, n_vocab;
};

/* ne1, ne2: 0 for a tensor with fewer dimensions. Rows of large models repeat. */
static void add_tensor_3d(struct model_writer *w, enum ggml_type type, int64_t ne0, int64_t ne1,
                          int64_t ne2, double mean, double sd, const char *name) {
    const int64_t ne[] = {ne0, ne1, ne2};
    struct ggml_tensor *t = ggml_new_tensor(w->ctx, type, ne2 ? 3 : ne1 ? 2 : 1, ne);
    enum { DISTINCT_ROWS = 512 };
    int64_t n_row = ggml_nrows(t), rows = n_row;
    if (w->spec->mib && rows > DISTINCT_ROWS) rows = DISTINCT_ROWS;
    int64_t n = rows * ne0;
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(mean + sd * normal(&w->rng));
    if (type == GGML_TYPE_F32) {
        memcpy(t->data, x, (size_t)n * sizeof *x);
    } else {
        ggml_quantize_chunk(type, x, t->data, 0, rows, ne0, NULL);
    }
    for (int64_t row = rows; row < n_row; row++)
        memcpy((char *)t->data + row * t->nb[1], (char *)t->data + row % rows * t->nb[1], t->nb[1]);
    free(x);
    ggml_set_name(t, name);
    gguf_add_tensor(w->gguf, t);
}

static void add_tensor(struct model_writer *w, enum ggml_type type, int64_t ne0, int64_t ne1,
                       double mean, double sd, const char *name) {
    add_tensor_3d(w, type, ne0, ne1, 0, mean, sd, name);
}

static const char *layer_name(char buf[64], int layer, const char *rest) {
    snprintf(buf, 64, "blk.%d.%s", layer, rest);
    return buf;
}

/* Add a matrix whose product with a row of unit variance has a variance of about gain squared. */
static void add_matrix(struct model_writer *w, int layer, const char *rest, int64_t ne0,
                       int64_t ne1, double gain) {
    char name[64];
    bool finer = w->spec->mixed && layer % 2 == 1 &&
                 (strcmp(rest, "attn_v.weight") == 0 || strcmp(rest, "ffn_down.weight") == 0);
    add_tensor(w, finer ? GGML_TYPE_Q6_K : w->spec->type, ne0, ne1, 0, gain / sqrt((double)ne0),
               layer_name(name, layer, rest));
}

/* The matrices of all experts. */
static void add_experts(struct model_writer *w, int layer, const char *rest, int64_t ne0,
                        int64_t ne1) {
    char name[64];
    add_tensor_3d(w, w->spec->type, ne0, ne1, w->spec->n_expert, 0, 1 / sqrt((double)ne0),
                  layer_name(name, layer, rest));
}

static void add_expert_biases(struct model_writer *w, int layer, const char *rest, int64_t n) {
    char name[64];
    add_tensor(w, GGML_TYPE_F32, n, w->spec->n_expert, 0, 0.2, layer_name(name, layer, rest));
}

static void add_norm(struct model_writer *w, int layer, const char *rest, int64_t n) {
    char name[64];
    add_tensor(w, GGML_TYPE_F32, n, 0, 1, 0.2, layer_name(name, layer, rest));
}

static void add_bias(struct model_writer *w, int layer, const char *rest, int64_t n) {
    char name[64];
    add_tensor(w, GGML_TYPE_F32, n, 0, 0, 0.2, layer_name(name, layer, rest));
}

static int n_rot(const struct tiny_spec *s) { return s->n_rot ? s->n_rot : s->d_head; }

static bool is_arch(const struct model_writer *w, const char *arch) {
    return strcmp(w->spec->arch, arch) == 0;
}

static bool is_gemma(const struct model_writer *w) {
    return is_arch(w, "gemma2") || is_arch(w, "gemma3") || is_arch(w, "gemma4");
}

static bool is_lfm2(const struct model_writer *w) {
    return is_arch(w, "lfm2") || is_arch(w, "lfm2moe");
}

static bool is_granite(const struct model_writer *w) {
    return is_arch(w, "granite") || is_arch(w, "granitemoe") || is_arch(w, "granitehybrid");
}

/* One matrix for q, k and v, and a network without a gate. */
static bool is_plain(const struct model_writer *w) {
    return is_arch(w, "falcon") || is_arch(w, "bloom") || is_arch(w, "gpt2");
}

static bool has_layer_norms(const struct model_writer *w) {
    return is_plain(w) || is_arch(w, "stablelm");
}

static bool has_post_norms(const struct model_writer *w) {
    return is_gemma(w) || is_arch(w, "olmo2");
}

static void add_attention(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    int64_t n_q = s->n_head * s->d_head, n_kv = s->n_head_kv * s->d_head;
    bool has_biases = is_arch(w, "bloom") || is_arch(w, "gpt2");
    char name[64];
    if (is_plain(w) || s->fused) {
        add_matrix(w, i, "attn_qkv.weight", w->n_embd, n_q + 2 * n_kv, 1.5);
        if (has_biases) add_bias(w, i, "attn_qkv.bias", n_q + 2 * n_kv);
    } else {
        add_matrix(w, i, "attn_q.weight", w->n_embd, n_q, 1.5);
        add_matrix(w, i, "attn_k.weight", w->n_embd, n_kv, 1.5);
        add_matrix(w, i, "attn_v.weight", w->n_embd, n_kv, 1);
        if (s->biases) {
            add_bias(w, i, "attn_q.bias", n_q);
            add_bias(w, i, "attn_k.bias", n_kv);
            add_bias(w, i, "attn_v.bias", n_kv);
        }
    }
    add_matrix(w, i, "attn_output.weight", n_q, w->n_embd, 1);
    if (has_biases || is_arch(w, "gpt-oss")) add_bias(w, i, "attn_output.bias", w->n_embd);
    if (is_arch(w, "gpt-oss"))
        add_tensor(w, GGML_TYPE_F32, s->n_head, 0, 1, 1, layer_name(name, i, "attn_sinks.weight"));
    if (is_arch(w, "qwen3") || is_arch(w, "qwen3moe") || is_arch(w, "gemma3") || is_lfm2(w)) {
        add_norm(w, i, "attn_q_norm.weight", s->d_head);
        add_norm(w, i, "attn_k_norm.weight", s->d_head);
    }
    if (is_arch(w, "olmo2")) {
        add_norm(w, i, "attn_q_norm.weight", n_q);
        add_norm(w, i, "attn_k_norm.weight", n_kv);
    }
    if (s->parallel) {
        add_tensor(w, GGML_TYPE_F32, s->d_head, s->n_head, 1, 0.2,
                   layer_name(name, i, "attn_q_norm.weight"));
        add_tensor(w, GGML_TYPE_F32, s->d_head, s->n_head_kv, 1, 0.2,
                   layer_name(name, i, "attn_k_norm.weight"));
    }
}

static bool is_qwen35(const struct model_writer *w) {
    return is_arch(w, "qwen35") || is_arch(w, "qwen35moe") || is_arch(w, "qwen3next");
}

/* Channels of the shared expert. */
static int64_t n_ff_shared(const struct tiny_spec *s) {
    return s->d_nope ? 2 * s->n_ff : s->n_ff + 64;
}

static void add_shared_expert(struct model_writer *w, int i) {
    int64_t n_ff = n_ff_shared(w->spec);
    add_matrix(w, i, "ffn_gate_shexp.weight", w->n_embd, n_ff, 1);
    add_matrix(w, i, "ffn_up_shexp.weight", w->n_embd, n_ff, 1);
    add_matrix(w, i, "ffn_down_shexp.weight", n_ff, w->n_embd, 1);
    if (is_qwen35(w)) add_bias(w, i, "ffn_gate_inp_shexp.weight", w->n_embd);
}

static void add_ffn(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    if (s->n_expert && i >= s->n_dense) {
        if (is_qwen35(w) || s->d_nope || is_granite(w)) add_shared_expert(w, i);
        if (s->n_group || is_lfm2(w)) add_bias(w, i, "exp_probs_b.bias", s->n_expert);
        add_matrix(w, i, "ffn_gate_inp.weight", w->n_embd, s->n_expert, 1);
        add_experts(w, i, "ffn_gate_exps.weight", w->n_embd, s->n_ff);
        add_experts(w, i, "ffn_up_exps.weight", w->n_embd, s->n_ff);
        add_experts(w, i, "ffn_down_exps.weight", s->n_ff, w->n_embd);
        if (is_arch(w, "gpt-oss")) {
            add_bias(w, i, "ffn_gate_inp.bias", s->n_expert);
            add_expert_biases(w, i, "ffn_gate_exps.bias", s->n_ff);
            add_expert_biases(w, i, "ffn_up_exps.bias", s->n_ff);
            add_expert_biases(w, i, "ffn_down_exps.bias", w->n_embd);
        }
        return;
    }
    bool joined = is_arch(w, "phi3");
    if (!is_plain(w) && !joined) add_matrix(w, i, "ffn_gate.weight", w->n_embd, s->n_ff, 1);
    add_matrix(w, i, "ffn_up.weight", w->n_embd, joined ? 2 * s->n_ff : s->n_ff, 1);
    add_matrix(w, i, "ffn_down.weight", s->n_ff, w->n_embd, 1);
}

/* What a layer that predicts further tokens has in addition. */
static void add_mtp(struct model_writer *w, int i) {
    char name[64];
    add_matrix(w, i, "nextn.eh_proj.weight", 2 * w->n_embd, w->n_embd, 1);
    add_norm(w, i, "nextn.enorm.weight", w->n_embd);
    add_norm(w, i, "nextn.hnorm.weight", w->n_embd);
    add_norm(w, i, "nextn.shared_head_norm.weight", w->n_embd);
    add_tensor(w, w->spec->type, w->n_embd, w->n_vocab, 0, 1,
               layer_name(name, i, "nextn.embed_tokens.weight"));
    add_matrix(w, i, "nextn.shared_head_head.weight", w->n_embd, w->n_vocab, 3);
}

/* A layer of Qwen 3.5 or Qwen3-Next: every fourth has attention, with a gate after each head of
 * q. */
static void add_qwen35_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    int64_t n_q = s->n_head * s->d_head, n_kv = s->n_head_kv * s->d_head,
            n_value = s->n_v_head * s->d_state, channels = n_value + 2 * s->n_k_head * s->d_state;
    char name[64];
    add_norm(w, i, "attn_norm.weight", w->n_embd);
    add_norm(w, i, "post_attention_norm.weight", w->n_embd);
    bool is_mtp = s->mtp && i == s->n_layer - 1;
    if (is_mtp) add_mtp(w, i);
    if ((i + 1) % 4 == 0 || is_mtp) {
        add_matrix(w, i, "attn_q.weight", w->n_embd, 2 * n_q, 1.5);
        add_matrix(w, i, "attn_k.weight", w->n_embd, n_kv, 1.5);
        add_matrix(w, i, "attn_v.weight", w->n_embd, n_kv, 1);
        add_matrix(w, i, "attn_output.weight", n_q, w->n_embd, 1);
        add_norm(w, i, "attn_q_norm.weight", s->d_head);
        add_norm(w, i, "attn_k_norm.weight", s->d_head);
    } else {
        add_matrix(w, i, "attn_qkv.weight", w->n_embd, channels, 1);
        add_matrix(w, i, "attn_gate.weight", w->n_embd, n_value, 1);
        add_tensor(w, GGML_TYPE_F32, 4, channels, 0, 0.5, layer_name(name, i, "ssm_conv1d.weight"));
        add_bias(w, i, "ssm_dt.bias", s->n_v_head);
        add_tensor(w, GGML_TYPE_F32, s->n_v_head, 0, -0.3, 0.1, layer_name(name, i, "ssm_a"));
        if (is_arch(w, "qwen3next")) {
            add_matrix(w, i, "ssm_ba.weight", w->n_embd, 2 * s->n_v_head, 1);
        } else {
            add_matrix(w, i, "ssm_beta.weight", w->n_embd, s->n_v_head, 1);
            add_matrix(w, i, "ssm_alpha.weight", w->n_embd, s->n_v_head, 1);
        }
        add_norm(w, i, "ssm_norm.weight", s->d_state);
        add_matrix(w, i, "ssm_out.weight", n_value, w->n_embd, 1);
    }
    add_ffn(w, i);
}

/* The matrices of all heads. */
static void add_heads(struct model_writer *w, int layer, const char *rest, int64_t ne0,
                      int64_t ne1) {
    char name[64];
    add_tensor_3d(w, w->spec->type, ne0, ne1, w->spec->n_head, 0, 1 / sqrt((double)ne0),
                  layer_name(name, layer, rest));
}

/* A layer of DeepSeek, with latent attention. */
static void add_deepseek2_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    int64_t n_q = s->n_head * (s->d_nope + s->n_rot);
    add_norm(w, i, "attn_norm.weight", w->n_embd);
    if (s->q_rank) {
        add_matrix(w, i, "attn_q_a.weight", w->n_embd, s->q_rank, 1);
        add_norm(w, i, "attn_q_a_norm.weight", s->q_rank);
        add_matrix(w, i, "attn_q_b.weight", s->q_rank, n_q, 1.5);
    } else {
        add_matrix(w, i, "attn_q.weight", w->n_embd, n_q, 1.5);
    }
    add_matrix(w, i, "attn_kv_a_mqa.weight", w->n_embd, s->d_head + s->n_rot, 1.5);
    add_norm(w, i, "attn_kv_a_norm.weight", s->d_head);
    add_heads(w, i, "attn_k_b.weight", s->d_nope, s->d_head);
    add_heads(w, i, "attn_v_b.weight", s->d_head, s->d_value);
    add_matrix(w, i, "attn_output.weight", s->n_head * s->d_value, w->n_embd, 1);
    add_norm(w, i, "ffn_norm.weight", w->n_embd);
    add_ffn(w, i);
}

/* Every second layer has full attention. */
static bool is_gemma4_swa(int layer) { return layer % 2 == 0; }

static void add_gemma4_experts(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    static const char *const norms[] = {"ffn_gate_inp.scale", "pre_ffw_norm_2.weight",
                                        "post_ffw_norm_1.weight", "post_ffw_norm_2.weight"};
    for (int n = 0; n < 4; n++) add_norm(w, i, norms[n], w->n_embd);
    add_matrix(w, i, "ffn_gate_inp.weight", w->n_embd, s->n_expert, 8);
    add_norm(w, i, "ffn_down_exps.scale", s->n_expert);
    if (s->fused) {
        add_experts(w, i, "ffn_gate_up_exps.weight", w->n_embd, 2 * s->n_ff);
    } else {
        add_experts(w, i, "ffn_gate_exps.weight", w->n_embd, s->n_ff);
        add_experts(w, i, "ffn_up_exps.weight", w->n_embd, s->n_ff);
    }
    add_experts(w, i, "ffn_down_exps.weight", s->n_ff, w->n_embd);
}

static void add_gemma4_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    bool swa = is_gemma4_swa(i), shares = i >= s->n_layer - s->n_shared;
    int64_t d = swa ? s->d_head_swa : s->d_head, n_q = s->n_head * d,
            n_kv = (swa ? s->n_head_kv_swa : s->n_head_kv) * d, n_ff = (1 + shares) * s->n_ff;
    char name[64];
    static const char *const norms[] = {"attn_norm.weight", "ffn_norm.weight",
                                        "post_attention_norm.weight", "post_ffw_norm.weight"};
    for (int n = 0; n < 4; n++) add_norm(w, i, norms[n], w->n_embd);
    add_matrix(w, i, "attn_q.weight", w->n_embd, n_q, 1.5);
    add_tensor(w, GGML_TYPE_F32, d, 0, 2 / sqrt((double)d), 0.2 / sqrt((double)d),
               layer_name(name, i, "attn_q_norm.weight")); /* scores are not scaled */
    if (!shares) {
        add_matrix(w, i, "attn_k.weight", w->n_embd, n_kv, 1.5);
        add_norm(w, i, "attn_k_norm.weight", d);
        if (swa || !s->k_is_v) add_matrix(w, i, "attn_v.weight", w->n_embd, n_kv, 1);
    }
    add_matrix(w, i, "attn_output.weight", n_q, w->n_embd, 1);
    add_matrix(w, i, "ffn_gate.weight", w->n_embd, n_ff, 1);
    add_matrix(w, i, "ffn_up.weight", w->n_embd, n_ff, 1);
    add_matrix(w, i, "ffn_down.weight", n_ff, w->n_embd, 1);
    if (s->n_expert) add_gemma4_experts(w, i);
    add_norm(w, i, "layer_output_scale.weight", 1);
    if (s->n_embd_layer == 0) return;
    add_matrix(w, i, "inp_gate.weight", w->n_embd, s->n_embd_layer, 1);
    add_matrix(w, i, "proj.weight", s->n_embd_layer, w->n_embd, 1);
    add_norm(w, i, "post_norm.weight", w->n_embd);
}

/* Embeddings of the layers, and divisors that turn a quarter of the pairs only. */
static void add_gemma4_tensors(struct model_writer *w) {
    const struct tiny_spec *s = w->spec;
    int64_t n = s->n_embd_layer, n_all = n * s->n_layer;
    float divisor[256];
    struct ggml_tensor *t = ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, s->d_head / 2);
    for (int i = 0; i < s->d_head / 2; i++) divisor[i] = i < s->d_head / 8 ? 1 : 1e30f;
    memcpy(t->data, divisor, ggml_nbytes(t));
    ggml_set_name(t, "rope_freqs.weight");
    gguf_add_tensor(w->gguf, t);
    if (n == 0) return;
    add_tensor(w, s->type, n_all, w->n_vocab, 0, 1 / sqrt((double)n),
               "per_layer_token_embd.weight");
    add_tensor(w, s->type, w->n_embd, n_all, 0, 1, "per_layer_model_proj.weight");
    add_tensor(w, GGML_TYPE_F32, n, 0, 1, 0.2, "per_layer_proj_norm.weight");
}

/* Every third layer of LFM2 and of Granite's hybrids has attention. */
static bool is_third_attention(int layer) { return layer % 3 == 2; }

/* A layer of Granite's hybrids. */
static void add_granite_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    int64_t n_value = s->n_v_head * s->d_head, channels = n_value + 2 * s->n_k_head * s->d_state;
    char name[64];
    add_norm(w, i, "attn_norm.weight", w->n_embd);
    add_norm(w, i, "ffn_norm.weight", w->n_embd);
    if (is_third_attention(i)) {
        add_attention(w, i);
    } else {
        add_matrix(w, i, "ssm_in.weight", w->n_embd, n_value + channels + s->n_v_head, 1);
        add_tensor(w, GGML_TYPE_F32, 4, channels, 0, 0.5, layer_name(name, i, "ssm_conv1d.weight"));
        add_bias(w, i, "ssm_conv1d.bias", channels);
        add_bias(w, i, "ssm_dt.bias", s->n_v_head);
        add_tensor(w, GGML_TYPE_F32, 1, s->n_v_head, -0.3, 0.1, layer_name(name, i, "ssm_a"));
        add_tensor(w, GGML_TYPE_F32, 1, s->n_v_head, 1, 0.2, layer_name(name, i, "ssm_d"));
        add_tensor(w, GGML_TYPE_F32, n_value / s->n_k_head, s->n_k_head, 1, 0.2,
                   layer_name(name, i, "ssm_norm.weight"));
        add_matrix(w, i, "ssm_out.weight", n_value, w->n_embd, 1);
    }
    add_ffn(w, i);
}

static void add_lfm2_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    char name[64];
    add_norm(w, i, "attn_norm.weight", w->n_embd);
    add_norm(w, i, "ffn_norm.weight", w->n_embd);
    if (!is_third_attention(i)) {
        add_tensor(w, GGML_TYPE_F32, s->n_conv, w->n_embd, 0, 0.5,
                   layer_name(name, i, "shortconv.conv.weight"));
        add_matrix(w, i, "shortconv.in_proj.weight", w->n_embd, 3 * w->n_embd, 1);
        add_matrix(w, i, "shortconv.out_proj.weight", w->n_embd, w->n_embd, 1);
    } else {
        add_attention(w, i);
    }
    add_ffn(w, i);
}

static void add_layer(struct model_writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    if (is_lfm2(w)) {
        add_lfm2_layer(w, i);
        return;
    }
    if (is_arch(w, "granitehybrid")) {
        add_granite_layer(w, i);
        return;
    }
    if (is_arch(w, "deepseek2")) {
        add_deepseek2_layer(w, i);
        return;
    }
    if (is_qwen35(w)) {
        add_qwen35_layer(w, i);
        return;
    }
    if (is_arch(w, "gemma4")) {
        add_gemma4_layer(w, i);
        return;
    }
    bool has_biases = is_arch(w, "bloom") || is_arch(w, "gpt2");
    bool pre_norms = !is_arch(w, "olmo2");
    if (pre_norms) add_norm(w, i, "attn_norm.weight", w->n_embd);
    if (has_layer_norms(w)) add_bias(w, i, "attn_norm.bias", w->n_embd);
    if (s->norm_2) {
        add_norm(w, i, "attn_norm_2.weight", w->n_embd);
        add_bias(w, i, "attn_norm_2.bias", w->n_embd);
    }
    add_attention(w, i);
    if (pre_norms && !is_arch(w, "falcon") && !s->parallel)
        add_norm(w, i, is_arch(w, "gpt-oss") ? "post_attention_norm.weight" : "ffn_norm.weight",
                 w->n_embd);
    if (has_biases || (is_arch(w, "stablelm") && !s->parallel))
        add_bias(w, i, "ffn_norm.bias", w->n_embd);
    add_ffn(w, i);
    if (has_biases) {
        add_bias(w, i, "ffn_up.bias", s->n_ff);
        add_bias(w, i, "ffn_down.bias", w->n_embd);
    }
    if (has_post_norms(w)) {
        add_norm(w, i, "post_attention_norm.weight", w->n_embd);
        add_norm(w, i, "post_ffw_norm.weight", w->n_embd);
    }
}

static void add_tensors(struct model_writer *w) {
    const struct tiny_spec *s = w->spec;
    double embd_sd = is_gemma(w) ? 1 / sqrt(w->n_embd) : 0.5;
    enum ggml_type table = s->mixed ? GGML_TYPE_Q6_K : s->type;
    add_tensor(w, table, w->n_embd, w->n_vocab, 0, embd_sd, "token_embd.weight");
    if (is_arch(w, "gpt2"))
        add_tensor(w, GGML_TYPE_F32, w->n_embd, s->n_ctx, 0, 0.3, "position_embd.weight");
    if (is_arch(w, "bloom")) {
        add_tensor(w, GGML_TYPE_F32, w->n_embd, 0, 1, 0.2, "token_embd_norm.weight");
        add_tensor(w, GGML_TYPE_F32, w->n_embd, 0, 0, 0.2, "token_embd_norm.bias");
    }
    if (s->rope_factors)
        add_tensor(w, GGML_TYPE_F32, s->d_head / 2, 0, 3, 0.5, "rope_freqs.weight");
    if (s->rope_scaling && strcmp(s->rope_scaling, "longrope") == 0) {
        add_tensor(w, GGML_TYPE_F32, n_rot(s) / 2, 0, 4, 1, "rope_factors_long.weight");
        add_tensor(w, GGML_TYPE_F32, n_rot(s) / 2, 0, 1.5, 0.2, "rope_factors_short.weight");
    }
    add_tensor(w, GGML_TYPE_F32, w->n_embd, 0, 1, 0.2,
               is_lfm2(w) ? "token_embd_norm.weight" : "output_norm.weight");
    if (has_layer_norms(w)) add_tensor(w, GGML_TYPE_F32, w->n_embd, 0, 0, 0.2, "output_norm.bias");
    if (s->untied)
        add_tensor(w, table, w->n_embd, w->n_vocab, 0, 2 / sqrt(w->n_embd), "output.weight");
    if (is_arch(w, "gemma4")) add_gemma4_tensors(w);
    for (int i = 0; i < s->n_layer; i++) add_layer(w, i);
}

/* ---- metadata ---- */

static const char *arch_key(char buf[96], const struct model_writer *w, const char *rest) {
    snprintf(buf, 96, "%s.%s", w->spec->arch, rest);
    return buf;
}

static void set_u32(struct model_writer *w, const char *rest, uint32_t value) {
    char key[96];
    gguf_set_val_u32(w->gguf, arch_key(key, w, rest), value);
}

static void set_f32(struct model_writer *w, const char *rest, float value) {
    char key[96];
    gguf_set_val_f32(w->gguf, arch_key(key, w, rest), value);
}

static void add_gemma4_metadata(struct model_writer *w) {
    const struct tiny_spec *s = w->spec;
    enum { MAX_LAYER = 16 };
    uint32_t n_head_kv[MAX_LAYER], n_ff[MAX_LAYER];
    bool swa[MAX_LAYER];
    char key[96];
    for (int i = 0; i < s->n_layer; i++) {
        swa[i] = is_gemma4_swa(i);
        n_head_kv[i] = (uint32_t)(swa[i] ? s->n_head_kv_swa : s->n_head_kv);
        n_ff[i] = (uint32_t)((1 + (i >= s->n_layer - s->n_shared)) * s->n_ff);
    }
    size_t n = (size_t)s->n_layer;
    gguf_set_arr_data(w->gguf, arch_key(key, w, "attention.head_count_kv"), GGUF_TYPE_UINT32,
                      n_head_kv, n);
    gguf_set_arr_data(w->gguf, arch_key(key, w, "feed_forward_length"), GGUF_TYPE_UINT32, n_ff, n);
    gguf_set_arr_data(w->gguf, arch_key(key, w, "attention.sliding_window_pattern"), GGUF_TYPE_BOOL,
                      swa, n);
    set_u32(w, "attention.key_length_swa", (uint32_t)s->d_head_swa);
    set_u32(w, "attention.value_length_swa", (uint32_t)s->d_head_swa);
    set_u32(w, "rope.dimension_count_swa", (uint32_t)s->d_head_swa);
    set_u32(w, "attention.shared_kv_layers", (uint32_t)s->n_shared);
    set_u32(w, "embedding_length_per_layer_input", (uint32_t)s->n_embd_layer);
    set_f32(w, "rope.freq_base_swa", 10000.0f);
}

/* Layers without attention have no KV heads. */
static void set_attention_layers(struct model_writer *w) {
    uint32_t n_head_kv[16];
    char key[96];
    for (int i = 0; i < w->spec->n_layer; i++)
        n_head_kv[i] = is_third_attention(i) ? (uint32_t)w->spec->n_head_kv : 0;
    gguf_set_arr_data(w->gguf, arch_key(key, w, "attention.head_count_kv"), GGUF_TYPE_UINT32,
                      n_head_kv, (size_t)w->spec->n_layer);
}

static void add_metadata(struct model_writer *w) {
    const struct tiny_spec *s = w->spec;
    char key[96];
    gguf_set_val_str(w->gguf, "general.architecture", s->arch);
    gguf_set_val_str(w->gguf, "general.name", s->name ? s->name : "tiny");
    set_u32(w, "vocab_size", (uint32_t)w->n_vocab);
    set_u32(w, "context_length", (uint32_t)s->n_ctx);
    set_u32(w, "embedding_length", (uint32_t)w->n_embd);
    set_u32(w, "block_count", (uint32_t)s->n_layer);
    if (!is_arch(w, "qwen35moe")) set_u32(w, "feed_forward_length", (uint32_t)s->n_ff);
    if (s->n_expert) {
        set_u32(w, "expert_count", (uint32_t)s->n_expert);
        set_u32(w, "expert_used_count", (uint32_t)s->n_expert_used);
        if (!is_arch(w, "llama")) set_u32(w, "expert_feed_forward_length", (uint32_t)s->n_ff);
        if (is_qwen35(w) || is_granite(w))
            set_u32(w, "expert_shared_feed_forward_length", (uint32_t)n_ff_shared(s));
    }
    set_u32(w, "attention.head_count", (uint32_t)s->n_head);
    set_u32(w, "attention.head_count_kv", (uint32_t)s->n_head_kv);
    set_u32(w, "attention.key_length", (uint32_t)(s->d_nope ? s->d_head + s->n_rot : s->d_head));
    set_u32(w, "attention.value_length", (uint32_t)s->d_head);
    set_f32(
        w, has_layer_norms(w) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        1e-5f);
    if (!is_arch(w, "bloom") && !is_arch(w, "gpt2") && !is_arch(w, "refact")) {
        set_u32(w, "rope.dimension_count", (uint32_t)n_rot(s));
        set_f32(w, "rope.freq_base", 50000.0f);
    }
    if (is_qwen35(w)) {
        const int32_t sections[4] = {s->d_head / 6 + 1, s->d_head / 6 + 1, s->d_head / 6 + 1, 0};
        gguf_set_arr_data(w->gguf, arch_key(key, w, "rope.dimension_sections"), GGUF_TYPE_INT32,
                          sections, 4);
        set_u32(w, "ssm.conv_kernel", 4);
        set_u32(w, "ssm.state_size", (uint32_t)s->d_state);
        set_u32(w, "ssm.group_count", (uint32_t)s->n_k_head);
        set_u32(w, "ssm.time_step_rank", (uint32_t)s->n_v_head);
        set_u32(w, "ssm.inner_size", (uint32_t)(s->n_v_head * s->d_state));
        set_u32(w, "full_attention_interval", 4);
        if (s->mtp) set_u32(w, "nextn_predict_layers", 1);
    }
    if (is_arch(w, "deepseek2")) {
        set_u32(w, "attention.kv_lora_rank", (uint32_t)s->d_head);
        set_u32(w, "attention.key_length_mla", (uint32_t)(s->d_nope + s->n_rot));
        set_u32(w, "attention.value_length_mla", (uint32_t)s->d_value);
        if (s->q_rank) set_u32(w, "attention.q_lora_rank", (uint32_t)s->q_rank);
        set_u32(w, "leading_dense_block_count", (uint32_t)s->n_dense);
        set_u32(w, "expert_shared_count", 2);
        if (s->scaled) set_f32(w, "rope.scaling.yarn_log_multiplier", 0.0707f);
        if (s->scaled) set_f32(w, "expert_weights_scale", 1.5f);
    }
    if (s->n_group) {
        set_u32(w, "expert_group_count", (uint32_t)s->n_group);
        set_u32(w, "expert_group_used_count", (uint32_t)s->n_group - 1);
        set_u32(w, "expert_gating_func", 2);
        gguf_set_val_bool(w->gguf, arch_key(key, w, "expert_weights_norm"), true);
    }
    if (is_arch(w, "gemma4")) add_gemma4_metadata(w);
    if (is_arch(w, "granitehybrid")) {
        set_attention_layers(w);
        set_u32(w, "ssm.conv_kernel", 4);
        set_u32(w, "ssm.state_size", (uint32_t)s->d_state);
        set_u32(w, "ssm.group_count", (uint32_t)s->n_k_head);
        set_u32(w, "ssm.time_step_rank", (uint32_t)s->n_v_head);
        set_u32(w, "ssm.inner_size", (uint32_t)(s->n_v_head * s->d_head));
        gguf_set_val_bool(w->gguf, arch_key(key, w, "rope.scaling.finetuned"), s->scaled);
    }
    if (is_lfm2(w)) {
        set_attention_layers(w);
        set_u32(w, "shortconv.l_cache", (uint32_t)s->n_conv);
        if (s->n_expert) {
            set_u32(w, "leading_dense_block_count", (uint32_t)s->n_dense);
            set_u32(w, "expert_gating_func", 2);
        }
    }
    if (s->n_swa) set_u32(w, "attention.sliding_window", (uint32_t)s->n_swa);
    if (s->attn_softcap > 0) set_f32(w, "attn_logit_softcapping", s->attn_softcap);
    if (s->softcap > 0) set_f32(w, "final_logit_softcapping", s->softcap);
    if (is_granite(w)) set_f32(w, "logit_scale", 3.0f);
    if (s->scaled && is_granite(w)) {
        set_f32(w, "embedding_scale", 2.0f);
        set_f32(w, "residual_scale", 0.4f);
        set_f32(w, "attention.scale", 0.2f);
    }
    if (s->scaled && is_arch(w, "mistral3")) {
        set_f32(w, "attention.temperature_scale", 0.3f);
        set_f32(w, "rope.scaling.yarn_beta_fast", 16.0f);
        set_f32(w, "rope.scaling.yarn_beta_slow", 2.0f);
        set_f32(w, "rope.scaling.yarn_log_multiplier", 0.7f);
    }
    if (s->rope_scaling) {
        if (strcmp(s->rope_scaling, "longrope") == 0) set_f32(w, "rope.scaling.attn_factor", 1.2f);
        gguf_set_val_str(w->gguf, arch_key(key, w, "rope.scaling.type"), s->rope_scaling);
        set_f32(w, "rope.scaling.factor", s->rope_factor);
        set_u32(w, "rope.scaling.original_context_length", (uint32_t)s->n_ctx / 4);
    }
}

/* ---- tokenizers ---- */

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6, MAX_TOKENS = 1 << 18 };

struct tokens {
    char store[MAX_TOKENS][16];
    const char *text[MAX_TOKENS];
    float score[MAX_TOKENS];
    int32_t type[MAX_TOKENS];
    int n;
};

__attribute__((format(printf, 4, 5))) static void add_token(struct tokens *t, int type, float score,
                                                            const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->store[t->n], sizeof t->store[t->n], format, args);
    va_end(args);
    t->text[t->n] = t->store[t->n];
    t->score[t->n] = score;
    t->type[t->n++] = type;
}

static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + "
                             "'\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                             "{% endif %}";

static void make_spm_tokens(struct tokens *t) {
    static const char *const words[] = {
        "\xe2\x96\x81",     "e", "h", "l", "o", "w", "r", "d", "he", "ll", "\xe2\x96\x81he",
        "\xe2\x96\x81hell", "or"};
    add_token(t, UNKNOWN, 0, "<unk>");
    add_token(t, CONTROL, 0, "<s>");
    add_token(t, CONTROL, 0, "</s>");
    for (int i = 0; i < 256; i++) add_token(t, BYTE, 0, "<0x%02X>", (unsigned)i);
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++)
        add_token(t, NORMAL, (float)-i, "%s", words[i]);
    add_token(t, CONTROL, 0, "<|im_start|>");
    add_token(t, CONTROL, 0, "<|im_end|>");
}

/* Byte-level BPE maps bytes that are not printable to code points from 256 on. */
static void make_bpe_tokens(struct tokens *t) {
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int cp = printable ? b : next++;
        if (cp < 128)
            add_token(t, NORMAL, 0, "%c", cp);
        else
            add_token(t, NORMAL, 0, "%c%c", 0xC0 | cp >> 6, 0x80 | (cp & 63));
    }
    add_token(t, NORMAL, 0, "he");
    add_token(t, NORMAL, 0, "ll");
    add_token(t, NORMAL, 0, "hell");
    add_token(t, CONTROL, 0, "<|endoftext|>");
    add_token(t, CONTROL, 0, "<|im_start|>");
    add_token(t, CONTROL, 0, "<|im_end|>");
}

static void write_tokenizer(struct model_writer *w, const struct tokens *t) {
    static const char *merges[] = {"h e", "l l", "he ll"};
    struct gguf_context *g = w->gguf;
    bool spm = w->spec->tokenizer == TINY_SPM;
    gguf_set_val_str(g, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)t->text, (size_t)t->n);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, t->type, (size_t)t->n);
    if (spm) {
        gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, t->score, (size_t)t->n);
        gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
        gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    } else {
        gguf_set_val_str(g, "tokenizer.ggml.pre", "qwen2");
        gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, 3);
        gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t)t->n - 1);
        gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", false);
    }
    gguf_set_val_str(g, "tokenizer.chat_template", chatml);
}

/* ---- files ---- */

bool tiny_gguf_write_edited(const char *path, const struct tiny_spec *spec,
                            void (*edit)(struct gguf_context *, void *), void *user) {
    struct model_writer w = {.spec = spec, .rng = spec->seed * 7919 + 1};
    struct tokens *tokens = calloc(1, sizeof *tokens);
    if (spec->tokenizer == TINY_SPM) make_spm_tokens(tokens);
    if (spec->tokenizer == TINY_BPE) make_bpe_tokens(tokens);
    while (spec->mib && tokens->n < spec->n_vocab && tokens->n < MAX_TOKENS)
        add_token(tokens, NORMAL, 0, "<unused%d>", tokens->n);
    w.n_embd = spec->n_embd ? spec->n_embd : spec->n_head * spec->d_head;
    w.n_vocab = tokens->n ? tokens->n : spec->n_vocab;
    w.gguf = gguf_init_empty();
    w.ctx = ggml_init((struct ggml_init_params){.mem_size = (spec->mib ? spec->mib : 128) << 20});
    add_metadata(&w);
    if (tokens->n)
        write_tokenizer(&w, tokens);
    else
        gguf_set_val_str(w.gguf, "tokenizer.ggml.model", "no_vocab");
    add_tensors(&w);
    if (edit) edit(w.gguf, user);
    bool ok = gguf_write_to_file(w.gguf, path, false);
    ggml_free(w.ctx);
    gguf_free(w.gguf);
    free(tokens);
    return ok;
}

bool tiny_gguf_write(const char *path, const struct tiny_spec *spec) {
    return tiny_gguf_write_edited(path, spec, NULL, NULL);
}
