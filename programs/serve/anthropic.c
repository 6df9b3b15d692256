/* Anthropic's messages API: responses, streams and errors. */
#include "serve/anthropic.h"

#include "serve/answer_blocks.h"
#include "serve/anthropic_body.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/openai_chat.h"

#include <stdio.h>
#include <string.h>

/* ---- requests ---- */

static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, bool count_only, struct lk_api_error *error) {
    json_t *given = lk_json_parse_body(body, len, error),
           *chat = given ? lk_anthropic_to_chat(given, count_only, error) : NULL;
    bool good = lk_openai_chat_parse_json(request, opts, chat, error);
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

json_t *lk_anthropic_count_json(const struct lk_request *request) {
    return json_pack("{s:I}", "input_tokens", (json_int_t)request->prompt[0].n_tok);
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
    size_t n_prompt = r->completion->request.prompt[0].n_tok;
    return json_pack("{s:I, s:i, s:I, s:I}", "input_tokens",
                     (json_int_t)(n_prompt - result->n_reused), "cache_creation_input_tokens", 0,
                     "cache_read_input_tokens", (json_int_t)result->n_reused, "output_tokens",
                     (json_int_t)result->n_decoded);
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
