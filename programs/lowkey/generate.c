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

/* An answer that is being generated. */
struct generation {
    const lk_model *model;
    lk_session *session;
    lk_sampler *sampler;
    lk_drafter *drafter; /* or NULL */
    size_t max_tok;
    FILE *out; /* or NULL */
    struct utf8_stream stream;
    struct answer *answer;
    lk_status status; /* the first failure */
};

/* Choose the token that follows the i-th one of the last pass, and add it to the answer. False if
 * the answer ends with it, or there was an error. */
static bool choose_token(struct generation *g, int32_t i, int32_t *tok) {
    g->status = lk_sampler_next(g->sampler, g->session, i, tok, &g->answer->err);
    if (g->status) return false;
    if (lk_token_ends(g->model, *tok)) {
        g->answer->stop = STOP_ENDED;
        return false;
    }
    add_token(g->model, g->answer, *tok, &g->stream, g->out);
    return g->answer->n_tok < g->max_tok;
}

/* Evaluate pass[0], and drafts after it. If memory is short, only pass[0]. Returns the number of
 * tokens evaluated; 0 after an error. */
static size_t evaluate_pass(struct generation *g, int32_t *pass) {
    size_t n = 1, max = g->max_tok - g->answer->n_tok, n_held = lk_session_n_tok(g->session);
    if (g->drafter) n = lk_drafter_next(g->drafter, pass, max, 0);
    g->status = lk_session_eval(g->session, pass, n, n > 1, &g->answer->err);
    if (g->status == LK_E_NOMEM && n > 1 && lk_session_n_tok(g->session) == n_held) {
        n = 1;
        g->status = lk_session_eval(g->session, pass, n, false, &g->answer->err);
    }
    return g->status ? 0 : n;
}

/* Decode one pass. pass[0] is in the answer, and is replaced by the token to decode next if a draft
 * was wrong; *chosen is then true. False if the answer ends. */
static bool decode_pass(struct generation *g, int32_t *pass, bool *chosen) {
    double start = lk_now();
    size_t n = evaluate_pass(g, pass), n_kept = 1;
    double seconds = lk_now() - start;
    int32_t tok = 0;
    bool go_on = n > 0;
    *chosen = false;
    while (go_on && n_kept < n && !*chosen) {
        go_on = choose_token(g, (int32_t)n_kept - 1, &tok);
        if (go_on && tok == pass[n_kept])
            n_kept++;
        else
            *chosen = true;
    }
    if (n == 0) return false;
    g->answer->n_eval += n_kept;
    if (g->drafter) lk_drafter_report(g->drafter, n, n_kept, 0, seconds);
    if (n_kept < n) {
        lk_status status = lk_session_truncate(
            g->session, lk_session_n_tok(g->session) - (n - n_kept), &g->answer->err);
        if (!g->status) g->status = status;
    }
    pass[0] = tok;
    return go_on && !g->status;
}

struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       lk_drafter *drafter, size_t max_tok, FILE *out) {
    struct answer answer = {.stop = STOP_LENGTH};
    struct generation g = {.model = model,
                           .session = session,
                           .sampler = sampler,
                           .drafter = drafter,
                           .max_tok = max_tok,
                           .out = out,
                           .stream = {.plain = out && isatty(fileno(out))},
                           .answer = &answer};
    int32_t pass[LK_DRAFT_MAX];
    bool chosen = false, go_on = max_tok > 0;
    double start_time = lk_now();
    xbuf_add(&answer.shown, "", 0);
    hold_cut_character(model, session, &g.stream);
    while (go_on && !interrupted() && !(out && ferror(out)))
        go_on = (chosen || choose_token(&g, -1, &pass[0])) && decode_pass(&g, pass, &chosen);
    if (g.status)
        answer.stop = g.status == LK_E_FULL        ? STOP_FULL
                      : g.status == LK_E_CANCELLED ? STOP_INTERRUPTED
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
