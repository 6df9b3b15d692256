/* Rewrites messages for templates that do not take tools, calls, or a system message. */
#include "template/chat_messages.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/fnv1a.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *get_text(const json_t *object, const char *field) {
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

static bool has_role(const json_t *message, const char *role) {
    return strcmp(get_text(message, "role"), role) == 0;
}

static void set_text(json_t *object, const char *field, const char *text) {
    json_object_set_new(object, field, json_string(text));
}

/* ---- calls ---- */

/* The function of a call, which may be given without the object around it. */
static json_t *function_of(json_t *call) {
    json_t *function = json_object_get(call, "function");
    return json_is_object(function) ? function : call;
}

/* Arguments as an object or as JSON text, whatever they were given as. A text that is not JSON
 * stays a text. */
static void convert_arguments(json_t *function, bool as_string) {
    json_t *given = json_object_get(function, "arguments"), *parsed;
    if (!given || json_is_null(given)) {
        json_object_set_new(function, "arguments", as_string ? json_string("{}") : json_object());
    } else if (as_string && !json_is_string(given)) {
        char *text = json_dumps(given, JSON_ENCODE_ANY);
        set_text(function, "arguments", text ? text : "");
        free(text);
    } else if (!as_string && json_is_string(given)) {
        parsed = json_loads(json_string_value(given), JSON_DECODE_ANY, NULL);
        if (parsed) json_object_set_new(function, "arguments", parsed);
    }
}

/* Calls as text after the content. */
static void write_calls(json_t *message, json_t *calls, struct lk_buf *out) {
    json_t *call;
    size_t i;
    lk_buf_append_str(out, get_text(message, "content"));
    json_array_foreach(calls, i, call) {
        json_t *function = function_of(call);
        convert_arguments(function, false);
        json_t *one = json_pack("{s:O?, s:O?}", "name", json_object_get(function, "name"),
                                "arguments", json_object_get(function, "arguments"));
        char *text = one ? json_dumps(one, 0) : NULL;
        lk_buf_printf(out, "%s<tool_call>\n%s\n</tool_call>", out->len ? "\n" : "",
                      text ? text : "");
        if (!text) out->failed = true;
        free(text);
        json_decref(one);
    }
    set_text(message, "content", lk_buf_cstr(out));
    json_object_del(message, "tool_calls");
}

static bool fit_calls(json_t *message, const struct lk_chat_support *support) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    struct lk_buf out = {0};
    size_t i;
    if (json_array_size(calls) == 0) {
        json_object_del(message, "tool_calls");
        return true;
    }
    if (support->calls) {
        json_array_foreach(calls, i, call)
            convert_arguments(function_of(call), support->string_arguments);
        return true;
    }
    write_calls(message, calls, &out);
    bool good = !out.failed;
    lk_buf_free(&out);
    return good;
}

/* Templates call thoughts reasoning_content or thinking. */
static bool fit_thoughts(json_t *message, const struct lk_chat_support *support) {
    const char *thoughts = get_text(message, "reasoning_content"),
               *text = get_text(message, "content");
    struct lk_buf out = {0};
    if (!*thoughts) return true;
    lk_buf_append_str(&out, thoughts);
    if (support->joined_thoughts && *text && json_object_get(message, "tool_calls")) {
        lk_buf_printf(&out, "\n\n%s", text);
        set_text(message, "content", "");
    }
    set_text(message, "thinking", lk_buf_cstr(&out));
    bool good = !out.failed;
    lk_buf_free(&out);
    return good;
}

/* The result of a tool as a user message. */
static bool fit_result(json_t *message) {
    struct lk_buf out = {0};
    lk_buf_printf(&out, "<tool_response>\n%s\n</tool_response>", get_text(message, "content"));
    json_object_clear(message);
    set_text(message, "role", "user");
    set_text(message, "content", lk_buf_cstr(&out));
    bool good = !out.failed;
    lk_buf_free(&out);
    return good;
}

/* ---- system messages ---- */

/* Put a text before or after the content of a message. */
static bool join_content(json_t *message, const char *before, const char *after) {
    struct lk_buf out = {0};
    lk_buf_printf(&out, "%s%s%s", before, *before && *after ? "\n\n" : "", after);
    set_text(message, "content", lk_buf_cstr(&out));
    bool good = !out.failed;
    lk_buf_free(&out);
    return good;
}

static bool describe_tools(json_t *messages, const json_t *tools) {
    struct lk_buf out = {0};
    const json_t *tool;
    size_t i;
    lk_buf_append_str(&out, "# Tools\n\nThese functions can be called when they help:\n<tools>\n");
    json_array_foreach(tools, i, tool) {
        char *text = json_dumps(tool, JSON_COMPACT);
        lk_buf_printf(&out, "%s\n", text ? text : "");
        if (!text) out.failed = true;
        free(text);
    }
    lk_buf_append_str(&out, "</tools>\n\nTo call one, answer only with its name and arguments as "
                            "JSON between tags:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": "
                            "{...}}\n</tool_call>");
    json_t *first = json_array_get(messages, 0);
    bool good = !out.failed;
    if (good && has_role(first, "system"))
        good = join_content(first, get_text(first, "content"), lk_buf_cstr(&out));
    else if (good)
        good = json_array_insert_new(
                   messages, 0,
                   json_pack("{s:s, s:s}", "role", "system", "content", lk_buf_cstr(&out))) == 0;
    lk_buf_free(&out);
    return good;
}

/* Move the system message into the first message of the user. */
static bool merge_system(json_t *messages) {
    json_t *system = json_array_get(messages, 0), *message;
    size_t i;
    bool good = true;
    if (!has_role(system, "system")) return true;
    json_array_foreach(messages, i, message) if (has_role(message, "user")) {
        good = join_content(message, get_text(system, "content"), get_text(message, "content"));
        json_array_remove(messages, 0);
        return good;
    }
    set_text(system, "role", "user");
    return true;
}

/* ---- all ---- */

static lk_status check_message(json_t *message, size_t i, lk_err *err) {
    const json_t *content = json_object_get(message, "content");
    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
        return lk_fail(err, LK_E_ARG, "message %zu must be an object with a role", i);
    if (content && !json_is_null(content) && !json_is_string(content))
        return lk_fail(err, LK_E_ARG, "the content of message %zu must be a string", i);
    if (!json_is_string(content)) set_text(message, "content", "");
    if (has_role(message, "developer")) set_text(message, "role", "system");
    if (has_role(message, "function")) set_text(message, "role", "tool");
    return LK_OK;
}

lk_status lk_chat_messages_fit(json_t *messages, const json_t *tools,
                               const struct lk_chat_support *support, lk_err *err) {
    json_t *message;
    size_t i;
    bool good = true;
    if (json_array_size(messages) == 0)
        return lk_fail(err, LK_E_ARG, "a conversation needs at least one message");
    json_array_foreach(messages, i, message) {
        lk_status status = check_message(message, i, err);
        if (status) return status;
        if (!fit_calls(message, support) || !fit_thoughts(message, support)) good = false;
        if (has_role(message, "tool") && !support->calls && !fit_result(message)) good = false;
    }
    if (good && json_array_size(tools) > 0 && !support->tools)
        good = describe_tools(messages, tools);
    if (good && !support->system) good = merge_system(messages);
    return good ? LK_OK : lk_fail(err, LK_E_NOMEM, "out of memory: messages");
}

/* ---- strict templates ---- */

static bool is_short_id(const char *id) {
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == 9 &&
           strlen(id) == 9;
}

/* Replace an id by 9 letters and digits that depend on it alone. */
static bool shorten_id(json_t *object, const char *field) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    const char *id = json_string_value(json_object_get(object, field));
    char out[10] = "";
    if (!id || is_short_id(id)) return false;
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, id, strlen(id));
    for (size_t i = 0; i < 9; i++, hash >>= 5) out[i] = letters[hash & 31];
    set_text(object, field, out);
    return true;
}

static bool is_plain(const json_t *message) {
    return !json_object_get(message, "tool_calls") && !has_role(message, "tool");
}

/* Plain messages of the same role become one. */
static bool merge_neighbors(json_t *messages) {
    bool changed = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *first = json_array_get(messages, i), *next;
        struct lk_buf out = {0};
        size_t n = 1;
        lk_buf_append_str(&out, get_text(first, "content"));
        for (; is_plain(first) && (next = json_array_get(messages, i + n)); n++) {
            if (!is_plain(next) || !has_role(next, get_text(first, "role"))) break;
            lk_buf_printf(&out, "\n\n%s", get_text(next, "content"));
        }
        if (n > 1 && !out.failed) {
            set_text(first, "content", lk_buf_cstr(&out));
            for (; n > 1; n--) json_array_remove(messages, i + 1);
            changed = true;
        }
        lk_buf_free(&out);
    }
    return changed;
}

bool lk_chat_messages_simplify(json_t *messages) {
    json_t *message, *call;
    bool changed = false;
    size_t i, k;
    json_array_foreach(messages, i, message) {
        if (i && has_role(message, "system")) {
            set_text(message, "role", "user");
            changed = true;
        }
        changed |= shorten_id(message, "tool_call_id");
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) changed |=
            shorten_id(call, "id");
    }
    return merge_neighbors(messages) || changed;
}
