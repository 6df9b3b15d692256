/* The body of /v1/chat/completions. */
#include "base/buf.h"
#include "serve/ask.h"
#include "serve/field.h"
#include "serve/tools.h"

#include <stdlib.h>
#include <string.h>

/* A content given in parts: their texts, one after the other. */
static bool join_parts(const json_t *parts, struct lk_buf *out, struct lk_fault *fault) {
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type")),
                   *text = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0)
            return lk_fault_set(
                fault, 400, "unsupported", "messages",
                "a content part of type '%.40s' is not supported; this server reads text",
                type ? type : "");
        if (!text)
            return lk_fault_set(fault, 400, "invalid_type", "messages",
                                "a content part of type 'text' must have a text");
        lk_buf_text(out, text);
    }
    return true;
}

/* What a message says to the model; *content is owned. */
static bool read_content(const json_t *message, size_t i, bool result, char **content,
                         struct lk_fault *fault) {
    const json_t *given = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    bool silent = (!given || json_is_null(given)) && json_array_size(calls) > 0;
    struct lk_buf said = {0}, out = {0};
    lk_buf_text(&said, "");
    bool good = true;
    if (json_is_string(given))
        lk_buf_text(&said, json_string_value(given));
    else if (json_is_array(given))
        good = join_parts(given, &said, fault);
    else if (!silent)
        good = lk_fault_set(fault, 400, "invalid_type", "messages",
                            "messages[%zu].content must be a string or an array of parts", i);
    if (good && result)
        lk_tools_tell_result(said.at, &out);
    else if (good && !said.failed)
        lk_buf_add(&out, said.at, said.len);
    if (good && calls) good = lk_tools_tell_calls(calls, &out, fault);
    if (good && (said.failed || out.failed))
        good = lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the messages");
    lk_buf_free(&said);
    if (!good) lk_buf_free(&out);
    *content = out.at;
    return good;
}

/* The role as templates know it. *result: it is what a tool gave back, which the user's side says. */
static bool read_role(const json_t *message, size_t i, const char **role, bool *result,
                      struct lk_fault *fault) {
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
            *result = strcmp(given, "tool") == 0;
            return true;
        }
    return lk_fault_set(
        fault, 400, "invalid_value", "messages",
        "messages[%zu].role is '%.40s', expected system, developer, user, assistant or tool", i,
        given ? given : "");
}

/* The tools are told in the system message, which is made where there is none. */
static bool describe_tools(struct lk_ask *ask, struct lk_fault *fault) {
    struct lk_buf out = {0};
    bool has_system = strcmp(ask->msg[0].role, "system") == 0;
    if (has_system) lk_buf_text(&out, ask->msg[0].content), lk_buf_text(&out, "\n\n");
    lk_tools_describe(ask, &out);
    if (out.failed) {
        lk_buf_free(&out);
        return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the messages");
    }
    if (has_system)
        free((char *)ask->msg[0].content);
    else
        memmove(ask->msg + 1, ask->msg, ask->n_msg++ * sizeof *ask->msg);
    ask->msg[0] = (lk_message){"system", out.at};
    return true;
}

static bool read_messages(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *messages = json_object_get(ask->body, "messages"), *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return lk_fault_set(fault, 400, "missing_field", "messages",
                            "'messages' must be an array with at least one message");
    if (json_array_size(messages) > LK_MAX_MESSAGE)
        return lk_fault_set(fault, 400, "invalid_value", "messages",
                            "%zu messages; at most %d are accepted", json_array_size(messages),
                            LK_MAX_MESSAGE);
    ask->msg = calloc(json_array_size(messages) + 1, sizeof *ask->msg); /* one more may be made */
    if (!ask->msg)
        return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the messages");
    json_array_foreach(messages, i, message) {
        char *content = NULL;
        bool result = false;
        if (!json_is_object(message))
            return lk_fault_set(fault, 400, "invalid_type", "messages",
                                "messages[%zu] must be an object", i);
        if (!read_role(message, i, &ask->msg[i].role, &result, fault) ||
            !read_content(message, i, result, &content, fault))
            return false;
        ask->msg[i].content = content;
        ask->n_msg = i + 1;
    }
    return true;
}

static bool read_logprobs(struct lk_ask *ask, struct lk_fault *fault) {
    bool wanted = false;
    int64_t top = 0;
    if (!lk_field_bool(ask->body, "logprobs", &wanted, fault) ||
        !lk_field_int(ask->body, "top_logprobs", 0, 20, &top, fault))
        return false;
    if (top > 0 && !wanted)
        return lk_fault_set(fault, 400, "invalid_value", "top_logprobs",
                            "'top_logprobs' needs 'logprobs': true");
    ask->n_top = wanted ? (int)top : -1;
    return true;
}

bool lk_ask_chat(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body, size_t len,
                 struct lk_fault *fault) {
    if (!lk_ask_common(ask, opts, body, len, fault)) return false;
    ask->chat = true;
    return lk_tools_read(ask, fault) && read_logprobs(ask, fault) && read_messages(ask, fault) &&
           (!ask->tools || describe_tools(ask, fault));
}
