/* Writes sidecars (format: sidecar.h). */
#ifndef LK_SIDECAR_SIDECAR_WRITE_H
#define LK_SIDECAR_SIDECAR_WRITE_H

#include "sidecar/sidecar.h"

#include <stdio.h>

/* A sidecar under construction. */
struct lk_sidecar_builder;

/* *out is owned: lk_sidecar_builder_free. */
lk_status lk_sidecar_builder_new(struct lk_sidecar_builder **out,
                                 const struct lk_sidecar_info *info, struct lk_ledger *ledger,
                                 lk_err *err);
void lk_sidecar_builder_free(struct lk_sidecar_builder *builder);

/* Add a tensor. `data` is borrowed until the sidecar is written. LK_E_ARG for an invalid name or
 * shape, or a name that the sidecar already has. */
lk_status lk_sidecar_builder_add(struct lk_sidecar_builder *builder,
                                 const struct lk_sidecar_tensor *tensor, lk_err *err);

/* Add the tensors of a layer's basis. They are borrowed in the same way. */
lk_status lk_sidecar_builder_add_basis(struct lk_sidecar_builder *builder, int layer,
                                       enum lk_basis_side side, const struct lk_basis *basis,
                                       lk_err *err);

/* Write the whole file. LK_E_IO. */
lk_status lk_sidecar_builder_write(const struct lk_sidecar_builder *builder, FILE *file,
                                   lk_err *err);

#endif
