/* Writing trained adapters to a sidecar. */
#ifndef LK_TRAINING_LORA_SIDECAR_H
#define LK_TRAINING_LORA_SIDECAR_H

#include "training/lora_net.h"

/* Write the net's best adapters of layers [first, last] and the tensors of `other`, if it is not
 * NULL, to `path`, or leave what is there. B is multiplied by alpha / rank, and both factors are
 * rounded to f16. LK_E_IO, LK_E_NOMEM; LK_E_FORMAT if a number is too large for f16. */
lk_status lk_lora_sidecar_write(const struct lk_lora_net *net, int first, int last,
                                const struct lk_sidecar_info *info, const struct lk_sidecar *other,
                                const char *path, lk_err *err);

#endif
