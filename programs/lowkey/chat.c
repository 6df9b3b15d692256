/* Prefills questions, prints answers, keeps the conversation. */
#include "chat.h"

#include "base/clock.h"
#include "cache_report.h"
#include "chat_saved.h"
#include "common.h"
#include "interrupt.h"
#include "output.h"
#include "xalloc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void chat_note(const struct chat *c, const char *format, ...) {
    FILE *out = c->terminal && !c->args.json ? stdout : stderr;
    va_list args;
    va_start(args, format);
    char *text = xvasprintf(format, args);
    va_end(args);
    struct word_wrap wrap = word_wrap_start(out, terminal_width(out));
    if (c->color) fputs("\x1b[2m", out);
    word_wrap_print(&wrap, text, strlen(text));
    word_wrap_flush(&wrap);
    fputs(c->color ? "\x1b[0m\n" : "\n", out);
    free(text);
    fflush(out);
}

void chat_keep(struct chat *c) {
    if (!c->args.session_file) return;
    int status = chat_saved_write(c->save_name, &c->conversation, c->session, c->n_answers);
    if (status) c->status = status;
    c->unsaved = false;
}

int chat_load(struct chat *c, const char *name) {
    char n_tok[NUMBER_BUF];
    bool cached = false;
    int status =
        chat_saved_read(name, &c->conversation, c->session, c->recipe, &c->n_answers, &cached);
    if (status) return status;
    size_t n = chat_conversation_n_questions(&c->conversation);
    chat_note(c, "%s: %zu question%s, %s tokens%s", name, n, n == 1 ? "" : "s",
              format_count(n_tok, c->conversation.n_tok),
              cached || !c->conversation.n_tok
                  ? ""
                  : "; no cache of this recipe, so they are prefilled for the next answer");
    if (c->conversation.n_tok >= c->n_ctx)
        chat_note(c, "that fills the context of %zu tokens; -c N sets a longer one", c->n_ctx);
    free(c->save_name);
    c->save_name = xasprintf("%s", name);
    return STATUS_OK;
}

/* ---- questions and answers ---- */

/* What to do when the context is full. */
#define MAKE_ROOM                                                                                  \
    "/undo takes back the last exchange, /clear starts again, -c N sets a longer context"

/* Bring the session to the tokens of the conversation. Returns false after printing an error. */
static bool prefill(struct chat *c) {
    const struct chat_conversation *conversation = &c->conversation;
    size_t n_reused = 0;
    lk_err err = {0};
    double start_time = lk_now();
    chat_input_read_ahead(c->input);
    size_t n_new = conversation->n_tok -
                   lk_session_reusable(c->session, conversation->tok, conversation->n_tok);
    char count[NUMBER_BUF];
    snprintf(c->progress_what, sizeof c->progress_what, "prefill %s tokens",
             format_count(count, n_new));
    c->progress = progress_start_prefill(c->progress_what, n_new);
    lk_status status =
        lk_session_sync(c->session, conversation->tok, conversation->n_tok, &n_reused, &err);
    progress_end(&c->progress);
    if (status) {
        int exit_status =
            print_memory_error(&c->args.session, c->model, c->recipe, conversation->n_tok, &err);
        if (status == LK_E_CANCELLED && c->terminal)
            chat_note(c, "stopped before the answer; the conversation is as before");
        else
            c->status = exit_status;
        return false;
    }
    c->prefill_seconds = lk_now() - start_time;
    c->prefill_tokens = conversation->n_tok - n_reused;
    return true;
}

static void print_answer_json(const struct chat *c, const struct answer *answer) {
    json_t *thoughts =
        answer->thoughts.len ? json_stringn(answer->thoughts.at, answer->thoughts.len) : NULL;
    json_print(json_pack("{s:s s:s% s:o* s:s s:I s:I s:o s:o s:o}", "role", "assistant", "content",
                         answer->text.at, answer->text.len, "reasoning_content", thoughts, "stop",
                         stop_name(answer->stop), "prompt_tokens", (json_int_t)c->prefill_tokens,
                         "answer_tokens", (json_int_t)answer->n_tok, "prefill_tokens_per_second",
                         json_number(tokens_per_second(c->prefill_tokens, c->prefill_seconds)),
                         "decode_tokens_per_second",
                         json_number(tokens_per_second(answer->n_eval, answer->seconds)), "cache",
                         cache_json(c->session)),
               true);
}

/* Explain why an answer stopped before its end. */
static void explain_stop(struct chat *c, const struct answer *answer) {
    char count[NUMBER_BUF];
    bool full = answer->stop == STOP_FULL ||
                (answer->stop == STOP_LENGTH && c->conversation.n_tok >= c->n_ctx);
    if (answer->stop == STOP_FAILED)
        c->status = print_lk_error(&answer->err);
    else if (full)
        print_error("context full: %s tokens; " MAKE_ROOM, format_count(count, c->n_ctx));
    else if (answer->stop == STOP_LENGTH && c->terminal)
        chat_note(c, "stopped after %zu tokens (-n); /continue resumes it", answer->n_tok);
    else if (answer->stop == STOP_INTERRUPTED && c->terminal)
        chat_note(c, "stopped; /continue resumes it");
}

static void print_speed(const struct chat *c) {
    char n_prefill[NUMBER_BUF], n_decode[NUMBER_BUF], n_tok[NUMBER_BUF], n_ctx[NUMBER_BUF];
    chat_note(c, "prefill %s tokens, %.1f tokens/s; decode %s, %.1f tokens/s; context %s of %s",
              format_count(n_prefill, c->prefill_tokens),
              tokens_per_second(c->prefill_tokens, c->prefill_seconds),
              format_count(n_decode, c->decode_tokens),
              tokens_per_second(c->decode_tokens, c->decode_seconds),
              format_count(n_tok, c->conversation.n_tok), format_count(n_ctx, c->n_ctx));
    if (!c->drafting.drafter) return;
    char drafts[3 * NUMBER_BUF];
    drafting_describe(&c->drafting, drafts, sizeof drafts);
    chat_note(c, "drafts of this chat: %s", drafts);
}

/* Decode up to max_tok tokens, and print them unless the output is JSON. */
static struct answer generate_answer(struct chat *c, lk_sampler *sampler, size_t max_tok) {
    const struct chat_conversation *conversation = &c->conversation;
    const char *formatted = lk_buf_cstr(&conversation->formatted);
    size_t n_question = conversation->n_question;
    if (n_question > conversation->formatted.len) n_question = conversation->formatted.len;
    char *question = xasprintf("%.*s", (int)n_question, formatted);
    const struct answer_output output = {.out = c->args.json ? NULL : stdout,
                                         .form = chat_conversation_form(conversation),
                                         .prompt = question,
                                         .before = formatted + n_question,
                                         .constrained = c->args.sampler.grammar_file != NULL,
                                         .color = c->color && c->terminal,
                                         .width = c->terminal ? terminal_width(stdout) : 0};
    struct answer answer =
        generate(c->model, c->session, sampler, c->drafting.drafter, max_tok, &output);
    free(question);
    return answer;
}

/* Generate the answer that follows the tokens of the conversation, which the session holds. */
static void answer(struct chat *c) {
    struct sampler_args sampling = c->args.sampler;
    lk_sampler *sampler = NULL;
    size_t max_tok = c->n_ctx - c->conversation.n_tok;
    sampling.seed = (sampling.seed + (int64_t)c->n_answers) & UINT32_MAX;
    /* A new sampler for every answer, so that a grammar starts again. */
    int status = sampler_open(&sampling, c->model, &sampler);
    if (status) {
        c->status = status;
        c->quit = true;
        return;
    }
    if (c->args.n >= 0 && (size_t)c->args.n < max_tok) max_tok = (size_t)c->args.n;
    struct answer answer = generate_answer(c, sampler, max_tok);
    if (!c->args.json) putchar('\n');
    fflush(stdout);
    /* Hold the last token of a cut answer too, so that a saved session is complete. */
    if (answer.n_tok > answer.n_eval && answer.stop != STOP_FAILED)
        lk_session_eval(c->session, answer.tok + answer.n_tok - 1, 1, false, NULL);
    chat_conversation_answer(&c->conversation, &answer);
    c->n_answers++;
    c->decode_tokens = answer.n_eval;
    c->decode_seconds = answer.seconds;
    if (c->args.json) print_answer_json(c, &answer);
    explain_stop(c, &answer);
    if (c->args.verbose) print_speed(c);
    chat_keep(c);
    answer_free(&answer);
    lk_sampler_free(sampler);
}

/* Explain why a question was not added. */
static void explain_refusal(struct chat *c, const lk_err *err, size_t n_needed) {
    char needed[NUMBER_BUF], n_ctx[NUMBER_BUF];
    c->status = STATUS_ERROR;
    if (err->code != LK_E_FULL)
        c->status = print_lk_error(err);
    else if (n_needed)
        print_error("context full: the conversation would have %s tokens, the context has %s; "
                    "%s" MAKE_ROOM,
                    format_count(needed, n_needed), format_count(n_ctx, c->n_ctx),
                    c->documents.n ? "/file - drops the files, " : "");
    else
        print_error("the message alone is longer than the context of %s tokens; -c N sets a longer "
                    "context, or ask about a part of the text",
                    format_count(n_ctx, c->n_ctx));
}

void chat_answer_question(struct chat *c, const char *question) {
    lk_err err = {0};
    size_t n_needed = 0, n_left_out = 0;
    char *message = chat_documents_message(&c->documents, question);
    /* At least one token of the context is for the answer. */
    lk_status status =
        chat_conversation_ask(&c->conversation, message, c->n_ctx - 1, &n_needed, &err);
    if (status == LK_E_FULL)
        status =
            chat_conversation_ask_shorter(&c->conversation, message, c->n_ctx, &n_left_out, &err);
    free(message);
    if (status) {
        explain_refusal(c, &err, n_needed);
        return;
    }
    if (n_left_out) {
        char n_ctx[NUMBER_BUF];
        chat_note(c,
                  "the oldest %zu messages no longer fit the context of %s tokens and were left "
                  "out",
                  n_left_out, format_count(n_ctx, c->n_ctx));
    }
    if (prefill(c)) {
        chat_documents_clear(&c->documents);
        answer(c);
    } else {
        chat_conversation_drop_last(&c->conversation);
        if (c->documents.n)
            chat_note(c, "the attached file is kept for the next message; /file - drops it");
    }
}

void chat_answer_again(struct chat *c) {
    struct chat_conversation *conversation = &c->conversation;
    if (!chat_conversation_last_is(conversation, "assistant") || conversation->n_msg < 2) {
        print_error("there is no answer to replace");
        return;
    }
    if (c->args.sampler.greedy || c->args.sampler.temperature <= 0.0)
        chat_note(c, "the temperature is 0, so the answer will be the same; see /set");
    size_t n_tok = conversation->n_tok, n_question = conversation->end[conversation->n_msg - 2];
    if (n_question) {
        conversation->n_tok = n_question;
        bool ready = prefill(c);
        conversation->n_tok = n_tok;
        if (!ready) return; /* the old answer stays */
        chat_conversation_drop_last(conversation);
        answer(c);
    } else { /* the tokens of the question are not known: ask it again */
        char *question = xasprintf("%s", conversation->msg[conversation->n_msg - 2].content);
        chat_conversation_drop_last(conversation);
        chat_conversation_drop_last(conversation);
        chat_answer_question(c, question);
        free(question);
    }
}

void chat_answer_continue(struct chat *c) {
    const struct chat_conversation *conversation = &c->conversation;
    bool unknown = conversation->n_unknown && conversation->n_msg == 0;
    if (!unknown && !chat_conversation_last_is(conversation, "assistant"))
        print_error("there is no answer to continue");
    else if (!unknown && !conversation->cut)
        print_error("the answer is complete; /regen answers again");
    else if (c->args.sampler.grammar_file)
        print_error("an answer with a grammar cannot be continued");
    else if (conversation->n_tok >= c->n_ctx)
        print_error("context full; " MAKE_ROOM);
    else if (prefill(c))
        answer(c);
}
