/* What training writes: its unfinished state, and the sidecar of adapters.
 *
 * The state is in the file PATH.lora next to the sidecar PATH:
 * struct lk_lora_state, then 4 n_weight floats: the weights, Adam's two moments and the best
 * weights. It is replaced every half minute and when the training is cancelled, always between two
 * steps. */
#ifndef LK_TRAINING_LORA_STATE_H
#define LK_TRAINING_LORA_STATE_H

#include "training/lora_net.h"

struct lk_lora_state {
    uint64_t magic, identity; /* identity: hash of everything that determines the result */
    int64_t n_step;           /* steps done */
    int64_t best_step;        /* the step of the best weights */
    double best_kl;           /* their divergence on the validation sequences */
};

/* The path of the file. LK_E_ARG if it is too long. out: [LK_MAX_PATH] */
lk_status lk_lora_state_path(char *out, const char *path, lk_err *err);

/* Save the net's weights. The magic number of `state` is set here. */
lk_status lk_lora_state_save(const char *path, const struct lk_lora_state *state,
                             const struct lk_lora_net *net, lk_err *err);

/* Continue the training of state->identity: fill *state, and load the weights into the net. Both
 * stay unchanged if the file does not exist. LK_E_ARG if it belongs to another training,
 * LK_E_FORMAT if it is damaged, LK_E_IO if it cannot be read. */
lk_status lk_lora_state_load(const char *path, struct lk_lora_state *state, struct lk_lora_net *net,
                             lk_err *err);

/* Write the net's best adapters of layers [first, last] and the tensors of `other`, if it is not
 * NULL, to `path`, or leave what is there. B is multiplied by alpha / rank, and both factors are
 * rounded to f16. LK_E_IO, LK_E_NOMEM; LK_E_FORMAT if a number is too large for f16. */
lk_status lk_lora_sidecar_write(const struct lk_lora_net *net, int first, int last,
                                const struct lk_sidecar_info *info, const struct lk_sidecar *other,
                                const char *path, lk_err *err);

#endif
