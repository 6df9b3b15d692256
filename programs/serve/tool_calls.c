/* Finds tool calls in answers. */
#include "serve/tool_calls.h"

#include "base/ascii.h"
#include "serve/json_field.h"
#include "serve/tool_scan.h"

#include <stdlib.h>
#include <string.h>

/* Words that open calls, whatever the model is. Several forms may have the same. */
static const struct form {
    const char *open, *close; /* close: "" if the calls go on to the end */
    enum lk_scan (*scan)(struct lk_scanner *s);
    bool is_part; /* the open word is a part of the call, and the close word may be missing */
} forms[] = {
    {"<tool_call>", "</tool_call>", lk_tool_scan_calls, false},
    {"<tool_call>", "</tool_call>", lk_tool_scan_functions, false},
    {"<tool_call>", "</tool_call>", lk_tool_scan_keys, false},
    {"<function=", "</tool_call>", lk_tool_scan_functions, true},
    {"<function name=\"", "", lk_tool_scan_invokes, true},
    {"<invoke name=\"", "", lk_tool_scan_invokes, true},
    {"<minimax:tool_call>", "</minimax:tool_call>", lk_tool_scan_invokes, false},
    {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", lk_tool_scan_invokes, false},
    {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", lk_tool_scan_invokes, false},
    {"<function_calls>", "</function_calls>", lk_tool_scan_invokes, false},
    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", lk_tool_scan_kimi, false},
    {"<|tool_call|>", "<|/tool_call|>", lk_tool_scan_calls, false},
    {"<|tool_call_start|>", "<|tool_call_end|>", lk_tool_scan_calls, false},
    {"<|tool_call>", "<tool_call|>", lk_tool_scan_gemma, false},
    {"<function_calls>", "</function_calls>", lk_tool_scan_lines, false},
    {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", lk_tool_scan_deepseek, false},
    {"<|start|>", "", lk_tool_scan_message, true},
    {"<|channel|>", "", lk_tool_scan_message, true},
    {"<tool_calls>", "</tool_calls>", lk_tool_scan_calls, false},
    {"<TOOLCALL>", "</TOOLCALL>", lk_tool_scan_calls, false},
    {"<|function_call|>", "", lk_tool_scan_calls, false},
    {"<|message_sep|>\n\nfunction call<|role_sep|>", "", lk_tool_scan_calls, false},
    {"<|START_ACTION|>", "<|END_ACTION|>", lk_tool_scan_calls, false},
    {"[TOOL_CALLS]", "", lk_tool_scan_calls, false},
    {"<|python_tag|>", "", lk_tool_scan_calls, false},
};
enum { N_FORM = sizeof forms / sizeof *forms };

/* ---- scanning ---- */

/* Calls of one form at s->at, where its open word is, with the close word if it is there. */
static enum lk_scan scan_form(struct lk_scanner *s, const struct form *form) {
    if (!form->is_part) s->at += strlen(form->open);
    enum lk_scan result = form->scan(s);
    if (result != LK_SCAN_YES || !*form->close || s->at >= s->end) return result;
    struct lk_scanner after = *s;
    result = lk_tool_scan_word(&after, form->close);
    if (result == LK_SCAN_NO && form->is_part) return LK_SCAN_YES;
    s->at = after.at;
    return result;
}

/* An answer that is nothing but calls, maybe in a fence. */
static enum lk_scan scan_alone(struct lk_scanner *s) {
    static const char *const languages[] = {"json",      "tool_call", "tool_calls",
                                            "tool_code", "python",    ""};
    enum { N_LANGUAGE = sizeof languages / sizeof *languages };
    bool fenced = s->at < s->end && *s->at == '`';
    struct lk_scanner list = *s;
    enum lk_scan result = lk_tool_scan_word(&list, "functools");
    if (result == LK_SCAN_MORE || (result == LK_SCAN_YES && list.at >= list.end))
        return LK_SCAN_MORE;
    if (result == LK_SCAN_YES && *list.at == '[') *s = list;
    if (fenced) {
        if ((result = lk_tool_scan_word(s, "```")) != LK_SCAN_YES) return result;
        const char *start = s->at, *line = memchr(start, '\n', (size_t)(s->end - start));
        size_t n = (size_t)((line ? line : s->end) - start), i = 0;
        while (i < N_LANGUAGE &&
               (strncmp(languages[i], start, n) != 0 || (line && languages[i][n])))
            i++;
        if (i == N_LANGUAGE) return LK_SCAN_NO;
        if (!line) return LK_SCAN_MORE;
        s->at = line;
    }
    bool is_function = s->at < s->end && *s->at == '<';
    result = is_function ? lk_tool_scan_functions(s) : lk_tool_scan_calls(s);
    if (result != LK_SCAN_YES) return result;
    if (fenced && s->at < s->end && (result = lk_tool_scan_word(s, "```")) != LK_SCAN_YES)
        return result;
    lk_tool_scan_space(s);
    return s->at < s->end ? LK_SCAN_NO : LK_SCAN_YES;
}

/* Where an answer that is nothing but calls would start: after white space and a <think> block. */
static size_t alone_start(const char *text, size_t len) {
    static const char think[] = "<think>", end[] = "</think>";
    size_t n = 0;
    while (n < len && strchr(" \t\r\n", text[n])) n++;
    if (len - n >= sizeof think - 1 && memcmp(text + n, think, sizeof think - 1) == 0) {
        const char *at = strstr(text + n, end);
        if (!at || at + sizeof end - 1 > text + len) return len;
        n = (size_t)(at - text) + sizeof end - 1;
        while (n < len && strchr(" \t\r\n", text[n])) n++;
    }
    return n;
}

/* The first open word at or after text[from..len); len if there is none. A word that the end cuts
 * off counts. */
static size_t find_open(const char *text, size_t len, size_t from) {
    for (size_t i = from; i < len; i++) {
        if (text[i] != '<' && text[i] != '[') continue;
        for (size_t k = 0; k < N_FORM; k++) {
            size_t n = strlen(forms[k].open), left = len - i;
            if (memcmp(text + i, forms[k].open, n < left ? n : left) == 0) return i;
        }
    }
    return len;
}

const char *lk_tool_calls_word(const char *text, const char **rest) {
    const char *word = NULL, *last = text;
    for (size_t i = 0; i < N_FORM; i++)
        for (const char *at = text; (at = strstr(at, forms[i].open)); at++)
            if (!word || at > last) word = forms[i].open, last = at;
    if (word) *rest = last + strlen(word);
    return word;
}

const char *lk_tool_calls_close(const char *word) {
    for (size_t i = 0; i < N_FORM; i++)
        if (strcmp(forms[i].open, word) == 0) return forms[i].close;
    return "";
}

/* Calls at an open word, in any form that it opens. On YES `s` is after them. */
static enum lk_scan scan_open(struct lk_scanner *s, void (*restart)(void *user)) {
    enum lk_scan best = LK_SCAN_NO;
    for (size_t k = 0; k < N_FORM; k++) {
        struct lk_scanner one = *s;
        enum lk_scan result = lk_tool_scan_word(&one, forms[k].open);
        if (result == LK_SCAN_YES) {
            one.at = s->at;
            if (restart) restart(s->user);
            result = scan_form(&one, &forms[k]);
        }
        if (result == LK_SCAN_YES) {
            *s = one;
            return result;
        }
        if (result > best) best = result;
    }
    return best;
}

static size_t without_space(const char *text, size_t n) {
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    return n;
}

size_t lk_tool_calls_n_text(const char *text, size_t len, const json_t *tools, size_t n_known) {
    size_t start = alone_start(text, len), at = n_known;
    struct lk_scanner s = {.at = text + start, .end = text + len, .tools = tools};
    if (start >= n_known && scan_alone(&s) != LK_SCAN_NO) {
        size_t found = find_open(text, start, n_known); /* in a <think> block */
        return without_space(text, found < start ? found : start);
    }
    for (; (at = find_open(text, len, at)) < len; at++) {
        s = (struct lk_scanner){.at = text + at, .end = text + len};
        if (scan_open(&s, NULL) != LK_SCAN_NO) break;
    }
    at = without_space(text, at);
    return at < n_known ? n_known : at;
}

/* ---- arguments as JSON ---- */

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
            while (after < len && lk_is_space(text[after])) after++;
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
        if (strchr("{}[],:", text[i]) || lk_is_space(text[i])) {
            lk_buf_append(out, text + i, 1);
            continue;
        }
        while (i + n < len && !strchr("{}[],:", text[i + n])) n++;
        size_t n_word = n;
        while (lk_is_space(text[i + n_word - 1])) n_word--;
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

/* The arguments of a call that was scanned, or the whole call if it has no name; a new reference.
 * NULL: they are not valid, or no memory. Parameters have no types: a value is a string if the
 * schema of the tool allows one, and otherwise JSON, if it can be read as that. */
static json_t *tool_arguments(const struct lk_scan_call *call, const json_t *tools) {
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

/* ---- making calls ---- */

struct maker {
    struct lk_tool_calls *out;
    const json_t *tools;
    size_t n_kept; /* calls of earlier open words */
    bool failed;
};

/* The text of arguments, which are an object, or an object as text, or missing. NULL if they are
 * anything else. */
static char *arguments_text(const json_t *given) {
    json_t *parsed = NULL;
    if (!given || json_is_null(given)) return strdup("{}");
    if (json_is_string(given)) {
        size_t len = json_string_length(given);
        const char *text = json_string_value(given);
        if (lk_json_parsed_bytes(text, len) <= lk_json_max_parsed_bytes(len))
            parsed = json_loadb(text, len, 0, NULL);
        given = parsed;
    }
    char *out = json_is_object(given) ? json_dumps(given, JSON_COMPACT) : NULL;
    json_decref(parsed);
    return out;
}

/* The end of the JSON string that starts at text[i]. */
static size_t string_end(const char *text, size_t len, size_t i) {
    for (i++; i < len && text[i] != '"'; i++) i += text[i] == '\\';
    return i < len ? i + 1 : len;
}

/* The object at text[i], without what follows it; owned. NULL: it does not end. */
static char *object_text(const char *text, size_t len, size_t i) {
    size_t start = i;
    int depth = 0;
    while (i < len) {
        if (text[i] == '"') {
            i = string_end(text, len, i);
            continue;
        }
        depth += (text[i] == '{') - (text[i] == '}');
        i++;
        if (depth == 0) return strndup(text + start, i - start);
    }
    return NULL;
}

/* The arguments of a call in JSON as they are written; owned. NULL if they are not an object. */
static char *written_arguments(const struct lk_scan_call *call) {
    static const char *const keys[] = {"\"arguments\"", "\"parameters\""};
    const char *text = call->text;
    size_t len = call->n_text, i = 0, end;
    if (call->kind != LK_ARGUMENTS_JSON) return NULL;
    if (call->name) {
        while (i < len && lk_is_space(text[i])) i++;
        return i < len && text[i] == '{' ? object_text(text, len, i) : NULL;
    }
    for (; i < len; i = text[i] == '"' ? string_end(text, len, i) : i + 1) {
        if (text[i] != '"') continue;
        end = string_end(text, len, i);
        size_t n = end - i;
        bool is_key = false;
        for (size_t k = 0; k < 2; k++)
            is_key |= n == strlen(keys[k]) && memcmp(text + i, keys[k], n) == 0;
        while (end < len && lk_is_space(text[end])) end++;
        if (!is_key || end >= len || text[end] != ':') continue;
        for (end++; end < len && lk_is_space(text[end]);) end++;
        return end < len && text[end] == '{' ? object_text(text, len, end) : NULL;
    }
    return NULL;
}

/* Add a call; the strings become owned by it. */
static void add_call(struct maker *m, char *id, char *name, char *arguments, char *written) {
    struct lk_tool_calls *out = m->out;
    if (name && *name && arguments && out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 4;
        void *larger = realloc(out->at, cap * sizeof *out->at);
        if (larger) out->at = larger, out->cap = cap;
    }
    if (!name || !*name || !arguments || out->n == out->cap) {
        m->failed = true;
        free(id);
        free(name);
        free(arguments);
        free(written);
        return;
    }
    out->at[out->n++] = (struct lk_tool_call){id, name, arguments, written};
}

static void make_call(void *user, const struct lk_scan_call *found) {
    struct maker *m = user;
    if (m->failed) return;
    json_t *json = tool_arguments(found, m->tools);
    if (found->name) {
        add_call(m, found->n_id ? strndup(found->id, found->n_id) : NULL,
                 strndup(found->name, found->n_name), json ? arguments_text(json) : NULL,
                 written_arguments(found));
        json_decref(json);
        return;
    }
    const json_t *function = json_object_get(json, "function"),
                 *call = json_is_object(function) ? function : json,
                 *arguments = json_object_get(call, "arguments");
    const char *id = json_string_value(json_object_get(json, "id")),
               *name = json_string_value(json_object_get(call, "name"));
    if (!name) name = json_string_value(json_object_get(call, "tool_name")); /* Cohere */
    if (!arguments) arguments = json_object_get(call, "parameters");
    add_call(m, id && *id ? strdup(id) : NULL, name ? strdup(name) : NULL,
             json ? arguments_text(arguments) : NULL,
             json_is_object(arguments) ? written_arguments(found) : NULL);
    json_decref(json);
}

static void drop_calls(struct lk_tool_calls *calls, size_t n) {
    for (; calls->n > n; calls->n--) {
        const struct lk_tool_call *call = &calls->at[calls->n - 1];
        free(call->id);
        free(call->name);
        free(call->arguments);
        free(call->written);
    }
}

void lk_tool_calls_free(struct lk_tool_calls *calls) {
    drop_calls(calls, 0);
    free(calls->at);
    *calls = (struct lk_tool_calls){0};
}

static void restart(void *user) {
    struct maker *m = user;
    drop_calls(m->out, m->n_kept);
    m->failed = false;
}

bool lk_tool_calls_parse(const char *text, const json_t *tools, struct lk_tool_calls *out) {
    enum { MAX_UNFINISHED = 64 }; /* each may have been scanned to the end of the text */
    size_t len = strlen(text), start = alone_start(text, len), at = 0, n_unfinished = 0;
    struct maker m = {.out = out, .tools = tools};
    struct lk_scanner s = {
        .at = text + start, .end = text + len, .tools = tools, .found = make_call, .user = &m};
    *out = (struct lk_tool_calls){.rest = len};
    if (start < len && scan_alone(&s) == LK_SCAN_YES && !m.failed && out->n) {
        out->n_before = without_space(text, start);
        return true;
    }
    for (; (at = find_open(text, len, at)) < len && n_unfinished < MAX_UNFINISHED; at++) {
        restart(&m);
        s = (struct lk_scanner){.at = text + at, .end = text + len, .found = make_call, .user = &m};
        enum lk_scan result = scan_open(&s, restart);
        n_unfinished += result == LK_SCAN_MORE;
        if (result == LK_SCAN_YES && !m.failed) {
            if (m.n_kept == 0) out->n_before = without_space(text, at);
            m.n_kept = out->n;
            at = (size_t)(s.at - text) - 1;
            continue;
        }
        if (m.n_kept) {
            out->rest = at;
            break;
        }
    }
    drop_calls(out, m.n_kept);
    return out->n > 0;
}
