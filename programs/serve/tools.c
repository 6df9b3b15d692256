/* Tools of a request, and tool calls of a response, in OpenAI's form. */
#include "serve/tools.h"

#include "base/ascii.h"
#include "base/buf.h"
#include "base/hash.h"
#include "lowkey_serve.h"
#include "serve/body_convert.h"
#include "serve/call_grammar.h"
#include "serve/json_field.h"
#include "serve/tool_calls.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOOLS = 128 };

static const json_t *get_function(const json_t *tool) { return json_object_get(tool, "function"); }

static const char *function_name(const json_t *tool) {
    return json_string_value(json_object_get(get_function(tool), "name"));
}

/* Is "properties" empty, and nothing said about others? */
static bool has_no_properties(const json_t *parameters) {
    const json_t *properties = json_object_get(parameters, "properties");
    return properties && json_object_size(properties) == 0 &&
           !json_object_get(parameters, "additionalProperties") &&
           json_array_size(json_object_get(parameters, "required")) == 0;
}

/* Schemas of a call: one per tool, or only those of `allowed` (as in lk_request). Each tool's
 * parameters get an "$id", so that a $ref in them refers to them and not to the whole schema. */
static json_t *make_call_schemas(const json_t *tools, const json_t *allowed, const char *key) {
    json_t *schemas = json_array();
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (allowed && !json_object_get(allowed, function_name(tool))) continue;
        json_t *parameters = json_object_get(get_function(tool), "parameters");
        bool has_none = json_object_size(parameters) == 0 || has_no_properties(parameters);
        parameters = json_is_object(parameters) ? json_copy(parameters) : json_object();
        if (has_none) { /* none, and not any */
            json_object_set_new(parameters, "type", json_string("object"));
            json_object_set_new(parameters, "additionalProperties", json_false());
        }
        if (!json_object_get(parameters, "$id"))
            json_object_set_new(parameters, "$id", json_sprintf("tool-%zu", i));
        json_array_append_new(schemas, json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s,s], s:b}", "type",
                                                 "object", "properties", "name", "const",
                                                 function_name(tool), key, parameters, "required",
                                                 "name", key, "additionalProperties", 0));
    }
    return schemas;
}

/* ---- grammars ---- */

static bool no_memory(struct lk_api_error *fault) {
    return lk_api_error_set(fault, 503, "out_of_memory", NULL, "not enough memory for a grammar");
}

/* A call as the model would write it, or `several`, as GBNF with @ for the JSON. */
static void eager_root(struct lk_buf *out, const lk_call_words *words, bool several) {
    for (int i = 0; i < (several ? 2 : 1); i++) {
        lk_buf_append_str(out, i ? " ([\\n]{0,2} \"" : "\"");
        lk_gbnf_add_literal(out, words->before);
        lk_buf_append_str(out, "\" @ \"");
        lk_gbnf_add_literal(out, words->after);
        lk_buf_append_str(out, i ? "\")*" : "\"");
    }
}

/* Append text without the white space around it as a literal, if there is any. */
static void add_trimmed(struct lk_buf *out, const char *text) {
    struct lk_buf word = {0};
    text += strspn(text, " \n");
    size_t n = strlen(text);
    while (n && strchr(" \n", text[n - 1])) n--;
    lk_buf_append(&word, text, n);
    if (n) {
        lk_buf_append_str(out, " \"");
        lk_gbnf_add_literal(out, lk_buf_cstr(&word));
        lk_buf_append_str(out, "\" ");
    }
    if (word.failed) out->failed = true;
    lk_buf_free(&word);
}

/* What follows the word that opens a call: models put white space around the JSON. */
static void lazy_root(struct lk_buf *out, const char *rest, const char *after) {
    static const char space[] = " [ \\n]{0,4} ";
    bool is_list = strspn(rest, " \n") < strlen(rest) && rest[strspn(rest, " \n")] == '[' &&
                   after[strspn(after, " \n")] == ']';
    lk_buf_append_str(out, space);
    add_trimmed(out, rest);
    lk_buf_printf(out, "%s@%s", space, space);
    if (is_list) lk_buf_printf(out, "(\",\"%s@%s)* ", space, space);
    add_trimmed(out, after);
}

/* Leave out the parameters of calls that are not required: what remains is narrower, so each call
 * is still valid. */
static void drop_optional(json_t *calls, const char *key) {
    json_t *call, *name;
    size_t i, k;
    json_array_foreach(calls, i, call) {
        json_t *parameters = json_object_get(json_object_get(call, "properties"), key),
               *all = json_object_get(parameters, "properties"), *kept = json_object();
        json_array_foreach(json_object_get(parameters, "required"), k, name) {
            json_t *one = json_object_get(all, json_string_value(name));
            if (one) json_object_set(kept, json_string_value(name), one);
        }
        if (json_is_object(all))
            json_object_set_new(parameters, "properties", kept);
        else
            json_decref(kept);
    }
}

/* A grammar for calls of the tools. If it cannot be made, or is too large, parameters that are not
 * required are left out. Under "auto" (`lenient`) a tool whose parameters cannot be expressed takes
 * any object; NULL without an error if that does not help. */
static char *call_grammar(const struct lk_request *ask, const char *root, const char *key,
                          bool lenient, struct lk_api_error *fault) {
    const struct lk_schema_use use = {.field = "tools", .root = root};
    struct lk_api_error why = {0};
    json_t *calls = make_call_schemas(ask->tools, ask->allowed, key), *call,
           *schema = json_pack("{s:O}", "anyOf", calls);
    char *grammar = lk_schema_grammar(schema, &use, &why);
    size_t i;
    if (!grammar && lenient) {
        json_array_foreach(calls, i, call) {
            struct lk_api_error ignored = {0};
            char *one =
                lk_schema_grammar(call, &(struct lk_schema_use){.field = "tools"}, &ignored);
            if (!one)
                json_object_set_new(json_object_get(call, "properties"), key,
                                    json_pack("{s:s}", "type", "object"));
            free(one);
        }
        grammar = lk_schema_grammar(schema, &use, &why);
    }
    if (!grammar) {
        struct lk_api_error ignored = {0};
        drop_optional(calls, key);
        grammar = lk_schema_grammar(schema, &use, &ignored);
    }
    json_decref(schema);
    json_decref(calls);
    if (!grammar && !lenient) *fault = why;
    return grammar;
}

/* Append a grammar with "f-" before the names of its rules. */
static void append_renamed(struct lk_buf *out, const char *grammar) {
    for (const char *c = grammar; *c;) {
        size_t n = 1;
        if (*c == '"' || *c == '[') {
            char end = *c == '[' ? ']' : '"';
            while (c[n] && c[n] != end) n += c[n] == '\\' && c[n + 1] ? 2 : 1;
            n += c[n] != 0;
        } else if (isalpha((unsigned char)*c)) {
            while (isalnum((unsigned char)c[n]) || c[n] == '-') n++;
            lk_buf_append_str(out, "f-");
        }
        lk_buf_append(out, c, n);
        c += n;
    }
}

/* Either calls or what the request's grammar, that of a schema, accepts. Frees `calls`. */
static bool combine(struct lk_request *ask, char *calls, struct lk_api_error *fault) {
    static const char root[] = "\nroot ::= ";
    struct lk_buf out = {0};
    const char *rule = strstr(calls, root) + strlen(root);
    size_t len = strcspn(rule, "\n");
    lk_buf_append(&out, calls, (size_t)(rule - calls));
    lk_buf_printf(&out, "f-root | (%.*s)%s\n", (int)len, rule, rule + len);
    append_renamed(&out, ask->grammar);
    free(calls);
    free(ask->grammar);
    ask->sampling.grammar = ask->grammar = lk_buf_detach(&out);
    return ask->grammar || no_memory(fault);
}

/* Calls in another form than JSON after a word that is known. `is_whole`: the answer is one.
 * ask->trigger stays NULL if there is no such form. */
static bool constrain_other_form(struct lk_request *ask, const lk_call_words *words, bool is_whole,
                                 struct lk_api_error *fault) {
    struct lk_call_grammar made = lk_call_grammar_make(words, ask->tools, ask->allowed, is_whole);
    if (!made.text) return true;
    ask->trigger = strdup(is_whole ? "" : made.trigger);
    if (!ask->trigger) {
        free(made.text);
        return no_memory(fault);
    }
    free(ask->grammar);
    ask->sampling.grammar = ask->grammar = made.text;
    ask->sampling.trigger = ask->trigger;
    ask->sampling.trigger_first = !is_whole && made.trigger_first;
    ask->grammar_field = "tools";
    return true;
}

/* Constrain calls: all of the response if one is required or `ask->grammar` is a schema's, and
 * otherwise what follows the word that opens a call. */
static bool constrain_calls(struct lk_request *ask, bool is_required,
                            const struct lk_server_opts *opts, struct lk_api_error *fault) {
    lk_call_words words = {
        .before = "<tool_call>\n", .after = "\n</tool_call>", .opening = "<tool_call>\n"};
    if (opts->call_words) words = *opts->call_words;
    const char *rest = "", *word = lk_tool_calls_word(words.opening, &rest),
               *key = words.has_parameters ? "parameters" : "arguments";
    bool is_lazy = !is_required && !ask->grammar;
    struct lk_buf root = {0};
    if (is_lazy && !word) return constrain_other_form(ask, &words, false, fault);
    if (is_required && !word) {
        if (!constrain_other_form(ask, &words, true, fault)) return false;
        if (ask->trigger) return true;
    }
    if (is_lazy)
        lazy_root(&root, rest, words.after);
    else
        eager_root(&root, &words, !is_required && !ask->single_tool_call && *words.before);
    char *grammar =
        root.failed ? NULL : call_grammar(ask, lk_buf_cstr(&root), key, !is_required, fault);
    bool failed = root.failed && !no_memory(fault);
    lk_buf_free(&root);
    if (!grammar) return !failed && !is_required;
    ask->valid_calls = true;
    if (is_lazy) ask->call_word = word;
    if (!is_lazy && !is_required) return combine(ask, grammar, fault);
    free(ask->grammar);
    ask->sampling.grammar = ask->grammar = grammar;
    ask->sampling.trigger = ask->call_word;
    ask->grammar_field = "tools";
    return true;
}

/* ---- "tools" and "tool_choice" ---- */

/* The names of tools that the choice allows, which are an object's keys; NULL: all. *mode: "auto"
 * or "required"; NULL: the choice is not one. */
static json_t *allowed_tools(const json_t *choice, const char **mode) {
    const json_t *inner = json_object_get(choice, "allowed_tools"), *given = inner ? inner : choice,
                 *tools = json_object_get(given, "tools"), *tool;
    const char *name = function_name(choice);
    size_t i;
    *mode = name ? "required" : json_string_value(json_object_get(given, "mode"));
    if (!name && !json_is_array(tools)) *mode = NULL;
    if (!*mode) return NULL;
    json_t *out = json_object();
    if (name) json_object_set_new(out, name, json_true());
    json_array_foreach(tools, i, tool) {
        name = function_name(tool);
        if (!name) name = json_string_value(json_object_get(tool, "name"));
        if (name) json_object_set_new(out, name, json_true());
    }
    return out;
}

bool lk_tools_parse_request(struct lk_request *ask, const struct lk_server_opts *opts,
                            struct lk_api_error *fault) {
    if (!lk_convert_tools(ask->body, fault) || !lk_convert_tool_choice(ask->body, fault))
        return false;
    const json_t *tools = json_object_get(ask->body, "tools"),
                 *choice = json_object_get(ask->body, "tool_choice"), *tool;
    const char *mode = json_string_value(choice);
    bool parallel = true, is_found = false;
    size_t i;
    if (!choice || json_is_null(choice)) mode = "auto";
    if (json_is_object(choice)) ask->allowed = allowed_tools(choice, &mode);
    bool is_required = mode && strcmp(mode, "required") == 0,
         is_auto = mode && strcmp(mode, "auto") == 0, is_none = mode && strcmp(mode, "none") == 0;
    if (!lk_json_field_bool(ask->body, "parallel_tool_calls", &parallel, fault)) return false;
    if (!tools || json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0))
        return (!ask->allowed && (is_auto || is_none)) ||
               lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "'tool_choice' requires 'tools'");
    if (!json_is_array(tools) || json_array_size(tools) > MAX_TOOLS)
        return lk_api_error_set(fault, 400, "invalid_type", "tools",
                                "'tools' must be an array of at most %d tools", MAX_TOOLS);
    if (!is_required && !is_auto && !is_none)
        return lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "'tool_choice' must be none, auto, required, or an object that "
                                "names a function or has the type allowed_tools");
    if (is_none) return true;
    json_array_foreach(tools, i, tool) is_found |=
        !ask->allowed || json_object_get(ask->allowed, function_name(tool));
    if (!is_found)
        return lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "'tool_choice' names a function that 'tools' does not have");
    ask->tools = tools;
    ask->single_tool_call = !parallel;
    bool is_own = ask->grammar && strcmp(ask->grammar_field, "grammar") == 0;
    if (is_own && is_required)
        return lk_api_error_set(fault, 400, "invalid_value", "tool_choice",
                                "a required tool call cannot be combined with 'grammar'");
    return is_own || constrain_calls(ask, is_required, opts, fault);
}

/* ---- calls of a response ---- */

/* 9 letters and digits, which all templates accept, made of the response's id and a number. */
static void make_id(char out[10], const char *id, size_t number) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, id, strlen(id));
    hash = lk_fnv1a(hash, &number, sizeof number);
    for (size_t i = 0; i < 9; i++, hash >>= 5) out[i] = letters[hash & 31];
    out[9] = 0;
}

json_t *lk_tools_parse_calls(const char *text, const json_t *tools, const char *id, bool only_first,
                             struct lk_tools_text *shown, struct lk_call_store *store) {
    struct lk_tool_calls calls;
    json_t *out = NULL;
    if (lk_tool_calls_parse(text, tools, &calls)) {
        out = json_array();
        *shown = (struct lk_tools_text){calls.n_before, calls.rest};
        for (size_t i = 0; i < calls.n && !(only_first && i); i++) {
            const struct lk_tool_call *call = &calls.at[i];
            char made[10];
            make_id(made, id, i);
            const char *sent = call->id ? call->id : made;
            if (store) lk_call_store_put(store, sent, call->name, call->arguments, call->written);
            json_array_append_new(out,
                                  json_pack("{s:I, s:s, s:s, s:{s:s, s:s}}", "index", (json_int_t)i,
                                            "id", sent, "type", "function", "function", "name",
                                            call->name, "arguments", call->arguments));
        }
    }
    lk_tool_calls_free(&calls);
    return out;
}

/* {"name": "f", "arguments": {  at text[*at..len): moves *at to the arguments. `name` is borrowed
 * from the text, [*n_name]. */
static enum lk_scan scan_header(const char *text, size_t len, size_t *at, const char **name,
                                size_t *n_name) {
    static const char *const words[] = {"{", "\"name\"", ":", "\"", NULL, ",", NULL, ":"};
    struct lk_scanner s = {.at = text + *at, .end = text + len};
    enum lk_scan result = LK_SCAN_YES;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (i == 4) { /* the name, and the quote after it */
            *name = s.at;
            while (s.at < s.end && *s.at != '"') s.at++;
            *n_name = (size_t)(s.at - *name);
            if (s.at++ >= s.end) return LK_SCAN_MORE;
            continue;
        }
        lk_tool_scan_space(&s);
        struct lk_scanner other = s;
        result = lk_tool_scan_word(&s, i == 6 ? "\"arguments\"" : words[i]);
        if (i == 6 && result == LK_SCAN_NO) {
            s = other;
            result = lk_tool_scan_word(&s, "\"parameters\"");
        }
        if (result != LK_SCAN_YES) return result;
    }
    lk_tool_scan_space(&s);
    if (s.at >= s.end) return LK_SCAN_MORE;
    *at = (size_t)(s.at - text);
    return *s.at == '{' ? LK_SCAN_YES : LK_SCAN_NO;
}

/* Bytes of the arguments at text[0..len), without white space between values, to `out`. Returns how
 * many were read; the depth is 0 if they end there. */
static size_t read_arguments(struct lk_call_stream *s, const char *text, size_t len,
                             struct lk_buf *out) {
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (s->in_string || !lk_is_space(c)) lk_buf_append(out, &c, 1);
        if (s->in_string) {
            if (!s->escaped && c == '"') s->in_string = false;
            s->escaped = !s->escaped && c == '\\';
            continue;
        }
        s->in_string = c == '"';
        s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (s->depth == 0) return i + 1;
    }
    return len;
}

static json_t *call_delta(size_t index, const char *id, const char *name, size_t n_name,
                          struct lk_buf *arguments) {
    json_t *delta = json_pack("{s:I, s:{s:s%}}", "index", (json_int_t)index, "function",
                              "arguments", lk_buf_cstr(arguments), arguments->len);
    char made[10];
    if (name) {
        make_id(made, id, index);
        json_object_set_new(delta, "id", json_string(made));
        json_object_set_new(delta, "type", json_string("function"));
        json_object_set_new(json_object_get(delta, "function"), "name", json_stringn(name, n_name));
    }
    lk_buf_clear(arguments);
    return delta;
}

json_t *lk_tools_stream_calls(struct lk_call_stream *s, const char *text, size_t len, size_t from,
                              const struct lk_request *request, const char *id) {
    const char *word = request->call_word ? request->call_word : "";
    size_t n_word = strlen(word);
    json_t *out = NULL;
    struct lk_buf arguments = {0};
    if (!request->valid_calls || (request->single_tool_call && s->n_call && !s->depth)) return NULL;
    if (s->n_call == 0 && s->at < from + n_word) {
        from += strspn(text + from, " \n\r\t");
        if (len < from + n_word || memcmp(text + from, word, n_word) != 0) return NULL;
        s->at = from + n_word;
    }
    while (s->at < len && !s->failed) {
        const char *name = NULL;
        size_t n_name = 0;
        if (s->depth == 0) {
            const char *start = memchr(text + s->at, '{', len - s->at);
            if (!start) break;
            size_t at = (size_t)(start - text);
            enum lk_scan result = scan_header(text, len, &at, &name, &n_name);
            s->failed = result == LK_SCAN_NO;
            if (result != LK_SCAN_YES) break;
            s->at = at;
            s->n_call++;
        }
        s->at += read_arguments(s, text + s->at, len - s->at, &arguments);
        if (!out) out = json_array();
        json_array_append_new(out, call_delta(s->n_call - 1, id, name, n_name, &arguments));
        if (request->single_tool_call && !s->depth) break;
    }
    lk_buf_free(&arguments);
    return out;
}

/* ---- schemas as grammars ---- */

/* Replace the rule "root ::= RULE" by use->root with the rule in place of each @. Frees
 * `grammar`. */
static char *wrap_root(char *grammar, const struct lk_schema_use *use) {
    static const char root[] = "\nroot ::= ";
    struct lk_buf out = {0};
    const char *rule = strstr(grammar, root) + sizeof root - 1;
    size_t len = strcspn(rule, "\n"), n;
    lk_buf_append(&out, grammar, (size_t)(rule - grammar));
    for (const char *at = use->root; *at; at += n) { /* a literal has no @: words of templates */
        n = strcspn(at, "@");
        lk_buf_append(&out, at, n);
        if (at[n]) lk_buf_append(&out, rule, len), n++;
    }
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
    if (!status && use->root) {
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
