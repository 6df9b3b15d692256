/* The replay of a prompt, for `keep N by replay` (recipe/policy.h).
 *
 * A prefill goes on after the prompt with chunks of LK_EVAL_MAX tokens, each of which follows the
 * prompt directly:
 *
 *     | a request to repeat the text | the last tokens before a part | the part |
 *
 * Together the parts are the prompt. Without a tokenizer there is no request. In each layer the
 * chunks attend to the prompt's exact rows, their largest weights are the scores of these rows, and
 * their own rows are forgotten. */
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
