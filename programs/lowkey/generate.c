#include "generate.h"

#include "progress.h"
#include "say.h"

#include <stdlib.h>
#include <unistd.h>

const char *stop_name(enum stop_reason why) {
    static const char *const name[] = {"end", "length", "context full", "interrupted", "error"};
    return name[why];
}

double rate(size_t n, double seconds) { return n > 0 && seconds > 0.0 ? (double)n / seconds : 0.0; }

static void show(struct answer *answer, size_t from, FILE *out) {
    if (!out || answer->shown.len == from) return;
    fwrite(answer->shown.at + from, 1, answer->shown.len - from, out);
    fflush(out);
}

static void add_token(const lk_model *model, struct answer *answer, int32_t tok,
                      struct utf8_stream *stream, FILE *out) {
    char piece[512];
    size_t n = lk_token_text(model, tok, piece, sizeof piece);
    size_t from = answer->shown.len;
    if (n >= sizeof piece) n = sizeof piece - 1;
    answer->tok = must_grow(answer->tok, (answer->n_tok + 1) * sizeof *answer->tok);
    answer->tok[answer->n_tok++] = tok;
    text_add(&answer->raw, piece, n);
    utf8_push(stream, piece, n, &answer->shown);
    show(answer, from, out);
}

struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       size_t n_most, FILE *out) {
    struct answer answer = {.why = STOP_LENGTH};
    struct utf8_stream stream = {.plain = out && isatty(fileno(out))};
    lk_status status = LK_OK;
    double began = seconds_now();
    text_add(&answer.raw, "", 0);
    text_add(&answer.shown, "", 0);
    while (answer.n_tok < n_most && !interrupted() && !(out && ferror(out))) {
        int32_t tok;
        status = lk_sampler_next(sampler, session, &tok, &answer.err);
        if (status) break;
        if (lk_token_ends(model, tok)) {
            answer.why = STOP_ENDED;
            break;
        }
        add_token(model, &answer, tok, &stream, out);
        if (answer.n_tok == n_most) break;
        status = lk_session_eval(session, &tok, 1, false, &answer.err);
        if (status) break;
        answer.n_eval++;
    }
    if (status)
        answer.why = status == LK_E_FULL        ? STOP_FULL
                     : status == LK_E_CANCELLED ? STOP_INTERRUPTED
                                                : STOP_FAILED;
    else if (interrupted() && answer.why != STOP_ENDED)
        answer.why = STOP_INTERRUPTED;
    answer.seconds = seconds_now() - began;
    return answer;
}

void answer_free(struct answer *answer) {
    free(answer->raw.at);
    free(answer->shown.at);
    free(answer->tok);
    *answer = (struct answer){0};
}
