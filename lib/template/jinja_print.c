/* Writes values as Python does. */
#include "template/jinja_print.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts that grow ---- */

static void reserve(struct lk_jinja_builder *out, size_t n) {
    if (n <= out->cap - out->len) return;
    size_t cap = 2 * (out->len + n) + 32;
    lk_jinja_char *at = lk_jinja_alloc(out->heap, cap * sizeof *at);
    if (out->len) memcpy(at, out->at, out->len * sizeof *at);
    out->at = at;
    out->cap = cap;
}

/* Make room for n characters, and count a step for 16 of them, even if they come one by one. */
static void grow(struct lk_jinja_builder *out, size_t n) {
    out->n_uncounted += n;
    lk_jinja_work(out->heap, out->n_uncounted / 16);
    out->n_uncounted %= 16;
    reserve(out, n);
}

void lk_jinja_add(struct lk_jinja_builder *out, struct lk_jinja_text text) {
    if (text.len == 0) return;
    grow(out, text.len);
    memcpy(out->at + out->len, text.at, text.len * sizeof *text.at);
    out->len += text.len;
}

void lk_jinja_add_bytes(struct lk_jinja_builder *out, const char *bytes, int origin) {
    size_t n = strlen(bytes);
    grow(out, n);
    for (size_t i = 0; i < n; i++)
        out->at[out->len++] = (lk_jinja_char)((unsigned)origin << 8 | (unsigned char)bytes[i]);
}

struct lk_jinja_text lk_jinja_built(const struct lk_jinja_builder *out) {
    return (struct lk_jinja_text){out->at, out->len};
}

/* ---- numbers ---- */

/* The fewest digits that identify the number, as Python's repr writes them. */
static void format_float(char *out, size_t size, double x) {
    int n_digit = 1, exponent = 0;
    if (!isfinite(x)) {
        snprintf(out, size, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    for (; n_digit <= 17; n_digit++) {
        snprintf(out, size, "%.*e", n_digit - 1, x);
        if (strtod(out, NULL) == x) break;
    }
    const char *e = strchr(out, 'e');
    if (e) exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) return;
    int n_decimal = n_digit - 1 - exponent;
    snprintf(out, size, "%.*f", n_decimal < 1 ? 1 : n_decimal, x);
}

static void add_number(struct lk_jinja_builder *out, struct lk_jinja_value value) {
    char text[400];
    if (value.kind == LK_JINJA_INT)
        snprintf(text, sizeof text, "%lld", (long long)value.integer);
    else
        format_float(text, sizeof text, value.real);
    lk_jinja_work(out->heap, value.kind == LK_JINJA_INT ? 2 : 64); /* digits are tried one by one */
    lk_jinja_add_bytes(out, text, LK_FROM_DATA);
}

/* ---- str() ---- */

static void add_repr(struct lk_jinja_builder *out, struct lk_jinja_value value);

static void add_string_repr(struct lk_jinja_builder *out, struct lk_jinja_text text) {
    bool has_single = false, has_double = false;
    lk_jinja_work(out->heap, text.len / 16);
    for (size_t i = 0; i < text.len; i++) {
        has_single |= lk_jinja_byte(text, i) == '\'';
        has_double |= lk_jinja_byte(text, i) == '"';
    }
    const char *quote = has_single && !has_double ? "\"" : "'";
    lk_jinja_add_bytes(out, quote, LK_FROM_DATA);
    for (size_t i = 0; i < text.len; i++) {
        char c = lk_jinja_byte(text, i), escape[8] = "";
        if (c == '\\' || c == *quote) snprintf(escape, sizeof escape, "\\%c", c);
        if (c == '\n') snprintf(escape, sizeof escape, "\\n");
        if (c == '\r') snprintf(escape, sizeof escape, "\\r");
        if (c == '\t') snprintf(escape, sizeof escape, "\\t");
        if (!*escape && ((unsigned char)c < 0x20 || c == 0x7F))
            snprintf(escape, sizeof escape, "\\x%02x", (unsigned)c);
        if (*escape)
            lk_jinja_add_bytes(out, escape, LK_FROM_DATA);
        else
            lk_jinja_add(out, lk_jinja_slice(text, i, i + 1));
    }
    lk_jinja_add_bytes(out, quote, LK_FROM_DATA);
}

static void add_list_repr(struct lk_jinja_builder *out, const struct lk_jinja_list *list) {
    lk_jinja_add_bytes(out, list->is_tuple ? "(" : "[", LK_FROM_DATA);
    for (size_t i = 0; i < list->n; i++) {
        if (i) lk_jinja_add_bytes(out, ", ", LK_FROM_DATA);
        add_repr(out, list->at[i]);
    }
    if (list->is_tuple && list->n == 1) lk_jinja_add_bytes(out, ",", LK_FROM_DATA);
    lk_jinja_add_bytes(out, list->is_tuple ? ")" : "]", LK_FROM_DATA);
}

static void add_dict_repr(struct lk_jinja_builder *out, const struct lk_jinja_dict *dict) {
    lk_jinja_add_bytes(out, "{", LK_FROM_DATA);
    for (size_t i = 0; i < dict->n; i++) {
        if (i) lk_jinja_add_bytes(out, ", ", LK_FROM_DATA);
        add_repr(out, dict->at[i].key);
        lk_jinja_add_bytes(out, ": ", LK_FROM_DATA);
        add_repr(out, dict->at[i].value);
    }
    lk_jinja_add_bytes(out, "}", LK_FROM_DATA);
}

static void add_repr(struct lk_jinja_builder *out, struct lk_jinja_value value) {
    lk_jinja_enter(out->heap);
    switch (value.kind) {
    case LK_JINJA_UNDEFINED: break;
    case LK_JINJA_NONE: lk_jinja_add_bytes(out, "None", LK_FROM_DATA); break;
    case LK_JINJA_BOOL: lk_jinja_add_bytes(out, value.yes ? "True" : "False", LK_FROM_DATA); break;
    case LK_JINJA_INT:
    case LK_JINJA_FLOAT: add_number(out, value); break;
    case LK_JINJA_STRING: add_string_repr(out, value.text); break;
    case LK_JINJA_LIST: add_list_repr(out, value.list); break;
    case LK_JINJA_DICT: add_dict_repr(out, value.dict); break;
    default: lk_jinja_fail(out->heap, LK_E_FORMAT, "%s has no text", lk_jinja_kind_name(value));
    }
    lk_jinja_leave(out->heap);
}

struct lk_jinja_text lk_jinja_str(struct lk_jinja_heap *heap, struct lk_jinja_value value) {
    struct lk_jinja_builder out = {.heap = heap};
    if (value.kind == LK_JINJA_STRING) return value.text;
    add_repr(&out, value);
    return lk_jinja_built(&out);
}

/* ---- JSON ---- */

struct json_writer {
    struct lk_jinja_builder out;
    const struct lk_jinja_json_style *style;
    int level;
};

/* Append \uXXXX for the character at the start of text, and return its number of bytes. */
static size_t add_ascii(struct lk_jinja_builder *out, struct lk_jinja_text text) {
    char bytes[4], escape[16];
    size_t n = text.len < sizeof bytes ? text.len : sizeof bytes;
    uint32_t c = 0xFFFD;
    for (size_t i = 0; i < n; i++) bytes[i] = lk_jinja_byte(text, i);
    int len = lk_utf8_decode(bytes, n, &c);
    if (len <= 0) len = 1, c = 0xFFFD;
    if (c < 0x10000)
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
    else
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x",
                 (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    lk_jinja_add_bytes(out, escape, LK_FROM_DATA);
    return (size_t)len;
}

static void add_json_string(struct lk_jinja_builder *out, struct lk_jinja_text text, bool ascii) {
    static const char special[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    lk_jinja_add_bytes(out, "\"", LK_FROM_DATA);
    for (size_t i = 0, n; i < text.len; i += n) {
        unsigned char c = (unsigned char)lk_jinja_byte(text, i);
        const char *found = c ? strchr(special, c) : NULL;
        char escape[8];
        n = 1;
        if (found) {
            snprintf(escape, sizeof escape, "\\%c", letter[found - special]);
            lk_jinja_add_bytes(out, escape, LK_FROM_DATA);
        } else if (c < 0x20 || (ascii && c == 0x7F)) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            lk_jinja_add_bytes(out, escape, LK_FROM_DATA);
        } else if (ascii && c >= 0x80) {
            n = add_ascii(out, lk_jinja_slice(text, i, text.len));
        } else {
            lk_jinja_add(out, lk_jinja_slice(text, i, i + 1));
        }
    }
    lk_jinja_add_bytes(out, "\"", LK_FROM_DATA);
}

static void add_json(struct json_writer *w, struct lk_jinja_value value);

/* Start a line for an element, or for the end of a list. */
static void new_line(struct json_writer *w) {
    if (w->style->indent < 0) return;
    lk_jinja_add_bytes(&w->out, "\n", LK_FROM_DATA);
    for (int i = 0; i < w->level * w->style->indent; i++)
        lk_jinja_add_bytes(&w->out, " ", LK_FROM_DATA);
}

static void add_separator(struct json_writer *w, struct lk_jinja_text given, const char *normal) {
    if (w->style->has_separators)
        lk_jinja_add(&w->out, given);
    else
        lk_jinja_add_bytes(&w->out, normal, LK_FROM_DATA);
}

static void add_json_list(struct json_writer *w, const struct lk_jinja_list *list) {
    lk_jinja_add_bytes(&w->out, "[", LK_FROM_DATA);
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i) add_separator(w, w->style->comma, w->style->indent < 0 ? ", " : ",");
        new_line(w);
        add_json(w, list->at[i]);
    }
    w->level--;
    if (list->n) new_line(w);
    lk_jinja_add_bytes(&w->out, "]", LK_FROM_DATA);
}

static void add_json_dict(struct json_writer *w, const struct lk_jinja_dict *dict) {
    struct lk_jinja_heap *heap = w->out.heap;
    const bool sort = w->style->sort;
    struct lk_jinja_list *keys = lk_jinja_list(heap, 0).list, *values = lk_jinja_list(heap, 0).list;
    for (size_t i = 0; sort && i < dict->n; i++) {
        lk_jinja_push(heap, keys, dict->at[i].key);
        lk_jinja_push(heap, values, dict->at[i].value);
    }
    lk_jinja_sort(heap, keys->at, values->at, keys->n, false);
    lk_jinja_add_bytes(&w->out, "{", LK_FROM_DATA);
    w->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i) add_separator(w, w->style->comma, w->style->indent < 0 ? ", " : ",");
        new_line(w);
        struct lk_jinja_value key = sort ? keys->at[i] : dict->at[i].key;
        add_json_string(&w->out, lk_jinja_str(heap, key), w->style->ascii);
        add_separator(w, w->style->colon, ": ");
        add_json(w, sort ? values->at[i] : dict->at[i].value);
    }
    w->level--;
    if (dict->n) new_line(w);
    lk_jinja_add_bytes(&w->out, "}", LK_FROM_DATA);
}

static void add_json(struct json_writer *w, struct lk_jinja_value value) {
    struct lk_jinja_heap *heap = w->out.heap;
    lk_jinja_enter(heap);
    switch (value.kind) {
    case LK_JINJA_UNDEFINED:
    case LK_JINJA_NONE: lk_jinja_add_bytes(&w->out, "null", LK_FROM_DATA); break;
    case LK_JINJA_BOOL:
        lk_jinja_add_bytes(&w->out, value.yes ? "true" : "false", LK_FROM_DATA);
        break;
    case LK_JINJA_INT:
    case LK_JINJA_FLOAT: add_number(&w->out, value); break;
    case LK_JINJA_STRING: add_json_string(&w->out, value.text, w->style->ascii); break;
    case LK_JINJA_LIST: add_json_list(w, value.list); break;
    case LK_JINJA_DICT: add_json_dict(w, value.dict); break;
    default: lk_jinja_fail(heap, LK_E_FORMAT, "%s is not JSON", lk_jinja_kind_name(value));
    }
    lk_jinja_leave(heap);
}

struct lk_jinja_text lk_jinja_json(struct lk_jinja_heap *heap, struct lk_jinja_value value,
                                   const struct lk_jinja_json_style *style) {
    struct json_writer w = {.out.heap = heap, .style = style};
    add_json(&w, value);
    return lk_jinja_built(&w.out);
}

/* ---- order ---- */

void lk_jinja_sort(struct lk_jinja_heap *heap, struct lk_jinja_value *keys,
                   struct lk_jinja_value *values, size_t n, bool reverse) {
    if (n < 2) return;
    size_t half = n / 2, i = 0, k = half;
    lk_jinja_work(heap, n);
    lk_jinja_enter(heap);
    lk_jinja_sort(heap, keys, values, half, reverse);
    lk_jinja_sort(heap, keys + half, values + half, n - half, reverse);
    lk_jinja_leave(heap);
    struct lk_jinja_item *merged = lk_jinja_alloc(heap, n * sizeof *merged);
    for (size_t at = 0; at < n; at++) {
        int order = i == half ? 1 : k == n ? -1 : lk_jinja_compare(heap, keys[i], keys[k]);
        if (reverse && i < half && k < n) order = -order;
        size_t from = order <= 0 ? i++ : k++;
        merged[at] = (struct lk_jinja_item){keys[from], values[from]};
    }
    for (size_t at = 0; at < n; at++) keys[at] = merged[at].key, values[at] = merged[at].value;
}
