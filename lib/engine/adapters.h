/* Adapters of a model's weights, from the tensors of a sidecar (sidecar/sidecar.h) to lib/model. */
#ifndef LK_ENGINE_ADAPTERS_H
#define LK_ENGINE_ADAPTERS_H

#include "model/net.h"
#include "sidecar/sidecar.h"

/* Inputs and outputs of a weight. */
int32_t lk_adapter_inputs(const struct lk_hparams *hp, enum lk_adapted which);
int32_t lk_adapter_outputs(const struct lk_hparams *hp, enum lk_adapted which);

/* Write the name of a weight's tensor, with part 'a' or 'b', to `name`. */
void lk_adapter_tensor_name(char name[64], int layer, enum lk_adapted which, char part);

/* The adapters [n_layer][LK_N_ADAPTED] of the sidecar; NULL if it has none. They borrow from it.
 * LK_E_FORMAT, with the tensor's name, if a tensor is not of this model, has another type or shape
 * than its weight requires, or lacks the other factor; LK_E_NOMEM. *out is owned:
 * lk_adapters_free. */
lk_status lk_adapters_new(struct lk_adapter **out, const struct lk_sidecar *sidecar,
                          const struct lk_hparams *hp, struct lk_ledger *ledger, lk_err *err);
void lk_adapters_free(struct lk_adapter *adapter, const struct lk_hparams *hp,
                      struct lk_ledger *ledger);

#endif
