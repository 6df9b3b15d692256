/* The loop that makes an answer: choose a token, show it, evaluate it. */
#ifndef LK_LOWKEY_GENERATE_H
#define LK_LOWKEY_GENERATE_H

#include "lowkey.h"
#include "text.h"

enum stop_reason { STOP_ENDED, STOP_LENGTH, STOP_FULL, STOP_INTERRUPTED, STOP_FAILED };

/* "end", "length", "context full", "interrupted" or "error". */
const char *stop_name(enum stop_reason why);

struct answer {
    struct text raw;   /* the tokens' bytes as they are */
    struct text shown; /* whole UTF-8 characters */
    int32_t *tok;      /* without the token that ended it */
    size_t n_tok, n_eval;
    double seconds;
    enum stop_reason why;
    lk_err err; /* of STOP_FAILED */
};

/* Continue `session` by at most n_most tokens. `out` gets the text as it comes; NULL: nobody does.
 * Free with answer_free. */
struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       size_t n_most, FILE *out);
void answer_free(struct answer *answer);

/* Tokens per second; 0 where nothing was measured. */
double rate(size_t n, double seconds);

#endif
