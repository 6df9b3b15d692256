/* Converts arguments to JSON. */
#include "serve/tool_arguments.h"

#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/tool_markup.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Parse JSON if its size is in proportion to the text. NULL: it is not JSON. */
static json_t *parse(const char *text, size_t len, size_t flags) {
    bool small = lk_json_parsed_bytes(text, len) <= lk_json_max_parsed_bytes(len);
    return small ? json_loadb(text, len, flags, NULL) : NULL;
}

/* The characters of a JSON string. Invalid UTF-8 makes the buffer fail. */
static void add_string(struct lk_buf *out, const char *text, size_t len) {
    lk_buf_add_json(out, json_stringn(text, len));
}

/* ---- Python ---- */

/* A string with its quotes, at text[0..len). The escapes that JSON also has mean the same. Returns
 * its length. */
static size_t convert_string(const char *text, size_t len, struct lk_buf *out) {
    size_t i = 1;
    lk_buf_append_str(out, "\"");
    for (; i < len && text[i] != *text; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\\' && i + 1 < len) {
            char next = text[++i];
            if (!strchr("\"\\/bfnrtu", next) && next != '\'') lk_buf_append_str(out, "\\");
            if (next != '\'') lk_buf_append_str(out, "\\");
            lk_buf_append(out, &next, 1);
        } else if (c < ' ') {
            lk_buf_printf(out, "\\u%04x", c);
        } else {
            if (c == '"') lk_buf_append_str(out, "\\");
            lk_buf_append(out, text + i, 1);
        }
    }
    lk_buf_append_str(out, "\"");
    return i + 1;
}

/* A word at text[0..n): the name of an argument, or a value. */
static void convert_word(const char *text, size_t n, bool is_key, struct lk_buf *out) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    if (is_key) {
        lk_buf_printf(out, "\"%.*s\"", (int)n, text);
        return;
    }
    for (size_t k = 0; k < 3; k++)
        if (strlen(words[k][0]) == n && memcmp(words[k][0], text, n) == 0) {
            lk_buf_append_str(out, words[k][1]);
            return;
        }
    lk_buf_append(out, text, n);
}

/* (a=1, b="x") */
static void convert_python(const char *text, size_t len, struct lk_buf *out) {
    int depth = 0;
    for (size_t i = 0, n; i < len; i += n) {
        char c = text[i];
        n = 1;
        if (c == '"' || c == '\'') {
            n = convert_string(text + i, len - i, out);
        } else if (c == '(' || c == ')') {
            lk_buf_append_str(out, c == '(' ? "{" : "}");
        } else if (lk_tool_scan_is_name(c)) {
            while (i + n < len && lk_tool_scan_is_name(text[i + n])) n++;
            size_t after = i + n;
            while (after < len && is_space(text[after])) after++;
            convert_word(text + i, n, depth == 0 && after < len && text[after] == '=', out);
        } else {
            if (c == '[' || c == '{') depth++;
            if (c == ']' || c == '}') depth--;
            lk_buf_append_str(out, c == '=' && depth == 0 ? ":" : (char[2]){c, 0});
        }
    }
}

/* ---- Gemma ---- */

/* {a:1,b:<|"|>x<|"|>} */
static void convert_gemma(const char *text, size_t len, struct lk_buf *out) {
    for (size_t i = 0, n; i < len; i += n) {
        n = lk_tool_gemma_string(text + i, len - i);
        if (n) {
            add_string(out, text + i + LK_GEMMA_QUOTE, n - 2 * LK_GEMMA_QUOTE);
            continue;
        }
        n = 1;
        if (strchr("{}[],:", text[i]) || is_space(text[i])) {
            lk_buf_append(out, text + i, 1);
            continue;
        }
        while (i + n < len && !strchr("{}[],:", text[i + n])) n++;
        size_t n_word = n;
        while (is_space(text[i + n_word - 1])) n_word--;
        json_t *value = i + n < len && text[i + n] == ':'
                            ? NULL
                            : json_loadb(text + i, n_word, JSON_DECODE_ANY, NULL);
        lk_buf_add_json(out, value ? value : json_stringn(text + i, n_word));
    }
}

/* ---- parameters ---- */

static bool is_word(const json_t *value, const char *word) {
    const char *text = json_string_value(value);
    return text && strcmp(text, word) == 0;
}

/* Does a schema name the type, itself or in a part of it that may hold? */
static bool has_type(const json_t *schema, const char *type, int depth) {
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *given = json_object_get(schema, "type"), *one;
    size_t i, k;
    if (is_word(given, type)) return true;
    json_array_foreach(given, i, one) if (is_word(one, type)) return true;
    json_array_foreach(json_object_get(schema, "enum"), i,
                       one) if (json_is_string(one) && strcmp(type, "string") == 0) return true;
    for (k = 0; k < 3 && depth < 8; k++)
        json_array_foreach(json_object_get(schema, lists[k]), i,
                           one) if (has_type(one, type, depth + 1)) return true;
    return false;
}

static const json_t *parameter_schema(const json_t *tools, const struct lk_scan_call *call,
                                      const char *name) {
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *known = json_string_value(json_object_get(function, "name"));
        if (known && strlen(known) == call->n_name && memcmp(known, call->name, call->n_name) == 0)
            return json_object_get(
                json_object_get(json_object_get(function, "parameters"), "properties"), name);
    }
    return NULL;
}

static json_t *parameter_value(const json_t *schema, const char *text, size_t len) {
    static const struct {
        const char *word;
        const char *json;
    } python[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    json_t *value = NULL;
    bool is_null = (len == 4 && (memcmp(text, "null", 4) == 0 || memcmp(text, "None", 4) == 0)) &&
                   has_type(schema, "null", 0);
    if (is_null) return json_null();
    if (has_type(schema, "string", 0)) return json_stringn(text, len);
    value = parse(text, len, JSON_DECODE_ANY);
    for (size_t i = 0; i < 3 && !value; i++)
        if (strlen(python[i].word) == len && memcmp(python[i].word, text, len) == 0)
            value = json_loads(python[i].json, JSON_DECODE_ANY, NULL);
    return value ? value : json_stringn(text, len);
}

/* The first of parameters with the same name counts. */
static json_t *convert_parameters(const struct lk_scan_call *call, const json_t *tools) {
    static const char end[] = "</function>"; /* so that the last value is known to end */
    struct lk_buf text = {0};
    struct lk_parameter one;
    json_t *out = json_object();
    lk_buf_append(&text, call->text, call->n_text);
    lk_buf_append_str(&text, end);
    struct lk_scanner s = {.at = lk_buf_cstr(&text), .end = lk_buf_cstr(&text) + text.len};
    bool good = out && !text.failed;
    while (good && lk_tool_scan_parameter(&s, &one) == LK_SCAN_YES) {
        json_t *key = json_stringn(one.name, one.n_name);
        const char *name = json_string_value(key);
        if (name && strlen(name) == one.n_name && !json_object_get(out, name))
            good = json_object_set_new(out, name,
                                       parameter_value(parameter_schema(tools, call, name),
                                                       one.value, one.n_value)) == 0;
        else
            good = name != NULL;
        json_decref(key);
    }
    lk_buf_free(&text);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- all ---- */

json_t *lk_tool_arguments(const struct lk_scan_call *call, const json_t *tools) {
    struct lk_buf text = {0};
    json_t *out = NULL;
    switch (call->kind) {
    case LK_ARGUMENTS_JSON: return parse(call->text, call->n_text, 0);
    case LK_ARGUMENTS_PARAMETERS: return convert_parameters(call, tools);
    case LK_ARGUMENTS_PYTHON: convert_python(call->text, call->n_text, &text); break;
    case LK_ARGUMENTS_GEMMA: convert_gemma(call->text, call->n_text, &text); break;
    }
    if (!text.failed) out = parse(lk_buf_cstr(&text), text.len, 0);
    lk_buf_free(&text);
    return out;
}
