/* Drafts from the text: the tokens that followed the last n-gram when it occurred before ("prompt
 * lookup decoding", Saxena 2023). The pace is kept for each length of the match. They cost
 * nothing. */
#ifndef LK_ENGINE_DRAFT_LOOKUP_H
#define LK_ENGINE_DRAFT_LOOKUP_H

#include "engine/draft_source.h"

/* LK_E_NOMEM. */
lk_status lk_draft_lookup_open(struct lk_draft_source *out, const struct lk_session *session,
                               lk_err *err);

#endif
