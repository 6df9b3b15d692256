/* The request body of /v1/chat/completions: messages, tools, logprobs. */
#include "serve/openai_chat.h"

#include "base/buf.h"
#include "serve/json_field.h"
#include "serve/tools.h"

#include <stdlib.h>
#include <string.h>

/* Concatenate the texts of a content that is given as an array of parts. */
static bool join_parts(const json_t *parts, struct lk_buf *out, struct lk_api_error *error) {
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type")),
                   *text = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0)
            return lk_api_error_set(error, 400, "unsupported", "messages",
                                    "content parts of type '%.40s' are not supported; use 'text'",
                                    type ? type : "");
        if (!text)
            return lk_api_error_set(error, 400, "invalid_type", "messages",
                                    "a content part of type 'text' must have a string 'text'");
        lk_buf_append_str(out, text);
    }
    return true;
}

/* The text of a message for the chat template: its content, wrapped if it is the result of a tool,
 * followed by its tool calls. *content is owned by the caller. */
static bool parse_content(const json_t *message, size_t i, bool is_tool_result, char **content,
                          struct lk_api_error *error) {
    const json_t *given = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    bool only_calls = (!given || json_is_null(given)) && json_array_size(calls) > 0;
    struct lk_buf text = {0}, out = {0};
    lk_buf_append_str(&text, "");
    bool good = true;
    if (json_is_string(given))
        lk_buf_append_str(&text, json_string_value(given));
    else if (json_is_array(given))
        good = join_parts(given, &text, error);
    else if (!only_calls)
        good = lk_api_error_set(error, 400, "invalid_type", "messages",
                                "messages[%zu].content must be a string or an array of parts", i);
    if (good && is_tool_result)
        lk_tools_format_result(text.at, &out);
    else if (good && !text.failed)
        lk_buf_append(&out, text.at, text.len);
    if (good && calls) good = lk_tools_format_calls(calls, &out, error);
    if (good && (text.failed || out.failed))
        good = lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: messages");
    lk_buf_free(&text);
    if (!good) lk_buf_free(&out);
    *content = out.at;
    return good;
}

/* The role that chat templates know. The result of a tool gets the role "user". */
static bool parse_role(const json_t *message, size_t i, const char **role, bool *is_tool_result,
                       struct lk_api_error *error) {
    static const struct {
        const char *given, *known;
    } roles[] = {{"system", "system"},
                 {"developer", "system"},
                 {"user", "user"},
                 {"assistant", "assistant"},
                 {"tool", "user"}};
    const char *given = json_string_value(json_object_get(message, "role"));
    for (size_t k = 0; given && k < sizeof roles / sizeof roles[0]; k++)
        if (strcmp(given, roles[k].given) == 0) {
            *role = roles[k].known;
            *is_tool_result = strcmp(given, "tool") == 0;
            return true;
        }
    return lk_api_error_set(error, 400, "invalid_value", "messages",
                            "messages[%zu].role is '%.40s', but must be system, developer, user, "
                            "assistant or tool",
                            i, given ? given : "");
}

/* Append the description of the tools to the system message, which is created if necessary. */
static bool describe_tools(struct lk_request *request, struct lk_api_error *error) {
    struct lk_buf out = {0};
    bool has_system = strcmp(request->msg[0].role, "system") == 0;
    if (has_system)
        lk_buf_append_str(&out, request->msg[0].content), lk_buf_append_str(&out, "\n\n");
    lk_tools_describe(request, &out);
    if (out.failed) {
        lk_buf_free(&out);
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: messages");
    }
    if (has_system)
        free((char *)request->msg[0].content);
    else
        memmove(request->msg + 1, request->msg, request->n_msg++ * sizeof *request->msg);
    request->msg[0] = (lk_message){"system", out.at};
    return true;
}

static bool parse_messages(struct lk_request *request, struct lk_api_error *error) {
    const json_t *messages = json_object_get(request->body, "messages"), *message;
    size_t i, n = json_array_size(messages);
    if (!json_is_array(messages) || n == 0)
        return lk_api_error_set(error, 400, "missing_field", "messages",
                                "'messages' must be an array with at least one message");
    if (n > LK_MAX_MESSAGE)
        return lk_api_error_set(error, 400, "invalid_value", "messages",
                                "%zu messages are too many; the maximum is %d", n, LK_MAX_MESSAGE);
    request->msg = calloc(n + 1, sizeof *request->msg); /* room for a system message */
    if (!request->msg)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: messages");
    json_array_foreach(messages, i, message) {
        char *content = NULL;
        bool is_tool_result = false;
        if (!json_is_object(message))
            return lk_api_error_set(error, 400, "invalid_type", "messages",
                                    "messages[%zu] must be an object", i);
        if (!parse_role(message, i, &request->msg[i].role, &is_tool_result, error) ||
            !parse_content(message, i, is_tool_result, &content, error))
            return false;
        request->msg[i].content = content;
        request->n_msg = i + 1;
    }
    return true;
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
    return lk_tools_parse_request(request, error) && parse_logprobs(request, error) &&
           parse_messages(request, error) && (!request->tools || describe_tools(request, error));
}

bool lk_openai_chat_parse(struct lk_request *request, const struct lk_server_opts *opts,
                          const char *body, size_t len, struct lk_api_error *error) {
    return lk_openai_chat_parse_json(request, opts, lk_json_parse_body(body, len, error), error);
}
