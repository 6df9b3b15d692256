/* Hyperparameters of a model, read from the keys of its GGUF file. */
#ifndef LK_MODEL_HPARAMS_H
#define LK_MODEL_HPARAMS_H

#include "base/err.h"
#include "base/ledger.h"
#include "kernels/recurrence.h"

#include <stdbool.h>
#include <stdint.h>

struct lk_gguf_reader;

/* Arguments of ggml_rope_ext for one kind of layers. */
struct lk_rope_args {
    float base, scale; /* theta, and 1/factor of linear scaling */
    float ext_factor, attn_factor;
};

enum { LK_MAX_LAYERS = 512 };

/* The KV heads of a layer, and the channels of each head. */
struct lk_layer_heads {
    int32_t n_kv, d;
};

/* What an expert makes of its gate and up. */
enum lk_expert_act {
    LK_EXPERT_SWIGLU,
    LK_EXPERT_GEGLU,
    LK_EXPERT_SWIGLU_CLAMPED /* up is limited, and gate from above (gpt-oss) */
};

struct lk_hparams {
    int32_t
        pooling; /* of embeddings, as in GGUF: 1 mean, 2 first token, 3 last; else unspecified */
    int32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx_train, n_rot;
    int32_t n_expert, n_expert_used, n_ff_expert; /* n_expert is 0: no mixture (experts.h) */
    int32_t n_dense;                              /* the first layers, which have no experts */
    int32_t n_ff_shared;                          /* of the shared expert */
    int32_t n_group, n_group_used;                /* of experts; n_group <= 1: none */
    bool expert_sigmoid; /* probabilities are sigmoids of the logits, not a softmax */
    bool expert_norm;    /* weights are scaled to add up to 1, */
    float expert_scale;  /* then by this */
    enum lk_expert_act expert_act;
    int32_t rope_mode;           /* mode argument of ggml_rope_ext; -1: no RoPE */
    struct lk_rope_args rope[2]; /* of layers with full attention, and of those with a window */
    float yarn_beta_fast, yarn_beta_slow;
    int32_t n_ctx_orig; /* context length before RoPE scaling */
    int32_t n_ctx_rope; /* RoPE is that of contexts of at most so many tokens; 0: of any */
    bool layer_norms;   /* norms subtract the mean */
    float norm_eps;
    float attn_scale;     /* q.k is multiplied by it before the softmax */
    float attn_temp;      /* q at position p is multiplied by 1 + attn_temp log(1 + p / n_ctx_orig),
                           * with an integer division */
    float attn_softcap;   /* scores become cap * tanh(score / cap); 0: no cap */
    float alibi_max_bias; /* 0: no ALiBi */
    float embd_scale;     /* token embeddings are multiplied by it; usually 1 */
    float residual_scale; /* so is what a layer adds to the residual stream, */
    float logit_scale;    /* and the logits */
    float logit_softcap;  /* logits become cap * tanh(logits / cap); 0: no cap */

    /* Latent attention (MLA): there is one KV head. V holds a latent of d_head channels for each
     * token, and K d_rope channels after RoPE. A row of q has d_head channels that are multiplied
     * with the latent, followed by d_rope for K, and the latents are summed as values. */
    int32_t d_rope;          /* 0: ordinary attention */
    int32_t d_nope, d_value; /* channels of a head of q without RoPE, and of its output, outside */

    /* Sliding-window attention: a query at position p sees positions > p - n_swa. */
    int32_t n_swa; /* 0: no sliding-window layers */
    /* Of these layers; the same as n_head_kv, d_head and n_rot, except in Gemma 4. */
    int32_t n_head_kv_swa, d_head_swa, n_rot_swa;
    uint8_t *is_swa;  /* [n_layer + n_next], allocated from the ledger */
    uint8_t *no_rope; /* [n_layer + n_next] layers whose q and k are not rotated, likewise */

    /* Hybrids: layers whose attention is a recurrence with a state of constant size. */
    int32_t n_recurrent;       /* number of these layers */
    int32_t held_recurrent[2]; /* [first, end) of them: whose states are held here */
    uint8_t *is_recurrent;     /* [n_layer + n_next], allocated from the ledger */
    int32_t *index; /* [n_layer + n_next] of a layer among those of its kind, likewise; of a layer
                     * that has no K and V, that of the layer it attends to */
    struct lk_recurrence_shape recurrence; /* of their states, if n_recurrent > 0 */
    int32_t n_next; /* layers after n_layer in the file, which predict further tokens: skipped */

    /* Gemma 4. The last n_shared layers have no K and V: they attend to those of the last layer
     * before them that has a window, or has none, as they do. */
    int32_t n_shared;
    int32_t n_embd_layer; /* channels of the embeddings that each layer adds; 0: none */
    bool norms_v;         /* V is normed after its projection */
};

/* Channels of a head's row of queries. */
static inline int32_t lk_hparams_d_query(const struct lk_hparams *hp) {
    return hp->d_head + hp->d_rope;
}

/* The number of layers that have a cache: those with K and V of their own. */
static inline int32_t lk_hparams_cached(const struct lk_hparams *hp) {
    return hp->n_layer - hp->n_recurrent - hp->n_shared;
}

/* Does a layer attend to K and V of an earlier one? */
static inline bool lk_hparams_shares(const struct lk_hparams *hp, int layer) {
    return layer < hp->n_layer && layer >= hp->n_layer - hp->n_shared;
}

static inline struct lk_layer_heads lk_hparams_heads(const struct lk_hparams *hp, int layer) {
    return hp->is_swa[layer] ? (struct lk_layer_heads){hp->n_head_kv_swa, hp->d_head_swa}
                             : (struct lk_layer_heads){hp->n_head_kv, hp->d_head};
}

/* Are there heads of two sizes, or two numbers of KV heads? */
static inline bool lk_hparams_mixed(const struct lk_hparams *hp) {
    return hp->n_head_kv_swa != hp->n_head_kv || hp->d_head_swa != hp->d_head;
}

/* Channels of K, or of V, of the widest layer. */
static inline int32_t lk_hparams_max_width(const struct lk_hparams *hp) {
    int32_t full = hp->n_head_kv * hp->d_head, swa = hp->n_head_kv_swa * hp->d_head_swa;
    return full > swa ? full : swa;
}

/* Read the keys that all families share and set the defaults of the others. *hp starts zeroed.
 * has_latents: the model has latent attention. vary: the number of KV heads and the width of the
 * feed-forward network may differ between layers; n_head_kv and n_ff are then the largest.
 * Allocates the arrays of hp, also after a failure: lk_hparams_free. Errors: LK_E_FORMAT,
 * LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_hparams_read(struct lk_hparams *hp, const struct lk_gguf_reader *r, bool has_latents,
                          bool vary, struct lk_ledger *ledger, lk_err *err);
void lk_hparams_free(struct lk_hparams *hp, struct lk_ledger *ledger);

/* Number the layers of each kind, once is_recurrent, is_swa and n_shared are set. */
void lk_hparams_number_layers(struct lk_hparams *hp);

/* Read the RoPE keys and set rope_mode to `mode`. For families that use RoPE. */
lk_status lk_hparams_read_rope(struct lk_hparams *hp, const struct lk_gguf_reader *r, int mode,
                               lk_err *err);

/* Read the sliding window, which layers have it, and their RoPE base; after lk_hparams_read_rope.
 * Without keys: hp->n_swa, with full attention in the last of each `period` layers. */
lk_status lk_hparams_read_window(struct lk_hparams *hp, const struct lk_gguf_reader *r, int period,
                                 lk_err *err);

/* Read a factor that must be positive. If the key is absent or 0, *out keeps its value. */
lk_status lk_hparams_read_scale(const struct lk_gguf_reader *r, const char *key, float *out,
                                lk_err *err);

/* Read norm_eps, the epsilon of RMS norm or of layer norm. */
lk_status lk_hparams_read_rms_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                  lk_err *err);
lk_status lk_hparams_read_layer_norm_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                         lk_err *err);

#endif
