/* Tools of a request, and tool calls of a response, in OpenAI's form. */
#include "serve/tools.h"

#include "base/buf.h"
#include "base/hash.h"
#include "lowkey_serve.h"
#include "serve/json_field.h"
#include "serve/tool_calls.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOOLS = 128 };

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

void lk_gbnf_add_literal(struct lk_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\n')
            lk_buf_append_str(out, "\\n");
        else
            lk_buf_printf(out, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
}

/* Schemas of a call: one per tool, or only that of the tool with the name `only`. Each tool's
 * parameters get an "$id", so that a $ref in them refers to them and not to the whole schema. */
static json_t *make_call_schemas(const json_t *tools, const char *only, const char *key) {
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
        json_array_append_new(schemas, json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s,s], s:b}", "type",
                                                 "object", "properties", "name", "const",
                                                 function_name(tool), key, parameters, "required",
                                                 "name", key, "additionalProperties", 0));
    }
    return schemas;
}

/* Constrain the response to a call, as the model would write it. */
static bool require_call(struct lk_request *ask, const json_t *tools, const char *only,
                         const struct lk_server_opts *opts, struct lk_api_error *fault) {
    if (ask->grammar)
        return lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "a required tool call cannot be combined with '%s'",
                                ask->grammar_field);
    lk_call_words words = {.before = "<tool_call>\n", .after = "\n</tool_call>"};
    if (opts->model) lk_chat_call_words(opts->model, &words, NULL); /* else later an error */
    struct lk_buf before = {0}, after = {0};
    lk_gbnf_add_literal(&before, words.before);
    lk_gbnf_add_literal(&after, words.after);
    const struct lk_schema_use use = {
        .field = "tools", .before = lk_buf_cstr(&before), .after = lk_buf_cstr(&after)};
    const char *key = words.has_parameters ? "parameters" : "arguments";
    json_t *schema = json_pack("{s:o}", "anyOf", make_call_schemas(tools, only, key));
    if (json_array_size(json_object_get(schema, "anyOf")) == 0)
        lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                         "'tool_choice' names a function that 'tools' does not have");
    else if (before.failed || after.failed)
        lk_api_error_set(fault, 503, "out_of_memory", NULL, "not enough memory for a grammar");
    else
        ask->grammar = lk_schema_grammar(schema, &use, fault);
    json_decref(schema);
    lk_buf_free(&before);
    lk_buf_free(&after);
    ask->sampling.grammar = ask->grammar;
    ask->grammar_field = use.field;
    return ask->grammar != NULL;
}

bool lk_tools_parse_request(struct lk_request *ask, const struct lk_server_opts *opts,
                            struct lk_api_error *fault) {
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
    ask->tools = tools;
    ask->single_tool_call = !parallel;
    if (only || (word && strcmp(word, "required") == 0))
        return require_call(ask, tools, only, opts, fault);
    return !call_required ||
           lk_api_error_set(
               fault, 400, "invalid_value", "tool_choice",
               "'tool_choice' must be none, auto, required, or an object that names a function");
}

/* 9 letters and digits, which all templates accept, made of the response's id and a number. */
static void make_id(char out[10], const char *id, size_t number) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, id, strlen(id));
    hash = lk_fnv1a(hash, &number, sizeof number);
    for (size_t i = 0; i < 9; i++, hash >>= 5) out[i] = letters[hash & 31];
    out[9] = 0;
}

json_t *lk_tools_parse_calls(const char *text, const json_t *tools, const char *id, bool only_first,
                             struct lk_tools_text *shown) {
    struct lk_tool_calls calls;
    json_t *out = NULL;
    if (lk_tool_calls_parse(text, tools, &calls)) {
        out = json_array();
        *shown = (struct lk_tools_text){calls.n_before, calls.rest};
        for (size_t i = 0; i < calls.n && !(only_first && i); i++) {
            const struct lk_tool_call *call = &calls.at[i];
            char made[10];
            make_id(made, id, i);
            json_array_append_new(out, json_pack("{s:I, s:s, s:s, s:{s:s, s:s}}", "index",
                                                 (json_int_t)i, "id", call->id ? call->id : made,
                                                 "type", "function", "function", "name", call->name,
                                                 "arguments", call->arguments));
        }
    }
    lk_tool_calls_free(&calls);
    return out;
}

/* ---- schemas as grammars ---- */

/* Replace the rule "root ::= RULE" by one with the text around the JSON. Frees `grammar`. */
static char *wrap_root(char *grammar, const struct lk_schema_use *use) {
    static const char root[] = "\nroot ::= ";
    struct lk_buf out = {0};
    const char *rule = strstr(grammar, root) + sizeof root - 1;
    size_t len = strcspn(rule, "\n");
    lk_buf_append(&out, grammar, (size_t)(rule - grammar));
    lk_buf_printf(&out, "\"%s\" ", use->before ? use->before : "");
    lk_buf_append(&out, rule, len);
    lk_buf_printf(&out, " \"%s\"", use->after ? use->after : "");
    lk_buf_append_str(&out, rule + len);
    free(grammar);
    if (out.failed) lk_buf_free(&out);
    return out.at;
}

char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_api_error *fault) {
    char *grammar = NULL, *text = json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT);
    lk_err err = {0};
    lk_status status = LK_E_NOMEM;
    if (text) status = lk_schema_to_grammar(text, strlen(text), &grammar, &err);
    free(text);
    if (!status && (use->before || use->after)) {
        grammar = wrap_root(grammar, use);
        if (!grammar) status = LK_E_NOMEM;
    }
    if (!status) return grammar;
    if (status == LK_E_NOMEM)
        lk_api_error_set(fault, 503, "out_of_memory", NULL, "not enough memory for a grammar");
    else
        lk_api_error_set(fault, 400, "unsupported_schema", use->field, "%s", err.msg);
    return NULL;
}
