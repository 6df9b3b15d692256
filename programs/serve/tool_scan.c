/* A recursive-descent scanner for tool calls in JSON and in Python's syntax. */
#include "serve/tool_scan.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

/* ---- characters ---- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

void lk_tool_scan_space(struct lk_scanner *s) {
    while (s->at < s->end && is_space(*s->at)) s->at++;
}

enum lk_scan lk_tool_scan_word(struct lk_scanner *s, const char *word) {
    size_t n = strlen(word), left = (size_t)(s->end - s->at), n_same = n < left ? n : left;
    if (memcmp(s->at, word, n_same) != 0) return LK_SCAN_NO;
    s->at += n_same;
    return n_same == n ? LK_SCAN_YES : LK_SCAN_MORE;
}

static bool is_at(const struct lk_scanner *s, char c) { return s->at < s->end && *s->at == c; }

/* ---- names ---- */

static const char *tool_name(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return json_string_value(json_object_get(function ? function : tool, "name"));
}

/* Is this the name of a tool? `is_whole`: else it may go on. */
static bool is_tool(const struct lk_scanner *s, const char *name, size_t len, bool is_whole) {
    const json_t *tool;
    size_t i;
    if (!s->tools) return true;
    json_array_foreach(s->tools, i, tool) {
        const char *known = tool_name(tool);
        if (known && strncmp(known, name, len) == 0 && (!is_whole || known[len] == 0)) return true;
    }
    return false;
}

/* ---- values of JSON and Python ---- */

static enum lk_scan scan_string(struct lk_scanner *s) {
    char quote = *s->at++;
    for (; s->at < s->end && *s->at != quote; s->at++) {
        if (*s->at == '\\' && s->at + 1 < s->end)
            s->at++;
        else if (*s->at == '\n')
            return LK_SCAN_NO;
    }
    if (s->at >= s->end) return LK_SCAN_MORE;
    s->at++;
    return LK_SCAN_YES;
}

static enum lk_scan scan_value(struct lk_scanner *s, bool is_python, int depth);

/* Elements up to `close`, with keys if they have any. */
static enum lk_scan scan_elements(struct lk_scanner *s, char close, bool is_python, int depth) {
    enum lk_scan result;
    if (depth > MAX_DEPTH) return LK_SCAN_NO;
    s->at++;
    lk_tool_scan_space(s);
    while (!is_at(s, close)) {
        if (close == '}') {
            if (s->at >= s->end) return LK_SCAN_MORE;
            if (*s->at != '"' && !(is_python && *s->at == '\'')) return LK_SCAN_NO;
            if ((result = scan_string(s)) != LK_SCAN_YES) return result;
            lk_tool_scan_space(s);
            if ((result = lk_tool_scan_word(s, ":")) != LK_SCAN_YES) return result;
        }
        if ((result = scan_value(s, is_python, depth + 1)) != LK_SCAN_YES) return result;
        if (is_at(s, ','))
            s->at++;
        else if (s->at < s->end && *s->at != close)
            return LK_SCAN_NO;
        lk_tool_scan_space(s);
        if (s->at >= s->end) return LK_SCAN_MORE;
    }
    s->at++;
    return LK_SCAN_YES;
}

/* A number or a word such as true. At the end of the text it may go on. */
static enum lk_scan scan_atom(struct lk_scanner *s, bool is_python) {
    static const char *const json[] = {"true", "false", "null"}, *const python[] = {"True", "False",
                                                                                    "None"};
    const char *start = s->at;
    while (s->at < s->end && (is_name_char(*s->at) || *s->at == '+')) s->at++;
    size_t n = (size_t)(s->at - start);
    bool is_end = s->at >= s->end;
    if (n == 0) return is_end ? LK_SCAN_MORE : LK_SCAN_NO;
    if (*start == '-' || (*start >= '0' && *start <= '9'))
        return is_end ? LK_SCAN_MORE : LK_SCAN_YES;
    for (size_t i = 0; i < 3; i++) {
        const char *word = is_python ? python[i] : json[i];
        if (strncmp(word, start, n) == 0 && (word[n] == 0 || is_end))
            return word[n] == 0 && !is_end ? LK_SCAN_YES : LK_SCAN_MORE;
    }
    return LK_SCAN_NO;
}

static enum lk_scan scan_value(struct lk_scanner *s, bool is_python, int depth) {
    enum lk_scan result;
    lk_tool_scan_space(s);
    if (s->at >= s->end) return LK_SCAN_MORE;
    if (*s->at == '"' || (is_python && *s->at == '\''))
        result = scan_string(s);
    else if (*s->at == '{')
        result = scan_elements(s, '}', is_python, depth);
    else if (*s->at == '[')
        result = scan_elements(s, ']', is_python, depth);
    else
        result = scan_atom(s, is_python);
    if (result == LK_SCAN_YES) lk_tool_scan_space(s);
    return result;
}

/* ---- a call as a JSON object ---- */

static enum lk_scan scan_object(struct lk_scanner *s, int depth);

/* The value of "name", a string. */
static enum lk_scan scan_name(struct lk_scanner *s) {
    lk_tool_scan_space(s);
    if (s->at >= s->end) return LK_SCAN_MORE;
    if (*s->at != '"') return LK_SCAN_NO;
    const char *start = s->at + 1;
    enum lk_scan result = scan_string(s);
    if (result == LK_SCAN_NO) return result;
    size_t n = (size_t)(s->at - start) - (result == LK_SCAN_YES);
    return is_tool(s, start, n, result == LK_SCAN_YES) ? result : LK_SCAN_NO;
}

/* A member of a call. *has_name: it was the name. */
static enum lk_scan scan_member(struct lk_scanner *s, int depth, bool *has_name) {
    static const char *const keys[] = {"name", "arguments", "parameters", "type", "id", "function"};
    if (s->at >= s->end) return LK_SCAN_MORE;
    if (*s->at != '"') return LK_SCAN_NO;
    const char *key = s->at + 1;
    enum lk_scan result = scan_string(s);
    size_t n = (size_t)(s->at - key) - (result == LK_SCAN_YES), i = 0, n_key = 6;
    for (; i < n_key; i++)
        if (strncmp(keys[i], key, n) == 0 && (result != LK_SCAN_YES || keys[i][n] == 0)) break;
    if (s->tools && i == n_key) return LK_SCAN_NO;
    if (result != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if ((result = lk_tool_scan_word(s, ":")) != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (i == 0) {
        *has_name = true;
        result = scan_name(s);
        if (result == LK_SCAN_YES) lk_tool_scan_space(s);
        return result;
    }
    if (i == 5 && is_at(s, '{')) {
        *has_name = true;
        result = scan_object(s, depth + 1);
        if (result == LK_SCAN_YES) lk_tool_scan_space(s);
        return result;
    }
    return scan_value(s, false, depth + 1);
}

static enum lk_scan scan_object(struct lk_scanner *s, int depth) {
    bool has_name = false;
    if (depth > MAX_DEPTH) return LK_SCAN_NO;
    s->at++;
    lk_tool_scan_space(s);
    for (;;) {
        enum lk_scan result = scan_member(s, depth, &has_name);
        if (result != LK_SCAN_YES) return result;
        if (s->at >= s->end) return LK_SCAN_MORE;
        char next = *s->at++;
        if (next == '}') return has_name ? LK_SCAN_YES : LK_SCAN_NO;
        if (next != ',') return LK_SCAN_NO;
        lk_tool_scan_space(s);
    }
}

static void report(const struct lk_scanner *s, const struct lk_scan_call *call) {
    if (s->found) s->found(s->user, call);
}

static enum lk_scan scan_object_call(struct lk_scanner *s) {
    struct lk_scan_call call = {.json = s->at};
    enum lk_scan result = scan_object(s, 0);
    call.n_json = (size_t)(s->at - call.json);
    if (result == LK_SCAN_YES) report(s, &call);
    return result;
}

/* ---- calls that start with a name ---- */

/* f(a=1, b="x") after its name. */
static enum lk_scan scan_python_arguments(struct lk_scanner *s) {
    enum lk_scan result;
    s->at++;
    lk_tool_scan_space(s);
    while (!is_at(s, ')')) {
        const char *key = s->at;
        while (s->at < s->end && is_name_char(*s->at)) s->at++;
        if (s->at < s->end && s->at == key) return LK_SCAN_NO;
        lk_tool_scan_space(s);
        if ((result = lk_tool_scan_word(s, "=")) != LK_SCAN_YES) return result;
        if ((result = scan_value(s, true, 0)) != LK_SCAN_YES) return result;
        if (is_at(s, ','))
            s->at++;
        else if (s->at < s->end && *s->at != ')')
            return LK_SCAN_NO;
        lk_tool_scan_space(s);
        if (s->at >= s->end) return LK_SCAN_MORE;
    }
    s->at++;
    return LK_SCAN_YES;
}

/* f(...), f[ARGS]{...} or f{...} */
static enum lk_scan scan_named_call(struct lk_scanner *s) {
    static const char args[] = "[ARGS]", call_word[] = ".call";
    struct lk_scan_call call = {.name = s->at};
    enum lk_scan result;
    while (s->at < s->end && is_name_char(*s->at)) s->at++;
    call.n_name = (size_t)(s->at - call.name);
    if (s->at >= s->end) {
        size_t n = call.n_name;
        while (n && call.name[n - 1] != '.') n--; /* "f.ca" may become "f.call" */
        bool may_be_call = n && is_tool(s, call.name, n - 1, true);
        return is_tool(s, call.name, call.n_name, false) || may_be_call ? LK_SCAN_MORE : LK_SCAN_NO;
    }
    if (call.n_name > 5 && memcmp(s->at - 5, call_word, 5) == 0 && *s->at == '(') call.n_name -= 5;
    if (call.n_name == 0 || !is_tool(s, call.name, call.n_name, true)) return LK_SCAN_NO;
    call.is_python = *s->at == '(';
    if (call.is_python) {
        call.json = s->at;
        result = scan_python_arguments(s);
    } else {
        if (*s->at == '[' && (result = lk_tool_scan_word(s, args)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        if (s->at >= s->end) return LK_SCAN_MORE;
        if (*s->at != '{') return LK_SCAN_NO;
        call.json = s->at;
        result = scan_elements(s, '}', false, 0);
    }
    call.n_json = (size_t)(s->at - call.json);
    if (result == LK_SCAN_YES) report(s, &call);
    return result;
}

/* ---- several calls ---- */

static enum lk_scan scan_call(struct lk_scanner *s) {
    return is_at(s, '{') ? scan_object_call(s) : scan_named_call(s);
}

static enum lk_scan scan_list(struct lk_scanner *s) {
    s->at++;
    lk_tool_scan_space(s);
    for (;;) {
        if (s->at >= s->end) return LK_SCAN_MORE;
        enum lk_scan result = scan_call(s);
        if (result != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        if (s->at >= s->end) return LK_SCAN_MORE;
        char next = *s->at++;
        if (next == ']') return LK_SCAN_YES;
        if (next != ',') return LK_SCAN_NO;
        lk_tool_scan_space(s);
    }
}

enum lk_scan lk_tool_scan_calls(struct lk_scanner *s) {
    size_t n = 0;
    for (;; n++) {
        const char *start = s->at;
        lk_tool_scan_space(s);
        if (n && is_at(s, ';')) s->at++, lk_tool_scan_space(s);
        if (s->at >= s->end) return n ? LK_SCAN_YES : LK_SCAN_MORE;
        bool may_follow = *s->at == '{' || (n == 0 && (*s->at == '[' || is_name_char(*s->at)));
        if (!may_follow) {
            if (n) return LK_SCAN_YES;
            s->at = start;
            return LK_SCAN_NO;
        }
        enum lk_scan result = *s->at == '[' ? scan_list(s) : scan_call(s);
        if (result != LK_SCAN_YES) return result;
    }
}

/* ---- Python to JSON ---- */

/* A string with its quotes, at text[0..len). */
static size_t convert_string(const char *text, size_t len, struct lk_buf *out) {
    size_t i = 1;
    lk_buf_append_str(out, "\"");
    for (; i < len && text[i] != *text; i++) {
        if (text[i] == '\\' && i + 1 < len) {
            if (text[i + 1] != '\'') lk_buf_append(out, text + i, 1);
            i++;
            lk_buf_append(out, text + i, 1);
        } else {
            if (text[i] == '"') lk_buf_append_str(out, "\\");
            lk_buf_append(out, text + i, 1);
        }
    }
    lk_buf_append_str(out, "\"");
    return i + 1;
}

void lk_tool_scan_python_to_json(const char *text, size_t len, struct lk_buf *out) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    int depth = 0;
    for (size_t i = 0, n; i < len; i += n) {
        char c = text[i];
        n = 1;
        if (c == '"' || c == '\'') {
            n = convert_string(text + i, len - i, out);
        } else if (c == '(' || c == ')') {
            lk_buf_append_str(out, c == '(' ? "{" : "}");
        } else if (is_name_char(c)) {
            while (i + n < len && is_name_char(text[i + n])) n++;
            size_t after = i + n;
            while (after < len && is_space(text[after])) after++;
            bool is_key = depth == 0 && after < len && text[after] == '=';
            const char *word = NULL;
            for (size_t k = 0; k < 3; k++)
                if (strlen(words[k][0]) == n && memcmp(words[k][0], text + i, n) == 0)
                    word = words[k][1];
            if (is_key)
                lk_buf_printf(out, "\"%.*s\"", (int)n, text + i);
            else if (word)
                lk_buf_append_str(out, word);
            else
                lk_buf_append(out, text + i, n);
        } else {
            if (c == '[' || c == '{') depth++;
            if (c == ']' || c == '}') depth--;
            lk_buf_append_str(out, c == '=' && depth == 0 ? ":" : (char[2]){c, 0});
        }
    }
}
