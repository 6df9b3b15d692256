/* Generates an answer token by token. */
#include "generate.h"

#include "base/clock.h"
#include "interrupt.h"
#include "terminal_text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <unistd.h>

const char *stop_name(enum stop_reason stop) {
    static const char *const name[] = {"end", "length", "context full", "interrupted", "error"};
    return name[stop];
}

/* Append the token to the answer and print its text. */
static void add_token(const lk_model *model, struct answer *answer, int32_t tok,
                      struct utf8_stream *stream, FILE *out) {
    size_t n;
    const char *piece = lk_token_text(model, tok, &n);
    size_t start = answer->shown.len;
    answer->tok = xrealloc(answer->tok, (answer->n_tok + 1) * sizeof *answer->tok);
    answer->tok[answer->n_tok++] = tok;
    utf8_stream_push(stream, piece, n, &answer->shown);
    if (out && answer->shown.len > start) {
        fwrite(answer->shown.at + start, 1, answer->shown.len - start, out);
        fflush(out);
    }
}

/* Hold the start of a character at the end of the session, if an answer was cut there. */
static void hold_cut_character(const lk_model *model, const lk_session *session,
                               struct utf8_stream *stream) {
    enum { N_LAST = 4 }; /* as many bytes as a character has */
    struct lk_buf shown = {0};
    const int32_t *tok = lk_session_tokens(session);
    size_t n_tok = lk_session_n_tok(session), n;
    for (size_t i = n_tok > N_LAST ? n_tok - N_LAST : 0; i < n_tok; i++) {
        const char *piece = lk_token_text(model, tok[i], &n);
        utf8_stream_push(stream, piece, n, &shown);
    }
    lk_buf_free(&shown);
}

struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       size_t max_tok, FILE *out) {
    struct answer answer = {.stop = STOP_LENGTH};
    struct utf8_stream stream = {.plain = out && isatty(fileno(out))};
    lk_status status = LK_OK;
    double start_time = lk_now();
    xbuf_add(&answer.shown, "", 0);
    hold_cut_character(model, session, &stream);
    while (answer.n_tok < max_tok && !interrupted() && !(out && ferror(out))) {
        int32_t tok;
        status = lk_sampler_next(sampler, session, &tok, &answer.err);
        if (status) break;
        if (lk_token_ends(model, tok)) {
            answer.stop = STOP_ENDED;
            break;
        }
        add_token(model, &answer, tok, &stream, out);
        if (answer.n_tok == max_tok) break;
        status = lk_session_eval(session, &tok, 1, false, &answer.err);
        if (status) break;
        answer.n_eval++;
    }
    if (status)
        answer.stop = status == LK_E_FULL        ? STOP_FULL
                      : status == LK_E_CANCELLED ? STOP_INTERRUPTED
                                                 : STOP_FAILED;
    else if (interrupted() && answer.stop != STOP_ENDED)
        answer.stop = STOP_INTERRUPTED;
    answer.seconds = lk_now() - start_time;
    return answer;
}

void answer_free(struct answer *answer) {
    lk_buf_free(&answer->shown);
    free(answer->tok);
    *answer = (struct answer){0};
}
