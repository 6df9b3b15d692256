/* The replay of a prompt, for `keep N by replay` (recipe/policy.h).
 *
 * After the prompt, a prefill evaluates chunks of up to LK_EVAL_MAX tokens. Each has the positions
 * right after the prompt:
 *
 *     | a request to repeat the text | the last tokens before a part | the part |
 *
 * The parts of all chunks make up the prompt. A model without a tokenizer gets no request. In each
 * layer the chunks attend to the prompt's exact rows. A row's score is the largest weight that it
 * gets, and the rows of the chunk are dropped. */
#ifndef LK_ENGINE_REPLAY_H
#define LK_ENGINE_REPLAY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct lk_model;
struct lk_recipe;

/* The number of tokens of the replay of n_tok tokens; 0 if the recipe needs none. LK_E_NOMEM. */
lk_status lk_replay_count(const struct lk_model *model, const struct lk_recipe *recipe,
                          size_t n_tok, size_t *n, lk_err *err);

/* Write the replay of tok [n_tok] to out [lk_replay_count]. LK_E_NOMEM. */
lk_status lk_replay_write(const struct lk_model *model, const int32_t *tok, size_t n_tok,
                          int32_t *out, lk_err *err);

#endif
