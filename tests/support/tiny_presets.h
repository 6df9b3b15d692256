/* Descriptions of tiny models for tests. tiny_gguf.h writes them as files with random weights. */
#ifndef LK_TESTS_TINY_PRESETS_H
#define LK_TESTS_TINY_PRESETS_H

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>

enum tiny_tokenizer { TINY_NO_VOCAB, TINY_SPM, TINY_BPE };

struct tiny_spec {
    const char *name; /* of the preset */
    const char *arch;
    int n_layer, n_head, n_head_kv, d_head;
    int n_embd; /* 0: n_head * d_head */
    int n_ff;
    int n_vocab; /* ignored if there is a tokenizer, except for large models */
    int n_ctx;
    int n_rot;                   /* 0: d_head */
    int n_swa;                   /* gemma3: sliding window */
    int n_expert, n_expert_used; /* 0: no mixture; n_ff is then that of an expert */
    int d_nope, d_value,
        q_rank;  /* deepseek2: d_head is the rank of latents, n_rot the rotary part */
    int n_dense; /* deepseek2, lfm2moe: layers without experts */
    int n_group; /* of experts, all but one of which are used, chosen by sigmoids */
    int n_k_head, n_v_head, d_state; /* qwen35, qwen35moe, qwen3next, granitehybrid: recurrent
                                      * layers; values of the last have d_head channels */
    bool mtp;   /* qwen35, qwen35moe: the last layer predicts further tokens; it is skipped */
    int n_conv; /* lfm2, lfm2moe: tokens of a convolution */
    int n_head_kv_swa, d_head_swa; /* gemma4: heads of layers with a window */
    int n_shared, n_embd_layer;    /* gemma4: layers without K and V; embeddings of the layers */
    bool k_is_v;                   /* gemma4: no W_V in layers with full attention */
    enum ggml_type type;           /* of the matrices; 0 is f32 */
    bool mixed;                    /* as in Q4_K_M: embeddings, output and, in every second layer,
                                    * attn_v and ffn_down in Q6_K */
    bool untied;                   /* separate output matrix */
    bool biases;                   /* optional biases of attention */
    bool rope_factors;             /* frequency divisors of Llama 3 */
    bool norm_2;                   /* second norm of falcon */
    bool parallel;                 /* stablelm: norms of heads, and a parallel network */
    bool scaled;                   /* granite, mistral3, deepseek2: optional factors;
                                      * granitehybrid: RoPE too */
    bool fused;                    /* q, k, v in one matrix, if the family allows both; gemma4:
                                      * gate and up of the experts */
    const char *rope_scaling;      /* "linear", "yarn", "longrope" or NULL */
    float rope_factor, softcap, attn_softcap;
    enum tiny_tokenizer tokenizer;
    size_t mib; /* room for all tensors of a large model, whose rows repeat; 0: 128 */
    uint64_t seed;
};

/* All presets. The last entry has the name NULL. */
extern const struct tiny_spec tiny_presets[];

/* The preset with that name, or NULL. */
const struct tiny_spec *tiny_preset(const char *name);

#endif
