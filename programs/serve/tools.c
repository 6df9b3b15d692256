/* Tool calls in the format of Hermes and Qwen. */
#include "serve/tools.h"

#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOOLS = 128 };

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";

static const json_t *get_function(const json_t *tool) { return json_object_get(tool, "function"); }

static const char *function_name(const json_t *tool) {
    return json_string_value(json_object_get(get_function(tool), "name"));
}

static bool check_tools(const json_t *tools, struct lk_api_error *fault) {
    const json_t *tool;
    size_t i;
    if (!json_is_array(tools) || json_array_size(tools) > MAX_TOOLS)
        return lk_api_error_set(fault, 400, "invalid_type", "tools",
                                "'tools' must be an array of at most %d tools", MAX_TOOLS);
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function") != 0 || !function_name(tool))
            return lk_api_error_set(
                fault, 400, "invalid_value", "tools",
                "tools[%zu] must have the type 'function' and a function with a name", i);
    }
    return true;
}

/* Schemas of a call: one per tool, or only that of the tool with the name `only`. Each tool's
 * parameters get an "$id", so that a $ref in them refers to them and not to the whole schema. */
static json_t *make_call_schemas(const json_t *tools, const char *only) {
    json_t *schemas = json_array();
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (only && strcmp(only, function_name(tool)) != 0) continue;
        json_t *parameters = json_object_get(get_function(tool), "parameters");
        parameters = json_is_object(parameters) ? json_copy(parameters)
                                                : json_pack("{s:s}", "type", "object");
        if (!json_object_get(parameters, "$id"))
            json_object_set_new(parameters, "$id", json_sprintf("tool-%zu", i));
        json_array_append_new(schemas,
                              json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s,s], s:b}", "type", "object",
                                        "properties", "name", "const", function_name(tool),
                                        "arguments", parameters, "required", "name", "arguments",
                                        "additionalProperties", 0));
    }
    return schemas;
}

/* Constrain the response to a call: JSON between the tags. */
static bool require_call(struct lk_request *ask, const json_t *tools, const char *only,
                         struct lk_api_error *fault) {
    if (ask->grammar)
        return lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "a required tool call cannot be combined with '%s'",
                                ask->grammar_field);
    static const struct lk_schema_use use = {
        .field = "tools", .before = "<tool_call>\\n", .after = "\\n</tool_call>"};
    json_t *schema = json_pack("{s:o}", "anyOf", make_call_schemas(tools, only));
    if (json_array_size(json_object_get(schema, "anyOf")) == 0)
        lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                         "'tool_choice' names a function that 'tools' does not have");
    else
        ask->grammar = lk_schema_grammar(schema, &use, fault);
    json_decref(schema);
    ask->sampling.grammar = ask->grammar;
    ask->grammar_field = use.field;
    return ask->grammar != NULL;
}

bool lk_tools_parse_request(struct lk_request *ask, struct lk_api_error *fault) {
    const json_t *tools = json_object_get(ask->body, "tools"),
                 *choice = json_object_get(ask->body, "tool_choice");
    const char *word = json_string_value(choice), *only = function_name(choice);
    bool call_required = choice && !json_is_null(choice) &&
                         !(word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0));
    bool parallel = true;
    if (!lk_json_field_bool(ask->body, "parallel_tool_calls", &parallel, fault)) return false;
    if (!tools || json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0))
        return !call_required || lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                                  "'tool_choice' requires 'tools'");
    if (!check_tools(tools, fault)) return false;
    if (word && strcmp(word, "none") == 0) return true;
    ask->tools = true;
    ask->single_tool_call = !parallel;
    if (only || (word && strcmp(word, "required") == 0))
        return require_call(ask, tools, only, fault);
    return !call_required ||
           lk_api_error_set(
               fault, 400, "invalid_value", "tool_choice",
               "'tool_choice' must be none, auto, required, or an object that names a function");
}

bool lk_tools_are_supported(const lk_model *model) {
    const char *text = lk_model_chat_template(model);
    return text && strstr(text, open_tag);
}

void lk_tools_describe(const struct lk_request *ask, struct lk_buf *out) {
    const json_t *tool;
    size_t i;
    lk_buf_append_str(out, "# Tools\n\nThese functions can be called when they help:\n<tools>\n");
    json_array_foreach(json_object_get(ask->body, "tools"), i, tool) {
        lk_buf_add_json(out, json_incref((json_t *)tool));
        lk_buf_append_str(out, "\n");
    }
    lk_buf_printf(out,
                  "</tools>\n\nTo call one, answer with its name and arguments as JSON between "
                  "tags:\n%s\n{\"name\": ..., \"arguments\": {...}}\n%s",
                  open_tag, close_tag);
}

/* The arguments of a call, which are JSON in a string. NULL if they are not, or hold too many
 * values. */
static json_t *parse_arguments(const char *text) {
    size_t len = text ? strlen(text) : 0;
    if (!text || lk_json_parsed_bytes(text, len) > lk_json_max_parsed_bytes(len)) return NULL;
    return json_loadb(text, len, 0, NULL);
}

bool lk_tools_format_calls(const json_t *calls, struct lk_buf *out, struct lk_api_error *fault) {
    const json_t *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        const char *arguments = json_string_value(json_object_get(get_function(call), "arguments"));
        json_t *parsed = parse_arguments(arguments);
        if (!function_name(call) || !parsed) {
            json_decref(parsed);
            return lk_api_error_set(
                fault, 400, "invalid_value", "messages",
                "tool_calls[%zu] must have a function with a name and arguments that are JSON", i);
        }
        json_t *one = json_pack("{s:s, s:o}", "name", function_name(call), "arguments", parsed);
        lk_buf_printf(out, "%s%s\n", out->len ? "\n" : "", open_tag);
        lk_buf_add_json(out, one);
        lk_buf_printf(out, "\n%s", close_tag);
    }
    return true;
}

void lk_tools_format_result(const char *content, struct lk_buf *out) {
    lk_buf_append_str(out, "<tool_response>\n");
    lk_buf_append_str(out, content);
    lk_buf_append_str(out, "\n</tool_response>");
}

/* Parse the text between the tags. NULL if it is not a call. */
static json_t *parse_one_call(const char *text, size_t len, const char *id, size_t number) {
    json_t *parsed = json_loadb(text, len, 0, NULL),
           *arguments = json_object_get(parsed, "arguments"), *out = NULL;
    const char *name = json_string_value(json_object_get(parsed, "name"));
    char *dumped = name && json_is_object(arguments) ? json_dumps(arguments, JSON_COMPACT) : NULL,
         call_id[80];
    snprintf(call_id, sizeof call_id, "call-%.50s-%zu", id, number);
    if (dumped)
        out = json_pack("{s:I, s:s, s:s, s:{s:s, s:s}}", "index", (json_int_t)number, "id", call_id,
                        "type", "function", "function", "name", name, "arguments", dumped);
    free(dumped);
    json_decref(parsed);
    return out;
}

json_t *lk_tools_parse_calls(const char *text, const char *id, bool only_first, size_t *n_before) {
    json_t *calls = json_array();
    const char *first = NULL, *at = text;
    while ((at = strstr(at, open_tag))) {
        const char *start = at + sizeof open_tag - 1, *end = strstr(start, close_tag);
        size_t len = end ? (size_t)(end - start) : strlen(start);
        json_t *call = parse_one_call(start, len, id, json_array_size(calls));
        if (!call) break;
        if (!first) first = at;
        json_array_append_new(calls, call);
        at = start + len;
        if (only_first) break;
    }
    if (!first) {
        json_decref(calls);
        return NULL;
    }
    while (first > text && (first[-1] == '\n' || first[-1] == ' ')) first--;
    *n_before = (size_t)(first - text);
    return calls;
}

size_t lk_tools_text_before_call(const char *text, size_t len) {
    const char *at = strstr(text, open_tag);
    size_t n = at ? (size_t)(at - text) : len;
    for (size_t part = sizeof open_tag - 2; !at && part > 0; part--)
        if (part <= len && memcmp(text + len - part, open_tag, part) == 0) {
            n = len - part;
            break;
        }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--; /* dropped before a call */
    return n;
}
