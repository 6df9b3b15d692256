/* Scans calls of Qwen3-Coder, Gemma, DeepSeek and gpt-oss. */
#include "serve/tool_markup.h"

#include <string.h>

enum { MAX_WORD = 256, MAX_DEPTH = 64 };

/* ---- helpers ---- */

static bool is_at(const struct lk_scanner *s, char c) { return s->at < s->end && *s->at == c; }

/* Skip the word if it is here. MORE: the text ends within it. */
static enum lk_scan scan_optional(struct lk_scanner *s, const char *word) {
    struct lk_scanner after = *s;
    enum lk_scan result = lk_tool_scan_word(&after, word);
    if (result == LK_SCAN_YES) s->at = after.at;
    return result;
}

/* A name up to the character or word `end`, which is skipped. */
static enum lk_scan scan_name(struct lk_scanner *s, const char *end, struct lk_scan_call *call) {
    call->name = s->at;
    while (s->at < s->end && lk_tool_scan_is_name(*s->at)) s->at++;
    call->n_name = (size_t)(s->at - call->name);
    bool is_whole = s->at < s->end;
    if (is_whole && call->n_name == 0) return LK_SCAN_NO;
    if (!lk_tool_scan_is_tool(s, call->name, call->n_name, is_whole)) return LK_SCAN_NO;
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
    enum lk_scan result = lk_tool_scan_object(s);
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

enum lk_scan lk_tool_scan_parameter(struct lk_scanner *s, struct lk_parameter *out) {
    lk_tool_scan_space(s);
    enum lk_scan result = lk_tool_scan_word(s, "<parameter=");
    if (result != LK_SCAN_YES) return result;
    out->name = s->at;
    result = scan_to_word(s, ">", &out->n_name);
    if (result == LK_SCAN_YES && out->n_name == 0) result = LK_SCAN_NO;
    if (result != LK_SCAN_YES) return result;
    if (is_at(s, '\n')) s->at++;
    out->value = s->at;
    for (; s->at < s->end; s->at++) {
        if (*s->at != '<' || scan_optional(&(struct lk_scanner){.at = s->at, .end = s->end},
                                           parameter_end) != LK_SCAN_YES)
            continue;
        if ((result = is_value_end(*s)) == LK_SCAN_NO) continue;
        if (result == LK_SCAN_MORE) break;
        out->n_value = (size_t)(s->at - out->value);
        if (out->n_value && out->value[out->n_value - 1] == '\n') out->n_value--;
        s->at += sizeof parameter_end - 1;
        lk_tool_scan_space(s);
        return LK_SCAN_YES;
    }
    s->at = s->end;
    return LK_SCAN_MORE;
}

/* After "<function=". */
static enum lk_scan scan_function(struct lk_scanner *s) {
    struct lk_scan_call call = {.name = s->at};
    enum lk_scan result = scan_name(s, ">", &call);
    if (result != LK_SCAN_YES) return result;
    lk_tool_scan_space(s);
    if (is_at(s, '{')) {
        if ((result = scan_json(s, &call)) != LK_SCAN_YES) return result;
        lk_tool_scan_space(s);
        result = lk_tool_scan_word(s, function_end);
    } else {
        call.kind = LK_ARGUMENTS_PARAMETERS;
        call.text = s->at;
        while ((result = scan_optional(s, function_end)) == LK_SCAN_NO) {
            struct lk_parameter parameter;
            if ((result = lk_tool_scan_parameter(s, &parameter)) != LK_SCAN_YES) return result;
        }
        call.n_text = (size_t)(s->at - call.text) - (result == LK_SCAN_YES) * strlen(function_end);
    }
    if (result == LK_SCAN_YES) lk_tool_scan_report(s, &call);
    return result;
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
    enum lk_scan result = scan_name(s, "{", &call);
    if (result != LK_SCAN_YES) return result;
    call.text = --s->at;
    result = scan_gemma_elements(s, '}', 0);
    call.n_text = (size_t)(s->at - call.text);
    if (result == LK_SCAN_YES) lk_tool_scan_report(s, &call);
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
        if ((result = scan_name(s, "\n", &call)) != LK_SCAN_YES) return result;
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
    if (result == LK_SCAN_YES) lk_tool_scan_report(s, &call);
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
    lk_tool_scan_report(s, &call);
    lk_tool_scan_space(s);
    if (scan_optional(s, "<|call|>") == LK_SCAN_NO) scan_optional(s, "<|end|>");
    return LK_SCAN_YES;
}
