/* Making an item as long as it was asked for. Long items are made of units (sentences, words,
 * documents), and their length is counted in the tokens of the model that reads them. */
#ifndef LK_EVAL_FIT_LENGTH_H
#define LK_EVAL_FIT_LENGTH_H

#include "eval/arena.h"
#include "eval/item.h"

/* Write an item of n units. The same n gives the same item; more units give more tokens. */
typedef lk_status (*lk_item_maker)(void *user, size_t n_unit, struct lk_arena *arena,
                                   struct lk_item *item, lk_err *err);

struct lk_fit {
    lk_item_maker make;
    void *user;
    size_t n_least, n_most; /* units that make sense */
    size_t n_tok;           /* of the item and its answer (n_generate) together, at most */
};

/* Make the longest item that fits, to within two units; its texts stay in `arena`. LK_E_ARG where
 * n_least units do not fit. *n_unit and *n_tok (may be NULL): what it came to, the answer not counted. */
lk_status lk_fit_item(const struct lk_fit *fit, const struct lk_reader *reader,
                      struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                      lk_err *err);

#endif
