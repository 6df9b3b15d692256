/* Hyperparameters of a model, read from the keys of its GGUF file. */
#ifndef LK_MODEL_HPARAMS_H
#define LK_MODEL_HPARAMS_H

#include "base/err.h"
#include "base/ledger.h"

#include <stdint.h>

struct lk_gguf_reader;

struct lk_hparams {
    int32_t
        pooling; /* of embeddings, as in GGUF: 1 mean, 2 first token, 3 last; else unspecified */
    int32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx_train, n_rot;
    int32_t n_expert, n_expert_used, n_ff_expert; /* n_expert is 0: no mixture (experts.h) */
    int32_t rope_mode;                            /* mode argument of ggml_rope_ext; -1: no RoPE */
    float rope_base, rope_scale;                  /* theta, and 1/factor of linear scaling */
    float rope_base_swa, rope_scale_swa;          /* the same for sliding-window layers */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t n_ctx_orig; /* context length before RoPE scaling */
    float norm_eps;
    float attn_scale;     /* q.k is multiplied by it before the softmax */
    float alibi_max_bias; /* 0: no ALiBi */
    float embd_scale;     /* token embeddings are multiplied by it; usually 1 */
    float logit_softcap;  /* logits become cap * tanh(logits / cap); 0: no cap */

    /* Sliding-window attention: a query at position p sees positions > p - n_swa. */
    int32_t n_swa;   /* 0: no sliding-window layers */
    uint8_t *is_swa; /* [n_layer], allocated from the ledger */
};

/* Read the keys that all families share and set the defaults of the others. *hp starts zeroed.
 * Allocates hp->is_swa. Errors: LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_hparams_read(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                          struct lk_ledger *ledger, lk_err *err);

/* Read the RoPE keys and set rope_mode to `mode`. For families that use RoPE. */
lk_status lk_hparams_read_rope(struct lk_hparams *hp, const struct lk_gguf_reader *r, int mode,
                               lk_err *err);

/* Read norm_eps, the epsilon of RMS norm or of layer norm. */
lk_status lk_hparams_read_rms_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                  lk_err *err);
lk_status lk_hparams_read_layer_norm_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                         lk_err *err);

#endif
