/* ollama's /api/chat and /api/generate: responses, streams and errors. A stream is one JSON object
 * per line; the last one has "done": true, and the times in nanoseconds. */
#include "serve/ollama.h"

#include "serve/answer_blocks.h"
#include "serve/body_convert.h"
#include "serve/embeddings.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/thoughts.h"

#include <math.h>
#include <stdio.h>
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
    json_t *given = lk_fields_parse(body, len, LK_FIELDS_OLLAMA, error),
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
    json_t *given = lk_fields_parse(body, len, LK_FIELDS_OLLAMA, error),
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

/* A time in ollama's form, e.g. "2025-01-31T12:00:00Z"; a new reference. */
static json_t *ollama_time(int64_t seconds) {
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
                            ollama_time((int64_t)time(NULL)), "done", is_last);
    if (!is_last) return out;
    double total_s = result->wait_s + result->prompt_s + result->decode_s;
    json_t *counts = json_pack(
        "{s:s, s:I, s:i, s:I, s:I, s:I, s:I}", "done_reason",
        strcmp(r->blocks.finish, "length") == 0 ? "length" : "stop", "total_duration",
        nanoseconds(total_s), "load_duration", 0, "prompt_eval_count", (json_int_t)result->n_prompt,
        "prompt_eval_duration", nanoseconds(result->prompt_s), "eval_count",
        (json_int_t)result->n_decoded, "eval_duration", nanoseconds(result->decode_s));
    json_object_update(out, counts);
    lk_response_add_left_out(r, out);
    json_decref(counts);
    return out;
}

static json_t *message_json(const char *text, size_t len) {
    return json_pack("{s:s, s:s%}", "role", "assistant", "content", text, len);
}

/* The calls of the open block: unlike OpenAI's, its arguments are an object. None if they were cut
 * off: clients of this API would run the call without them. */
static json_t *calls_json(const struct lk_blocks *b) {
    json_t *arguments = json_loadb(lk_buf_cstr(&b->text), b->text.len, 0, NULL);
    return arguments ? json_pack("[{s:O, s:{s:I, s:O, s:o}}]", "id", b->id, "function", "index",
                                 (json_int_t)b->call_index, "name", b->name, "arguments", arguments)
                     : json_array();
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

/* The reply to a request that asks to load or unload the model. */
static json_t *state_json(const char *model, const char *reason, const char *field, json_t *empty) {
    return json_pack("{s:s, s:o, s:b, s:s, s:o}", "model", model, "created_at",
                     ollama_time((int64_t)time(NULL)), "done", 1, "done_reason", reason, field,
                     empty);
}

json_t *lk_ollama_unloaded_json(const char *model, bool chat) {
    json_t *empty = chat ? message_json("", 0) : json_string("");
    return state_json(model, "unload", chat ? "message" : "response", empty);
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
    json_t *calls = calls_json(b);
    if (!out) return json_pack("{s:o}", "tool_calls", calls);
    if (json_array_size(calls) > 0) {
        json_t *json = answer_json(r, false), *message = message_json("", 0);
        json_object_set(message, "tool_calls", calls);
        json_object_set_new(json, "message", message);
        append_line(out, json);
    }
    json_decref(calls);
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
    return state_json(opts->id, "load", "message", message_json("", 0));
}

/* ---- /api/generate ---- */

static bool refuse_images(const json_t *object, struct lk_api_error *error) {
    return !lk_json_field_is_set(object, "images") ||
           lk_api_error_set(error, 400, "unsupported", "images",
                            "'images' are not supported: this server takes text only");
}

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
    return state_json(opts->id, "load", "response", json_string(""));
}

/* ---- errors ---- */

json_t *lk_ollama_error_json(const struct lk_api_error *error) {
    if (error->n_ctx)
        return json_pack("{s:o}", "error",
                         json_sprintf("prompt too long; exceeded max context length by %zu tokens: "
                                      "the prompt has %zu, the context %zu",
                                      error->n_tok - error->n_ctx + 1, error->n_tok, error->n_ctx));
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

/* ---- request bodies, converted to OpenAI's forms ---- */

/* Sampling parameters, under "options". Others are about the loading of models and are ignored:
 * num_ctx, num_batch, num_gpu, num_thread, use_mmap and so on are options of `lowkey serve`. */
static bool convert_options(json_t *to, const json_t *from, struct lk_api_error *error) {
    static const char *const same[] = {
        "temperature",      "top_p", "top_k", "min_p", "stop", "repeat_penalty", "presence_penalty",
        "frequency_penalty"};
    const json_t *options = json_object_get(from, "options"),
                 *n = json_object_get(options, "num_predict"),
                 *seed = json_object_get(options, "seed"),
                 *last_n = json_object_get(options, "repeat_last_n");
    if (options && !json_is_null(options) && !json_is_object(options))
        return lk_api_error_set(error, 400, "invalid_type", "options",
                                "'options' must be an object");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        lk_convert_field(to, same[i], options, same[i]);
    /* -1 and -2 mean no limit, a random seed, and the whole context. */
    if (!json_is_integer(n) || json_integer_value(n) > 0)
        lk_convert_field(to, "max_tokens", options, "num_predict");
    if (!json_is_integer(seed) || json_integer_value(seed) >= 0)
        lk_convert_field(to, "seed", options, "seed");
    if (json_is_integer(last_n) && json_integer_value(last_n) < 0)
        json_object_set_new(to, "repeat_last_n", json_integer(1 << 20));
    else
        lk_convert_field(to, "repeat_last_n", options, "repeat_last_n");
    return true;
}

/* "format" is "json" or a schema. */
static bool convert_format(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *format = json_object_get(from, "format");
    const char *word = json_string_value(format);
    if (!format || json_is_null(format) || (word && !*word)) return true;
    if (word && strcmp(word, "json") == 0)
        json_object_set_new(to, "response_format", json_pack("{s:s}", "type", "json_object"));
    else if (json_is_object(format))
        json_object_set_new(
            to, "response_format",
            json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
    else
        return lk_api_error_set(error, 400, "invalid_value", "format",
                                "'format' must be 'json' or a JSON schema");
    return true;
}

/* Set the model's name, without ollama's default tag ":latest". */
static void ollama_convert_model(json_t *to, const json_t *from) {
    static const char tag[] = ":latest";
    const size_t tag_len = sizeof tag - 1;
    json_t *model = json_object_get(from, "model");
    const char *name = json_string_value(model);
    size_t len = json_string_length(model);
    if (name && len > tag_len && strcmp(name + len - tag_len, tag) == 0)
        json_object_set_new(to, "model", json_stringn(name, len - tag_len));
    else
        lk_convert_field(to, "model", from, "model");
}

/* Thoughts are on or off, or have an effort. */
static bool convert_think(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *think = json_object_get(from, "think");
    if (!think || json_is_null(think)) return true;
    if (json_is_string(think))
        json_object_set(to, "reasoning_effort", think);
    else if (json_is_boolean(think))
        lk_convert_thinking(to, json_is_true(think));
    else
        return lk_api_error_set(error, 400, "invalid_type", "think",
                                "'think' must be true, false, or an effort such as \"low\"");
    return true;
}

/* Fields that both have. Ignored are keep_alive, truncate and template, because the model stays
 * loaded and has a template. */
static json_t *convert_common(const json_t *body, struct lk_api_error *error) {
    json_t *to = json_object();
    bool stream = true;
    if (!to) lk_convert_no_memory(error);
    if (to && lk_json_field_bool(body, "stream", &stream, error) &&
        convert_options(to, body, error) && convert_format(to, body, error) &&
        convert_think(to, body, error)) {
        json_object_set_new(to, "stream", json_boolean(stream));
        ollama_convert_model(to, body);
        lk_convert_field(to, "kv", body, "kv");
        lk_convert_field(to, "cache_prompt", body, "cache_prompt");
        lk_convert_field(to, "ignore_eos", body, "ignore_eos");
        return to;
    }
    json_decref(to);
    return NULL;
}

/* The text of a message with placeholders for its images; a new reference. Its content may be
 * OpenAI's parts. */
static json_t *text_with_images(const json_t *object, const json_t *content,
                                struct lk_api_error *error) {
    static const struct lk_text_parts parts = {NULL, ""};
    struct lk_buf out = {0}, text = {0};
    size_t n = json_array_size(json_object_get(object, "images"));
    lk_convert_text(content, &parts, &text, error);
    json_t *list = json_pack("[s%]", lk_buf_cstr(&text), text.len);
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_pack("{s:s}", "type", "image"));
    lk_convert_text(list, &parts, &out, error);
    json_decref(list);
    json_t *joined = out.failed ? NULL : json_stringn(lk_buf_cstr(&out), out.len);
    lk_buf_free(&text);
    lk_buf_free(&out);
    return joined;
}

/* ---- /api/chat ---- */

static bool convert_message(json_t *messages, json_t *message, struct lk_api_error *error) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t k;
    if (!json_is_object(message)) /* nothing, or a text */
        return json_is_null(message) || lk_convert_append(messages, json_incref(message), error);
    json_t *text = text_with_images(message, json_object_get(message, "content"), error);
    bool has_text = json_string_length(text) > 0 || json_array_size(calls) == 0;
    json_t *item = json_pack("{s:s, s:O}", "role", lk_convert_role(message, error), "content",
                             has_text ? text : json_null());
    json_decref(text);
    if (!lk_convert_append(messages, item, error)) return false;
    lk_convert_field(item, "tool_call_id", message, "tool_call_id");
    lk_convert_field(item, "name", message, "tool_name");
    lk_convert_field(item, "reasoning_content", message, "thinking");
    json_array_foreach(calls, k, call) {
        const json_t *function = json_object_get(call, "function");
        if (!lk_convert_call(messages, json_object_get(call, "id"),
                             json_object_get(function, "name"),
                             json_object_get(function, "arguments"), error))
            return false;
    }
    return true;
}

json_t *lk_ollama_chat_to_openai(const json_t *body, struct lk_api_error *error) {
    const json_t *given = json_object_get(body, "messages");
    json_t *to = convert_common(body, error), *messages = json_array(), *message;
    bool good = to != NULL;
    size_t i;
    if (good && lk_json_field_is_set(body, "messages") && !json_is_array(given))
        good =
            lk_api_error_set(error, 400, "invalid_type", "messages", "'messages' must be an array");
    json_array_foreach(given, i, message) good = good && convert_message(messages, message, error);
    if (good) {
        json_object_set(to, "messages", messages);
        lk_convert_field(to, "tools", body, "tools");
    }
    json_decref(messages);
    if (good) return to;
    json_decref(to);
    return NULL;
}

/* ---- /api/generate ---- */

static bool convert_prompt(json_t *to, const json_t *body, struct lk_api_error *error) {
    json_t *prompt = json_object_get(body, "prompt"), *system = json_object_get(body, "system");
    bool raw = false, has_suffix = lk_json_field_is_set(body, "suffix");
    if (!lk_json_field_bool(body, "raw", &raw, error) || !refuse_images(body, error)) return false;
    if (prompt && !json_is_null(prompt) && !json_is_string(prompt))
        return lk_api_error_set(error, 400, "invalid_type", "prompt", "'prompt' must be a string");
    if (json_string_length(prompt) == 0) return true;
    if (lk_json_field_is_set(body, "context"))
        return lk_api_error_set(error, 400, "unsupported", "context",
                                "'context' is not supported: send the conversation to /api/chat");
    if (raw || has_suffix) {
        json_object_set(to, "prompt", prompt);
        lk_convert_field(to, "suffix", body, "suffix");
        return true;
    }
    json_t *messages = json_array();
    json_object_set_new(to, "messages", messages);
    if (json_string_length(system) > 0 &&
        !lk_convert_append(messages, json_pack("{s:s, s:O}", "role", "system", "content", system),
                           error))
        return false;
    return lk_convert_append(messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt),
                             error);
}

json_t *lk_ollama_generate_to_openai(const json_t *body, struct lk_api_error *error) {
    json_t *to = convert_common(body, error);
    if (to && convert_prompt(to, body, error)) return to;
    json_decref(to);
    return NULL;
}

/* ---- the server and its model ---- */

/* The version of ollama whose API this is. Clients compare it with what they need. */
static const char api_version[] = "0.12.0";

json_t *lk_ollama_version_json(void) {
    return json_pack("{s:s, s:s}", "version", api_version, "lowkey", lk_version());
}

/* "135M", "1.5B" */
static json_t *parameter_size(uint64_t n) {
    if (n >= 1000000000) return json_sprintf("%.1fB", (double)n / 1e9);
    return json_sprintf("%.0fM", (double)n / 1e6);
}

static json_t *details_json(const lk_model_info *info) {
    return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:s}", "parent_model", "", "format", "gguf",
                     "family", info->arch, "families", info->arch, "parameter_size",
                     parameter_size(info->n_param), "quantization_level", "");
}

/* The fields that lists of models share. */
static json_t *model_json(const struct lk_server *server, const struct lk_served *served,
                          const char *name) {
    lk_model_info info = lk_served_info(served);
    return json_pack("{s:s, s:s, s:o, s:I, s:s, s:o}", "name", name, "model", name, "modified_at",
                     ollama_time(server->started), "size", (json_int_t)info.file_bytes, "digest",
                     "", "details", details_json(&info));
}

json_t *lk_ollama_tags_json(const struct lk_server *server) {
    const struct lk_server_opts *o = &server->opts;
    json_t *list = json_array();
    for (size_t i = 0; i < lk_models_count(server->models); i++) {
        const struct lk_served *served = lk_models_at(server->models, i);
        json_array_append_new(list, model_json(server, served, lk_served_id(served)));
    }
    for (size_t i = 0; i < o->n_alias; i++)
        json_array_append_new(list,
                              model_json(server, lk_models_at(server->models, 0), o->alias[i]));
    return json_pack("{s:o}", "models", list);
}

/* Loaded models. One leaves after its keep_alive, or when there is no room: a time far away. */
json_t *lk_ollama_ps_json(const struct lk_server *server) {
    const int64_t year_2100 = INT64_C(4102444800);
    json_t *list = json_array();
    for (size_t i = 0; i < lk_models_count(server->models); i++) {
        struct lk_served *served = lk_models_at(server->models, i);
        if (lk_models_state(server->models, served) != LK_SERVED_LOADED) continue;
        json_t *model = model_json(server, served, lk_served_id(served));
        double left_s = lk_models_left(server->models, served);
        json_object_set_new(
            model, "expires_at",
            ollama_time(isfinite(left_s) ? (int64_t)time(NULL) + (int64_t)left_s : year_2100));
        json_object_set_new(model, "size_vram", json_integer(0));
        json_object_set_new(model, "context_length", json_integer(lk_served_n_ctx(served)));
        json_array_append_new(list, model);
    }
    return json_pack("{s:o}", "models", list);
}

/* Set "ARCH.NAME", as in a GGUF file. */
static void set_arch_key(json_t *to, const char *arch, const char *name, int32_t value) {
    char key[100];
    snprintf(key, sizeof key, "%.60s.%s", arch, name);
    json_object_set_new(to, key, json_integer(value));
}

bool lk_ollama_show(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error) {
    lk_model_info info = lk_model_get_info(opts->model);
    const char *chat_template = lk_model_chat_template(opts->model);
    json_t *keys = json_pack("{s:s, s:I}", "general.architecture", info.arch,
                             "general.parameter_count", (json_int_t)info.n_param);
    (void)body;
    (void)error;
    /* Clients cut prompts at this length, so it is that of a session here. */
    set_arch_key(keys, info.arch, "context_length", opts->n_ctx);
    set_arch_key(keys, info.arch, "embedding_length", info.n_embd);
    set_arch_key(keys, info.arch, "block_count", info.n_layer);
    set_arch_key(keys, info.arch, "attention.head_count", info.n_head);
    set_arch_key(keys, info.arch, "attention.head_count_kv", info.n_head_kv);
    json_t *capabilities = json_pack("[s,s]", "completion", "tools");
    if (lk_thought_form_is_in(lk_thought_form_of(chat_template), chat_template))
        json_array_append_new(capabilities, json_string("thinking"));
    lk_buf_add_json(out,
                    json_pack("{s:s, s:o, s:s, s:o, s:o, s:o}", "modelfile", "", "parameters",
                              json_sprintf("num_ctx %d", opts->n_ctx), "template",
                              chat_template ? chat_template : "", "details", details_json(&info),
                              "model_info", keys, "capabilities", capabilities));
    return true;
}

/* ---- embeddings ---- */

/* `input`: the field with the texts. */
static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, const char *input,
                       struct lk_api_error *error) {
    json_t *given = lk_fields_parse(body, len, LK_FIELDS_EMBEDDINGS, error),
           *to = given ? json_object() : NULL;
    if (given && !to) lk_convert_no_memory(error);
    if (to) {
        ollama_convert_model(to, given);
        lk_convert_field(to, "input", given, input);
        lk_convert_field(to, "dimensions", given, "dimensions");
    }
    json_decref(given);
    return lk_embeddings_parse_json(request, opts, to, error);
}

static bool parse_embed(struct lk_request *request, const struct lk_server_opts *opts,
                        const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, "input", error);
}

static bool parse_embeddings(struct lk_request *request, const struct lk_server_opts *opts,
                             const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, "prompt", error) &&
           (request->n_prompt == 1 ||
            lk_api_error_set(error, 400, "invalid_type", "prompt", "'prompt' must be a string"));
}

static bool write_embed(const struct lk_response *r, struct lk_buf *out) {
    const struct lk_request *request = &r->completion->request;
    const struct lk_job_result *result = &r->choice[0].result;
    struct lk_buf list = {0};
    json_int_t n_tok = 0;
    lk_buf_append_str(&list, "[");
    for (size_t i = 0; i < request->n_prompt; i++) {
        n_tok += (json_int_t)request->prompt[i].n_tok;
        if (i) lk_buf_append_str(&list, ",");
        lk_embedding_append(r, i, &list);
    }
    lk_buf_append_str(&list, "]");
    if (list.failed) out->failed = true;
    json_t *rest = json_pack("{s:s, s:I, s:i, s:I}", "model", r->opts->id, "total_duration",
                             (json_int_t)llround(1e9 * (result->wait_s + result->prompt_s)),
                             "load_duration", 0, "prompt_eval_count", n_tok);
    lk_buf_add_json_with(out, rest, "embeddings", lk_buf_cstr(&list), list.len);
    lk_buf_free(&list);
    return !out->failed;
}

static bool write_embeddings(const struct lk_response *r, struct lk_buf *out) {
    lk_buf_append_str(out, "{\"embedding\":");
    lk_embedding_append(r, 0, out);
    lk_buf_append_str(out, "}");
    return !out->failed;
}

const struct lk_endpoint lk_ollama_embed = {
    .parse = parse_embed, .n_body = 2, .write_whole = write_embed};

const struct lk_endpoint lk_ollama_embeddings = {
    .parse = parse_embeddings, .n_body = 2, .write_whole = write_embeddings};
