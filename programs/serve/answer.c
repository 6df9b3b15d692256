#include "serve/answer.h"

#include "base/utf8.h"
#include "serve/store.h"
#include "serve/tools.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A byte that belongs to no character becomes U+FFFD. */
static void add_clean(struct lk_buf *out, const char *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        size_t n = lk_utf8_valid(bytes + at, len - at);
        lk_buf_add(out, bytes + at, n);
        at += n;
        if (at == len) break;
        lk_buf_text(out, "\xef\xbf\xbd");
        at++;
    }
}

json_t *lk_json_text(const char *bytes, size_t len) {
    struct lk_buf clean = {0};
    lk_buf_text(&clean, "");
    add_clean(&clean, bytes, len);
    json_t *json = clean.failed ? NULL : json_stringn(clean.at, clean.len);
    lk_buf_free(&clean);
    return json;
}

bool lk_answer_begin(struct lk_answer *a, struct lk_call *call, const struct lk_serve_opts *opts,
                     uint64_t number) {
    *a = (struct lk_answer){.call = call, .opts = opts, .created = (int64_t)time(NULL)};
    snprintf(a->id, sizeof a->id, "%s-%" PRIx64 "-%" PRIu64, call->ask.chat ? "chatcmpl" : "cmpl",
             (uint64_t)a->created, number);
    a->choice = calloc(call->n_job, sizeof *a->choice);
    return a->choice != NULL;
}

void lk_answer_free(struct lk_answer *a) {
    for (size_t i = 0; a->choice && i < a->call->n_job; i++) {
        lk_buf_free(&a->choice[i].text);
        json_decref(a->choice[i].tokens);
    }
    free(a->choice);
    a->choice = NULL;
}

/* ---- logarithms of probabilities ---- */

/* JSON has no infinity. */
static double speakable(float logprob) { return logprob > -9999.0f ? (double)logprob : -9999.0; }

static json_t *token_of(const struct lk_answer *a, int32_t tok, float logprob) {
    char text[512];
    size_t len = lk_token_text(a->opts->model, tok, text, sizeof text);
    json_t *bytes = json_array();
    if (len >= sizeof text) len = sizeof text - 1;
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    return json_pack("{s:o, s:f, s:o}", "token", lk_json_text(text, len), "logprob",
                     speakable(logprob), "bytes", bytes);
}

/* {"token", "logprob", "bytes", "top_logprobs"}, the form of a chat; a completion's is made from it. */
static json_t *logprob_of(const struct lk_answer *a, const struct lk_logprob *lp) {
    json_t *one = token_of(a, lp->tok, lp->logprob), *top = json_array();
    for (int i = 0; i < lp->n_top; i++)
        json_array_append_new(top, token_of(a, lp->top[i].tok, lp->top[i].logprob));
    json_object_set_new(one, "top_logprobs", top);
    if (!a->call->ask.chat) json_object_set_new(one, "at", json_integer((json_int_t)lp->at));
    return one;
}

static json_t *logprobs_of(const struct lk_answer *a, const struct lk_piece *piece) {
    json_t *list = json_array();
    for (size_t i = 0; i < piece->n_lp; i++)
        json_array_append_new(list, logprob_of(a, &piece->lp[i]));
    return list;
}

/* Parallel lists, for completions. The token itself is always among the most probable ones told. */
static json_t *as_lists(const json_t *tokens) {
    json_t *texts = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array();
    const json_t *token, *rival;
    size_t i, k;
    json_array_foreach(tokens, i, token) {
        json_t *top = json_object();
        json_array_foreach(json_object_get(token, "top_logprobs"), k, rival)
            json_object_set(top, json_string_value(json_object_get(rival, "token")),
                            json_object_get(rival, "logprob"));
        json_object_set(top, json_string_value(json_object_get(token, "token")),
                        json_object_get(token, "logprob"));
        json_array_append(texts, json_object_get(token, "token"));
        json_array_append(values, json_object_get(token, "logprob"));
        json_array_append_new(tops, top);
        json_array_append(offsets, json_object_get(token, "at"));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", texts, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}

/* The "logprobs" of a choice; takes `tokens`. */
static json_t *logprobs_field(const struct lk_answer *a, json_t *tokens) {
    if (a->call->ask.n_top < 0) {
        json_decref(tokens);
        return json_null();
    }
    if (a->call->ask.chat) return json_pack("{s:o}", "content", tokens);
    json_t *lists = as_lists(tokens);
    json_decref(tokens);
    return lists;
}

/* ---- what it took ---- */

json_t *lk_answer_usage(const struct lk_answer *a) {
    json_int_t prompt = 0, made = 0, reused = 0;
    for (size_t i = 0; i < a->call->n_job; i++) {
        const struct lk_outcome *o = &a->choice[i].outcome;
        if (i % a->call->ask.n == 0)
            prompt += (json_int_t)o->n_prompt, reused += (json_int_t)o->n_reused;
        made += (json_int_t)o->n_made;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", made,
                     "total_tokens", prompt + made, "prompt_tokens_details", "cached_tokens",
                     reused);
}

static double per_second(size_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

/* Beyond OpenAI's form: times, as llama.cpp's server names them, and what the cache holds. */
static void add_timings(json_t *to, const struct lk_answer *a, const struct lk_outcome *o) {
    size_t n_read = o->n_prompt - o->n_reused;
    json_object_set_new(to, "timings",
                        json_pack("{s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "cache_n",
                                  (json_int_t)o->n_reused, "prompt_n", (json_int_t)n_read,
                                  "prompt_ms", 1e3 * o->prompt_s, "prompt_per_second",
                                  per_second(n_read, o->prompt_s), "predicted_n",
                                  (json_int_t)o->n_made, "predicted_ms", 1e3 * o->decode_s,
                                  "predicted_per_second", per_second(o->n_made, o->decode_s)));
    static const char *const sources[] = {
        [LK_FROM_NOTHING] = "nothing", [LK_FROM_MEMORY] = "memory", [LK_FROM_STORE] = "store"};
    json_object_set_new(
        to, "cache",
        json_pack("{s:s, s:s, s:I, s:I, s:f}", "kv",
                  lk_recipe_text(a->opts->recipe[a->call->ask.recipe]), "prefix",
                  sources[o->source], "cache_bytes", (json_int_t)o->cache_bytes, "f16_bytes",
                  (json_int_t)o->f16_bytes, "bits_per_value",
                  o->f16_bytes ? 16.0 * (double)o->cache_bytes / (double)o->f16_bytes : 0.0));
}

/* ---- the whole ---- */

bool lk_answer_complete(const struct lk_answer *a) { return a->n_done == a->call->n_job; }

static void note_done(struct lk_answer *a, const struct lk_event *event) {
    a->choice[event->job].outcome = event->outcome;
    a->choice[event->job].done = true;
    a->n_done++;
}

bool lk_answer_take(struct lk_answer *a, struct lk_event *event) {
    struct lk_choice *choice = &a->choice[event->job];
    if (event->kind == LK_EVENT_DONE) note_done(a, event);
    if (event->kind == LK_EVENT_PIECE) {
        lk_buf_add(&choice->text, event->piece.text, event->piece.len);
        json_t *tokens = logprobs_of(a, &event->piece);
        if (choice->tokens)
            json_array_extend(choice->tokens, tokens), json_decref(tokens);
        else
            choice->tokens = tokens;
        lk_piece_free(&event->piece);
    }
    return !choice->text.failed;
}

/* The prompt before a completion that shall echo it. */
static void add_prompt(const struct lk_answer *a, size_t i, struct lk_buf *out) {
    const struct lk_prompt *p = a->call->job[i].prompt;
    struct lk_buf raw = {0};
    if (!a->call->ask.echo) return;
    if (p->text) {
        lk_buf_text(out, p->text);
        return;
    }
    lk_tokens_text(a->opts->model, p->tok, p->n_tok, &raw);
    if (raw.failed)
        out->failed = true;
    else if (raw.len)
        add_clean(out, raw.at, raw.len);
    lk_buf_free(&raw);
}

/* An answer that may be calls of tools: then the text before them is all its content. */
static json_t *choice_of_calls(const struct lk_answer *a, size_t i, json_t *logprobs) {
    const struct lk_choice *c = &a->choice[i];
    const char *text = c->text.at ? c->text.at : "";
    size_t shown = c->text.len;
    json_t *calls = lk_tools_parse(text, a->id, a->call->ask.one_call, &shown),
           *message = json_object();
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "content",
                        calls && shown == 0 ? json_null() : json_stringn(text, shown));
    if (calls) json_object_set(message, "tool_calls", calls);
    json_t *out =
        json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)i, "message", message, "logprobs",
                  logprobs, "finish_reason", calls ? "tool_calls" : c->outcome.finish);
    json_decref(calls);
    return out;
}

static json_t *whole_choice(const struct lk_answer *a, size_t i) {
    const struct lk_choice *c = &a->choice[i];
    json_t *logprobs = logprobs_field(a, c->tokens ? json_incref(c->tokens) : json_array());
    const char *text = c->text.at ? c->text.at : "";
    if (a->call->ask.tools) return choice_of_calls(a, i, logprobs);
    if (a->call->ask.chat)
        return json_pack("{s:I, s:{s:s, s:s%}, s:o, s:s}", "index", (json_int_t)i, "message",
                         "role", "assistant", "content", text, c->text.len, "logprobs", logprobs,
                         "finish_reason", c->outcome.finish);
    struct lk_buf all = {0};
    add_prompt(a, i, &all);
    lk_buf_add(&all, text, c->text.len);
    json_t *out =
        all.failed ? NULL
                   : json_pack("{s:I, s:s%, s:o, s:s}", "index", (json_int_t)i, "text", all.at,
                               all.len, "logprobs", logprobs, "finish_reason", c->outcome.finish);
    lk_buf_free(&all);
    return out;
}

static json_t *frame(const struct lk_answer *a, const char *object, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", a->id, "object", object, "created",
                     (json_int_t)a->created, "model", a->opts->id, "choices", choices);
}

json_t *lk_answer_whole(const struct lk_answer *a) {
    json_t *choices = json_array();
    for (size_t i = 0; i < a->call->n_job; i++) json_array_append_new(choices, whole_choice(a, i));
    json_t *out = frame(a, a->call->ask.chat ? "chat.completion" : "text_completion", choices);
    json_object_set_new(out, "usage", lk_answer_usage(a));
    add_timings(out, a, &a->choice[0].outcome);
    return out;
}

/* ---- chunks ---- */

static json_t *chunk_choice(struct lk_answer *a, size_t i, const char *text, size_t len,
                            json_t *logprobs, const char *finish) {
    struct lk_choice *choice = &a->choice[i];
    bool first = !choice->begun;
    choice->begun = true;
    if (a->call->ask.chat) {
        json_t *delta = json_object();
        if (first) json_object_set_new(delta, "role", json_string("assistant"));
        if (first || len) json_object_set_new(delta, "content", json_stringn(text, len));
        return json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, "delta", delta,
                         "logprobs", logprobs, "finish_reason", finish);
    }
    struct lk_buf all = {0};
    if (first) add_prompt(a, i, &all);
    lk_buf_add(&all, text, len);
    json_t *out = all.failed
                      ? NULL
                      : json_pack("{s:I, s:s%, s:o, s:s?}", "index", (json_int_t)i, "text", all.at,
                                  all.len, "logprobs", logprobs, "finish_reason", finish);
    lk_buf_free(&all);
    return out;
}

static const char *chunk_object(const struct lk_answer *a) {
    return a->call->ask.chat ? "chat.completion.chunk" : "text_completion";
}

static json_t *progress_chunk(const struct lk_answer *a, const struct lk_event *event) {
    json_t *out = frame(a, chunk_object(a), json_array());
    json_object_set_new(out, "prompt_progress",
                        json_pack("{s:I, s:I, s:I, s:I, s:f}", "index", (json_int_t)event->job,
                                  "total", (json_int_t)event->outcome.n_prompt, "cache",
                                  (json_int_t)event->outcome.n_reused, "processed",
                                  (json_int_t)event->n_read, "time_ms",
                                  1e3 * event->outcome.prompt_s));
    return out;
}

/* A chat with tools: text is shown as far as it is certainly no call, and at the end come the calls. */
static json_t *chunk_of_calls(struct lk_answer *a, const struct lk_event *event, json_t *logprobs) {
    struct lk_choice *c = &a->choice[event->job];
    bool done = event->kind == LK_EVENT_DONE;
    const char *finish = done ? event->outcome.finish : NULL;
    lk_buf_add(&c->text, event->piece.text ? event->piece.text : "", event->piece.len);
    const char *text = c->text.at ? c->text.at : "";
    size_t shown = c->text.len;
    json_t *calls = done ? lk_tools_parse(text, a->id, a->call->ask.one_call, &shown) : NULL;
    if (!done) shown = lk_tools_certain(text, c->text.len);
    if (calls) finish = "tool_calls";
    size_t from = c->n_byte < shown ? c->n_byte : shown;
    json_t *one = chunk_choice(a, event->job, text + from, shown - from, logprobs, finish);
    if (calls) json_object_set_new(json_object_get(one, "delta"), "tool_calls", calls);
    c->n_byte = shown;
    return one;
}

json_t *lk_answer_chunk(struct lk_answer *a, struct lk_event *event) {
    if (event->kind == LK_EVENT_PROGRESS) return progress_chunk(a, event);
    bool done = event->kind == LK_EVENT_DONE;
    json_t *logprobs =
        event->piece.n_lp ? logprobs_field(a, logprobs_of(a, &event->piece)) : json_null();
    json_t *one =
        a->call->ask.tools
            ? chunk_of_calls(a, event, logprobs)
            : chunk_choice(a, event->job, event->piece.text ? event->piece.text : "",
                           event->piece.len, logprobs, done ? event->outcome.finish : NULL);
    json_t *out = frame(a, chunk_object(a), json_pack("[o]", one));
    if (done) note_done(a, event);
    if (done) add_timings(out, a, &event->outcome);
    lk_piece_free(&event->piece);
    return out;
}
