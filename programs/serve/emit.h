/* From tokens' bytes to text that may be shown: whole characters only, and nothing that may yet turn
 * out to be a stop string.
 *
 *   token bytes -> [cut character held] -> text -> [possible stop held] -> piece
 */
#ifndef LK_SERVE_EMIT_H
#define LK_SERVE_EMIT_H

#include "base/buf.h"

#include <stdint.h>

enum { LK_MAX_TOP = 20 };

/* How probable a chosen token was, and the most probable ones instead. Natural logarithms. */
struct lk_logprob {
    int32_t tok;
    float logprob;
    size_t at; /* characters of text before it; set when it is emitted */
    int n_top;
    struct {
        int32_t tok;
        float logprob;
    } top[LK_MAX_TOP];
};

/* The i-th token's share of logits [n_vocab] and its n_top most probable rivals. */
struct lk_logprob lk_logprob_of(const float *logits, int32_t n_vocab, int32_t tok, int n_top);

/* Text to show, with the tokens whose last character lies in it. */
struct lk_piece {
    char *text; /* owned, as is `lp`; NULL: no text */
    size_t len;
    struct lk_logprob *lp; /* [n_lp] */
    size_t n_lp;
};
void lk_piece_free(struct lk_piece *piece);

struct lk_emit {
    const char *const *stop; /* [n_stop], none empty; borrowed */
    size_t n_stop;
    char cut[4]; /* the beginning of a character */
    size_t n_cut;
    struct lk_buf held; /* text that may begin a stop string */
    size_t shown;       /* bytes of text given out */
    size_t n_char;      /* characters of text, given out or held */
    struct {
        struct lk_logprob lp;
        size_t end; /* bytes of text up to this token's end */
    } * wait;       /* [n_wait] tokens whose text is held */
    size_t n_wait, cap_wait;
    bool failed; /* no memory: text is missing */
};

/* Take a token's bytes. `lp` may be NULL. True when a stop string is complete: the piece ends before it
 * and nothing may follow. The piece is the caller's. */
bool lk_emit_push(struct lk_emit *emit, const char *bytes, size_t len, const struct lk_logprob *lp,
                  struct lk_piece *piece);

/* No more tokens will come: what was held is text after all. */
void lk_emit_finish(struct lk_emit *emit, struct lk_piece *piece);

void lk_emit_free(struct lk_emit *emit);

#endif
