/* The decode loop: sample a token, print it, evaluate it, maybe with drafts of what follows. */
#ifndef LK_LOWKEY_GENERATE_H
#define LK_LOWKEY_GENERATE_H

#include "base/buf.h"
#include "lowkey_draft.h"

#include <stdio.h>

enum stop_reason { STOP_ENDED, STOP_LENGTH, STOP_FULL, STOP_INTERRUPTED, STOP_FAILED };

/* "end", "length", "context full", "interrupted" or "error". */
const char *stop_name(enum stop_reason stop);

struct answer {
    struct lk_buf shown; /* text of the tokens as whole UTF-8 characters */
    int32_t *tok;        /* [n_tok] without the token that ended the answer */
    size_t n_tok;
    size_t n_eval; /* evaluated tokens; the last token may be sampled only */
    double seconds;
    enum stop_reason stop;
    lk_err err; /* set if stop is STOP_FAILED */
};

/* Continue `session` by at most max_tok tokens. `drafter`: the session's, or NULL. `out` receives
 * the text as it is generated; may be NULL. Free with answer_free. */
struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       lk_drafter *drafter, size_t max_tok, FILE *out);
void answer_free(struct answer *answer);

#endif
