/* Memory of a model's weights: mapped from the file, repacked for ggml's CPU kernels, or
 * dequantized to f32. */
#ifndef LK_MODEL_WEIGHTS_H
#define LK_MODEL_WEIGHTS_H

#include "model/bind.h"

struct lk_weights_map;

/* Load all bound tensors and set their pointers. Takes over ld->file on success. With the option
 * header_only, tensors get types and shapes but no data.
 * *n_param: values in all tensors; *weight_bytes: memory entered in the ledger as weights, without
 * the mapped file; with header_only, what would be entered. *out is owned: lk_weights_free.
 * Errors: LK_E_NOMEM, LK_E_UNSUPPORTED, LK_E_CANCELLED (by the progress callback). */
lk_status lk_weights_load(struct lk_weights_map **out, struct lk_loader *ld, uint64_t *n_param,
                          uint64_t *weight_bytes, lk_err *err);
void lk_weights_free(struct lk_weights_map *map, struct lk_ledger *ledger);

#endif
