/* Generates an answer token by token. */
#include "generate.h"

#include "base/clock.h"
#include "interrupt.h"
#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *stop_name(enum stop_reason stop) {
    static const char *const name[] = {"end", "length", "context full", "interrupted", "error"};
    return name[stop];
}

/* The parts of the answer, and which is being printed. */
struct printer {
    const struct answer_output *output;
    struct lk_thoughts split;
    struct word_wrap wrap;
    bool is_inside; /* of thoughts */
};

static void start_printer(struct printer *p, const struct answer_output *output) {
    struct lk_buf thoughts = {0}, text = {0};
    *p = (struct printer){.output = output};
    p->wrap = word_wrap_start(output->out, output->width);
    lk_thoughts_init(&p->split, output->form, output->prompt ? output->prompt : "",
                     output->constrained);
    if (output->before)
        lk_thoughts_push(&p->split, output->before, strlen(output->before), &thoughts, &text);
    lk_buf_free(&thoughts);
    lk_buf_free(&text);
}

/* Print a part, and what separates it from the other one. */
static void print_part(struct printer *p, bool is_inside, const struct lk_buf *part, size_t from) {
    FILE *out = p->output->out;
    bool color = p->output->color;
    if (!out || part->len == from) return;
    if (is_inside != p->is_inside) {
        word_wrap_flush(&p->wrap);
        fputs(is_inside ? color ? "\x1b[2m" : "<think>\n"
              : color   ? "\x1b[0m\n\n"
                        : "\n</think>\n\n",
              out);
        p->wrap = word_wrap_start(out, p->output->width);
    }
    p->is_inside = is_inside;
    word_wrap_print(&p->wrap, part->at + from, part->len - from);
}

/* Add text to the parts and print it. NULL: the answer is complete. */
static void print_text(struct printer *p, struct answer *answer, const char *text, size_t len) {
    size_t n_thoughts = answer->thoughts.len, n_text = answer->text.len;
    if (text)
        lk_thoughts_push(&p->split, text, len, &answer->thoughts, &answer->text);
    else
        lk_thoughts_finish(&p->split, &answer->thoughts, &answer->text);
    xbuf_add(&answer->thoughts, "", 0); /* exits if memory ran out */
    xbuf_add(&answer->text, "", 0);
    print_part(p, true, &answer->thoughts, n_thoughts);
    print_part(p, false, &answer->text, n_text);
    if (!text && p->output->out) word_wrap_flush(&p->wrap);
    if (!text && p->is_inside && p->output->out)
        fputs(p->output->color ? "\x1b[0m" : "\n</think>", p->output->out);
    if (p->output->out) fflush(p->output->out);
}

/* Append the token to the answer and print its text. */
static void add_token(const lk_model *model, struct answer *answer, int32_t tok,
                      struct utf8_stream *stream, struct printer *printer) {
    size_t n;
    const char *piece = lk_token_text(model, tok, &n);
    size_t start = answer->shown.len;
    answer->tok = xrealloc(answer->tok, (answer->n_tok + 1) * sizeof *answer->tok);
    answer->tok[answer->n_tok++] = tok;
    utf8_stream_push(stream, piece, n, &answer->shown);
    if (answer->shown.len > start)
        print_text(printer, answer, answer->shown.at + start, answer->shown.len - start);
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
    struct printer printer;
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
    add_token(g->model, g->answer, *tok, &g->stream, &g->printer);
    return g->answer->n_tok < g->max_tok;
}

/* Evaluate pass[0], and drafts after it. If memory is short, only pass[0]. Returns the
 * number of tokens evaluated; 0 after an error. */
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
    if (n_kept < n) {
        start = lk_now();
        lk_status status = lk_session_truncate(
            g->session, lk_session_n_tok(g->session) - (n - n_kept), &g->answer->err);
        if (!g->status) g->status = status;
        seconds += lk_now() - start;
    }
    if (g->drafter) lk_drafter_report(g->drafter, n, n_kept, 0, seconds);
    pass[0] = tok;
    return go_on && !g->status;
}

struct answer generate(const lk_model *model, lk_session *session, lk_sampler *sampler,
                       lk_drafter *drafter, size_t max_tok, const struct answer_output *output) {
    FILE *out = output->out;
    struct answer answer = {.stop = STOP_LENGTH};
    struct generation g = {.model = model,
                           .session = session,
                           .sampler = sampler,
                           .drafter = drafter,
                           .max_tok = max_tok,
                           .stream = {.plain = out && isatty(fileno(out))},
                           .answer = &answer};
    int32_t pass[LK_DRAFT_MAX];
    bool chosen = false, go_on = max_tok > 0;
    double start_time = lk_now();
    xbuf_add(&answer.shown, "", 0);
    start_printer(&g.printer, output);
    hold_cut_character(model, session, &g.stream);
    while (go_on && !interrupted() && !(out && ferror(out)))
        go_on = (chosen || choose_token(&g, -1, &pass[0])) && decode_pass(&g, pass, &chosen);
    print_text(&g.printer, &answer, NULL, 0);
    lk_thoughts_free(&g.printer.split);
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
    lk_buf_free(&answer->thoughts);
    lk_buf_free(&answer->text);
    free(answer->tok);
    *answer = (struct answer){0};
}

/* ---- drafts ---- */

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
