/* The decode loop: sample a token, print it, evaluate it, maybe with drafts of what follows. */
#ifndef LK_LOWKEY_GENERATE_H
#define LK_LOWKEY_GENERATE_H

#include "base/buf.h"
#include "common.h"
#include "lowkey_draft.h"
#include "serve/thoughts.h"

#include <jansson.h>
#include <stdio.h>

enum stop_reason { STOP_ENDED, STOP_LENGTH, STOP_FULL, STOP_INTERRUPTED, STOP_FAILED };

/* "end", "length", "context full", "interrupted" or "error". */
const char *stop_name(enum stop_reason stop);

struct answer {
    struct lk_buf shown;          /* text of the tokens as whole UTF-8 characters */
    struct lk_buf thoughts, text; /* its parts, as of serve/thoughts.h */
    int32_t *tok;                 /* [n_tok] without the token that ended the answer */
    size_t n_tok;
    size_t n_eval; /* evaluated tokens; the last token may be sampled only */
    double seconds;
    enum stop_reason stop;
    lk_err err; /* set if stop is STOP_FAILED */
};

/* How an answer is printed. */
struct answer_output {
    FILE *out; /* receives the text as it is generated; NULL: nothing is printed */
    /* NULL: the text is printed as it is. Otherwise thoughts are dim, or between <think> and
     * </think> without color. */
    const struct lk_thought_form *form;
    const char *prompt,
        *before;             /* with a form: the prompt, and the text that is continued, or "" */
    bool constrained, color; /* as of lk_thoughts_init */
    int width;               /* columns to break lines at, between words; 0: none */
};

/* Continue `session` with at most max_tok tokens. `drafter`: the session's, or NULL. Free with
 * answer_free. */
struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       lk_drafter *drafter, size_t max_tok, const struct answer_output *output);
void answer_free(struct answer *answer);

/* ---- drafts: --draft, and the drafter that it selects ---- */

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
