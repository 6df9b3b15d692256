/* The state of an unfinished training of adapters, in the file PATH.lora next to the sidecar PATH:
 * struct lk_lora_state, then 3 n_weight floats, the weights and Adam's two moments. It is replaced
 * every half minute and when the training is cancelled, always between two steps. */
#ifndef LK_TRAINING_LORA_STATE_H
#define LK_TRAINING_LORA_STATE_H

#include "training/lora_net.h"

struct lk_lora_state {
    uint64_t magic, identity; /* identity: hash of everything that determines the result */
    int64_t n_step;           /* steps done */
};

/* The path of the file. LK_E_ARG if it is too long. out: [LK_MAX_PATH] */
lk_status lk_lora_state_path(char *out, const char *path, lk_err *err);

lk_status lk_lora_state_save(const char *path, uint64_t identity, int64_t n_step,
                             const struct lk_lora_net *net, lk_err *err);

/* Steps done according to the file, whose weights are loaded into the net. 0 if it does not exist
 * or belongs to another training; the net is then unchanged. LK_E_FORMAT if it is damaged. */
lk_status lk_lora_state_load(const char *path, uint64_t identity, struct lk_lora_net *net,
                             int64_t *n_step, lk_err *err);

#endif
