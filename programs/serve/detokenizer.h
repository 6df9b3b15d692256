/* Incremental detokenizer: turns the bytes of tokens into text that can be sent to the client. The
 * text consists of whole UTF-8 characters, and never contains a stop string or a part of one.
 *
 *   token bytes -> [incomplete character held back] -> text -> [possible stop held back] -> delta
 */
#ifndef LK_SERVE_DETOKENIZER_H
#define LK_SERVE_DETOKENIZER_H

#include "base/buf.h"
#include "serve/tokens.h"

/* New text, and the tokens whose last character lies in it. */
struct lk_text_delta {
    char *text; /* owned, as is `lp`; NULL: no text */
    size_t len;
    struct lk_logprob *lp; /* [n_lp] */
    size_t n_lp;
};
void lk_text_delta_free(struct lk_text_delta *delta);

/* A log probability whose text is still held back. */
struct lk_pending_logprob {
    struct lk_logprob lp;
    size_t end; /* bytes of text up to the end of its token */
};

struct lk_detokenizer {
    const char *const *stop; /* [n_stop] stop strings, none empty; borrowed */
    size_t n_stop;
    char partial[4]; /* [n_partial] start of an incomplete character */
    size_t n_partial;
    struct lk_buf held;                 /* text that may be the start of a stop string */
    size_t n_emitted;                   /* bytes of text returned so far */
    size_t n_char;                      /* characters of text, returned or held */
    struct lk_pending_logprob *pending; /* [n_pending] */
    size_t n_pending, cap_pending;
    const char *found; /* the stop string that is complete; borrowed, or NULL */
    bool failed;       /* out of memory: text is missing */
};

/* Add the bytes of one token. `lp` may be NULL. Returns true if a stop string is complete: the
 * delta ends before it, and no token may follow. The caller owns the delta. */
bool lk_detokenizer_push(struct lk_detokenizer *detok, const char *bytes, size_t len,
                         const struct lk_logprob *lp, struct lk_text_delta *delta);

/* No more tokens follow: return the text that was held back. */
void lk_detokenizer_finish(struct lk_detokenizer *detok, struct lk_text_delta *delta);

void lk_detokenizer_free(struct lk_detokenizer *detok);

#endif
