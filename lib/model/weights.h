/* Memory of a model's weights: mapped from the file, repacked for ggml's CPU kernels, or
 * dequantized to f32. */
#ifndef LK_MODEL_WEIGHTS_H
#define LK_MODEL_WEIGHTS_H

#include "model/bind.h"

struct lk_weights_map;

/* Load all bound tensors and set their pointers. Takes over ld->file on success. With the option
 * header_only, tensors get types and shapes but no data.
 * *n_param: values in all tensors; *weight_bytes: memory entered in the ledger as weights, without
 * the mapped file; *device_bytes: the same in the device's ledger. With header_only, what would be
 * entered. *out is owned: lk_weights_free.
 * Errors: LK_E_NOMEM, LK_E_UNSUPPORTED, LK_E_CANCELLED (by the progress callback). */
lk_status lk_weights_load(struct lk_weights_map **out, struct lk_loader *ld, uint64_t *n_param,
                          uint64_t *weight_bytes, uint64_t *device_bytes, lk_err *err);
/* The buffer type that has matrices of Q4_K in the layout LK_Q4_K_BY_8 (kernels/products.h), or
 * NULL. */
ggml_backend_buffer_type_t lk_weights_repacked(const struct lk_weights_map *map);

/* device: as when they were loaded. */
void lk_weights_free(struct lk_weights_map *map, struct lk_ggml_device *device,
                     struct lk_ledger *ledger);

/* ---- a bound tensor: as in the file, or with adapters added ---- */

/* Its shape in ggml's order, ne0 fastest. ne[2] is 1 unless the tensor holds experts. */
void lk_bound_shape(const struct lk_loader *ld, const struct lk_bind *bind, int64_t ne[3]);

/* Its type: that of the file, but Q8_0 for a quantized matrix with adapters. */
enum ggml_type lk_bound_type(const struct lk_loader *ld, const struct lk_bind *bind);

/* Bytes of the rows with adapters in lk_bound_type, less those of the same rows in the file. */
uint64_t lk_bound_adapter_bytes(const struct lk_loader *ld, const struct lk_bind *bind);

#endif
