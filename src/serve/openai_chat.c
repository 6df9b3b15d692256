/* The body of /v1/chat/completions. */
#include "serve/ask.h"
#include "serve/buf.h"
#include "serve/field.h"

#include <stdlib.h>
#include <string.h>

/* A content given in parts: their texts, one after the other. */
static bool join_parts(const json_t *parts, struct lk_buf *out, struct lk_fault *fault) {
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type")), *text = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0)
            return lk_fault_set(fault, 400, "unsupported", "messages", "a content part of type '%.40s' is not supported; this server reads text", type ? type : "");
        if (!text) return lk_fault_set(fault, 400, "invalid_type", "messages", "a content part of type 'text' must have a text");
        lk_buf_text(out, text);
    }
    return true;
}

/* *content is owned. */
static bool read_content(const json_t *message, size_t i, char **content, struct lk_fault *fault) {
    const json_t *given = json_object_get(message, "content");
    struct lk_buf out = {0};
    lk_buf_text(&out, "");
    bool good = true;
    if (json_is_string(given)) lk_buf_text(&out, json_string_value(given));
    else if (json_is_array(given)) good = join_parts(given, &out, fault);
    else good = lk_fault_set(fault, 400, "invalid_type", "messages", "messages[%zu].content must be a string or an array of parts", i);
    if (good && out.failed) good = lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the messages");
    if (!good) lk_buf_free(&out);
    *content = out.at;
    return good;
}

static bool read_role(const json_t *message, size_t i, const char **role, struct lk_fault *fault) {
    static const char *const known[] = {"system", "user", "assistant"};
    const char *given = json_string_value(json_object_get(message, "role"));
    if (given && strcmp(given, "developer") == 0) given = "system";
    for (size_t k = 0; given && k < sizeof known / sizeof known[0]; k++)
        if (strcmp(given, known[k]) == 0) {
            *role = known[k];
            return true;
        }
    return lk_fault_set(fault, 400, "invalid_value", "messages", "messages[%zu].role is '%.40s', expected system, developer, user or assistant", i, given ? given : "");
}

static bool read_messages(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *messages = json_object_get(ask->body, "messages"), *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return lk_fault_set(fault, 400, "missing_field", "messages", "'messages' must be an array with at least one message");
    if (json_array_size(messages) > LK_MESSAGE_MOST)
        return lk_fault_set(fault, 400, "invalid_value", "messages", "%zu messages; at most %d are accepted", json_array_size(messages), LK_MESSAGE_MOST);
    ask->msg = calloc(json_array_size(messages), sizeof *ask->msg);
    if (!ask->msg) return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the messages");
    json_array_foreach(messages, i, message) {
        char *content = NULL;
        if (!json_is_object(message)) return lk_fault_set(fault, 400, "invalid_type", "messages", "messages[%zu] must be an object", i);
        if (!read_role(message, i, &ask->msg[i].role, fault) || !read_content(message, i, &content, fault)) return false;
        ask->msg[i].content = content;
        ask->n_msg = i + 1;
    }
    return true;
}

static bool read_logprobs(struct lk_ask *ask, struct lk_fault *fault) {
    bool wanted = false;
    int64_t top = 0;
    if (!lk_field_bool(ask->body, "logprobs", &wanted, fault) || !lk_field_int(ask->body, "top_logprobs", 0, 20, &top, fault)) return false;
    if (top > 0 && !wanted) return lk_fault_set(fault, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    ask->n_top = wanted ? (int)top : -1;
    return true;
}

static bool refuse_tools(const json_t *body, struct lk_fault *fault) {
    const char *choice = json_string_value(json_object_get(body, "tool_choice"));
    if (!lk_field_given(body, "tools") || (choice && strcmp(choice, "none") == 0)) return true;
    return lk_fault_set(fault, 400, "unsupported", "tools", "'tools' are not supported by this server");
}

bool lk_ask_chat(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body, size_t len, struct lk_fault *fault) {
    if (!lk_ask_common(ask, opts, body, len, fault)) return false;
    ask->chat = true;
    return refuse_tools(ask->body, fault) && read_logprobs(ask, fault) && read_messages(ask, fault);
}
