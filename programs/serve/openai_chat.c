/* The request body of /v1/chat/completions: messages, tools, logprobs. */
#include "serve/openai_chat.h"

#include "serve/body_convert.h"
#include "serve/call_store.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/tools.h"

#include <stdlib.h>
#include <string.h>

/* The content of a message as one string, a new reference. NULL: see `error`. */
static json_t *parse_content(const json_t *message, struct lk_api_error *error) {
    static const struct lk_text_parts parts = {NULL, ""};
    json_t *given = json_object_get(message, "content"), *out = NULL;
    struct lk_buf text = {0};
    if (!given || json_is_null(given)) given = json_object_get(message, "refusal");
    if (json_is_string(given)) return json_incref(given);
    if (lk_convert_text(given, &parts, &text, error)) {
        out = json_stringn(lk_buf_cstr(&text), text.len);
        if (!out) lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: messages");
    }
    lk_buf_free(&text);
    return out;
}

/* The argument "input" with a text, or a value as JSON. */
static json_t *as_input(json_t *given) {
    struct lk_buf text = {0};
    if (!json_is_object(given)) return json_pack("{s:O}", "input", given);
    lk_buf_add_json(&text, json_incref(given));
    json_t *out = json_pack("{s:s%}", "input", lk_buf_cstr(&text), text.len);
    lk_buf_free(&text);
    return out;
}

/* Arguments of an earlier call: JSON of an object in a string, or the object. A call that was cut
 * off, the text of a custom tool, or what is nested too deep becomes the argument "input". A new
 * reference. */
static json_t *parse_arguments(json_t *given) {
    const char *text = json_string_value(given);
    json_t *parsed = NULL;
    if (json_is_object(given)) return lk_json_is_deep(given) ? as_input(given) : json_incref(given);
    bool is_empty_array = json_is_array(given) && json_array_size(given) == 0; /* PHP's {} */
    if (!given || json_is_null(given) || (text && !*text) || is_empty_array)
        return json_string("{}");
    if (text && lk_json_parsed_bytes(text, strlen(text)) <= lk_json_max_parsed_bytes(strlen(text)))
        parsed = json_loads(text, JSON_DECODE_ANY, NULL);
    bool is_empty = json_is_null(parsed) || (json_is_array(parsed) && json_array_size(parsed) == 0),
         is_whole = json_is_object(parsed) && !lk_json_is_deep(parsed);
    json_t *out = is_empty ? json_string("{}") : is_whole ? json_incref(given) : as_input(given);
    json_decref(parsed);
    return out;
}

/* Set the arguments of a call to those that the model wrote, if they are the same. */
static void restore_arguments(json_t *call, struct lk_call_store *store) {
    json_t *function = json_object_get(call, "function"),
           *given = json_object_get(function, "arguments"), *value;
    const char *text = json_string_value(given), *name;
    char *arguments, *written;
    value = text ? json_loads(text, 0, NULL) : json_incref(given); /* parse_arguments has read it */
    name = json_string_value(json_object_get(function, "name"));
    if (store && value && name &&
        lk_call_store_find(store, json_string_value(json_object_get(call, "id")), name, value,
                           &arguments, &written)) {
        json_object_set_new(function, "arguments", json_string(arguments));
        if (written) json_object_set_new(call, LK_WRITTEN, json_string(written));
        free(arguments);
        free(written);
    }
    json_decref(value);
}

/* The calls of an earlier answer as templates know them, a new reference, with those of the older
 * "function_call" and of custom tools. */
static json_t *parse_calls(const json_t *message, struct lk_call_store *store) {
    json_t *given = json_object_get(message, "tool_calls"), *call, *out = json_array(),
           *old = json_object_get(message, "function_call");
    json_t *all = json_array_size(given) > 0 ? json_incref(given)
                  : json_is_object(old)      ? json_pack("[{s:O}]", "function", old)
                                             : json_array();
    size_t i;
    json_array_foreach(all, i, call) {
        const json_t *custom = json_object_get(call, "custom"),
                     *function = custom ? custom : json_object_get(call, "function");
        json_t *id = json_object_get(call, "id");
        if (!json_is_object(call)) continue;
        if (!function) function = call;
        const char *name = json_string_value(json_object_get(function, "name"));
        json_array_append_new(
            out,
            json_pack("{s:O*, s:s, s:{s:s, s:o}}", "id", json_is_string(id) ? id : NULL, "type",
                      "function", "function", "name", name ? name : LK_UNKNOWN_TOOL, "arguments",
                      parse_arguments(json_object_get(function, custom ? "input" : "arguments"))));
        restore_arguments(json_array_get(out, json_array_size(out) - 1), store);
    }
    json_decref(all);
    return out;
}

/* A message as chat templates know it: the fields of the client, with the content as a string. A
 * text is a message of the user. NULL: see `error`. */
static json_t *parse_message(const json_t *message, size_t i, struct lk_call_store *store,
                             struct lk_api_error *error) {
    static const char *const fields[] = {"tool_call_id", "name"};
    static const char *const thoughts[] = {"reasoning_content", "reasoning", "thinking"};
    if (json_is_string(message)) return json_pack("{s:s, s:O}", "role", "user", "content", message);
    if (!json_is_object(message)) {
        lk_api_error_set(error, 400, "invalid_type", "messages", "messages[%zu] must be an object",
                         i);
        return NULL;
    }
    json_t *calls = parse_calls(message, store), *content = parse_content(message, error),
           *out = NULL;
    if (content)
        out = json_pack("{s:s, s:o}", "role", lk_convert_role(message, error), "content", content);
    if (out && json_array_size(calls) > 0) json_object_set(out, "tool_calls", calls);
    json_decref(calls);
    if (!out) return NULL;
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
        json_t *value = json_object_get(message, fields[k]);
        if (value && !json_is_null(value)) json_object_set(out, fields[k], value);
    }
    for (size_t k = 0; k < sizeof thoughts / sizeof *thoughts; k++) {
        json_t *value = json_object_get(message, thoughts[k]);
        if (json_string_length(value) == 0) continue;
        json_object_set(out, thoughts[0], value);
        break;
    }
    return out;
}

/* Lines that clients put into their system prompts for their own servers. They differ in every
 * request, so no prefix would be reused, and mean nothing to a model. */
static const char *const volatile_lines[] = {
    "x-anthropic-billing-header:", /* Claude Code */
};

/* The first volatile line of a text; NULL: there is none. */
static const char *find_volatile(const char *text) {
    for (const char *line = text, *end; line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        for (size_t i = 0; i < sizeof volatile_lines / sizeof volatile_lines[0]; i++)
            if (strncmp(line, volatile_lines[i], strlen(volatile_lines[i])) == 0) return line;
    }
    return NULL;
}

/* Remove them from a system prompt, with the empty lines that follow. False: out of memory. */
static bool drop_volatile_lines(json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role")),
               *text = json_string_value(json_object_get(message, "content")), *line;
    struct lk_buf kept = {0};
    if (!text || !role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))
        return true;
    if (!find_volatile(text)) return true;
    while ((line = find_volatile(text))) {
        lk_buf_append(&kept, text, (size_t)(line - text));
        text = line + strcspn(line, "\n");
        text += strspn(text, "\n");
    }
    lk_buf_append_str(&kept, text);
    bool good = !kept.failed && json_object_set_new(message, "content", json_string(kept.at)) == 0;
    lk_buf_free(&kept);
    return good;
}

static bool parse_messages(struct lk_request *request, struct lk_call_store *store,
                           struct lk_api_error *error) {
    const json_t *messages = json_object_get(request->body, "messages"), *message;
    size_t i, n = json_array_size(messages);
    if (!json_is_array(messages) || n == 0)
        return lk_api_error_set(error, 400, "missing_field", "messages",
                                "'messages' must be an array with at least one message");
    if (n > LK_MAX_MESSAGE)
        return lk_api_error_set(error, 400, "invalid_value", "messages",
                                "%zu messages are too many; the maximum is %d", n, LK_MAX_MESSAGE);
    request->messages = json_array();
    json_array_foreach(messages, i, message) {
        if (json_is_null(message)) continue;
        json_t *out = parse_message(message, i, store, error);
        if (!out) return false;
        bool was_empty = json_string_length(json_object_get(out, "content")) == 0;
        if (!drop_volatile_lines(out))
            return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: messages");
        bool is_empty = json_string_length(json_object_get(out, "content")) == 0;
        if (is_empty && !was_empty && n > 1)
            json_decref(out); /* it had nothing else */
        else
            json_array_append_new(request->messages, out);
    }
    return json_array_size(request->messages) > 0 ||
           lk_api_error_set(error, 400, "missing_field", "messages",
                            "'messages' has only messages that are null");
}

/* Is the last message continued, or answered? As llama-server, continue one of the assistant,
 * unless the client says otherwise with the words of vLLM. */
static bool parse_continue(struct lk_request *request, struct lk_api_error *error) {
    size_t n = json_array_size(request->messages);
    const json_t *last = json_array_get(request->messages, n - 1);
    bool possible = strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0 &&
                    json_array_size(json_object_get(last, "tool_calls")) == 0;
    bool asked = lk_json_field_is_set(request->body, "continue_final_message"), wanted = possible;
    request->reply = true;
    if (!lk_json_field_bool(request->body, "continue_final_message", &wanted, error) ||
        !lk_json_field_bool(request->body, "add_generation_prompt", &request->reply, error))
        return false;
    if (wanted && !possible)
        return lk_api_error_set(error, 400, "invalid_value", "continue_final_message",
                                "'continue_final_message' requires a last message of the "
                                "assistant without tool calls");
    if (asked && wanted && json_is_true(json_object_get(request->body, "add_generation_prompt")))
        return lk_api_error_set(error, 400, "invalid_value", "continue_final_message",
                                "'continue_final_message' and 'add_generation_prompt' exclude each "
                                "other");
    request->continue_last = wanted;
    return true;
}

/* vLLM's and llama-server's variables of the chat template, and the effort as one of them. The
 * effort "none" also turns thoughts off, for templates that only know this. */
static bool parse_variables(struct lk_request *request, struct lk_api_error *error) {
    json_t *variables = json_object_get(request->body, "chat_template_kwargs"), *more = NULL;
    const char *effort = NULL;
    if (!lk_json_field_string(request->body, "reasoning_effort", &effort, error)) return false;
    if (json_is_null(variables)) variables = NULL;
    if (variables && !json_is_object(variables))
        return lk_api_error_set(error, 400, "invalid_type", "chat_template_kwargs",
                                "'chat_template_kwargs' must be an object");
    if (effort) {
        bool none = strcmp(effort, "none") == 0;
        more = none ? json_pack("{s:s, s:b, s:b}", "reasoning_effort", effort, "enable_thinking", 0,
                                "thinking", 0)
                    : json_pack("{s:s}", "reasoning_effort", effort);
        bool good = more && (!variables || json_object_update(more, variables) == 0);
        if (!good) json_decref(more);
        if (!good || json_object_set_new(request->body, "chat_template_kwargs", more))
            return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: variables");
        variables = more;
    }
    request->variables = variables;
    return true;
}

/* The maximum number of tokens of thoughts; -1: none. 0 turns them off in templates that can. */
static bool parse_budget(struct lk_request *request, struct lk_api_error *error) {
    json_t *variables = json_object_get(request->body, "chat_template_kwargs");
    int64_t max = -1;
    if (!lk_json_field_int(request->body, "reasoning_budget", -1, INT32_MAX, &max, error))
        return false;
    if (max >= 0) request->max_thoughts = (size_t)max;
    if (max != 0 || json_object_get(variables, "enable_thinking")) return true;
    if (json_is_object(variables)) {
        json_object_set_new(variables, "enable_thinking", json_false());
        json_object_set_new(variables, "thinking", json_false());
    } else if (!variables || json_is_null(variables)) {
        lk_convert_thinking(request->body, false);
    }
    return true;
}

/* llama-server's field: where thoughts are returned. */
static bool parse_reasoning_format(struct lk_request *request, struct lk_api_error *error) {
    const char *format = "auto";
    if (!lk_json_field_string(request->body, "reasoning_format", &format, error)) return false;
    request->keep_thoughts = strcmp(format, "none") == 0;
    return request->keep_thoughts || strcmp(format, "auto") == 0 ||
           strcmp(format, "deepseek") == 0 ||
           lk_api_error_set(error, 400, "invalid_value", "reasoning_format",
                            "'reasoning_format' must be auto, deepseek (both return thoughts as "
                            "'reasoning_content') or none (they stay in the content)");
}

static bool parse_logprobs(struct lk_request *request, struct lk_api_error *error) {
    bool logprobs = false;
    int64_t n_top = 0;
    if (!lk_json_field_bool(request->body, "logprobs", &logprobs, error) ||
        !lk_json_field_int(request->body, "top_logprobs", 0, 20, &n_top, error))
        return false;
    if (n_top > 0 && !logprobs)
        return lk_api_error_set(error, 400, "invalid_value", "top_logprobs",
                                "'top_logprobs' requires 'logprobs': true");
    request->n_top_logprobs = logprobs ? (int)n_top : -1;
    return true;
}

bool lk_openai_chat_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                               json_t *body, struct lk_api_error *error) {
    if (!lk_request_parse_json(request, opts, body, error)) return false;
    request->chat = true;
    return lk_tools_parse_request(request, opts, error) && parse_logprobs(request, error) &&
           parse_messages(request, opts->calls, error) && parse_continue(request, error) &&
           parse_budget(request, error) && parse_variables(request, error) &&
           parse_reasoning_format(request, error);
}

bool lk_openai_chat_parse(struct lk_request *request, const struct lk_server_opts *opts,
                          const char *body, size_t len, struct lk_api_error *error) {
    return lk_openai_chat_parse_json(request, opts,
                                     lk_fields_parse(body, len, LK_FIELDS_CHAT, error), error);
}
