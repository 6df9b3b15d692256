/* ollama's /api/chat and /api/generate: responses, streams and errors. A stream is one JSON object
 * per line; the last one has "done": true, and the times in nanoseconds. */
#include "serve/ollama.h"

#include "serve/answer_blocks.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/ollama_body.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- requests ---- */

static void set_text_copies(struct lk_request *request) {
    request->text_copies = request->stream ? 1 : 3; /* of a block; whole: its JSON and its text */
}

/* Without messages the body asks to load the model, which is loaded. */
static bool asks_to_load(const json_t *openai) {
    return json_string_length(json_object_get(openai, "prompt")) +
               json_array_size(json_object_get(openai, "messages")) ==
           0;
}

static bool parse_chat(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, struct lk_api_error *error) {
    json_t *given = lk_json_parse_body(body, len, error),
           *chat = given ? lk_ollama_chat_to_openai(given, error) : NULL;
    bool is_empty = chat && asks_to_load(chat);
    bool good = is_empty ? lk_request_parse_json(request, opts, chat, error)
                         : lk_openai_chat_parse_json(request, opts, chat, error);
    set_text_copies(request);
    request->is_empty = is_empty;
    json_decref(given);
    return good;
}

static bool parse_generate(struct lk_request *request, const struct lk_server_opts *opts,
                           const char *body, size_t len, struct lk_api_error *error) {
    json_t *given = lk_json_parse_body(body, len, error),
           *converted = given ? lk_ollama_generate_to_openai(given, error) : NULL;
    bool good, is_empty = converted && asks_to_load(converted);
    if (is_empty)
        good = lk_request_parse_json(request, opts, converted, error);
    else if (json_object_get(converted, "prompt"))
        good = lk_openai_completion_parse_json(request, opts, converted, error);
    else
        good = lk_openai_chat_parse_json(request, opts, converted, error);
    set_text_copies(request);
    request->is_empty = is_empty;
    json_decref(given);
    return good;
}

/* ---- responses ---- */

json_t *lk_ollama_time(int64_t seconds) {
    char text[40];
    time_t t = (time_t)seconds;
    struct tm utc;
    if (!gmtime_r(&t, &utc) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        return json_string("");
    return json_string(text);
}

static json_int_t nanoseconds(double seconds) { return (json_int_t)llround(1e9 * seconds); }

/* The fields of every object; the last one has counts and times. */
static json_t *answer_json(const struct lk_response *r, bool is_last) {
    const struct lk_job_result *result = &r->choice[0].result;
    json_t *out = json_pack("{s:s, s:o, s:b}", "model", r->opts->id, "created_at",
                            lk_ollama_time((int64_t)time(NULL)), "done", is_last);
    if (!is_last) return out;
    double total_s = result->wait_s + result->prompt_s + result->decode_s;
    json_t *counts = json_pack(
        "{s:s, s:I, s:i, s:I, s:I, s:I, s:I}", "done_reason",
        strcmp(r->blocks.finish, "length") == 0 ? "length" : "stop", "total_duration",
        nanoseconds(total_s), "load_duration", 0, "prompt_eval_count", (json_int_t)result->n_prompt,
        "prompt_eval_duration", nanoseconds(result->prompt_s), "eval_count",
        (json_int_t)result->n_decoded, "eval_duration", nanoseconds(result->decode_s));
    json_object_update(out, counts);
    json_decref(counts);
    return out;
}

static json_t *message_json(const char *text, size_t len) {
    return json_pack("{s:s, s:s%}", "role", "assistant", "content", text, len);
}

/* The call of the open block: unlike OpenAI's, its arguments are an object. */
static json_t *call_json(const struct lk_blocks *b) {
    json_t *arguments = json_loadb(lk_buf_cstr(&b->text), b->text.len, 0, NULL);
    return json_pack("{s:O, s:{s:I, s:O, s:o}}", "id", b->id, "function", "index",
                     (json_int_t)b->call_index, "name", b->name, "arguments",
                     arguments ? arguments : json_object());
}

static void append_line(struct lk_buf *out, json_t *json) {
    lk_buf_add_json(out, json);
    lk_buf_append_str(out, "\n");
}

/* An object with a piece of text: in the message of a chat, or as "response". */
static json_t *text_json(const struct lk_response *r, bool is_chat, const char *text, size_t len,
                         bool is_last) {
    json_t *out = answer_json(r, is_last);
    if (is_chat)
        json_object_set_new(out, "message", message_json(text, len));
    else
        json_object_set_new(out, "response", json_stringn(text, len));
    return out;
}

/* The reply to a request that asks to load the model. */
static json_t *loaded_json(const struct lk_server_opts *opts, const char *field, json_t *empty) {
    return json_pack("{s:s, s:o, s:b, s:s, s:o}", "model", opts->id, "created_at",
                     lk_ollama_time((int64_t)time(NULL)), "done", 1, "done_reason", "load", field,
                     empty);
}

/* ---- /api/chat ---- */

static void append_chat_text(struct lk_response *r, const char *text, size_t len,
                             struct lk_buf *out) {
    if (r->blocks.kind == LK_BLOCK_CALL) return; /* it is sent whole */
    bool is_text = r->blocks.kind == LK_BLOCK_TEXT;
    json_t *line = text_json(r, true, text, is_text ? len : 0, false);
    if (!is_text)
        json_object_set_new(json_object_get(line, "message"), "thinking", json_stringn(text, len));
    append_line(out, line);
}

/* Closed blocks are objects with the fields of a message. */
static json_t *close_block(struct lk_response *r, struct lk_buf *out) {
    const struct lk_blocks *b = &r->blocks;
    if (b->kind != LK_BLOCK_CALL)
        return out ? NULL
                   : json_pack("{s:s%}", b->kind == LK_BLOCK_TEXT ? "content" : "thinking",
                               lk_buf_cstr(&b->text), b->text.len);
    if (!out) return json_pack("{s:[o]}", "tool_calls", call_json(b));
    json_t *json = answer_json(r, false), *message = message_json("", 0);
    json_object_set_new(message, "tool_calls", json_pack("[o]", call_json(b)));
    json_object_set_new(json, "message", message);
    append_line(out, json);
    return NULL;
}

static void end_chat(struct lk_response *r, struct lk_buf *out) {
    append_line(out, text_json(r, true, "", 0, true));
}

/* The field's texts of the closed blocks, joined; a new reference, NULL if out of memory. */
static json_t *join_texts(const json_t *blocks, const char *field) {
    struct lk_buf text = {0};
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        const json_t *piece = json_object_get(block, field);
        lk_buf_append(&text, piece ? json_string_value(piece) : "", json_string_length(piece));
    }
    json_t *out = text.failed ? NULL : json_stringn(lk_buf_cstr(&text), text.len);
    lk_buf_free(&text);
    return out;
}

/* The closed blocks in one message. */
static json_t *whole_message(const struct lk_response *r) {
    json_t *calls = json_array(), *block, *text = join_texts(r->blocks.closed, "content"),
           *thoughts = join_texts(r->blocks.closed, "thinking");
    size_t i;
    json_array_foreach(r->blocks.closed, i, block)
        json_array_extend(calls, json_object_get(block, "tool_calls"));
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", text);
    if (json_string_length(thoughts) > 0) json_object_set(message, "thinking", thoughts);
    if (json_array_size(calls) > 0) json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    json_decref(thoughts);
    return message;
}

static json_t *whole_chat(struct lk_response *r) {
    json_t *json = answer_json(r, true);
    if (json_object_set_new(json, "message", whole_message(r)) == 0) return json;
    json_decref(json);
    return NULL;
}

static const struct lk_block_ops chat_ops = {
    .delta = append_chat_text, .close = close_block, .end = end_chat, .whole = whole_chat};

static void write_chat_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    lk_blocks_write_event(r, event, &chat_ops, out);
}

static void write_chat_end(struct lk_response *r, struct lk_buf *out) {
    lk_blocks_write_end(r, &chat_ops, out);
}

static bool write_whole_chat(const struct lk_response *r, struct lk_buf *out) {
    return lk_blocks_write_whole(r, &chat_ops, out);
}

/* A line without text, which clients append to the answer. */
static void write_chat_idle(struct lk_response *r, struct lk_buf *out) {
    append_line(out, text_json(r, true, "", 0, false));
}

static json_t *loaded_chat(const struct lk_server_opts *opts) {
    return loaded_json(opts, "message", message_json("", 0));
}

/* ---- /api/generate ---- */

static void append_text(struct lk_response *r, const char *text, size_t len, struct lk_buf *out) {
    bool is_text = r->blocks.kind == LK_BLOCK_TEXT;
    json_t *line = text_json(r, false, text, is_text ? len : 0, false);
    if (!is_text) json_object_set_new(line, "thinking", json_stringn(text, len));
    append_line(out, line);
}

static void end_text(struct lk_response *r, struct lk_buf *out) {
    append_line(out, text_json(r, false, "", 0, true));
}

static json_t *whole_text(struct lk_response *r) {
    json_t *text = join_texts(r->blocks.closed, "content"),
           *thoughts = join_texts(r->blocks.closed, "thinking"), *out = NULL;
    if (text) out = text_json(r, false, json_string_value(text), json_string_length(text), true);
    if (json_string_length(thoughts) > 0) json_object_set(out, "thinking", thoughts);
    json_decref(text);
    json_decref(thoughts);
    return out;
}

static const struct lk_block_ops text_ops = {
    .delta = append_text, .close = close_block, .end = end_text, .whole = whole_text};

static void write_text_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    lk_blocks_write_event(r, event, &text_ops, out);
}

static void write_text_end(struct lk_response *r, struct lk_buf *out) {
    lk_blocks_write_end(r, &text_ops, out);
}

static bool write_whole_text(const struct lk_response *r, struct lk_buf *out) {
    return lk_blocks_write_whole(r, &text_ops, out);
}

static void write_text_idle(struct lk_response *r, struct lk_buf *out) {
    append_line(out, text_json(r, false, "", 0, false));
}

static json_t *loaded_text(const struct lk_server_opts *opts) {
    return loaded_json(opts, "response", json_string(""));
}

/* ---- errors ---- */

json_t *lk_ollama_error_json(const struct lk_api_error *error) {
    return json_pack("{s:s}", "error", error->msg);
}

static void write_error(struct lk_response *r, const struct lk_api_error *error,
                        struct lk_buf *out) {
    (void)r;
    append_line(out, lk_ollama_error_json(error));
}

static const char stream_type[] = "application/x-ndjson";

const struct lk_endpoint lk_ollama_chat = {.parse = parse_chat,
                                           .n_body = 2,
                                           .empty = loaded_chat,
                                           .write_whole = write_whole_chat,
                                           .write_event = write_chat_event,
                                           .write_end = write_chat_end,
                                           .write_error = write_error,
                                           .stream_type = stream_type,
                                           .write_idle = write_chat_idle};

const struct lk_endpoint lk_ollama_generate = {.parse = parse_generate,
                                               .n_body = 2,
                                               .empty = loaded_text,
                                               .write_whole = write_whole_text,
                                               .write_event = write_text_event,
                                               .write_end = write_text_end,
                                               .write_error = write_error,
                                               .stream_type = stream_type,
                                               .write_idle = write_text_idle};
