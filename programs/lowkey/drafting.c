/* Drafts: the option and the drafter. */
#include "drafting.h"

#include "output.h"

#include <stdio.h>
#include <string.h>

static bool is_draft_off(const char *draft) { return !draft || strcmp(draft, "none") == 0; }

bool is_draft_on(const char *draft) { return draft && strcmp(draft, "lookup") == 0; }

struct opt draft_option(const char **draft) {
    return (struct opt){0,
                        "draft",
                        "WHAT",
                        "lookup: draft what followed the last tokens earlier in the text, for "
                        "answers that repeat parts of it; none (default)",
                        OPT_TEXT,
                        draft,
                        .complete = "lookup none"};
}

int drafting_check(const char *draft) {
    if (is_draft_off(draft) || is_draft_on(draft)) return STATUS_OK;
    return print_error("--draft: expected lookup or none, not '%s'", draft);
}

int drafting_start(struct drafting *d, const char *draft, lk_session *session) {
    lk_err err = {0};
    lk_drafter_free(d->drafter);
    d->drafter = NULL;
    if (is_draft_off(draft)) return STATUS_OK;
    lk_status status = lk_drafter_new(&d->drafter, session, &err);
    if (status != LK_E_UNSUPPORTED) return status ? print_lk_error(&err) : STATUS_OK;
    print_error("%s", err.msg);
    return STATUS_OK;
}

void drafting_describe(const struct drafting *d, char *out, size_t cap) {
    lk_draft_stats s = lk_drafter_get_stats(d->drafter);
    char drafted[NUMBER_BUF], accepted[NUMBER_BUF];
    uint64_t n_tok = s.n_pass + s.n_accepted;
    snprintf(out, cap, "%s tokens, %s right, %.2f tokens per pass",
             format_count(drafted, s.n_drafted), format_count(accepted, s.n_accepted),
             s.n_pass ? (double)n_tok / (double)s.n_pass : 0.0);
}

json_t *drafting_json(const struct drafting *d) {
    if (!d->drafter) return NULL;
    lk_draft_stats s = lk_drafter_get_stats(d->drafter);
    return json_pack("{s:I s:I s:I}", "passes", (json_int_t)s.n_pass, "drafted",
                     (json_int_t)s.n_drafted, "accepted", (json_int_t)s.n_accepted);
}

void drafting_close(struct drafting *d) {
    lk_drafter_free(d->drafter);
    *d = (struct drafting){0};
}
