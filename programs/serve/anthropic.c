/* Anthropic's messages API: request bodies, responses, streams and errors. */
#include "serve/anthropic.h"

#include "serve/answer_blocks.h"
#include "serve/body_convert.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/openai_chat.h"

#include <stdio.h>
#include <string.h>

/* ---- requests ---- */

static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, bool count_only, struct lk_api_error *error) {
    json_t *given = lk_fields_parse(body, len, LK_FIELDS_MESSAGES, error),
           *chat = given ? lk_anthropic_to_chat(given, count_only, error) : NULL;
    bool good = lk_openai_chat_parse_json(request, opts, chat, error);
    request->may_lack_thoughts = true; /* clients ask any model for thoughts */
    request->text_copies = 3; /* of a whole response: in its block, its JSON and its text */
    if (request->stream) request->text_copies = 1;
    json_decref(given);
    return good;
}

static bool parse_messages(struct lk_request *request, const struct lk_server_opts *opts,
                           const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, false, error);
}

static bool parse_count(struct lk_request *request, const struct lk_server_opts *opts,
                        const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, true, error);
}

/* ---- parts of a response ---- */

/* The id of the message: OpenAI's id has the prefix "chatcmpl". */
static json_t *message_id(const struct lk_response *r) {
    const char *number = strchr(r->id, '-');
    return json_sprintf("msg_%s", number ? number + 1 : r->id);
}

/* Tokens that the cache held already are counted apart from the others. */
static json_t *usage_json(const struct lk_response *r) {
    const struct lk_job_result *result = &r->choice[0].result;
    /* Before the prompt was read it is not known whether the session holds other tokens of it. */
    size_t n_prompt = result->n_prompt ? result->n_prompt : r->completion->request.prompt[0].n_tok,
           n_read = n_prompt > result->n_reused ? n_prompt - result->n_reused : 0;
    json_t *usage =
        json_pack("{s:I, s:i, s:I, s:I}", "input_tokens", (json_int_t)n_read,
                  "cache_creation_input_tokens", 0, "cache_read_input_tokens",
                  (json_int_t)result->n_reused, "output_tokens", (json_int_t)result->n_decoded);
    lk_response_add_left_out(r, usage);
    return usage;
}

/* NULL before the end. */
static const char *stop_reason(const struct lk_response *r) {
    const char *finish = r->blocks.finish;
    if (!finish) return NULL;
    if (strcmp(finish, "tool_calls") == 0) return "tool_use";
    if (strcmp(finish, "length") == 0) return "max_tokens";
    return r->choice[0].result.stop_string ? "stop_sequence" : "end_turn";
}

static json_t *message_json(const struct lk_response *r, json_t *content) {
    return json_pack("{s:o, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", message_id(r), "type",
                     "message", "role", "assistant", "model", r->opts->id, "content", content,
                     "stop_reason", stop_reason(r), "stop_sequence",
                     r->choice[0].result.stop_string, "usage", usage_json(r));
}

/* The input of a tool, which is JSON in a string: the grammar or tools.c made sure of that. */
static json_t *parse_input(const struct lk_buf *text) {
    json_t *input = json_loadb(lk_buf_cstr(text), text->len, 0, NULL);
    return input ? input : json_object();
}

/* ---- streams ---- */

/* Append an event with its name; releases `json`. */
static void append_event(struct lk_buf *out, json_t *json) {
    const char *type = json_string_value(json_object_get(json, "type"));
    lk_buf_printf(out, "event: %s\ndata: ", type ? type : "");
    lk_buf_add_json(out, json);
    lk_buf_append_str(out, "\n\n");
}

static void start_message(struct lk_response *r, struct lk_buf *out) {
    append_event(out, json_pack("{s:s, s:o}", "type", "message_start", "message",
                                message_json(r, json_array())));
    append_event(out, json_pack("{s:s}", "type", "ping"));
}

static void open_block(struct lk_response *r, struct lk_buf *out) {
    const struct lk_blocks *b = &r->blocks;
    json_t *block;
    if (b->kind == LK_BLOCK_CALL)
        block = json_pack("{s:s, s:O, s:O, s:{}}", "type", "tool_use", "id", b->id, "name", b->name,
                          "input");
    else if (b->kind == LK_BLOCK_THOUGHTS)
        block = json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
    else
        block = json_pack("{s:s, s:s}", "type", "text", "text", "");
    append_event(out, json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index",
                                (json_int_t)b->n_closed, "content_block", block));
}

/* An event with a piece of the open block. */
static void append_piece(const struct lk_response *r, const char *type, const char *field,
                         const char *text, size_t len, struct lk_buf *out) {
    append_event(out, json_pack("{s:s, s:I, s:{s:s, s:s%}}", "type", "content_block_delta", "index",
                                (json_int_t)r->blocks.n_closed, "delta", "type", type, field, text,
                                len));
}

static void append_delta(struct lk_response *r, const char *text, size_t len, struct lk_buf *out) {
    if (r->blocks.kind == LK_BLOCK_CALL)
        append_piece(r, "input_json_delta", "partial_json", text, len, out);
    else if (r->blocks.kind == LK_BLOCK_THOUGHTS)
        append_piece(r, "thinking_delta", "thinking", text, len, out);
    else
        append_piece(r, "text_delta", "text", text, len, out);
}

/* Thoughts have a signature, which only Anthropic checks: an empty one. */
static json_t *close_block(struct lk_response *r, struct lk_buf *out) {
    const struct lk_blocks *b = &r->blocks;
    const char *text = lk_buf_cstr(&b->text);
    if (out) {
        if (b->kind == LK_BLOCK_THOUGHTS)
            append_piece(r, "signature_delta", "signature", "", 0, out);
        append_event(out, json_pack("{s:s, s:I}", "type", "content_block_stop", "index",
                                    (json_int_t)b->n_closed));
        return NULL;
    }
    if (b->kind == LK_BLOCK_CALL)
        return json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id", b->id, "name", b->name,
                         "input", parse_input(&b->text));
    if (b->kind == LK_BLOCK_THOUGHTS)
        return json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", text, b->text.len,
                         "signature", "");
    return json_pack("{s:s, s:s%}", "type", "text", "text", text, b->text.len);
}

static void end_message(struct lk_response *r, struct lk_buf *out) {
    append_event(out, json_pack("{s:s, s:{s:s, s:s?}, s:o}", "type", "message_delta", "delta",
                                "stop_reason", stop_reason(r), "stop_sequence",
                                r->choice[0].result.stop_string, "usage", usage_json(r)));
    append_event(out, json_pack("{s:s}", "type", "message_stop"));
}

static json_t *whole_message(struct lk_response *r) {
    return message_json(r, json_incref(r->blocks.closed));
}

static const struct lk_block_ops block_ops = {.start = start_message,
                                              .open = open_block,
                                              .delta = append_delta,
                                              .close = close_block,
                                              .end = end_message,
                                              .whole = whole_message};

static void write_event(struct lk_response *r, struct lk_event *event, struct lk_buf *out) {
    lk_blocks_write_event(r, event, &block_ops, out);
}

static void write_end(struct lk_response *r, struct lk_buf *out) {
    lk_blocks_write_end(r, &block_ops, out);
}

static bool write_whole(const struct lk_response *r, struct lk_buf *out) {
    return lk_blocks_write_whole(r, &block_ops, out);
}

static void write_idle(struct lk_response *r, struct lk_buf *out) {
    lk_blocks_start(r, &block_ops, out);
    append_event(out, json_pack("{s:s}", "type", "ping"));
}

/* ---- errors ---- */

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

json_t *lk_anthropic_error_json(const struct lk_api_error *error) {
    struct lk_api_error too_long;
    if (error->n_ctx) { /* a token is left for the answer */
        too_long = lk_api_error_in_words(
            error, "prompt is too long: %zu tokens > %zu maximum (context length %zu)",
            error->n_tok, error->n_ctx - 1, error->n_ctx);
        error = &too_long;
    }
    return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type",
                     error_type(error->status), "message", error->msg);
}

static void write_error(struct lk_response *r, const struct lk_api_error *error,
                        struct lk_buf *out) {
    (void)r;
    append_event(out, lk_anthropic_error_json(error));
}

const struct lk_endpoint lk_anthropic = {.parse = parse_messages,
                                         .n_body = 2,
                                         .write_whole = write_whole,
                                         .write_event = write_event,
                                         .write_end = write_end,
                                         .write_error = write_error,
                                         .write_idle = write_idle};

const struct lk_endpoint lk_anthropic_count = {.parse = parse_count, .n_body = 2};

/* ---- the request body, converted to OpenAI's chat form ---- */

static const char *const thinking_types[] = {"thinking", "redacted_thinking", NULL};
static const struct lk_text_parts message_parts = {thinking_types, "\n\n"};
static const struct lk_text_parts result_parts = {NULL, "\n\n"};

/* Append the texts between two other blocks as one message. */
static bool flush_text(json_t *messages, const char *role, json_t *texts,
                       struct lk_api_error *error) {
    struct lk_buf text = {0};
    bool good = true;
    if (json_array_size(texts) > 0)
        good = lk_convert_text(texts, &message_parts, &text, error) &&
               lk_convert_message(messages, role, &text, error);
    lk_buf_free(&text);
    json_array_clear(texts);
    return good;
}

/* The thoughts of an answer belong to its first message, messages[first]. */
static bool convert_thoughts(json_t *messages, size_t first, const json_t *blocks,
                             struct lk_api_error *error) {
    struct lk_buf text = {0};
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        const char *thoughts = json_string_value(json_object_get(block, "thinking"));
        if (!lk_convert_is_type(block, "thinking") || !thoughts) continue;
        lk_buf_printf(&text, "%s%s", text.len ? "\n\n" : "", thoughts);
    }
    return lk_convert_thoughts(json_array_get(messages, first), &text, error);
}

/* A block is text, thoughts, a call in a message of the assistant, or a result in one of the user.
 */
static bool convert_blocks(json_t *messages, const char *role, const json_t *blocks,
                           struct lk_api_error *error) {
    const json_t *block;
    size_t i, n_before = json_array_size(messages);
    json_t *texts = json_array();
    bool good = true, is_user = strcmp(role, "user") == 0;
    json_array_foreach(blocks, i, block) {
        if (!good) break;
        if (!is_user && lk_convert_is_type(block, "tool_use")) {
            good = flush_text(messages, role, texts, error) &&
                   lk_convert_call(messages, json_object_get(block, "id"),
                                   json_object_get(block, "name"), json_object_get(block, "input"),
                                   error);
        } else if (is_user && lk_convert_is_type(block, "tool_result")) {
            struct lk_buf text = {0};
            good =
                flush_text(messages, role, texts, error) &&
                lk_convert_text(json_object_get(block, "content"), &result_parts, &text, error) &&
                lk_convert_result(messages, json_object_get(block, "tool_use_id"), &text, error);
            lk_buf_free(&text);
        } else {
            good = json_array_append(texts, (json_t *)block) == 0 || lk_convert_no_memory(error);
        }
    }
    good = good && flush_text(messages, role, texts, error);
    json_decref(texts);
    if (good && json_array_size(messages) == n_before)
        good = lk_convert_message(messages, role, &(struct lk_buf){0}, error);
    if (good && strcmp(role, "assistant") == 0)
        good = convert_thoughts(messages, n_before, blocks, error);
    return good;
}

/* Agents also send reminders as messages of the role "system". */
static bool convert_message(json_t *messages, const json_t *message, struct lk_api_error *error) {
    const json_t *content = json_object_get(message, "content");
    if (json_is_null(message)) return true;
    if (json_is_string(message)) content = message;
    const char *role = json_is_string(message) ? "user" : lk_convert_role(message, error);
    if (json_is_array(content)) return convert_blocks(messages, role, content, error);
    struct lk_buf text = {0};
    bool good = lk_convert_text(content, &message_parts, &text, error) &&
                lk_convert_message(messages, role, &text, error);
    lk_buf_free(&text);
    return good;
}

static bool convert_messages(json_t *to, const json_t *from, struct lk_api_error *error) {
    const json_t *given = json_object_get(from, "messages"), *message;
    json_t *messages = json_array();
    size_t i;
    json_object_set_new(to, "messages", messages);
    if (!json_is_array(given) || json_array_size(given) == 0)
        return lk_api_error_set(error, 400, "missing_field", "messages",
                                "'messages' must be an array with at least one message");
    if (lk_json_field_is_set(from, "system")) {
        struct lk_buf text = {0};
        bool good = lk_convert_text(json_object_get(from, "system"), &result_parts, &text, error) &&
                    lk_convert_message(messages, "system", &text, error);
        lk_buf_free(&text);
        if (!good) return false;
    }
    json_array_foreach(given, i,
                       message) if (!convert_message(messages, message, error)) return false;
    return lk_convert_join_systems(messages, error);
}

/* The choice also says whether there may be several calls. */
static void convert_tool_choice(json_t *to, const json_t *from) {
    const json_t *choice = json_object_get(from, "tool_choice"),
                 *single = json_object_get(choice, "disable_parallel_tool_use");
    if (single) json_object_set_new(to, "parallel_tool_calls", json_boolean(!json_is_true(single)));
    lk_convert_field(to, "tool_choice", from, "tool_choice");
}

/* A schema that the answer must match: "output_config.format", formerly "output_format". */
static void convert_format(json_t *to, const json_t *from) {
    const json_t *format = json_object_get(json_object_get(from, "output_config"), "format");
    if (!format) format = json_object_get(from, "output_format");
    if (!format || !lk_convert_is_type(format, "json_schema")) return;
    json_object_set_new(to, "response_format",
                        json_pack("{s:s, s:{s:O*}}", "type", "json_schema", "json_schema", "schema",
                                  json_object_get(format, "schema")));
}

static void convert_thinking(json_t *to, const json_t *from) {
    const json_t *thinking = json_object_get(from, "thinking");
    if (lk_convert_is_type(thinking, "disabled"))
        lk_convert_thinking(to, false);
    else if (json_is_object(thinking))
        lk_convert_thinking(to, true);
}

static bool check_body(const json_t *body, bool count_only, struct lk_api_error *error) {
    if (!count_only && !lk_json_field_is_set(body, "max_tokens"))
        return lk_api_error_set(error, 400, "missing_field", "max_tokens",
                                "'max_tokens' is missing: give the maximum length of the answer");
    if (lk_json_field_is_set(body, "mcp_servers"))
        return lk_api_error_set(error, 400, "unsupported", "mcp_servers",
                                "'mcp_servers' is not supported: this server calls no others");
    return true;
}

/* Fields that are ignored, because they change nothing that this server does: cache_control,
 * container, context_management, metadata, service_tier. */
json_t *lk_anthropic_to_chat(const json_t *body, bool count_only, struct lk_api_error *error) {
    json_t *to = json_object();
    lk_convert_common_fields(to, body);
    lk_convert_field(to, "model", body, "model");
    lk_convert_field(to, "max_tokens", body, "max_tokens");
    lk_convert_field(to, "stop", body, "stop_sequences");
    convert_format(to, body);
    convert_thinking(to, body);
    lk_convert_field(to, "reasoning_effort", json_object_get(body, "output_config"), "effort");
    lk_convert_field(to, "reasoning_budget", body, "reasoning_budget");
    lk_convert_field(to, "reasoning_budget", json_object_get(body, "thinking"), "budget_tokens");
    lk_convert_field(to, "tools", body, "tools");
    convert_tool_choice(to, body);
    if (to && check_body(body, count_only, error) && convert_messages(to, body, error) &&
        lk_convert_tools(to, error) && lk_convert_tool_choice(to, error))
        return to;
    if (!to) lk_convert_no_memory(error);
    json_decref(to);
    return NULL;
}
