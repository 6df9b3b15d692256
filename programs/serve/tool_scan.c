/* A recursive-descent scanner for tool calls in JSON and in Python's syntax. */
#include "serve/tool_scan.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

/* ---- characters ---- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool lk_tool_scan_is_name(char c) {
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

bool lk_tool_scan_is_tool(const struct lk_scanner *s, const char *name, size_t len, bool is_whole) {
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

/* A number or a word such as true, in Python also True. At the end of the text it may go on. */
static enum lk_scan scan_atom(struct lk_scanner *s, bool is_python) {
    static const char *const atoms[] = {"true", "false", "null", "True", "False", "None"};
    const char *start = s->at;
    while (s->at < s->end && (lk_tool_scan_is_name(*s->at) || *s->at == '+')) s->at++;
    size_t n = (size_t)(s->at - start);
    bool is_end = s->at >= s->end;
    if (n == 0) return is_end ? LK_SCAN_MORE : LK_SCAN_NO;
    if (*start == '-' || (*start >= '0' && *start <= '9'))
        return is_end ? LK_SCAN_MORE : LK_SCAN_YES;
    for (size_t i = 0; i < (is_python ? 6 : 3); i++) {
        const char *word = atoms[i];
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
    return lk_tool_scan_is_tool(s, start, n, result == LK_SCAN_YES) ? result : LK_SCAN_NO;
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

enum lk_scan lk_tool_scan_object(struct lk_scanner *s) {
    if (s->at >= s->end) return LK_SCAN_MORE;
    return *s->at == '{' ? scan_elements(s, '}', false, 0) : LK_SCAN_NO;
}

void lk_tool_scan_report(const struct lk_scanner *s, const struct lk_scan_call *call) {
    if (s->found) s->found(s->user, call);
}

static enum lk_scan scan_object_call(struct lk_scanner *s) {
    struct lk_scan_call call = {.text = s->at};
    enum lk_scan result = scan_object(s, 0);
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) lk_tool_scan_report(s, &call);
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
        while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
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

/* [ARGS], after [CALL_ID] and an id if there is one. */
static enum lk_scan scan_args_word(struct lk_scanner *s, struct lk_scan_call *call) {
    struct lk_scanner with_id = *s;
    enum lk_scan result = lk_tool_scan_word(&with_id, "[CALL_ID]");
    if (result != LK_SCAN_NO) *s = with_id;
    if (result == LK_SCAN_YES) {
        call->id = s->at;
        while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
        call->n_id = (size_t)(s->at - call->id);
    }
    return result == LK_SCAN_MORE ? result : lk_tool_scan_word(s, "[ARGS]");
}

/* f(...), f[ARGS]{...} or f{...} */
static enum lk_scan scan_named_call(struct lk_scanner *s) {
    static const char call_word[] = ".call";
    struct lk_scan_call call = {.name = s->at};
    enum lk_scan result;
    while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
    call.n_name = (size_t)(s->at - call.name);
    if (s->at >= s->end) {
        size_t n = call.n_name;
        while (n && call.name[n - 1] != '.') n--; /* "f.ca" may become "f.call" */
        bool may_be_call = n && lk_tool_scan_is_tool(s, call.name, n - 1, true);
        return lk_tool_scan_is_tool(s, call.name, call.n_name, false) || may_be_call ? LK_SCAN_MORE
                                                                                     : LK_SCAN_NO;
    }
    if (call.n_name > 5 && memcmp(s->at - 5, call_word, 5) == 0 && *s->at == '(') call.n_name -= 5;
    if (call.n_name == 0 || !lk_tool_scan_is_tool(s, call.name, call.n_name, true))
        return LK_SCAN_NO;
    if (*s->at == '(') {
        call.kind = LK_ARGUMENTS_PYTHON;
        call.text = s->at;
        result = scan_python_arguments(s);
    } else {
        if (*s->at == '[' && (result = scan_args_word(s, &call)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        call.text = s->at;
        result = lk_tool_scan_object(s);
    }
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) lk_tool_scan_report(s, &call);
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

/* `names`: a call that is not the first one may start with a name. */
static enum lk_scan scan_several(struct lk_scanner *s, bool names) {
    size_t n = 0;
    for (;; n++) {
        const char *start = s->at;
        lk_tool_scan_space(s);
        if (n && is_at(s, ';')) s->at++, lk_tool_scan_space(s);
        if (s->at >= s->end) return n ? LK_SCAN_YES : LK_SCAN_MORE;
        bool starts_name = lk_tool_scan_is_name(*s->at) && (n == 0 || names);
        bool may_follow = *s->at == '{' || starts_name || (n == 0 && *s->at == '[');
        if (!may_follow) {
            if (n) return LK_SCAN_YES;
            s->at = start;
            return LK_SCAN_NO;
        }
        enum lk_scan result = *s->at == '[' ? scan_list(s) : scan_call(s);
        if (result != LK_SCAN_YES) return result;
    }
}

enum lk_scan lk_tool_scan_calls(struct lk_scanner *s) { return scan_several(s, false); }

enum lk_scan lk_tool_scan_lines(struct lk_scanner *s) { return scan_several(s, true); }
