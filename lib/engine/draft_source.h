/* What a drafter drafts with: a lookup in the text (draft_lookup.h), or a layer of the session's
 * model (draft_mtp.h). */
#ifndef LK_ENGINE_DRAFT_SOURCE_H
#define LK_ENGINE_DRAFT_SOURCE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lk_session;

/* The functions get the session, and the token `next` that will follow what it holds. */
struct lk_draft_source {
    /* The kind of drafts that there would be: 0 to LK_DRAFT_KINDS - 1 (draft_pace.h); -1: none. */
    int (*look)(void *self, const struct lk_session *session, int32_t next);
    /* Write up to n drafts to out. Returns their number. The session is then as before. */
    size_t (*draft)(void *self, struct lk_session *session, int32_t next, int32_t *out, size_t n);
    void (*free)(void *self);
    void *self;
    bool is_free; /* drafting takes no time */
};

#endif
