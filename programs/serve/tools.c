#include "serve/tools.h"

#include "serve/field.h"
#include "serve/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOOLS_MOST = 128 };

static const char opening[] = "<tool_call>", closing[] = "</tool_call>";

static const json_t *function_of(const json_t *tool) { return json_object_get(tool, "function"); }
static const char *name_of(const json_t *tool) {
    return json_string_value(json_object_get(function_of(tool), "name"));
}

static bool check_tools(const json_t *tools, struct lk_fault *fault) {
    const json_t *tool;
    size_t i;
    if (!json_is_array(tools) || json_array_size(tools) > TOOLS_MOST)
        return lk_fault_set(fault, 400, "invalid_type", "tools",
                            "'tools' must be an array of at most %d tools", TOOLS_MOST);
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function") != 0 || !name_of(tool))
            return lk_fault_set(
                fault, 400, "invalid_value", "tools",
                "tools[%zu] must have the type 'function' and a function with a name", i);
    }
    return true;
}

/* The schema of a call of one of the tools, or of the one named. */
static json_t *call_schema(const json_t *tools, const char *only) {
    json_t *any = json_array();
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (only && strcmp(only, name_of(tool)) != 0) continue;
        json_t *arguments = json_object_get(function_of(tool), "parameters");
        json_t *one = json_pack("{s:s, s:{s:{s:s}, s:O?}, s:[s,s], s:b}", "type", "object",
                                "properties", "name", "const", name_of(tool), "arguments",
                                json_is_object(arguments) ? arguments : NULL, "required", "name",
                                "arguments", "additionalProperties", 0);
        if (!json_is_object(arguments)) {
            json_decref(one);
            one = json_pack("{s:s, s:{s:{s:s}, s:{s:s}}, s:[s,s], s:b}", "type", "object",
                            "properties", "name", "const", name_of(tool), "arguments", "type",
                            "object", "required", "name", "arguments", "additionalProperties", 0);
        }
        json_array_append_new(any, one);
    }
    return any;
}

/* The answer must be a call: JSON between the tags. */
static bool demand_call(struct lk_ask *ask, const json_t *tools, const char *only,
                        struct lk_fault *fault) {
    if (ask->grammar)
        return lk_fault_set(fault, 400, "invalid_value", "tool_choice",
                            "a demanded call and '%s' exclude each other", ask->held_by);
    const json_t *document[TOOLS_MOST], *tool;
    struct lk_schema_use use = {.field = "tools",
                                .before = "<tool_call>\\n",
                                .after = "\\n</tool_call>",
                                .document = document};
    size_t i;
    json_array_foreach(tools, i, tool) document[use.n_document++] =
        json_object_get(function_of(tool), "parameters");
    json_t *any = call_schema(tools, only), *schema = json_pack("{s:O}", "anyOf", any);
    bool good = json_array_size(any) > 0 || lk_fault_set(fault, 400, "invalid_value", "tool_choice",
                                                         "'tool_choice' names no tool of 'tools'");
    if (good) ask->grammar = lk_schema_grammar(schema, &use, fault);
    json_decref(schema);
    json_decref(any);
    ask->sampling.grammar = ask->grammar;
    ask->held_by = use.field;
    return ask->grammar != NULL;
}

bool lk_tools_read(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *tools = json_object_get(ask->body, "tools"),
                 *choice = json_object_get(ask->body, "tool_choice");
    const char *word = json_string_value(choice), *only = name_of(choice);
    bool chooses = choice && !json_is_null(choice) &&
                   !(word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0)),
         parallel = true;
    if (!lk_field_bool(ask->body, "parallel_tool_calls", &parallel, fault)) return false;
    if (!tools || json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0))
        return !chooses || lk_fault_set(fault, 400, "invalid_value", "tool_choice",
                                        "'tool_choice' needs 'tools'");
    if (!check_tools(tools, fault)) return false;
    if (word && strcmp(word, "none") == 0) return true;
    ask->tools = true;
    ask->one_call = !parallel;
    if (only || (word && strcmp(word, "required") == 0))
        return demand_call(ask, tools, only, fault);
    return !chooses ||
           lk_fault_set(
               fault, 400, "invalid_value", "tool_choice",
               "'tool_choice' must be none, auto, required or a function's name in OpenAI's form");
}

bool lk_tools_known(const lk_model *model) {
    const char *text = lk_model_chat_template(model);
    return text && strstr(text, opening);
}

static void add_json(struct lk_buf *out, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        lk_buf_text(out, text);
    else
        out->failed = true;
    free(text);
}

void lk_tools_describe(const struct lk_ask *ask, struct lk_buf *out) {
    const json_t *tool;
    size_t i;
    lk_buf_text(out, "# Tools\n\nThese functions can be called when they help:\n<tools>\n");
    json_array_foreach(json_object_get(ask->body, "tools"), i, tool) {
        add_json(out, tool);
        lk_buf_text(out, "\n");
    }
    lk_buf_print(out,
                 "</tools>\n\nTo call one, answer with its name and arguments as JSON between "
                 "tags:\n%s\n{\"name\": ..., \"arguments\": {...}}\n%s",
                 opening, closing);
}

bool lk_tools_tell_calls(const json_t *calls, struct lk_buf *out, struct lk_fault *fault) {
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        const char *arguments = json_string_value(json_object_get(function_of(call), "arguments"));
        json_t *parsed = arguments ? json_loads(arguments, 0, NULL) : NULL;
        if (!name_of(call) || !parsed) {
            json_decref(parsed);
            return lk_fault_set(
                fault, 400, "invalid_value", "messages",
                "tool_calls[%zu] must have a function with a name and arguments that are JSON", i);
        }
        json_t *one = json_pack("{s:s, s:o}", "name", name_of(call), "arguments", parsed);
        lk_buf_print(out, "%s%s\n", out->len ? "\n" : "", opening);
        add_json(out, one);
        lk_buf_print(out, "\n%s", closing);
        json_decref(one);
    }
    return true;
}

void lk_tools_tell_result(const char *content, struct lk_buf *out) {
    lk_buf_text(out, "<tool_response>\n");
    lk_buf_text(out, content);
    lk_buf_text(out, "\n</tool_response>");
}

/* One call between its tags, or NULL where it is none. */
static json_t *parse_call(const char *text, size_t len, const char *id, size_t number) {
    json_t *said = json_loadb(text, len, 0, NULL), *arguments = json_object_get(said, "arguments"),
           *out = NULL;
    const char *name = json_string_value(json_object_get(said, "name"));
    char *dumped = name && json_is_object(arguments) ? json_dumps(arguments, JSON_COMPACT) : NULL,
         own[80];
    snprintf(own, sizeof own, "call-%.50s-%zu", id, number);
    if (dumped)
        out = json_pack("{s:I, s:s, s:s, s:{s:s, s:s}}", "index", (json_int_t)number, "id", own,
                        "type", "function", "function", "name", name, "arguments", dumped);
    free(dumped);
    json_decref(said);
    return out;
}

json_t *lk_tools_parse(const char *text, const char *id, bool one, size_t *shown) {
    json_t *calls = json_array();
    const char *first = NULL, *at = text;
    while ((at = strstr(at, opening))) {
        const char *begin = at + sizeof opening - 1, *end = strstr(begin, closing);
        size_t len = end ? (size_t)(end - begin) : strlen(begin);
        json_t *call = parse_call(begin, len, id, json_array_size(calls));
        if (!call) break;
        if (!first) first = at;
        json_array_append_new(calls, call);
        at = begin + len;
        if (one) break;
    }
    if (!first) {
        json_decref(calls);
        return NULL;
    }
    while (first > text && (first[-1] == '\n' || first[-1] == ' ')) first--;
    *shown = (size_t)(first - text);
    return calls;
}

size_t lk_tools_certain(const char *text, size_t len) {
    const char *at = strstr(text, opening);
    size_t n = at ? (size_t)(at - text) : len;
    for (size_t part = sizeof opening - 2; !at && part > 0; part--)
        if (part <= len && memcmp(text + len - part, opening, part) == 0) {
            n = len - part;
            break;
        }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--; /* goes away before a call */
    return n;
}
