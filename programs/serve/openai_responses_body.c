/* The request body of /v1/responses, converted to that of /v1/chat/completions. */
#include "serve/openai_responses_body.h"

#include "serve/body_convert.h"
#include "serve/json_field.h"

#include <string.h>

static const char *const text_types[] = {"input_text", "output_text", "text", NULL};
static const struct lk_text_parts input_parts = {"input", text_types, NULL, ""};

static const char *const thought_types[] = {"reasoning_text", "summary_text", "text", NULL};
static const struct lk_text_parts thought_parts = {"input", thought_types, NULL, "\n\n"};

static bool is_type(const json_t *item, const char *type) {
    const char *given = json_string_value(json_object_get(item, "type"));
    return given && strcmp(given, type) == 0;
}

/* The last message, if it has only thoughts so far. */
static json_t *last_thoughts(const json_t *messages) {
    size_t n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL;
    bool has_more = json_string_length(json_object_get(last, "content")) > 0 ||
                    json_object_get(last, "tool_calls");
    return json_object_get(last, "reasoning_content") && !has_more ? last : NULL;
}

static bool convert_message(json_t *messages, const json_t *item, size_t i,
                            struct lk_api_error *error) {
    const char *role = json_string_value(json_object_get(item, "role"));
    struct lk_buf text = {0};
    if (!role)
        return lk_api_error_set(error, 400, "missing_field", "input", "input[%zu] has no 'role'",
                                i);
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

/* Calls are items of their own; the common form has them in the message of the assistant. */
static bool convert_item(json_t *messages, const json_t *item, size_t i,
                         struct lk_api_error *error) {
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!json_is_object(item))
        return lk_api_error_set(error, 400, "invalid_type", "input", "input[%zu] must be an object",
                                i);
    if (!type || is_type(item, "message")) return convert_message(messages, item, i, error);
    if (is_type(item, "reasoning")) return convert_thoughts(messages, item, error);
    if (is_type(item, "function_call"))
        return lk_convert_call(messages, json_object_get(item, "call_id"),
                               json_object_get(item, "name"), json_object_get(item, "arguments"),
                               "input", error);
    if (is_type(item, "function_call_output")) {
        struct lk_buf text = {0};
        bool good = lk_convert_text(json_object_get(item, "output"), &input_parts, &text, error) &&
                    lk_convert_result(messages, json_object_get(item, "call_id"), &text, error);
        lk_buf_free(&text);
        return good;
    }
    return lk_api_error_set(error, 400, "unsupported", "input",
                            "input[%zu] has the type '%.60s', but only message, function_call, "
                            "function_call_output and reasoning are supported",
                            i, type);
}

static bool convert_input(json_t *to, const json_t *from, struct lk_api_error *error) {
    const json_t *input = json_object_get(from, "input"), *item,
                 *instructions = json_object_get(from, "instructions");
    json_t *messages = json_array();
    size_t i;
    json_object_set_new(to, "messages", messages);
    if (lk_json_field_is_set(from, "instructions")) {
        if (!json_is_string(instructions))
            return lk_api_error_set(error, 400, "invalid_type", "instructions",
                                    "'instructions' must be a string");
        if (!lk_convert_append(messages,
                               json_pack("{s:s, s:O}", "role", "system", "content", instructions),
                               error))
            return false;
    }
    if (json_is_string(input))
        return lk_convert_append(messages,
                                 json_pack("{s:s, s:O}", "role", "user", "content", input), error);
    if (!json_is_array(input) || json_array_size(input) + json_array_size(messages) == 0)
        return lk_api_error_set(error, 400, "missing_field", "input",
                                "'input' must be a string or an array with at least one item");
    json_array_foreach(input, i, item) if (!convert_item(messages, item, i, error)) return false;
    return true;
}

/* Only functions are offered to the model. Tools that run at OpenAI are left out, because clients
 * list them unasked; the response lists the tools that were offered. */
static bool convert_tools(json_t *to, const json_t *from, struct lk_api_error *error) {
    const json_t *given = json_object_get(from, "tools"), *tool;
    size_t i;
    if (!lk_json_field_is_set(from, "tools")) return true;
    if (!json_is_array(given))
        return lk_api_error_set(error, 400, "invalid_type", "tools", "'tools' must be an array");
    json_t *tools = json_array();
    json_object_set_new(to, "tools", tools);
    json_array_foreach(given, i, tool) {
        if (!is_type(tool, "function")) continue;
        if (!lk_convert_tool(tools, json_object_get(tool, "name"),
                             json_object_get(tool, "description"),
                             json_object_get(tool, "parameters"), error))
            return false;
    }
    return true;
}

static bool convert_tool_choice(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *choice = json_object_get(from, "tool_choice");
    if (!choice || json_is_null(choice)) return true;
    if (json_is_string(choice)) {
        json_object_set(to, "tool_choice", choice);
        return true;
    }
    if (!is_type(choice, "function") || !json_is_string(json_object_get(choice, "name")))
        return lk_api_error_set(error, 400, "unsupported", "tool_choice",
                                "'tool_choice' must be none, auto, required, or a function with a "
                                "name");
    json_object_set_new(to, "tool_choice",
                        json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name",
                                  json_object_get(choice, "name")));
    return true;
}

/* "text.format" has the schema and its name where "response_format" has an object with both. */
static bool convert_format(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *text = json_object_get(from, "text"), *format = json_object_get(text, "format");
    if (text && !json_is_null(text) && !json_is_object(text))
        return lk_api_error_set(error, 400, "invalid_type", "text", "'text' must be an object");
    if (!format || json_is_null(format)) return true;
    if (!is_type(format, "json_schema")) {
        json_object_set(to, "response_format", format);
        return true;
    }
    if (!json_is_object(json_object_get(format, "schema")))
        return lk_api_error_set(error, 400, "missing_field", "text",
                                "'text.format.schema' must be an object");
    json_object_set_new(to, "response_format",
                        json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
    return true;
}

/* Refuse what would change the answer if it were ignored. */
static bool check_body(const json_t *body, struct lk_api_error *error) {
    static const struct {
        const char *name, *advice;
    } fields[] = {
        {"previous_response_id", "this server stores no responses; send the conversation in "
                                 "'input'"},
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
 * prompt_cache_key, safety_identifier, service_tier, store, truncation, user. */
json_t *lk_openai_responses_to_chat(const json_t *body, struct lk_api_error *error) {
    json_t *to = json_object();
    lk_convert_common_fields(to, body);
    lk_convert_field(to, "model", body, "model");
    lk_convert_field(to, "max_tokens", body, "max_output_tokens");
    lk_convert_field(to, "stop", body, "stop");
    lk_convert_field(to, "parallel_tool_calls", body, "parallel_tool_calls");
    lk_convert_field(to, "reasoning_effort", json_object_get(body, "reasoning"), "effort");
    if (to && check_body(body, error) && convert_input(to, body, error) &&
        convert_tools(to, body, error) && convert_tool_choice(to, body, error) &&
        convert_format(to, body, error))
        return to;
    if (!to) lk_convert_no_memory(error);
    json_decref(to);
    return NULL;
}
