/* A recursive-descent scanner for tool calls in JSON and in Python's syntax. */
#include "serve/tool_scan.h"

#include "base/ascii.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

/* ---- characters ---- */

bool lk_tool_scan_is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

void lk_tool_scan_space(struct lk_scanner *s) {
    while (s->at < s->end && lk_is_space(*s->at)) s->at++;
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

/* Is this the name of a tool that may be called? `is_whole`: else it may go on. */
static bool tool_scan_is_tool(const struct lk_scanner *s, const char *name, size_t len,
                              bool is_whole) {
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
    return tool_scan_is_tool(s, start, n, result == LK_SCAN_YES) ? result : LK_SCAN_NO;
}

/* A member of a call. *has_name: it was the name. */
static enum lk_scan scan_member(struct lk_scanner *s, int depth, bool *has_name) {
    static const char *const keys[] = {"name", "tool_name", "arguments",    "parameters",
                                       "type", "id",        "tool_call_id", "function"};
    enum { N_NAME = 2, FUNCTION = 7, N_KEY = 8 };
    if (s->at >= s->end) return LK_SCAN_MORE;
    if (*s->at != '"') return LK_SCAN_NO;
    const char *key = s->at + 1;
    enum lk_scan result = scan_string(s);
    size_t n = (size_t)(s->at - key) - (result == LK_SCAN_YES), i = 0;
    for (; i < N_KEY; i++)
        if (strncmp(keys[i], key, n) == 0 && (result != LK_SCAN_YES || keys[i][n] == 0)) break;
    if (s->tools && i == N_KEY) return LK_SCAN_NO;
    if (result != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if ((result = lk_tool_scan_word(s, ":")) != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (i < N_NAME) {
        *has_name = true;
        result = scan_name(s);
        if (result == LK_SCAN_YES) lk_tool_scan_space(s);
        return result;
    }
    if (i == FUNCTION && is_at(s, '{')) {
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

/* A JSON object. */
static enum lk_scan tool_scan_object(struct lk_scanner *s) {
    if (s->at >= s->end) return LK_SCAN_MORE;
    return *s->at == '{' ? scan_elements(s, '}', false, 0) : LK_SCAN_NO;
}

/* Call s->found. */
static void tool_scan_report(const struct lk_scanner *s, const struct lk_scan_call *call) {
    if (s->found) s->found(s->user, call);
}

static enum lk_scan scan_object_call(struct lk_scanner *s) {
    struct lk_scan_call call = {.text = s->at};
    enum lk_scan result = scan_object(s, 0);
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
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
        bool may_be_call = n && tool_scan_is_tool(s, call.name, n - 1, true);
        return tool_scan_is_tool(s, call.name, call.n_name, false) || may_be_call ? LK_SCAN_MORE
                                                                                  : LK_SCAN_NO;
    }
    if (call.n_name > 5 && memcmp(s->at - 5, call_word, 5) == 0 && *s->at == '(') call.n_name -= 5;
    if (call.n_name == 0 || !tool_scan_is_tool(s, call.name, call.n_name, true)) return LK_SCAN_NO;
    if (*s->at == '(') {
        call.kind = LK_ARGUMENTS_PYTHON;
        call.text = s->at;
        result = scan_python_arguments(s);
    } else {
        if (*s->at == '[' && (result = scan_args_word(s, &call)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        call.text = s->at;
        result = tool_scan_object(s);
    }
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
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

/* ---- forms of Qwen3-Coder, Gemma, DeepSeek and gpt-oss ---- */

enum { MAX_WORD = 256 };

/* Skip the word if it is here. MORE: the text ends within it. */
static enum lk_scan scan_optional(struct lk_scanner *s, const char *word) {
    struct lk_scanner after = *s;
    enum lk_scan result = lk_tool_scan_word(&after, word);
    if (result == LK_SCAN_YES) s->at = after.at;
    return result;
}

/* A name up to the character or word `end`, which is skipped. */
static enum lk_scan scan_name_to(struct lk_scanner *s, const char *end, struct lk_scan_call *call) {
    call->name = s->at;
    while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
    call->n_name = (size_t)(s->at - call->name);
    bool is_whole = s->at < s->end;
    if (is_whole && call->n_name == 0) return LK_SCAN_NO;
    if (!tool_scan_is_tool(s, call->name, call->n_name, is_whole)) return LK_SCAN_NO;
    return lk_tool_scan_word(s, end);
}

/* The word within s->at[0..MAX_WORD), which is skipped; *n: bytes before it. */
static enum lk_scan scan_to_word(struct lk_scanner *s, const char *word, size_t *n) {
    size_t left = (size_t)(s->end - s->at), n_word = strlen(word);
    for (*n = 0; *n <= MAX_WORD; ++*n) {
        if (*n + n_word > left) return LK_SCAN_MORE;
        if (memcmp(s->at + *n, word, n_word) != 0) continue;
        s->at += *n + n_word;
        return LK_SCAN_YES;
    }
    return LK_SCAN_NO;
}

/* A JSON object as the arguments of a call. */
static enum lk_scan scan_json(struct lk_scanner *s, struct lk_scan_call *call) {
    lk_tool_scan_space(s);
    call->text = s->at;
    call->kind = LK_ARGUMENTS_JSON;
    enum lk_scan result = tool_scan_object(s);
    call->n_text = (size_t)(s->at - call->text);
    return result;
}

/* Calls one after the other. `first`: what each starts with. */
static enum lk_scan scan_repeated(struct lk_scanner *s, const char *first,
                                  enum lk_scan (*scan_one)(struct lk_scanner *s)) {
    for (size_t n = 0;; n++) {
        struct lk_scanner start = *s;
        lk_tool_scan_space(&start);
        enum lk_scan result = lk_tool_scan_word(&start, first);
        if (n && result != LK_SCAN_YES) {
            if (result == LK_SCAN_MORE)
                s->at = s->end; /* the start of another call, or of a word after the calls */
            else
                lk_tool_scan_space(s);
            return LK_SCAN_YES;
        }
        if (result != LK_SCAN_YES) return result;
        s->at = start.at;
        if ((result = scan_one(s)) != LK_SCAN_YES) return result;
    }
}

/* ---- functions with parameters ---- */

static const char parameter_end[] = "</parameter>", function_end[] = "</function>";

/* Does the value end here, at "</parameter>"? */
static enum lk_scan is_value_end(struct lk_scanner s) {
    s.at += sizeof parameter_end - 1;
    lk_tool_scan_space(&s);
    enum lk_scan next = scan_optional(&s, "<parameter="), end = scan_optional(&s, function_end);
    return next > end ? next : end;
}

/* Words around the name and the value of a parameter. */
static const struct spelling {
    const char *open, *name_end, *between, *close;
} spellings[] = {
    {"<parameter=", ">", "", parameter_end}, /* the value may contain its close word */
    {"<parameter name=\"", "\"", ">", parameter_end},
    {"<param name=\"", "\"", ">", "</param>"},
    {"<｜DSML｜parameter name=\"", "\"", ">", "</｜DSML｜parameter>"},
    {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
};
enum { N_SPELLING = sizeof spellings / sizeof *spellings };

/* The spelling that starts here, whose first word is skipped. */
static enum lk_scan scan_spelling(struct lk_scanner *s, const struct spelling **out) {
    enum lk_scan best = LK_SCAN_NO;
    for (size_t i = 0; i < N_SPELLING; i++) {
        struct lk_scanner one = *s;
        enum lk_scan result = lk_tool_scan_word(&one, spellings[i].open);
        if (result > best) best = result;
        if (result != LK_SCAN_YES) continue;
        *out = &spellings[i];
        *s = one;
        return result;
    }
    return best;
}

enum lk_scan lk_tool_scan_parameter(struct lk_scanner *s, struct lk_parameter *out) {
    const struct spelling *form;
    size_t n;
    lk_tool_scan_space(s);
    enum lk_scan result = scan_spelling(s, &form);
    if (result != LK_SCAN_YES) return result;
    out->name = s->at;
    result = scan_to_word(s, form->name_end, &out->n_name);
    if (result == LK_SCAN_YES && out->n_name == 0) result = LK_SCAN_NO;
    if (result == LK_SCAN_YES && *form->between) result = scan_to_word(s, form->between, &n);
    if (result != LK_SCAN_YES) return result;
    if (is_at(s, '\n')) s->at++;
    out->value = s->at;
    for (; s->at < s->end; s->at++) {
        if (*s->at != '<' || scan_optional(&(struct lk_scanner){.at = s->at, .end = s->end},
                                           form->close) != LK_SCAN_YES)
            continue;
        if (form == spellings && (result = is_value_end(*s)) == LK_SCAN_NO) continue;
        if (result == LK_SCAN_MORE) break;
        out->n_value = (size_t)(s->at - out->value);
        if (out->n_value && out->value[out->n_value - 1] == '\n') out->n_value--;
        s->at += strlen(form->close);
        lk_tool_scan_space(s);
        return LK_SCAN_YES;
    }
    s->at = s->end;
    return LK_SCAN_MORE;
}

/* Parameters of a call up to `close`, which is skipped, or a JSON object before it. */
static enum lk_scan scan_parameters(struct lk_scanner *s, const char *close,
                                    struct lk_scan_call *call) {
    enum lk_scan result;
    lk_tool_scan_space(s);
    if (is_at(s, '{')) {
        if ((result = scan_json(s, call)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        return lk_tool_scan_word(s, close);
    }
    call->kind = LK_ARGUMENTS_PARAMETERS;
    call->text = s->at;
    while ((result = scan_optional(s, close)) == LK_SCAN_NO) {
        struct lk_parameter parameter;
        if ((result = lk_tool_scan_parameter(s, &parameter)) != LK_SCAN_YES) return result;
    }
    call->n_text = (size_t)(s->at - call->text) - (result == LK_SCAN_YES) * strlen(close);
    return result;
}

/* After the word before the name. */
static enum lk_scan scan_wrapped(struct lk_scanner *s, const char *name_end, const char *close) {
    struct lk_scan_call call = {.name = s->at};
    enum lk_scan result = scan_name_to(s, name_end, &call);
    if (result == LK_SCAN_YES) result = scan_parameters(s, close, &call);
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
    return result;
}

static enum lk_scan scan_function(struct lk_scanner *s) {
    return scan_wrapped(s, ">", function_end);
}

static enum lk_scan scan_named_function(struct lk_scanner *s) {
    return scan_wrapped(s, "\">", function_end);
}

static enum lk_scan scan_invoke(struct lk_scanner *s) {
    return scan_wrapped(s, "\">", "</invoke>");
}

static enum lk_scan scan_dsml_invoke(struct lk_scanner *s) {
    return scan_wrapped(s, "\">", "</｜DSML｜invoke>");
}

enum lk_scan lk_tool_scan_invokes(struct lk_scanner *s) {
    static const struct {
        const char *open;
        enum lk_scan (*scan)(struct lk_scanner *s);
    } forms[] = {{"<invoke name=\"", scan_invoke},
                 {"<function name=\"", scan_named_function},
                 {"<｜DSML｜invoke name=\"", scan_dsml_invoke}};
    enum lk_scan best = LK_SCAN_NO;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct lk_scanner one = *s;
        enum lk_scan result = scan_repeated(&one, forms[i].open, forms[i].scan);
        if (result > best) best = result;
        if (result != LK_SCAN_YES) continue;
        *s = one;
        return result;
    }
    if (best == LK_SCAN_MORE) s->at = s->end;
    return best;
}

enum lk_scan lk_tool_scan_keys(struct lk_scanner *s) {
    struct lk_scan_call call = {.kind = LK_ARGUMENTS_PARAMETERS};
    lk_tool_scan_space(s);
    call.name = s->at;
    while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
    call.n_name = (size_t)(s->at - call.name);
    bool is_whole = s->at < s->end;
    if ((is_whole && call.n_name == 0) || !tool_scan_is_tool(s, call.name, call.n_name, is_whole))
        return LK_SCAN_NO;
    lk_tool_scan_space(s);
    call.text = s->at;
    for (;;) {
        struct lk_scanner peek = *s;
        enum lk_scan result = lk_tool_scan_word(&peek, "<arg_key>");
        if (result == LK_SCAN_NO) break;
        struct lk_parameter parameter;
        if (result == LK_SCAN_YES) result = lk_tool_scan_parameter(s, &parameter);
        if (result != LK_SCAN_YES) return result;
    }
    call.n_text = (size_t)(s->at - call.text);
    tool_scan_report(s, &call);
    return LK_SCAN_YES;
}

/* ---- Kimi ---- */

/* After "<|tool_call_begin|>". */
static enum lk_scan scan_kimi_call(struct lk_scanner *s) {
    static const char functions[] = "functions.";
    struct lk_scan_call call = {.id = s->at};
    enum lk_scan result = scan_to_word(s, "<|tool_call_argument_begin|>", &call.n_id);
    if (result != LK_SCAN_YES) return result;
    size_t n = call.n_id, n_functions = strlen(functions);
    call.name = call.id;
    if (n > n_functions && memcmp(call.name, functions, n_functions) == 0)
        call.name += n_functions, n -= n_functions;
    while (call.n_name < n && lk_tool_scan_is_name(call.name[call.n_name])) call.n_name++;
    if (call.n_name == 0) return LK_SCAN_NO;
    if ((result = scan_json(s, &call)) != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (s->at < s->end) result = lk_tool_scan_word(s, "<|tool_call_end|>");
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
    return result;
}

enum lk_scan lk_tool_scan_kimi(struct lk_scanner *s) {
    return scan_repeated(s, "<|tool_call_begin|>", scan_kimi_call);
}

enum lk_scan lk_tool_scan_functions(struct lk_scanner *s) {
    return scan_repeated(s, "<function=", scan_function);
}

/* ---- Gemma ---- */

static const char gemma_quote[] = "<|\"|>";

size_t lk_tool_gemma_string(const char *text, size_t len) {
    if (len < 2 * LK_GEMMA_QUOTE || memcmp(text, gemma_quote, LK_GEMMA_QUOTE) != 0) return 0;
    for (size_t i = LK_GEMMA_QUOTE; i + LK_GEMMA_QUOTE <= len; i++)
        if (memcmp(text + i, gemma_quote, LK_GEMMA_QUOTE) == 0) return i + LK_GEMMA_QUOTE;
    return 0;
}

static enum lk_scan scan_gemma_string(struct lk_scanner *s) {
    enum lk_scan result = lk_tool_scan_word(s, gemma_quote);
    if (result != LK_SCAN_YES) return result;
    size_t n =
        lk_tool_gemma_string(s->at - LK_GEMMA_QUOTE, (size_t)(s->end - s->at) + LK_GEMMA_QUOTE);
    s->at = n ? s->at - LK_GEMMA_QUOTE + n : s->end;
    return n ? LK_SCAN_YES : LK_SCAN_MORE;
}

/* A key, a number or a word, as it is. */
static enum lk_scan scan_gemma_word(struct lk_scanner *s) {
    const char *start = s->at;
    while (s->at < s->end && !strchr("{}[],:<>\"\n", *s->at)) s->at++;
    if (s->at >= s->end) return LK_SCAN_MORE;
    return s->at > start ? LK_SCAN_YES : LK_SCAN_NO;
}

static enum lk_scan scan_gemma_value(struct lk_scanner *s, int depth);

/* Elements up to `close`, with keys in an object. */
static enum lk_scan scan_gemma_elements(struct lk_scanner *s, char close, int depth) {
    enum lk_scan result;
    if (depth > MAX_DEPTH) return LK_SCAN_NO;
    s->at++;
    lk_tool_scan_space(s);
    while (!is_at(s, close)) {
        if (s->at >= s->end) return LK_SCAN_MORE;
        if (close == '}') {
            result = *s->at == '<' ? scan_gemma_string(s) : scan_gemma_word(s);
            if (result == LK_SCAN_YES) result = lk_tool_scan_word(s, ":");
            if (result != LK_SCAN_YES) return result;
        }
        if ((result = scan_gemma_value(s, depth + 1)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        if (s->at >= s->end) return LK_SCAN_MORE;
        if (*s->at == ',')
            s->at++;
        else if (*s->at != close)
            return LK_SCAN_NO;
        lk_tool_scan_space(s);
    }
    s->at++;
    return LK_SCAN_YES;
}

static enum lk_scan scan_gemma_value(struct lk_scanner *s, int depth) {
    lk_tool_scan_space(s);
    if (s->at >= s->end) return LK_SCAN_MORE;
    if (*s->at == '<') return scan_gemma_string(s);
    if (*s->at == '{') return scan_gemma_elements(s, '}', depth);
    if (*s->at == '[') return scan_gemma_elements(s, ']', depth);
    return scan_gemma_word(s);
}

/* After "call:". */
static enum lk_scan scan_gemma_call(struct lk_scanner *s) {
    struct lk_scan_call call = {.kind = LK_ARGUMENTS_GEMMA};
    enum lk_scan result = scan_name_to(s, "{", &call);
    if (result != LK_SCAN_YES) return result;
    call.text = --s->at;
    result = scan_gemma_elements(s, '}', 0);
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
    return result;
}

enum lk_scan lk_tool_scan_gemma(struct lk_scanner *s) {
    return scan_repeated(s, "call:", scan_gemma_call);
}

/* ---- DeepSeek ---- */

static const char call_begin[] = "<｜tool▁call▁begin｜>", call_end[] = "<｜tool▁call▁end｜>",
                  separator[] = "<｜tool▁sep｜>";

/* After call_begin. */
static enum lk_scan scan_deepseek_call(struct lk_scanner *s) {
    struct lk_scan_call call = {.name = s->at};
    enum lk_scan result = scan_to_word(s, separator, &call.n_name);
    if (result != LK_SCAN_YES) return result;
    struct lk_scanner here = *s;
    lk_tool_scan_space(&here);
    bool fenced = here.at < here.end && *here.at != '{';
    if (fenced) { /* what stood before was the type */
        s->at = here.at;
        if ((result = scan_name_to(s, "\n", &call)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        if ((result = lk_tool_scan_word(s, "```json")) != LK_SCAN_YES) return result;
    } else if (call.n_name == 0) {
        return LK_SCAN_NO;
    }
    if ((result = scan_json(s, &call)) != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (fenced && (result = lk_tool_scan_word(s, "```")) != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (s->at < s->end) result = lk_tool_scan_word(s, call_end);
    if (result == LK_SCAN_YES) tool_scan_report(s, &call);
    return result;
}

enum lk_scan lk_tool_scan_deepseek(struct lk_scanner *s) {
    return scan_repeated(s, call_begin, scan_deepseek_call);
}

/* ---- gpt-oss ---- */

enum lk_scan lk_tool_scan_message(struct lk_scanner *s) {
    static const char to[] = " to=", functions[] = "functions.";
    struct lk_scan_call call = {.name = NULL};
    const char *start = s->at;
    size_t n, n_functions = strlen(functions);
    enum lk_scan result = scan_to_word(s, "<|message|>", &n);
    if (result != LK_SCAN_YES) return result;
    for (size_t i = 0; i + strlen(to) < n && !call.name; i++)
        if (memcmp(start + i, to, strlen(to)) == 0) call.name = start + i + strlen(to);
    if (!call.name) return LK_SCAN_NO;
    size_t left = n - (size_t)(call.name - start);
    if (left > n_functions && memcmp(call.name, functions, n_functions) == 0)
        call.name += n_functions, left -= n_functions;
    while (call.n_name < left && lk_tool_scan_is_name(call.name[call.n_name])) call.n_name++;
    if (call.n_name == 0) return LK_SCAN_NO;
    if ((result = scan_json(s, &call)) != LK_SCAN_YES) return result;
    tool_scan_report(s, &call);
    lk_tool_scan_space(s);
    if (scan_optional(s, "<|call|>") == LK_SCAN_NO) scan_optional(s, "<|end|>");
    return LK_SCAN_YES;
}
