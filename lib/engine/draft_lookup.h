/* Drafts from the text: the tokens that followed the last n-gram when it occurred before ("prompt
 * lookup decoding", Saxena 2023). The pace is kept for each length of the match. They cost
 * nothing. */
#ifndef LK_ENGINE_DRAFT_LOOKUP_H
#define LK_ENGINE_DRAFT_LOOKUP_H

#include "base/err.h"
#include "engine/ngram_index.h"

struct lk_session;

struct lk_draft_lookup {
    struct lk_ngram_index index;
    uint64_t n_cut; /* of the session when its tokens were added */
};

/* Memory is counted by the session's model. LK_E_NOMEM. */
lk_status lk_draft_lookup_init(struct lk_draft_lookup *d, const struct lk_session *session,
                               lk_err *err);
void lk_draft_lookup_free(struct lk_draft_lookup *d, struct lk_ledger *ledger);

/* The kind of drafts (draft_pace.h) after the session's tokens and `next`: 0 to 4 if 2, 3, 4, 8 or
 * 16 tokens, or more, are the same as before; -1: none. Then the n drafts; returns their number. */
int lk_draft_lookup_kind(struct lk_draft_lookup *d, const struct lk_session *session, int32_t next);
size_t lk_draft_lookup_find(const struct lk_draft_lookup *d, const struct lk_session *session,
                            int32_t next, int32_t *out, size_t n);

#endif
