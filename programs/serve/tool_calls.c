/* Finds tool calls in answers. */
#include "serve/tool_calls.h"

#include "base/buf.h"
#include "serve/json_field.h"
#include "serve/tool_scan.h"

#include <stdlib.h>
#include <string.h>

static const struct tag {
    const char *open, *close; /* close: "" if the calls go on to the end */
} tags[] = {
    {"<tool_call>", "</tool_call>"},
    {"<|tool_call|>", "<|/tool_call|>"},
    {"<|tool_call_start|>", "<|tool_call_end|>"},
    {"[TOOL_CALLS]", ""},
    {"<|python_tag|>", ""},
};
enum { N_TAG = sizeof tags / sizeof *tags };

/* ---- scanning ---- */

/* What follows the tag whose open word ends at s->at, with the close word if it is there. */
static enum lk_scan scan_tagged(struct lk_scanner *s, const struct tag *tag) {
    enum lk_scan result = lk_tool_scan_calls(s);
    if (result != LK_SCAN_YES || !*tag->close || s->at >= s->end) return result;
    return lk_tool_scan_word(s, tag->close);
}

/* An answer that is nothing but calls, maybe in a fence. */
static enum lk_scan scan_alone(struct lk_scanner *s) {
    static const char *const languages[] = {"json", "tool_call", "tool_calls", "python", ""};
    bool fenced = s->at < s->end && *s->at == '`';
    enum lk_scan result;
    if (fenced) {
        if ((result = lk_tool_scan_word(s, "```")) != LK_SCAN_YES) return result;
        const char *start = s->at, *line = memchr(start, '\n', (size_t)(s->end - start));
        size_t n = (size_t)((line ? line : s->end) - start), i = 0;
        while (i < 5 && (strncmp(languages[i], start, n) != 0 || (line && languages[i][n]))) i++;
        if (i == 5) return LK_SCAN_NO;
        if (!line) return LK_SCAN_MORE;
        s->at = line;
    }
    if ((result = lk_tool_scan_calls(s)) != LK_SCAN_YES) return result;
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

/* The first open word at or after text[from..len), and which; len if there is none. A word that the
 * end cuts off counts, with *tag NULL. */
static size_t find_tag(const char *text, size_t len, size_t from, const struct tag **tag) {
    for (size_t i = from; i < len; i++) {
        if (text[i] != '<' && text[i] != '[') continue;
        for (size_t k = 0; k < N_TAG; k++) {
            size_t n = strlen(tags[k].open), left = len - i;
            if (memcmp(text + i, tags[k].open, n < left ? n : left) != 0) continue;
            *tag = left >= n ? &tags[k] : NULL;
            if (*tag || k + 1 == N_TAG) return i;
            /* a longer word may be cut off although a shorter one is whole */
            for (size_t m = k + 1; m < N_TAG; m++) {
                size_t n_other = strlen(tags[m].open);
                if (n_other <= left && memcmp(text + i, tags[m].open, n_other) == 0)
                    *tag = &tags[m];
            }
            return i;
        }
    }
    return len;
}

static size_t without_space(const char *text, size_t n) {
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    return n;
}

size_t lk_tool_calls_n_text(const char *text, size_t len, const json_t *tools, size_t n_known) {
    size_t start = alone_start(text, len), at = n_known;
    struct lk_scanner s = {.at = text + start, .end = text + len, .tools = tools};
    const struct tag *tag = NULL;
    if (start >= n_known && scan_alone(&s) != LK_SCAN_NO) {
        size_t found = find_tag(text, start, n_known, &tag); /* in a <think> block */
        return without_space(text, found < start ? found : start);
    }
    for (; (at = find_tag(text, len, at, &tag)) < len; at++) {
        if (!tag) break;
        s = (struct lk_scanner){.at = text + at + strlen(tag->open), .end = text + len};
        if (scan_tagged(&s, tag) != LK_SCAN_NO) break;
    }
    at = without_space(text, at);
    return at < n_known ? n_known : at;
}

/* ---- making calls ---- */

struct maker {
    struct lk_tool_calls *out;
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

/* Add a call; the strings become owned by it. */
static void add_call(struct maker *m, char *id, char *name, char *arguments) {
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
        return;
    }
    out->at[out->n++] = (struct lk_tool_call){id, name, arguments};
}

static void make_call(void *user, const struct lk_scan_call *found) {
    struct maker *m = user;
    struct lk_buf converted = {0};
    const char *text = found->json;
    size_t len = found->n_json;
    if (m->failed) return;
    if (found->is_python) {
        lk_tool_scan_python_to_json(text, len, &converted);
        text = lk_buf_cstr(&converted);
        len = converted.len;
    }
    bool small = lk_json_parsed_bytes(text, len) <= lk_json_max_parsed_bytes(len);
    json_t *json = small && !converted.failed ? json_loadb(text, len, 0, NULL) : NULL;
    lk_buf_free(&converted);
    if (found->name) {
        add_call(m, NULL, strndup(found->name, found->n_name), json ? arguments_text(json) : NULL);
        json_decref(json);
        return;
    }
    const json_t *function = json_object_get(json, "function"),
                 *call = json_is_object(function) ? function : json,
                 *arguments = json_object_get(call, "arguments");
    const char *id = json_string_value(json_object_get(json, "id")),
               *name = json_string_value(json_object_get(call, "name"));
    if (!arguments) arguments = json_object_get(call, "parameters");
    add_call(m, id && *id ? strdup(id) : NULL, name ? strdup(name) : NULL,
             json ? arguments_text(arguments) : NULL);
    json_decref(json);
}

static void drop_calls(struct lk_tool_calls *calls, size_t n) {
    for (; calls->n > n; calls->n--) {
        const struct lk_tool_call *call = &calls->at[calls->n - 1];
        free(call->id);
        free(call->name);
        free(call->arguments);
    }
}

void lk_tool_calls_free(struct lk_tool_calls *calls) {
    drop_calls(calls, 0);
    free(calls->at);
    *calls = (struct lk_tool_calls){0};
}

bool lk_tool_calls_parse(const char *text, const json_t *tools, struct lk_tool_calls *out) {
    size_t len = strlen(text), start = alone_start(text, len), at = 0;
    struct maker m = {.out = out};
    struct lk_scanner s = {
        .at = text + start, .end = text + len, .tools = tools, .found = make_call, .user = &m};
    const struct tag *tag = NULL;
    *out = (struct lk_tool_calls){0};
    if (start < len && scan_alone(&s) == LK_SCAN_YES && !m.failed && out->n) {
        out->n_before = without_space(text, start);
        return true;
    }
    drop_calls(out, 0);
    for (; (at = find_tag(text, len, at, &tag)) < len && tag; at++) {
        size_t n = out->n;
        m.failed = false;
        s = (struct lk_scanner){
            .at = text + at + strlen(tag->open), .end = text + len, .found = make_call, .user = &m};
        if (scan_tagged(&s, tag) == LK_SCAN_YES && !m.failed) {
            if (n == 0) out->n_before = without_space(text, at);
            at = (size_t)(s.at - text) - 1;
            continue;
        }
        drop_calls(out, n);
        if (n) break;
    }
    return out->n > 0;
}
