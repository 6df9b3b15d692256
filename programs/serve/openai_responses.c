/* OpenAI's Responses API: responses and the events of a stream. An answer consists of items: a
 * message per piece of text, and one item per call or piece of thoughts. A message, or an item of
 * thoughts, has one part. */
#include "serve/openai_responses.h"

#include "serve/answer_blocks.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/openai_chat.h"
#include "serve/openai_responses_body.h"

#include <string.h>

static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, struct lk_api_error *error) {
    json_t *given = lk_json_parse_body(body, len, error),
           *chat = given ? lk_openai_responses_to_chat(given, error) : NULL;
    bool good = lk_openai_chat_parse_json(request, opts, chat, error);
    request->original = given; /* the response repeats fields of it */
    request->text_copies = 6;  /* in its block and item, and in the last events of a stream */
    return good;
}

/* ---- the response object ---- */

/* An id with another prefix than the chat's. */
static json_t *make_id(const struct lk_response *r, const char *prefix) {
    const char *number = strchr(r->id, '-');
    return json_sprintf("%s_%s", prefix, number ? number + 1 : r->id);
}

static json_t *item_id(const struct lk_response *r) {
    static const char *const prefixes[] = {
        [LK_BLOCK_THOUGHTS] = "rs", [LK_BLOCK_TEXT] = "msg", [LK_BLOCK_CALL] = "fc"};
    const char *number = strchr(r->id, '-'), *prefix = prefixes[r->blocks.kind];
    return json_sprintf("%s_%s-%zu", prefix, number ? number + 1 : r->id, r->blocks.n_closed);
}

static json_t *usage_json(const struct lk_response *r) {
    const struct lk_job_result *result = &r->choice[0].result;
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens",
                     (json_int_t)result->n_prompt, "input_tokens_details", "cached_tokens",
                     (json_int_t)result->n_reused, "output_tokens", (json_int_t)result->n_decoded,
                     "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                     (json_int_t)(result->n_prompt + result->n_decoded));
}

/* Set a field to what the request has, or to the default, which is released. */
static void repeat_field(json_t *to, const json_t *body, const char *name, json_t *value) {
    json_t *given = json_object_get(body, name);
    if (given && !json_is_null(given))
        json_object_set(to, name, given);
    else
        json_object_set(to, name, value);
    json_decref(value);
}

/* The tools that were offered to the model, in the form of the request. */
static json_t *offered_tools(const json_t *body) {
    const json_t *tool;
    json_t *out = json_array();
    size_t i;
    json_array_foreach(json_object_get(body, "tools"), i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "function") == 0) json_array_append(out, (json_t *)tool);
    }
    return out;
}

/* `status`: in_progress, completed, incomplete or failed. */
static json_t *response_json(const struct lk_response *r, const char *status, json_t *output) {
    const json_t *body = r->completion->request.original;
    const lk_sampler_opts *sampling = &r->completion->request.sampling;
    bool over = strcmp(status, "completed") == 0 || strcmp(status, "incomplete") == 0;
    json_t *out = json_pack(
        "{s:o, s:s, s:I, s:s, s:b, s:n, s:s, s:o, s:n, s:b, s:s, s:o}", "id", make_id(r, "resp"),
        "object", "response", "created_at", (json_int_t)r->created, "status", status, "background",
        0, "error", "model", r->opts->id, "output", output, "previous_response_id", "store", 0,
        "truncation", "disabled", "usage", over ? usage_json(r) : json_null());
    json_object_set_new(out, "incomplete_details",
                        strcmp(status, "incomplete") == 0
                            ? json_pack("{s:s}", "reason", "max_output_tokens")
                            : json_null());
    repeat_field(out, body, "instructions", json_null());
    repeat_field(out, body, "max_output_tokens", json_null());
    repeat_field(out, body, "metadata", json_object());
    repeat_field(out, body, "parallel_tool_calls", json_true());
    repeat_field(out, body, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    repeat_field(out, body, "temperature", json_real((double)sampling->temperature));
    repeat_field(out, body, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    repeat_field(out, body, "tool_choice", json_string("auto"));
    repeat_field(out, body, "top_p", json_real((double)sampling->top_p));
    repeat_field(out, body, "user", json_null());
    json_object_set_new(out, "tools", offered_tools(body));
    return out;
}

/* The part of a message, or of thoughts, with this text. */
static json_t *part_json(const struct lk_response *r, const char *text, size_t len) {
    if (r->blocks.kind == LK_BLOCK_THOUGHTS)
        return json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text, len);
    return json_pack("{s:s, s:s%, s:[], s:[]}", "type", "output_text", "text", text, len,
                     "annotations", "logprobs");
}

/* The item of the open block, with the text or arguments so far. `content` of a message or thoughts
 * is released. */
static json_t *item_json(const struct lk_response *r, const char *status, json_t *content) {
    const struct lk_blocks *b = &r->blocks;
    if (b->kind == LK_BLOCK_THOUGHTS)
        return json_pack("{s:o, s:s, s:s, s:[], s:o}", "id", item_id(r), "type", "reasoning",
                         "status", status, "summary", "content", content);
    if (b->kind == LK_BLOCK_TEXT)
        return json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", item_id(r), "type", "message", "status",
                         status, "role", "assistant", "content", content);
    json_decref(content);
    return json_pack("{s:o, s:s, s:s, s:O, s:O, s:s%}", "id", item_id(r), "type", "function_call",
                     "status", status, "call_id", b->id, "name", b->name, "arguments",
                     lk_buf_cstr(&b->text), b->text.len);
}

/* ---- streams ---- */

/* Append an event with its name and number; `json` has its other fields and is released. */
static void append_event(struct lk_response *r, const char *type, json_t *json,
                         struct lk_buf *out) {
    json_t *all =
        json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)r->blocks.n_event++);
    if (json_object_update(all, json)) out->failed = true;
    json_decref(json);
    lk_buf_printf(out, "event: %s\ndata: ", type);
    lk_buf_add_json(out, all);
    lk_buf_append_str(out, "\n\n");
}

/* The fields that events of the open block share. */
static json_t *block_event(const struct lk_response *r) {
    json_t *out = json_pack("{s:o, s:I}", "item_id", item_id(r), "output_index",
                            (json_int_t)r->blocks.n_closed);
    if (r->blocks.kind != LK_BLOCK_CALL) json_object_set_new(out, "content_index", json_integer(0));
    return out;
}

static void append_item_event(struct lk_response *r, const char *type, json_t *item,
                              struct lk_buf *out) {
    append_event(
        r, type,
        json_pack("{s:I, s:o}", "output_index", (json_int_t)r->blocks.n_closed, "item", item), out);
}

static void start_response(struct lk_response *r, struct lk_buf *out) {
    static const char *const types[] = {"response.created", "response.in_progress"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        append_event(r, types[i],
                     json_pack("{s:o}", "response", response_json(r, "in_progress", json_array())),
                     out);
}

static void open_block(struct lk_response *r, struct lk_buf *out) {
    append_item_event(r, "response.output_item.added", item_json(r, "in_progress", json_array()),
                      out);
    if (r->blocks.kind == LK_BLOCK_CALL) return;
    json_t *event = block_event(r);
    json_object_set_new(event, "part", part_json(r, "", 0));
    append_event(r, "response.content_part.added", event, out);
}

static void append_delta(struct lk_response *r, const char *text, size_t len, struct lk_buf *out) {
    static const char *const types[] = {[LK_BLOCK_THOUGHTS] = "response.reasoning_text.delta",
                                        [LK_BLOCK_TEXT] = "response.output_text.delta",
                                        [LK_BLOCK_CALL] = "response.function_call_arguments.delta"};
    json_t *event = block_event(r);
    json_object_set_new(event, "delta", json_stringn(text, len));
    if (r->blocks.kind == LK_BLOCK_TEXT) json_object_set_new(event, "logprobs", json_array());
    append_event(r, types[r->blocks.kind], event, out);
}

/* The last events of a block, before the one with its whole item. */
static void append_block_end(struct lk_response *r, struct lk_buf *out) {
    const struct lk_blocks *b = &r->blocks;
    const char *text = lk_buf_cstr(&b->text);
    json_t *event = block_event(r);
    if (b->kind == LK_BLOCK_CALL) {
        json_object_set(event, "name", b->name);
        json_object_set_new(event, "arguments", json_stringn(text, b->text.len));
        append_event(r, "response.function_call_arguments.done", event, out);
        return;
    }
    json_object_set_new(event, "text", json_stringn(text, b->text.len));
    bool is_text = b->kind == LK_BLOCK_TEXT;
    if (is_text) json_object_set_new(event, "logprobs", json_array());
    append_event(r, is_text ? "response.output_text.done" : "response.reasoning_text.done", event,
                 out);
    event = block_event(r);
    json_object_set_new(event, "part", part_json(r, text, b->text.len));
    append_event(r, "response.content_part.done", event, out);
}

static json_t *close_block(struct lk_response *r, struct lk_buf *out) {
    const struct lk_blocks *b = &r->blocks;
    json_t *item = item_json(r, "completed",
                             json_pack("[o]", part_json(r, lk_buf_cstr(&b->text), b->text.len)));
    if (out) {
        append_block_end(r, out);
        append_item_event(r, "response.output_item.done", json_incref(item), out);
    }
    return item;
}

/* The status of a whole response: an answer may be cut by its limit. */
static const char *final_status(const struct lk_response *r) {
    return strcmp(r->blocks.finish, "length") == 0 ? "incomplete" : "completed";
}

static void end_response(struct lk_response *r, struct lk_buf *out) {
    const char *status = final_status(r);
    append_event(
        r, strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete",
        json_pack("{s:o}", "response", response_json(r, status, json_incref(r->blocks.closed))),
        out);
}

static json_t *whole_response(struct lk_response *r) {
    return response_json(r, final_status(r), json_incref(r->blocks.closed));
}

static const struct lk_block_ops block_ops = {.start = start_response,
                                              .open = open_block,
                                              .delta = append_delta,
                                              .close = close_block,
                                              .end = end_response,
                                              .whole = whole_response};

static void write_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    lk_blocks_write_event(r, event, &block_ops, out);
}

static void write_end(struct lk_response *r, struct lk_buf *out) {
    lk_blocks_write_end(r, &block_ops, out);
}

static bool write_whole(const struct lk_response *r, struct lk_buf *out) {
    return lk_blocks_write_whole(r, &block_ops, out);
}

static void write_error(struct lk_response *r, const struct lk_api_error *error,
                        struct lk_buf *out) {
    json_t *response = response_json(r, "failed", json_array());
    lk_blocks_start(r, &block_ops, out);
    json_object_set_new(response, "error",
                        json_pack("{s:s, s:s}", "code", error->code ? error->code : "server_error",
                                  "message", error->msg));
    append_event(r, "response.failed", json_pack("{s:o}", "response", response), out);
}

const struct lk_endpoint lk_openai_responses = {.parse = parse_body,
                                                .n_body = 4,
                                                .write_whole = write_whole,
                                                .write_event = write_event,
                                                .write_end = write_end,
                                                .write_error = write_error};
