/* Builds items of a requested length. Long items consist of units (sentences, words, documents).
 * Their length is counted in tokens of the evaluated model. */
#ifndef LK_EVAL_FIT_LENGTH_H
#define LK_EVAL_FIT_LENGTH_H

#include "eval/arena.h"
#include "eval/item.h"

/* Build an item of n units. The same n gives the same item; more units give more tokens. */
typedef lk_status (*lk_make_item_fn)(void *user, size_t n_unit, struct lk_arena *arena,
                                     struct lk_item *item, lk_err *err);

struct lk_fit_opts {
    lk_make_item_fn make;
    void *user;
    size_t min_unit, max_unit; /* limits of the number of units */
    size_t max_tok;            /* of the item and its answer (n_generate) together */
};

/* Build the longest item that fits, to within two units. Its texts stay in `arena`. LK_E_ARG if
 * min_unit units do not fit. *n_unit and *n_tok (each may be NULL): its units, and its tokens
 * without the answer. */
lk_status lk_fit_length(const struct lk_fit_opts *fit, const struct lk_prompt_format *format,
                        struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                        lk_err *err);

#endif
