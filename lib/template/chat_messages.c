/* Rewrites messages for templates that do not take tools, calls, or a system message. */
#include "template/chat_messages.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"

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

/* The text may have marks of own words. */
static void set_text(json_t *object, const char *field, const char *text) {
    json_object_set_new(object, field, json_string_nocheck(text));
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

/* A value as Python writes it, with JSON's strings. */
static void write_python(const json_t *value, struct lk_buf *out) {
    const json_t *one;
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_boolean(value) || json_is_null(value)) {
        lk_buf_append_str(out, json_is_null(value)   ? "None"
                               : json_is_true(value) ? "True"
                                                     : "False");
    } else if (json_is_array(value)) {
        lk_buf_append_str(out, "[");
        json_array_foreach(value, i, one) {
            if (i) lk_buf_append_str(out, ", ");
            write_python(one, out);
        }
        lk_buf_append_str(out, "]");
    } else if (json_is_object(value)) {
        bool first = true;
        lk_buf_append_str(out, "{");
        json_object_foreach((json_t *)value, key, member) {
            json_t *text = json_string(key);
            if (!first) lk_buf_append_str(out, ", ");
            first = false;
            write_python(text, out);
            json_decref(text);
            lk_buf_append_str(out, ": ");
            write_python(member, out);
        }
        lk_buf_append_str(out, "}");
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        if (!text) out->failed = true;
        lk_buf_append_str(out, text ? text : "");
        free(text);
    }
}

/* f(a=1, b="x") */
static void write_python_call(const json_t *function, struct lk_buf *out) {
    json_t *arguments = json_object_get(function, "arguments"), *value;
    const char *key;
    bool first = true;
    lk_buf_printf(out, "%s(", get_text(function, "name"));
    json_object_foreach(arguments, key, value) {
        lk_buf_printf(out, "%s%s=", first ? "" : ", ", key);
        write_python(value, out);
        first = false;
    }
    lk_buf_append_str(out, ")");
}

static void write_json_call(const json_t *function, struct lk_buf *out) {
    json_t *one = json_pack("{s:O?, s:O?}", "name", json_object_get(function, "name"), "arguments",
                            json_object_get(function, "arguments"));
    char *text = one ? json_dumps(one, 0) : NULL;
    if (!text) out->failed = true;
    lk_buf_append_str(out, text ? text : "");
    free(text);
    json_decref(one);
}

#define OWN(word) "\xFF" word "\xFE"

/* The forms of enum lk_calls_text. */
static const struct calls_form {
    const char *open, *close;             /* around all calls */
    const char *before, *between, *after; /* each call */
    void (*write)(const json_t *function, struct lk_buf *out);
    bool has_results; /* the role "tool" is known */
} calls_forms[] = {
    [LK_CALLS_TAGGED] = {"", "", "<tool_call>\n", "\n", "\n</tool_call>", write_json_call, false},
    [LK_CALLS_LFM] = {OWN("<|tool_call_start|>") "[", "]" OWN("<|tool_call_end|>"), "", ", ", "",
                      write_python_call, true},
    [LK_CALLS_GRANITE] = {OWN("<|tool_call|>") "[", "]", "", ", ", "", write_json_call, true},
};

/* Calls as text after the content. */
static bool write_calls(json_t *message, const struct calls_form *form) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    struct lk_buf out = {0};
    size_t i;
    lk_buf_append_str(&out, get_text(message, "content"));
    if (out.len && form->write != write_python_call) lk_buf_append_str(&out, "\n");
    lk_buf_append_str(&out, form->open);
    json_array_foreach(calls, i, call) {
        json_t *function = function_of(call);
        convert_arguments(function, false);
        lk_buf_printf(&out, "%s%s", i ? form->between : "", form->before);
        form->write(function, &out);
        lk_buf_append_str(&out, form->after);
    }
    lk_buf_append_str(&out, form->close);
    set_text(message, "content", lk_buf_cstr(&out));
    json_object_del(message, "tool_calls");
    bool good = !out.failed;
    lk_buf_free(&out);
    return good;
}

static bool fit_calls(json_t *message, const struct lk_chat_support *support) {
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (json_array_size(calls) == 0) {
        json_object_del(message, "tool_calls");
        return true;
    }
    if (!support->calls) return write_calls(message, &calls_forms[support->calls_text]);
    if (*get_text(message, "content")) /* Cohere's name for the text before calls */
        set_text(message, "tool_plan", get_text(message, "content"));
    json_array_foreach(calls, i, call)
        convert_arguments(function_of(call), support->string_arguments);
    return true;
}

/* Templates call thoughts reasoning_content or thinking, or have them in the content. */
static bool fit_thoughts(json_t *message, const struct lk_chat_support *support) {
    const char *thoughts = get_text(message, "reasoning_content"),
               *text = get_text(message, "content");
    struct lk_buf out = {0};
    if (!*thoughts) return true;
    if (support->inline_thoughts) {
        lk_buf_printf(&out, "<think>\n%s\n</think>\n\n%s", thoughts, text);
        set_text(message, "content", lk_buf_cstr(&out));
        json_object_del(message, "reasoning_content");
    } else {
        lk_buf_append_str(&out, thoughts);
        if (support->joined_thoughts && *text && json_object_get(message, "tool_calls")) {
            lk_buf_printf(&out, "\n\n%s", text);
            set_text(message, "content", "");
        }
        set_text(message, "thinking", lk_buf_cstr(&out));
    }
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

static bool split_calls(json_t *messages);

static lk_status fit_messages(json_t *messages, const json_t *tools,
                              const struct lk_chat_support *support, lk_err *err) {
    json_t *message;
    size_t i;
    bool good = true, has_results = support->calls || calls_forms[support->calls_text].has_results;
    if (json_array_size(messages) == 0)
        return lk_fail(err, LK_E_ARG, "a conversation needs at least one message");
    json_array_foreach(messages, i, message) {
        lk_status status = check_message(message, i, err);
        if (status) return status;
        if (i && has_role(message, "system") && !support->late_system)
            set_text(message, "role", "user");
        if (!fit_calls(message, support) || !fit_thoughts(message, support)) good = false;
        if (has_role(message, "tool") && !has_results && !fit_result(message)) good = false;
    }
    if (support->single_calls) split_calls(messages);
    if (good && json_array_size(tools) > 0 && !support->tools)
        good = describe_tools(messages, tools);
    if (good && !support->system) good = merge_system(messages);
    return good ? LK_OK : lk_fail(err, LK_E_NOMEM, "out of memory: messages");
}

/* ---- strict templates ---- */

/* These rewrite messages that a template has refused. False: they change nothing. */

/* Messages with several calls become messages with one, each followed by its result. */
static bool split_calls(json_t *messages) {
    json_t *out = json_array(), *message, *call, *result;
    bool changed = false;
    size_t n = json_array_size(messages), i, k, r;
    for (i = 0; i < n; i++) {
        message = json_array_get(messages, i);
        json_t *calls = json_object_get(message, "tool_calls"), *results = json_array();
        if (json_array_size(calls) < 2) json_array_append(out, message);
        while (json_array_size(calls) > 1 && i + 1 < n &&
               has_role(json_array_get(messages, i + 1), "tool"))
            json_array_append(results, json_array_get(messages, ++i));
        for (k = 0; k < json_array_size(calls) && json_array_size(calls) > 1; k++) {
            json_t *single = json_copy(message);
            call = json_array_get(calls, k);
            json_object_set_new(single, "tool_calls", json_pack("[O]", call));
            if (k > 0) {
                set_text(single, "content", "");
                json_object_del(single, "reasoning_content");
                json_object_del(single, "thinking");
            }
            json_array_append_new(out, single);
            changed = true;
            json_array_foreach(results, r, result) {
                const char *id = get_text(result, "tool_call_id");
                if (*id && strcmp(id, get_text(call, "id")) != 0) continue;
                json_array_append(out, result);
                json_array_remove(results, r);
                break;
            }
        }
        json_array_extend(out, results);
        json_decref(results);
    }
    if (changed) {
        json_array_clear(messages);
        json_array_extend(messages, out);
    }
    json_decref(out);
    return changed;
}

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

/* Ids of calls get 9 letters and digits. A call without one gets its number, and a result without
 * one that of the next call without a result. */
static bool fix_ids(json_t *messages) {
    json_t *message, *call, *calls = NULL;
    bool changed = false;
    size_t i, k, n_call = 0, n_result = 0;
    char id[32];
    json_array_foreach(messages, i, message) {
        json_t *own = json_object_get(message, "tool_calls");
        if (own) calls = own, n_result = 0;
        json_array_foreach(own, k, call) {
            snprintf(id, sizeof id, "call%05zu", ++n_call % 100000);
            if (!json_object_get(call, "id")) set_text(call, "id", id), changed = true;
            changed |= shorten_id(call, "id");
        }
        if (!has_role(message, "tool")) continue;
        const char *next = get_text(json_array_get(calls, n_result++), "id");
        if (!json_object_get(message, "tool_call_id") && *next)
            set_text(message, "tool_call_id", next), changed = true;
        changed |= shorten_id(message, "tool_call_id");
    }
    return changed;
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

/* Answers without text and calls before the last message say nothing. */
static bool drop_empty_answers(json_t *messages) {
    bool changed = false;
    for (size_t i = 0; i + 1 < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!has_role(message, "assistant") || json_object_get(message, "tool_calls") ||
            *get_text(message, "content"))
            continue;
        json_array_remove(messages, i--);
        changed = true;
    }
    return changed;
}

/* Only the first message is the system's, ids have one form, no answer is empty, and roles
 * alternate. */
static bool fix_roles(json_t *messages) {
    json_t *message;
    bool changed = fix_ids(messages);
    size_t i;
    changed |= drop_empty_answers(messages);
    json_array_foreach(messages, i, message) if (i && has_role(message, "system")) {
        set_text(message, "role", "user");
        changed = true;
    }
    return merge_neighbors(messages) || changed;
}

/* Calls and results as text, and a question before the first answer. */
static bool write_plainly(json_t *messages) {
    json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) {
        if (json_object_get(message, "tool_calls"))
            write_calls(message, &calls_forms[LK_CALLS_TAGGED]);
        if (has_role(message, "tool")) fit_result(message);
    }
    i = has_role(json_array_get(messages, 0), "system");
    if (!has_role(json_array_get(messages, i), "user"))
        json_array_insert_new(messages, i, json_pack("{s:s, s:s}", "role", "user", "content", ""));
    merge_neighbors(messages);
    return true;
}

/* The tools with an empty description and an empty schema if one is missing, a new reference. NULL:
 * none is missing. */
static json_t *complete_tools(const json_t *tools) {
    json_t *out = json_deep_copy(tools), *tool;
    bool changed = false;
    size_t i;
    json_array_foreach(out, i, tool) {
        json_t *function = json_object_get(tool, "function"),
               *parameters = json_object_get(function, "parameters");
        if (!json_is_string(json_object_get(function, "description")))
            set_text(function, "description", ""), changed = true;
        if (!json_is_object(parameters)) {
            parameters = json_pack("{s:s}", "type", "object");
            json_object_set_new(function, "parameters", parameters);
        }
        if (json_is_object(json_object_get(parameters, "properties"))) continue;
        json_object_set_new(parameters, "properties", json_object());
        changed = true;
    }
    if (changed) return out;
    json_decref(out);
    return NULL;
}

lk_status lk_chat_messages_render(const struct lk_chat_template *t, struct lk_chat_input *input,
                                  lk_jinja_char **out, size_t *n_out, lk_err *err) {
    static bool (*const steps[])(json_t * messages) = {split_calls, fix_roles, write_plainly};
    const struct lk_chat_support support = lk_chat_template_support(t);
    lk_err first = {0};
    lk_status status = fit_messages((json_t *)input->messages, input->tools, &support, err);
    if (status) return status;
    if (!support.tools) input->tools = NULL;
    status = lk_chat_template_render(t, input, out, n_out, &first);
    const json_t *given = input->tools, *variables = input->variables;
    json_t *complete = status == LK_E_FORMAT && given ? complete_tools(given) : NULL,
           *others = NULL;
    if (complete) {
        input->tools = complete;
        status = lk_chat_template_render(t, input, out, n_out, NULL);
    }
    if (status == LK_E_FORMAT && json_object_get(variables, "reasoning_effort")) {
        others = json_copy((json_t *)variables); /* the template knows other efforts */
        json_object_del(others, "reasoning_effort");
        input->variables = others;
        status = lk_chat_template_render(t, input, out, n_out, NULL);
    }
    for (size_t i = 0; status == LK_E_FORMAT && i < sizeof steps / sizeof *steps; i++)
        if (steps[i]((json_t *)input->messages))
            status = lk_chat_template_render(t, input, out, n_out, NULL);
    input->tools = given;
    input->variables = variables;
    json_decref(complete);
    json_decref(others);
    return status ? lk_fail(err, first.code, "%s", first.msg) : LK_OK;
}
