/* Drafts: --draft, and the drafter that it selects. */
#ifndef LK_LOWKEY_DRAFTING_H
#define LK_LOWKEY_DRAFTING_H

#include "common.h"
#include "lowkey_draft.h"

#include <jansson.h>

struct drafting {
    lk_drafter *drafter; /* NULL: no drafts */
};

/* The option --draft, whose argument is stored in *draft. */
struct opt draft_option(const char **draft);

/* Print an error if --draft has another argument than the option knows. */
int drafting_check(const char *draft);

/* True for --draft lookup. */
bool is_draft_on(const char *draft);

/* Make the drafter for a session; the one of an earlier session is freed. If the recipe allows no
 * drafts, print why, and go on without them. */
int drafting_start(struct drafting *drafting, const char *draft, lk_session *session);

/* For example "120 tokens, 80 right, 2.10 tokens per pass". */
void drafting_describe(const struct drafting *drafting, char *out, size_t cap);

/* The same as JSON; NULL without drafts. */
json_t *drafting_json(const struct drafting *drafting);

void drafting_close(struct drafting *drafting);

#endif
