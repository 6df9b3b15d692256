/* OpenAI's Responses API: responses and the events of a stream. An answer consists of items: a
 * message per piece of text, and one item per call or piece of thoughts. A message, or an item of
 * thoughts, has one part. */
#include "serve/openai_responses.h"

#include "serve/answer_blocks.h"
#include "serve/body_convert.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/openai_chat.h"
#include "serve/response_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Put the items of an earlier response before the input. */
static bool continue_previous(json_t *given, const struct lk_server_opts *opts,
                              uint64_t *more_bytes, struct lk_api_error *error) {
    const char *id = NULL;
    size_t n_byte = 0;
    if (!lk_json_field_string(given, "previous_response_id", &id, error)) return false;
    if (!id) return true;
    json_t *items = opts->responses ? lk_response_store_items(opts->responses, id, &n_byte) : NULL,
           *input = json_object_get(given, "input");
    if (!items)
        return lk_api_error_set(error, 400, "previous_response_not_found", "previous_response_id",
                                "there is no response '%.80s': the last %d responses are kept, up "
                                "to %d MiB, until the server stops; send the conversation in "
                                "'input'",
                                id, LK_STORED_RESPONSES, LK_STORED_RESPONSE_BYTES >> 20);
    *more_bytes = 3 * lk_json_max_parsed_bytes(n_byte);
    bool good = json_is_string(input)
                    ? json_array_append_new(
                          items, json_pack("{s:s, s:O}", "role", "user", "content", input)) == 0
                    : !input || json_is_null(input) || json_array_extend(items, input) == 0;
    json_object_set_new(given, "input", items);
    return good || lk_api_error_set(error, 400, "invalid_type", "input",
                                    "'input' must be a string or an array of items");
}

/* ---- references to items ---- */

/* The response that the last reference was to. */
struct referred {
    char id[64];      /* "": none */
    json_t *response; /* owned */
    size_t n_parsed;  /* bytes of text that were parsed for all references */
    size_t n_byte;    /* of the items that replace them */
};

/* The id of the response with an item, which is a part of the item's: response_id, item_id. False:
 * the item is not of a response of this server. */
static bool response_of_item(const char *item, char out[64]) {
    const char *start = strchr(item, '_'), *end = strrchr(item, '-');
    if (!start || !end || end < start || end - start > 50) return false;
    snprintf(out, 64, "resp%.*s", (int)(end - start), start);
    return true;
}

/* The item of an earlier response with this id; borrowed from `last`. NULL: there is none. */
static json_t *find_item(struct lk_response_store *store, const char *id, struct referred *last) {
    char response[64], *text = NULL;
    json_t *item;
    size_t i;
    if (!response_of_item(id, response)) return NULL;
    if (strcmp(response, last->id) != 0) {
        json_decref(last->response);
        last->response = NULL;
        memcpy(last->id, response, sizeof response);
        if (store) text = lk_response_store_text(store, response);
        if (text) last->n_parsed += strlen(text);
        if (text && last->n_parsed <= LK_STORED_RESPONSE_BYTES)
            last->response = json_loads(text, 0, NULL);
        free(text);
    }
    json_array_foreach(json_object_get(last->response, "output"), i, item) {
        const char *given = json_string_value(json_object_get(item, "id"));
        if (given && strcmp(given, id) == 0) return item;
    }
    return NULL;
}

/* A reference has no type, or this one. */
static bool is_reference(const json_t *item) {
    return lk_convert_is_type(item, "item_reference") ||
           (json_object_size(item) == 1 && json_is_string(json_object_get(item, "id")));
}

/* Put the items of earlier responses in the place of references to them. */
static bool resolve_references(json_t *given, const struct lk_server_opts *opts,
                               uint64_t *more_bytes, struct lk_api_error *error) {
    json_t *input = json_object_get(given, "input"), *item;
    struct referred last = {.id = ""};
    bool good = true;
    size_t i;
    json_array_foreach(input, i, item) {
        if (!is_reference(item)) continue;
        const char *id = json_string_value(json_object_get(item, "id"));
        json_t *found = id ? find_item(opts->responses, id, &last) : NULL;
        if (found) last.n_byte += json_dumpb(found, NULL, 0, JSON_COMPACT);
        good = found && last.n_byte <= LK_MAX_STORED_RESPONSE;
        if (!good)
            lk_api_error_set(
                error, 400, found ? "invalid_value" : "item_not_found", "input",
                found ? "input[%zu] refers to '%.80s', but all references together may "
                        "have at most %d MiB; send the items"
                      : "input[%zu] refers to '%.80s', but none of the responses that "
                        "are kept has this item (up to %d MiB); send the item",
                i, id ? id : "", (found ? LK_MAX_STORED_RESPONSE : LK_STORED_RESPONSE_BYTES) >> 20);
        if (!good) break;
        json_array_set(input, i, found);
    }
    json_decref(last.response);
    *more_bytes += 3 * lk_json_max_parsed_bytes(last.n_byte);
    return good;
}

static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, struct lk_api_error *error) {
    json_t *given = lk_fields_parse(body, len, LK_FIELDS_RESPONSES, error), *chat = NULL;
    uint64_t more_bytes = 0;
    if (given && continue_previous(given, opts, &more_bytes, error) &&
        resolve_references(given, opts, &more_bytes, error))
        chat = lk_openai_responses_to_chat(given, error);
    bool good = lk_openai_chat_parse_json(request, opts, chat, error);
    request->more_bytes = more_bytes;
    const char *truncation = json_string_value(json_object_get(given, "truncation"));
    request->all_turns = truncation && strcmp(truncation, "disabled") == 0;
    request->original = given; /* the response repeats fields of it */
    request->text_copies = 6;  /* in its block and item, and in the last events of a stream */
    return good;
}

/* ---- the response object ---- */

/* The id by which clients continue a response. Items have its secret: clients refer to them. */
static json_t *response_id(const struct lk_response *r) {
    const char *number = strchr(r->id, '-');
    return json_sprintf("resp_%s-%s", number ? number + 1 : r->id, r->secret);
}

static bool is_stored(const struct lk_response *r) {
    return !json_is_false(json_object_get(r->completion->request.original, "store"));
}

static json_t *item_id(const struct lk_response *r) {
    static const char *const prefixes[] = {
        [LK_BLOCK_THOUGHTS] = "rs", [LK_BLOCK_TEXT] = "msg", [LK_BLOCK_CALL] = "fc"};
    const char *number = strchr(r->id, '-'), *prefix = prefixes[r->blocks.kind];
    return json_sprintf("%s_%s-%s-%zu", prefix, number ? number + 1 : r->id, r->secret,
                        r->blocks.n_closed);
}

static json_t *usage_json(const struct lk_response *r) {
    const struct lk_job_result *result = &r->choice[0].result;
    json_t *usage = json_pack(
        "{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)result->n_prompt,
        "input_tokens_details", "cached_tokens", (json_int_t)result->n_reused, "output_tokens",
        (json_int_t)result->n_decoded, "output_tokens_details", "reasoning_tokens", 0,
        "total_tokens", (json_int_t)(result->n_prompt + result->n_decoded));
    lk_response_add_left_out(r, usage);
    return usage;
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
    json_t *out = json_pack("{s:o, s:s, s:I, s:s, s:b, s:n, s:s, s:o, s:b, s:s, s:o}", "id",
                            response_id(r), "object", "response", "created_at",
                            (json_int_t)r->created, "status", status, "background", 0, "error",
                            "model", r->opts->id, "output", output, "store", is_stored(r),
                            "truncation", r->completion->request.all_turns ? "disabled" : "auto",
                            "usage", over ? usage_json(r) : json_null());
    json_object_set_new(out, "incomplete_details",
                        strcmp(status, "incomplete") == 0
                            ? json_pack("{s:s}", "reason", "max_output_tokens")
                            : json_null());
    repeat_field(out, body, "instructions", json_null());
    repeat_field(out, body, "previous_response_id", json_null());
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
    /* The reason is known when the last item is closed. */
    bool is_cut = b->finish && strcmp(b->finish, "length") == 0;
    json_t *item = item_json(r, is_cut ? "incomplete" : "completed",
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

/* The whole response, which is kept, so that a request may continue it. */
static json_t *whole_response(struct lk_response *r) {
    json_t *out = response_json(r, final_status(r), json_incref(r->blocks.closed));
    const char *id = json_string_value(json_object_get(out, "id"));
    if (is_stored(r) && id && r->opts->responses)
        lk_response_store_put(r->opts->responses, id,
                              json_object_get(r->completion->request.original, "input"), out);
    return out;
}

static void end_response(struct lk_response *r, struct lk_buf *out) {
    bool completed = strcmp(final_status(r), "completed") == 0;
    append_event(r, completed ? "response.completed" : "response.incomplete",
                 json_pack("{s:o}", "response", whole_response(r)), out);
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

json_t *lk_openai_responses_error_json(const struct lk_api_error *error) {
    struct lk_api_error too_long;
    if (error->n_ctx) {
        too_long = lk_api_error_in_words(
            error,
            "Your input exceeds the context window of this model: it has %zu tokens, and this "
            "model's maximum context length is %zu tokens. Please adjust your input and try "
            "again.",
            error->n_tok, error->n_ctx);
        error = &too_long;
    }
    return lk_api_error_json(error);
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

/* ---- the request body, converted to that of /v1/chat/completions ---- */

static const struct lk_text_parts input_parts = {NULL, ""}, thought_parts = {NULL, "\n\n"};

/* The last message, if it has only thoughts so far. */
static json_t *last_thoughts(const json_t *messages) {
    size_t n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL;
    bool has_more = json_string_length(json_object_get(last, "content")) > 0 ||
                    json_object_get(last, "tool_calls");
    return json_object_get(last, "reasoning_content") && !has_more ? last : NULL;
}

static bool convert_message(json_t *messages, const json_t *item, struct lk_api_error *error) {
    const char *role = lk_convert_role(item, error);
    struct lk_buf text = {0};
    bool good = lk_convert_text(json_object_get(item, "content"), &input_parts, &text, error);
    json_t *thoughts = strcmp(role, "assistant") == 0 ? last_thoughts(messages) : NULL;
    if (good && thoughts)
        good = !text.failed &&
               json_object_set_new(thoughts, "content", json_stringn(text.at, text.len)) == 0;
    else if (good)
        good = lk_convert_message(messages, role, &text, error);
    lk_buf_free(&text);
    return good;
}

/* Thoughts start a message of the assistant, which the items after them go on with. The text of
 * some is encrypted: then they are dropped. */
static bool convert_thoughts(json_t *messages, const json_t *item, struct lk_api_error *error) {
    const json_t *content = json_object_get(item, "content"),
                 *summary = json_object_get(item, "summary");
    struct lk_buf text = {0};
    bool good = lk_convert_text(json_array_size(content) > 0 ? content : summary, &thought_parts,
                                &text, error);
    if (good && text.len > 0)
        good = lk_convert_append(
                   messages, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), error) &&
               lk_convert_thoughts(json_array_get(messages, json_array_size(messages) - 1), &text,
                                   error);
    lk_buf_free(&text);
    return good;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* The first of the fields that an item has; borrowed. */
static const json_t *first_field(const json_t *item, const char *const *names) {
    const json_t *value = NULL;
    for (; *names && !value; names++) value = json_object_get(item, *names);
    return value;
}

static bool convert_output(json_t *messages, const json_t *id, const json_t *output,
                           struct lk_api_error *error) {
    struct lk_buf text = {0};
    bool good = lk_convert_text(output, &input_parts, &text, error) &&
                lk_convert_result(messages, id, &text, error);
    lk_buf_free(&text);
    return good;
}

/* A call of any tool that the client has run: a function, or one that is named by the item's type,
 * as local_shell_call. Calls that ran at OpenAI have no name and no call_id, and are left out. */
static bool convert_call(json_t *messages, const json_t *item, const char *type,
                         struct lk_api_error *error) {
    static const char *const ids[] = {"call_id", "id", NULL}, *const arguments[] = {
                                                                  "arguments", "input", "action",
                                                                  "operation", NULL};
    const json_t *id = first_field(item, ids), *output = json_object_get(item, "output");
    json_t *name = json_object_get(item, "name");
    bool is_function = strcmp(type, "function_call") == 0;
    if (!json_is_string(name) && !is_function && !json_object_get(item, "call_id"))
        return lk_api_omit(error, type);
    name = json_is_string(name) || is_function ? json_incref(name)
                                               : json_stringn(type, strlen(type) - strlen("_call"));
    bool good = lk_convert_call(messages, id, name, first_field(item, arguments), error);
    json_decref(name);
    if (good && output && !json_is_null(output)) good = convert_output(messages, id, output, error);
    return good;
}

/* Calls are items of their own; the common form has them in the message of the assistant. A text is
 * a message of the user. Items of unknown types are messages if they have a role, and otherwise
 * left out. */
static bool convert_item(json_t *messages, json_t *item, size_t i, struct lk_api_error *error) {
    static const char *const ids[] = {"call_id", "id", NULL}, *const outputs[] = {"output",
                                                                                  "content",
                                                                                  "tools", NULL};
    const char *type = json_string_value(json_object_get(item, "type"));
    if (json_is_null(item)) return true;
    if (json_is_string(item))
        return lk_convert_append(messages, json_pack("{s:s, s:O}", "role", "user", "content", item),
                                 error);
    if (!json_is_object(item))
        return lk_api_error_set(error, 400, "invalid_type", "input", "input[%zu] must be an object",
                                i);
    if (!type || strcmp(type, "message") == 0 || json_object_get(item, "role"))
        return convert_message(messages, item, error);
    if (strcmp(type, "reasoning") == 0) return convert_thoughts(messages, item, error);
    if (ends_with(type, "_call")) return convert_call(messages, item, type, error);
    if (ends_with(type, "_output"))
        return convert_output(messages, first_field(item, ids), first_field(item, outputs), error);
    return lk_api_omit(error, type);
}

static bool convert_input(json_t *to, const json_t *from, struct lk_api_error *error) {
    const json_t *input = json_object_get(from, "input"),
                 *instructions = json_object_get(from, "instructions");
    json_t *messages = json_array(), *item;
    size_t i;
    json_object_set_new(to, "messages", messages);
    if (json_is_array(instructions)) {
        json_array_foreach(instructions, i,
                           item) if (!convert_item(messages, item, i, error)) return false;
    } else if (lk_json_field_is_set(from, "instructions")) {
        if (!json_is_string(instructions))
            return lk_api_error_set(error, 400, "invalid_type", "instructions",
                                    "'instructions' must be a string or an array of items");
        if (!lk_convert_append(messages,
                               json_pack("{s:s, s:O}", "role", "system", "content", instructions),
                               error))
            return false;
    }
    if (json_is_string(input))
        return lk_convert_append(messages,
                                 json_pack("{s:s, s:O}", "role", "user", "content", input), error);
    if (!json_is_array(input))
        return lk_api_error_set(error, 400, "missing_field", "input",
                                "'input' must be a string or an array of items");
    json_array_foreach(input, i, item) if (!convert_item(messages, item, i, error)) return false;
    if (!lk_convert_join_systems(messages, error)) return false;
    if (json_array_size(messages) > 0) return true;
    return lk_convert_append(messages, json_pack("{s:s, s:s}", "role", "user", "content", ""),
                             error); /* nothing is left of the input */
}

/* "text.format" has the schema and its name where "response_format" has an object with both. */
static bool convert_format(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *text = json_object_get(from, "text"), *format = json_object_get(text, "format");
    if (text && !json_is_null(text) && !json_is_object(text))
        return lk_api_error_set(error, 400, "invalid_type", "text", "'text' must be an object");
    if (!format || json_is_null(format)) return true;
    if (!lk_convert_is_type(format, "json_schema")) {
        json_object_set(to, "response_format", format);
        return true;
    }
    json_object_set_new(to, "response_format",
                        json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
    return true;
}

/* Refuse what would change the answer if it were ignored. */
static bool check_body(const json_t *body, struct lk_api_error *error) {
    static const struct {
        const char *name, *advice;
    } fields[] = {
        {"conversation", "this server stores no conversations; send the messages in 'input'"},
        {"prompt", "this server stores no prompts; send the text in 'instructions' or 'input'"},
        {"top_logprobs", "use /v1/chat/completions for log-probabilities"}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(body, fields[i].name);
        if (!lk_json_field_is_set(body, fields[i].name) ||
            (json_is_integer(value) && json_integer_value(value) == 0))
            continue;
        return lk_api_error_set(error, 400, "unsupported", fields[i].name,
                                "'%s' is not supported: %s", fields[i].name, fields[i].advice);
    }
    if (json_is_true(json_object_get(body, "background")))
        return lk_api_error_set(error, 400, "unsupported", "background",
                                "'background' is not supported: wait for the response, or use "
                                "'stream'");
    return true;
}

/* Fields that are ignored, because they change nothing that this server does: include, metadata,
 * prompt_cache_key, safety_identifier, service_tier, store, user. */
json_t *lk_openai_responses_to_chat(const json_t *body, struct lk_api_error *error) {
    json_t *to = json_object();
    lk_convert_common_fields(to, body);
    lk_convert_field(to, "model", body, "model");
    lk_convert_field(to, "max_tokens", body, "max_output_tokens");
    lk_convert_field(to, "stop", body, "stop");
    lk_convert_field(to, "parallel_tool_calls", body, "parallel_tool_calls");
    lk_convert_field(to, "reasoning_effort", json_object_get(body, "reasoning"), "effort");
    lk_convert_field(to, "reasoning_budget", body, "reasoning_budget");
    lk_convert_field(to, "reasoning_budget", json_object_get(body, "reasoning"), "max_tokens");
    lk_convert_field(to, "tools", body, "tools");
    lk_convert_field(to, "tool_choice", body, "tool_choice");
    if (to && check_body(body, error) && convert_input(to, body, error) &&
        lk_convert_tools(to, error) && lk_convert_tool_choice(to, error) &&
        convert_format(to, body, error))
        return to;
    if (!to) lk_convert_no_memory(error);
    json_decref(to);
    return NULL;
}
