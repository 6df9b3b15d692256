/* Evaluation of tokens of one or several sessions in one pass. With several stages, the pass goes
 * through them in groups of sessions (microbatch.h), which the stages compute at the same time. */
#ifndef LK_ENGINE_BATCH_H
#define LK_ENGINE_BATCH_H

#include "engine/session_state.h"

struct lk_batch {
    struct lk_ledger ledger; /* scratch */
    struct lk_pass pass;
};

/* lk_batch_eval in the memory of `pass`, for items that may be evaluated together and have no error
 * yet. */
lk_status lk_eval_items(struct lk_pass *pass, lk_batch_item *item, size_t n, lk_err *err);

/* The steps of lk_eval_items on this rank (chunks.c). Prepare: memory of the items, with errors in
 * item[i].err, and the graph; items must stay until the pass is computed. Start: the graph's
 * inputs, and what else precedes its run. Add tokens: after the run, to the session of an item. */
lk_status lk_items_prepare(struct lk_pass *pass, lk_batch_item *item, size_t n, lk_err *err);
void lk_items_start(struct lk_pass *pass);
void lk_item_add_tokens(const lk_batch_item *item, bool drafts);

#endif
