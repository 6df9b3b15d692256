/* Joins the trained layers into one sidecar. */
#ifndef LK_TRAINING_LESS_SIDECAR_H
#define LK_TRAINING_LESS_SIDECAR_H

#include "sidecar/sidecar.h"
#include "training/less_checkpoint.h"

/* Write the best weights of all layers, loaded one by one through `c`, to c->path. The net's
 * weights are overwritten. What the model's own sidecar has besides networks (bases) is copied;
 * `other` is NULL if it has none. LK_E_IO if a layer's file is missing. */
lk_status lk_less_sidecar_write(struct lk_less_checkpoint *c, const struct lk_sidecar_info *info,
                                const struct lk_sidecar *other, struct lk_ledger *ledger,
                                lk_err *err);

#endif
