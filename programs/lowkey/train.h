/* Arguments of lowkey train, and what it can train. */
#ifndef LK_LOWKEY_TRAIN_H
#define LK_LOWKEY_TRAIN_H

#include "common.h"

/* Not given: 0, NULL or an empty list; numbers for which 0 is a choice: -1. */
struct train_args {
    struct model_args model;
    struct string_list file;
    const char *output;
    struct number_list layers;
    bool markup;
    int64_t ctx, sequences, epochs, seed;
    double rate, valid;
    /* less */
    const char *policy, *from;
    struct number_list budget, prompt;
    int64_t features, hidden, share, queries;
    double dropout;
    bool plain;
    /* lora */
    struct string_list kv;
    int64_t rank, batch, layer_epochs;
    double alpha, end_rate;
};

/* Train on tok[0..n_tok), sequences of a->ctx tokens, and write a->output. Both print what they do
 * and return a STATUS_*. */
int train_less(const struct train_args *a, lk_model *model, const int32_t *tok, size_t n_tok);
int train_lora(const struct train_args *a, lk_model *model, const lk_recipe *recipe,
               const int32_t *tok, size_t n_tok);

#endif
