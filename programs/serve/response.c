/* Responses and chunks in OpenAI's form. */
#include "serve/response.h"

#include "base/os.h"
#include "serve/json_field.h"
#include "serve/request.h"
#include "serve/tokens.h"
#include "serve/tool_calls.h"
#include "serve/tools.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool lk_response_init(struct lk_response *r, struct lk_completion *completion,
                      const struct lk_server_opts *opts, uint64_t number) {
    *r = (struct lk_response){
        .completion = completion, .opts = opts, .created = (int64_t)time(NULL)};
    snprintf(r->id, sizeof r->id, "%s-%" PRIx64 "-%" PRIu64,
             completion->request.chat ? "chatcmpl" : "cmpl", (uint64_t)r->created, number);
    uint64_t random = 0;
    if (!lk_os_random(&random, sizeof random)) return false;
    snprintf(r->secret, sizeof r->secret, "%016" PRIx64, random);
    r->choice = calloc(completion->n_job, sizeof *r->choice);
    if (!r->choice) return false;
    const struct lk_request *request = &completion->request;
    bool has_thoughts = request->chat && !request->keep_thoughts;
    const struct lk_thought_form *form =
        has_thoughts ? lk_thought_form_of(lk_model_chat_template(opts->model)) : NULL;
    for (size_t i = 0; i < completion->n_job; i++)
        lk_thoughts_init(&r->choice[i].split, form, completion->job[i].prompt->text,
                         lk_request_is_constrained(request));
    return true;
}

void lk_response_free(struct lk_response *r) {
    for (size_t i = 0; r->choice && i < r->completion->n_job; i++) {
        lk_thoughts_free(&r->choice[i].split);
        lk_buf_free(&r->choice[i].thoughts);
        lk_buf_free(&r->choice[i].text);
        free(r->choice[i].lp);
    }
    free(r->choice);
    r->choice = NULL;
    lk_blocks_free(&r->blocks);
}

/* ---- logprobs ---- */

static json_t *token_json(const struct lk_response *r, int32_t tok, float logprob) {
    size_t len;
    const char *text = lk_token_text(r->opts->model, tok, &len);
    json_t *bytes = json_array();
    /* JSON has no infinity; OpenAI's API uses -9999. */
    double value = logprob > -9999.0f ? (double)logprob : -9999.0;
    for (size_t i = 0; i < len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    return json_pack("{s:o, s:f, s:o}", "token", lk_json_from_bytes(text, len), "logprob", value,
                     "bytes", bytes);
}

/* {"token", "logprob", "bytes", "top_logprobs"}, the form of a chat. */
static json_t *chat_logprob(const struct lk_response *r, const struct lk_logprob *lp) {
    json_t *one = token_json(r, lp->tok, lp->logprob), *top = json_array();
    for (int k = 0; k < lp->n_top; k++)
        json_array_append_new(top, token_json(r, lp->top[k].tok, lp->top[k].logprob));
    json_object_set_new(one, "top_logprobs", top);
    return one;
}

/* {"text": logprob} of the most probable tokens. The token itself is always listed. Of tokens with
 * the same text, such as parts of characters, the most probable one counts: a client that looks for
 * the maximum must find it. */
static json_t *top_logprobs_object(const struct lk_response *r, const struct lk_logprob *lp) {
    json_t *top = json_object();
    for (int k = -1; k < lp->n_top; k++) {
        json_t *one = k < 0 ? token_json(r, lp->tok, lp->logprob)
                            : token_json(r, lp->top[k].tok, lp->top[k].logprob);
        const char *text = json_string_value(json_object_get(one, "token"));
        json_t *value = json_object_get(one, "logprob"), *listed = json_object_get(top, text);
        if (!listed || json_real_value(listed) < json_real_value(value))
            json_object_set(top, text, value);
        json_decref(one);
    }
    return top;
}

/* The arrays of "logprobs", which have one element per token: one array in a chat, parallel arrays
 * in /v1/completions. */
static const char *const chat_arrays[] = {"content", NULL};
static const char *const completion_arrays[] = {"tokens", "token_logprobs", "top_logprobs",
                                                "text_offset", NULL};

static const char *const *logprob_arrays(const struct lk_response *r) {
    return r->completion->request.chat ? chat_arrays : completion_arrays;
}

/* The element of the array `name` for a token. */
static json_t *logprob_element(const struct lk_response *r, const char *name,
                               const struct lk_logprob *lp) {
    if (name == chat_arrays[0]) return chat_logprob(r, lp);
    if (name == completion_arrays[2]) return top_logprobs_object(r, lp);
    if (name == completion_arrays[3]) return json_integer((json_int_t)lp->offset);
    json_t *one = token_json(r, lp->tok, lp->logprob),
           *out = json_incref(
               json_object_get(one, name == completion_arrays[0] ? "token" : "logprob"));
    json_decref(one);
    return out;
}

/* "logprobs" of a chunk. */
static json_t *delta_logprobs(const struct lk_response *r, const struct lk_text_delta *delta) {
    if (delta->n_lp == 0) return json_null();
    json_t *out = json_object();
    for (const char *const *name = logprob_arrays(r); *name; name++) {
        json_t *list = json_array();
        for (size_t i = 0; i < delta->n_lp; i++)
            json_array_append_new(list, logprob_element(r, *name, &delta->lp[i]));
        json_object_set_new(out, *name, list);
    }
    return out;
}

/* The element of the array `name` for token i of a scored prompt. */
static json_t *prompt_logprob_element(const struct lk_response *r, const char *name,
                                      const struct lk_prompt *p, size_t i) {
    bool is_value = name == completion_arrays[1] || name == completion_arrays[2];
    return i == 0 && is_value ? json_null() : logprob_element(r, name, &p->lp[i]);
}

/* "logprobs" of a whole answer, as text: in jansson's objects a token with 20 alternatives takes 17
 * KiB, as text 2. With `echo` the tokens of the prompt come first; the offsets are in the whole
 * text, whose first n_echo characters are the prompt's. */
static void add_logprobs(const struct lk_response *r, size_t choice, size_t n_echo,
                         struct lk_buf *out) {
    const struct lk_response_choice *c = &r->choice[choice];
    const struct lk_prompt *p = r->completion->job[choice].prompt;
    size_t n_prompt = r->completion->request.score ? p->n_tok : 0;
    if (r->completion->request.n_top_logprobs < 0) {
        lk_buf_append_str(out, "null");
        return;
    }
    for (const char *const *name = logprob_arrays(r); *name; name++) {
        lk_buf_printf(out, "%s\"%s\":[", name == logprob_arrays(r) ? "{" : ",", *name);
        for (size_t i = 0; i < n_prompt + c->n_lp; i++) {
            if (i) lk_buf_append_str(out, ",");
            if (i < n_prompt) {
                lk_buf_add_json(out, prompt_logprob_element(r, *name, p, i));
                continue;
            }
            struct lk_logprob lp = c->lp[i - n_prompt];
            lp.offset += n_echo;
            lk_buf_add_json(out, logprob_element(r, *name, &lp));
        }
        lk_buf_append_str(out, "]");
    }
    lk_buf_append_str(out, "}");
}

/* ---- usage and timings ---- */

static json_t *usage_json(const struct lk_response *r) {
    json_int_t n_prompt = 0, n_decoded = 0, n_reused = 0;
    for (size_t i = 0; i < r->completion->n_job; i++) {
        const struct lk_job_result *result = &r->choice[i].result;
        if (i % r->completion->request.n == 0) { /* once per prompt */
            n_prompt += (json_int_t)result->n_prompt;
            n_reused += (json_int_t)result->n_reused;
        }
        n_decoded += (json_int_t)result->n_decoded;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", n_prompt, "completion_tokens",
                     n_decoded, "total_tokens", n_prompt + n_decoded, "prompt_tokens_details",
                     "cached_tokens", n_reused);
}

static double per_second(size_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

void lk_response_add_left_out(const struct lk_response *r, json_t *to) {
    size_t n = r->completion->request.n_left_out;
    if (n) json_object_set_new(to, "left_out_messages", json_integer((json_int_t)n));
}

/* Extensions of OpenAI's form: "timings" with the keys of llama-server, and "cache". */
void lk_response_add_timings(const struct lk_response *r, const struct lk_job_result *result,
                             json_t *to) {
    size_t n_prefill = result->n_prompt - result->n_reused;
    json_t *timings =
        json_pack("{s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "cache_n", (json_int_t)result->n_reused,
                  "prompt_n", (json_int_t)n_prefill, "prompt_ms", 1e3 * result->prompt_s,
                  "prompt_per_second", per_second(n_prefill, result->prompt_s), "predicted_n",
                  (json_int_t)result->n_decoded, "predicted_ms", 1e3 * result->decode_s,
                  "predicted_per_second", per_second(result->n_decoded, result->decode_s));
    if (result->n_drafted) {
        json_object_set_new(timings, "draft_n", json_integer((json_int_t)result->n_drafted));
        json_object_set_new(timings, "draft_n_accepted",
                            json_integer((json_int_t)result->n_accepted));
    }
    json_object_set_new(to, "timings", timings);
    lk_response_add_left_out(r, to);
    static const char *const sources[] = {
        [LK_PREFIX_NONE] = "nothing", [LK_PREFIX_MEMORY] = "memory", [LK_PREFIX_STORE] = "store"};
    double bits =
        result->f16_bytes ? 16.0 * (double)result->cache_bytes / (double)result->f16_bytes : 0.0;
    json_object_set_new(to, "cache",
                        json_pack("{s:s, s:s, s:I, s:I, s:f}", "kv",
                                  lk_server_recipe_name(r->opts, r->completion->request.recipe),
                                  "prefix", sources[result->source], "cache_bytes",
                                  (json_int_t)result->cache_bytes, "f16_bytes",
                                  (json_int_t)result->f16_bytes, "bits_per_value", bits));
}

/* ---- the whole response ---- */

bool lk_response_is_complete(const struct lk_response *r) {
    return r->n_done == r->completion->n_job;
}

static void record_done(struct lk_response *r, const struct lk_event *event) {
    r->choice[event->job].result = event->result;
    r->n_done++;
}

static bool append_logprobs(struct lk_response_choice *c, const struct lk_text_delta *delta) {
    size_t n = c->n_lp + delta->n_lp;
    if (n > c->cap_lp) {
        size_t cap = n + n / 2 + 16;
        void *larger = realloc(c->lp, cap * sizeof *c->lp);
        if (!larger) return false;
        c->lp = larger;
        c->cap_lp = cap;
    }
    if (delta->n_lp) memcpy(c->lp + c->n_lp, delta->lp, delta->n_lp * sizeof *c->lp);
    c->n_lp = n;
    return true;
}

/* Add the text of an event to the thoughts or the text of its choice. */
static void collect_text(struct lk_response_choice *c, const struct lk_event *event) {
    const struct lk_text_delta *delta = &event->delta;
    lk_thoughts_push(&c->split, delta->text ? delta->text : "", delta->len, &c->thoughts, &c->text);
    if (event->kind == LK_EVENT_DONE) lk_thoughts_finish(&c->split, &c->thoughts, &c->text);
    if (c->thoughts.failed) c->text.failed = true;
}

bool lk_response_add_event(struct lk_response *r, struct lk_event *event) {
    struct lk_response_choice *choice = &r->choice[event->job];
    if (event->kind == LK_EVENT_DONE) record_done(r, event);
    if (event->kind != LK_EVENT_PROGRESS) collect_text(choice, event);
    if (event->kind == LK_EVENT_TEXT) {
        if (!append_logprobs(choice, &event->delta)) choice->text.failed = true;
        lk_text_delta_free(&event->delta);
    }
    return !choice->text.failed;
}

/* If the completion echoes its prompts, append the prompt of choice i. */
static void add_echo(const struct lk_response *r, size_t i, struct lk_buf *out) {
    const struct lk_prompt *p = r->completion->job[i].prompt;
    struct lk_buf raw = {0};
    if (!r->completion->request.echo) return;
    if (p->text) {
        lk_buf_append_str(out, p->text);
        return;
    }
    lk_tokens_to_text(r->opts->model, p->tok, p->n_tok, &raw);
    if (raw.failed)
        out->failed = true;
    else if (raw.len)
        lk_buf_add_utf8(out, raw.at, raw.len);
    lk_buf_free(&raw);
}

/* What ids of calls are made of: they differ between choices. */
static const char *choice_id(const struct lk_response *r, size_t i, char id[sizeof r->id + 24]) {
    snprintf(id, sizeof r->id + 24, "%s-%zu", r->id, i);
    return id;
}

/* The calls of choice i. */
static json_t *parse_calls(const struct lk_response *r, size_t i, const char *text,
                           struct lk_tools_text *shown) {
    const struct lk_request *request = &r->completion->request;
    char id[sizeof r->id + 24];
    return lk_tools_parse_calls(text, request->tools, choice_id(r, i, id),
                                request->single_tool_call, shown, r->opts->calls);
}

/* Is the last call of an answer cut off? Calls that are valid by grammar are followed by nothing
 * else than a part of the next one, which is dropped. Others show it as text. */
static bool drop_cut_call(const struct lk_request *request, const char *text, size_t len,
                          struct lk_tools_text *shown) {
    bool is_cut = text[shown->rest] != 0 && !request->single_tool_call;
    if (request->valid_calls) shown->rest = len;
    return is_cut;
}

/* The calls of the whole text of choice i: those of parse_calls, and one that was cut off after its
 * arguments began, as a stream has it. */
static json_t *all_calls(const struct lk_response *r, size_t i, const char *text, size_t len,
                         struct lk_tools_text *shown, bool *is_cut) {
    const struct lk_request *request = &r->completion->request;
    struct lk_call_stream stream = {0};
    char id[sizeof r->id + 24];
    json_t *calls = parse_calls(r, i, text, shown), *sent = NULL;
    size_t n = json_array_size(calls), from = 0;
    if (request->valid_calls) {
        from = lk_tool_calls_n_text(text, len, request->tools, 0);
        sent = lk_tools_stream_calls(&stream, text, len, from, request, choice_id(r, i, id));
    }
    *is_cut = calls && drop_cut_call(request, text, len, shown);
    if (json_array_size(sent) > n) {
        *is_cut = true;
        if (!calls) {
            calls = json_array();
            *shown = (struct lk_tools_text){from, len};
        }
        json_array_append(calls, json_array_get(sent, n));
    }
    json_decref(sent);
    return calls;
}

/* A part of the text before the calls and a malformed call after them, as a JSON string. */
static json_t *shown_text(const char *text, size_t from, size_t to, const char *rest) {
    return json_sprintf("%.*s%s%s", (int)(to - from), text + from, to && *rest ? "\n\n" : "", rest);
}

/* The choice of a chat. If it has tool calls, its content is the text before them. */
static json_t *chat_choice(const struct lk_response *r, size_t i) {
    const struct lk_response_choice *c = &r->choice[i];
    const char *text = lk_buf_cstr(&c->text);
    struct lk_tools_text shown = {c->text.len, c->text.len};
    bool is_cut = false;
    json_t *calls =
        r->completion->request.tools ? all_calls(r, i, text, c->text.len, &shown, &is_cut) : NULL;
    json_t *message = json_object(), *content = json_stringn(text, c->text.len);
    if (calls) {
        json_decref(content);
        content = shown_text(text, 0, shown.n_before, text + shown.rest);
        if (json_string_length(content) == 0) json_decref(content), content = json_null();
    }
    bool failed =
        json_object_set_new(message, "role", json_string("assistant")) ||
        json_object_set_new(message, "content", content) ||
        (c->thoughts.len && json_object_set_new(message, "reasoning_content",
                                                json_stringn(c->thoughts.at, c->thoughts.len))) ||
        (calls && json_object_set(message, "tool_calls", calls));
    if (failed) json_decref(message), message = NULL;
    const char *finish = calls && !is_cut ? "tool_calls" : c->result.finish;
    json_t *out = json_pack("{s:I, s:o, s:s}", "index", (json_int_t)i, "message", message,
                            "finish_reason", finish);
    json_decref(calls);
    return out;
}

json_t *lk_response_choice(const struct lk_response *r, size_t i) {
    const struct lk_response_choice *c = &r->choice[i];
    if (r->completion->request.chat) return chat_choice(r, i);
    struct lk_buf all = {0};
    add_echo(r, i, &all);
    lk_buf_append(&all, lk_buf_cstr(&c->text), c->text.len);
    json_t *out = NULL;
    if (!all.failed)
        out = json_pack("{s:I, s:s%, s:s}", "index", (json_int_t)i, "text", lk_buf_cstr(&all),
                        all.len, "finish_reason", c->result.finish);
    lk_buf_free(&all);
    return out;
}

/* The fields that a response and a chunk share. */
static json_t *response_object(const struct lk_response *r, const char *object) {
    return json_pack("{s:s, s:s, s:I, s:s}", "id", r->id, "object", object, "created",
                     (json_int_t)r->created, "model", r->opts->id);
}

bool lk_response_text(const struct lk_response *r, struct lk_buf *out) {
    struct lk_buf choices = {0};
    json_t *rest =
        response_object(r, r->completion->request.chat ? "chat.completion" : "text_completion");
    json_object_set_new(rest, "usage", usage_json(r));
    lk_response_add_timings(r, &r->choice[0].result, rest);
    lk_buf_append_str(&choices, "[");
    for (size_t i = 0; i < r->completion->n_job; i++) {
        struct lk_buf logprobs = {0}, echo = {0};
        add_echo(r, i, &echo);
        size_t n_echo = 0;
        const struct lk_prompt *p = r->completion->job[i].prompt;
        if (r->completion->request.score)
            n_echo = lk_tokens_set_offsets(p->lp, p->n_tok, r->opts->model, lk_buf_cstr(&echo),
                                           echo.len);
        add_logprobs(r, i, n_echo, &logprobs);
        if (echo.failed) choices.failed = true;
        lk_buf_free(&echo);
        if (i) lk_buf_append_str(&choices, ",");
        if (logprobs.failed) choices.failed = true;
        lk_buf_add_json_with(&choices, lk_response_choice(r, i), "logprobs", lk_buf_cstr(&logprobs),
                             logprobs.len);
        lk_buf_free(&logprobs);
    }
    lk_buf_append_str(&choices, "]");
    if (choices.failed) out->failed = true;
    lk_buf_add_json_with(out, rest, "choices", lk_buf_cstr(&choices), choices.len);
    lk_buf_free(&choices);
    return !out->failed;
}

/* ---- chunks ---- */

static json_t *chunk_object(const struct lk_response *r, json_t *choices) {
    json_t *out = response_object(r, r->completion->request.chat ? "chat.completion.chunk"
                                                                 : "text_completion");
    json_object_set_new(out, "choices", choices);
    return out;
}

/* The choice of a chunk. `finish` is NULL before the end. In a chat the thoughts are sent too. */
static json_t *chunk_choice(struct lk_response *r, size_t i, const char *text, size_t len,
                            json_t *logprobs, const char *finish) {
    struct lk_response_choice *choice = &r->choice[i];
    bool first = !choice->started;
    choice->started = true;
    if (r->completion->request.chat) {
        json_t *delta = json_object();
        if (first) json_object_set_new(delta, "role", json_string("assistant"));
        if (first || len) json_object_set_new(delta, "content", json_stringn(text, len));
        if (choice->thoughts.len)
            json_object_set_new(delta, "reasoning_content",
                                json_stringn(choice->thoughts.at, choice->thoughts.len));
        lk_buf_clear(&choice->thoughts);
        return json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, "delta", delta,
                         "logprobs", logprobs, "finish_reason", finish);
    }
    struct lk_buf all = {0};
    if (first) add_echo(r, i, &all);
    lk_buf_append(&all, text, len);
    json_t *out = NULL;
    if (!all.failed)
        out = json_pack("{s:I, s:s%, s:o, s:s?}", "index", (json_int_t)i, "text", all.at, all.len,
                        "logprobs", logprobs, "finish_reason", finish);
    lk_buf_free(&all);
    return out;
}

/* How much of an incomplete answer can be sent: what cannot be part of a call. A long text that is
 * held back is looked at again when it has grown by a part, so that all looks together take time
 * in proportion to its length. */
static size_t text_to_send(struct lk_response_choice *c, const json_t *tools) {
    if (c->text.len < c->n_next) return c->n_sent;
    size_t n = lk_tool_calls_n_text(lk_buf_cstr(&c->text), c->text.len, tools, c->n_sent);
    size_t n_held = c->text.len - n;
    c->n_next = n_held > 4096 ? c->text.len + n_held / 16 : 0;
    return n;
}

/* The choice of a chunk in a chat with tools: sends text only up to where a tool call may start.
 * Calls that are valid by grammar are sent as they are written, the others in the last chunk. */
static json_t *chunk_choice_with_tools(struct lk_response *r, const struct lk_event *event,
                                       json_t *logprobs) {
    struct lk_response_choice *c = &r->choice[event->job];
    bool done = event->kind == LK_EVENT_DONE;
    const char *finish = done ? event->result.finish : NULL;
    const char *text = lk_buf_cstr(&c->text);
    struct lk_tools_text shown = {c->text.len, c->text.len};
    json_t *calls = NULL, *parts = NULL;
    char id[sizeof r->id + 24];
    if (!c->calls.n_call) shown.n_before = text_to_send(c, r->completion->request.tools);
    if (c->calls.n_call) shown.n_before = c->n_sent;
    parts = lk_tools_stream_calls(&c->calls, text, c->text.len, shown.n_before,
                                  &r->completion->request, choice_id(r, event->job, id));
    bool is_sent = c->calls.n_call > 0;
    if (done) {
        size_t n_before = shown.n_before;
        shown = (struct lk_tools_text){c->text.len, c->text.len};
        calls = parse_calls(r, event->job, text, &shown);
        bool is_cut = calls && drop_cut_call(&r->completion->request, text, c->text.len, &shown);
        is_cut |= c->calls.n_call > json_array_size(calls);
        if (is_sent)
            shown.n_before = n_before; /* what is left of a call that was cut off is not text */
        if (is_sent && !calls) shown.rest = c->text.len;
        if (calls && !is_cut) finish = "tool_calls";
        for (size_t i = 0; i < c->calls.n_call && json_array_size(calls) > 0; i++)
            json_array_remove(calls, 0); /* was sent in parts */
    }
    size_t from = c->n_sent < shown.n_before ? c->n_sent : shown.n_before;
    json_t *out = chunk_choice(r, event->job, text + from, shown.n_before - from, logprobs, finish);
    json_t *delta = json_object_get(out, "delta");
    if (calls && text[shown.rest])
        json_object_set_new(delta, "content",
                            shown_text(text, from, shown.n_before, text + shown.rest));
    if (!parts) parts = json_array();
    if (calls) json_array_extend(parts, calls);
    if (json_array_size(parts) > 0) json_object_set(delta, "tool_calls", parts);
    json_decref(parts);
    json_decref(calls);
    c->n_sent = shown.n_before;
    return out;
}

static json_t *progress_chunk(const struct lk_response *r, const struct lk_event *event) {
    json_t *out = chunk_object(r, json_array());
    json_object_set_new(out, "prompt_progress",
                        json_pack("{s:I, s:I, s:I, s:I, s:f}", "index", (json_int_t)event->job,
                                  "total", (json_int_t)event->result.n_prompt, "cache",
                                  (json_int_t)event->result.n_reused, "processed",
                                  (json_int_t)event->n_processed, "time_ms",
                                  1e3 * event->result.prompt_s));
    return out;
}

json_t *lk_response_chunk(struct lk_response *r, struct lk_event *event) {
    if (event->kind == LK_EVENT_PROGRESS) return progress_chunk(r, event);
    bool done = event->kind == LK_EVENT_DONE;
    const struct lk_text_delta *delta = &event->delta;
    json_t *logprobs = delta_logprobs(r, delta), *choice = NULL;
    struct lk_response_choice *c = &r->choice[event->job];
    collect_text(c, event);
    bool good = !c->text.failed;
    if (r->completion->request.tools) {
        choice = chunk_choice_with_tools(r, event, logprobs);
    } else {
        choice = chunk_choice(r, event->job, lk_buf_cstr(&c->text), c->text.len, logprobs,
                              done ? event->result.finish : NULL);
        lk_buf_clear(&c->text);
    }
    json_t *out = chunk_object(r, json_pack("[o]", choice));
    if (done) {
        record_done(r, event);
        lk_response_add_timings(r, &event->result, out);
    }
    lk_text_delta_free(&event->delta);
    if (good) return out;
    json_decref(out);
    return NULL;
}

void lk_response_write_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    lk_buf_add_event(out, lk_response_chunk(r, event));
}

void lk_response_write_end(struct lk_response *r, struct lk_buf *out) {
    if (r->completion->request.include_usage) {
        json_t *chunk = chunk_object(r, json_array());
        json_object_set_new(chunk, "usage", usage_json(r));
        lk_buf_add_event(out, chunk);
    }
    lk_buf_append_str(out, "data: [DONE]\n\n");
}

void lk_response_write_error(struct lk_response *r, const struct lk_api_error *error,
                             struct lk_buf *out) {
    (void)r;
    lk_buf_add_event(out, lk_api_error_json(error));
}
