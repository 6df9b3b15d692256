/* The evaluated model, opened by lowkey and, if a backend needs it, also by libllama. Both use the
 * same weights: with LK_WEIGHTS_F32, libllama opens a temporary copy of the file whose matrices are
 * f32. */
#ifndef LK_EVAL_MODEL_PAIR_H
#define LK_EVAL_MODEL_PAIR_H

#include "base/err.h"

#include <stdbool.h>

struct llama_model;

struct lk_model_pair {
    const char *path;          /* borrowed; set by the caller, like opts */
    lk_model_opts opts;        /* of lowkey's model */
    lk_model *lowkey;          /* NULL until lk_model_pair_open */
    struct llama_model *llama; /* NULL until lk_model_pair_llama */
    bool tokens_only; /* lowkey's model serves for its vocabulary only: save memory for weights */
};

/* Open pair->lowkey if it is not open. Free with lk_model_pair_close. */
lk_status lk_model_pair_open(struct lk_model_pair *pair, lk_err *err);

/* libllama's model of the same file and weights, opened by the first call; borrowed from `pair`. */
lk_status lk_model_pair_llama(struct lk_model_pair *pair, struct llama_model **out, lk_err *err);

/* Close both models. */
void lk_model_pair_close(struct lk_model_pair *pair);

#endif
