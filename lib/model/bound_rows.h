/* Shape, type and data of a bound tensor: as in the file, or with adapters added. */
#ifndef LK_MODEL_BOUND_ROWS_H
#define LK_MODEL_BOUND_ROWS_H

#include "model/bind.h"

/* Data of tensor `id` in the mapped file. */
const void *lk_file_data(const struct lk_loader *ld, int64_t id);

/* In ggml's order, ne0 fastest. ne[2] is 1 unless the tensor holds experts. */
void lk_bound_shape(const struct lk_loader *ld, const struct lk_bind *bind, int64_t ne[3]);

/* The type of its data: that of the file, but Q8_0 for a quantized matrix with adapters. */
enum ggml_type lk_bound_type(const struct lk_loader *ld, const struct lk_bind *bind);

/* Bytes of the rows with adapters in lk_bound_type, less those of the same rows in the file. */
uint64_t lk_bound_adapter_bytes(const struct lk_loader *ld, const struct lk_bind *bind);

/* Write the tensor's data to `out`, as `type`: lk_bound_type, or f32. Pages of the file that are no
 * longer needed are dropped. LK_E_NOMEM; LK_E_FORMAT if an adapter makes a weight too large. */
lk_status lk_bound_copy(struct lk_loader *ld, const struct lk_bind *bind, enum ggml_type type,
                        void *out, lk_err *err);

#endif
