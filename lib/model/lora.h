/* Adapters (LoRA) of other programs, in llama.cpp's form: a GGUF file with general.type "adapter",
 * adapter.type "lora", adapter.lora.alpha, and two tensors for each weight that it changes,
 * blk.N.NAME.weight.lora_a [rank][n_in] and lora_b [n_out][rank] of any type. They are merged when
 * the weights are loaded (model/adapter.h): W' = W + scale * alpha / rank * B A. */
#ifndef LK_MODEL_LORA_H
#define LK_MODEL_LORA_H

#include "model/net.h"

struct lk_lora {
    struct lk_adapter *adapter; /* [n_layer][LK_N_ADAPTED] */
    struct lk_adapter *ffn;     /* [n_layer][LK_N_FFN_ADAPTED] */
    uint64_t fingerprint;       /* of factors and scale */
    uint16_t *data;             /* what the adapters point to */
    size_t n_data, n_layer;
    struct lk_ledger *ledger;
};

/* Read the file at `path` for a model with these parameters. The caller owns *out: lk_lora_free.
 * LK_E_IO, LK_E_NOMEM; LK_E_FORMAT: it is another kind of file, or its tensors do not have the
 * shapes of this model; LK_E_UNSUPPORTED: it changes a weight that adapters cannot change here. */
lk_status lk_lora_open(struct lk_lora **out, const char *path, float scale,
                       const struct lk_hparams *hp, struct lk_ledger *ledger, lk_err *err);
void lk_lora_free(struct lk_lora *lora); /* NULL is allowed */

#endif
