/* Operations on texts of the template engine. */
#include "template/jinja_text_ops.h"

#include "template/jinja_print.h"

#include <stdlib.h>
#include <string.h>

/* ---- parts ---- */

static bool is_in_set(lk_jinja_char c, const struct lk_jinja_text *set) {
    if (!set) return lk_jinja_is_space(c);
    for (size_t i = 0; i < set->len; i++)
        if (((c ^ set->at[i]) & 0xFF) == 0) return true;
    return false;
}

struct lk_jinja_text lk_jinja_strip(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                    const struct lk_jinja_text *set, bool left, bool right) {
    const uint64_t n_step = 1 + (set ? set->len / 16 : 0); /* for each character */
    for (; left && text.len && is_in_set(text.at[0], set); text.at++, text.len--)
        lk_jinja_work(heap, n_step);
    for (; right && text.len && is_in_set(text.at[text.len - 1], set); text.len--)
        lk_jinja_work(heap, n_step);
    lk_jinja_work(heap, n_step);
    return text;
}

size_t lk_jinja_n_code_point(struct lk_jinja_heap *heap, struct lk_jinja_text text) {
    size_t n = 0;
    lk_jinja_work(heap, text.len / 16);
    for (size_t i = 0; i < text.len; i++) n += (text.at[i] & 0xC0) != 0x80;
    return n;
}

size_t lk_jinja_code_point_at(struct lk_jinja_heap *heap, struct lk_jinja_text text, size_t i) {
    size_t at = 0;
    lk_jinja_work(heap, i / 16);
    for (; at < text.len; at++)
        if ((text.at[at] & 0xC0) != 0x80 && i-- == 0) break;
    return at;
}

/* ---- changed copies ---- */

struct lk_jinja_text lk_jinja_replace(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                      struct lk_jinja_text from, struct lk_jinja_text to,
                                      int64_t max) {
    struct lk_jinja_builder out = {.heap = heap};
    size_t at = 0;
    ptrdiff_t found;
    if (from.len == 0) return text;
    for (int64_t i = 0; i != max && (found = lk_jinja_find(heap, text, from, at)) >= 0; i++) {
        lk_jinja_add(&out, lk_jinja_slice(text, at, (size_t)found));
        lk_jinja_add(&out, to);
        lk_jinja_work(heap, 1);
        at = (size_t)found + from.len;
    }
    if (at == 0) return text;
    lk_jinja_add(&out, lk_jinja_slice(text, at, text.len));
    return lk_jinja_built(&out);
}

struct lk_jinja_text lk_jinja_to_case(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                      enum lk_jinja_case which) {
    lk_jinja_char *at = lk_jinja_alloc(heap, text.len * sizeof *at);
    bool at_start = true;
    lk_jinja_work(heap, text.len / 16);
    for (size_t i = 0; i < text.len; i++) {
        char c = lk_jinja_byte(text, i);
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        bool make_upper = which == LK_JINJA_UPPER || (which != LK_JINJA_LOWER && at_start);
        at[i] = text.at[i];
        if ((lower && make_upper) || (upper && !make_upper)) at[i] ^= 'a' ^ 'A';
        bool in_word = lower || upper || (unsigned char)c >= 0x80;
        at_start = which == LK_JINJA_TITLE
                       ? !in_word
                       : which == LK_JINJA_TITLE_FILTER && c && strchr("-({[< \t\n\v\f\r", c);
    }
    return (struct lk_jinja_text){at, text.len};
}

struct lk_jinja_text lk_jinja_indent(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                     int64_t width, bool first) {
    struct lk_jinja_builder out = {.heap = heap};
    if (width < 0) width = 0;
    if (width > 64) width = 64;
    lk_jinja_work(heap, text.len / 16);
    for (int64_t i = 0; first && i < width; i++) lk_jinja_add_bytes(&out, " ", LK_FROM_TEMPLATE);
    for (size_t at = 0, end; at < text.len; at = end) {
        for (end = at; end < text.len && lk_jinja_byte(text, end) != '\n';) end++;
        if (end > at && at > 0)
            for (int64_t i = 0; i < width; i++) lk_jinja_add_bytes(&out, " ", LK_FROM_TEMPLATE);
        if (end < text.len) end++;
        lk_jinja_add(&out, lk_jinja_slice(text, at, end));
    }
    return lk_jinja_built(&out);
}

struct lk_jinja_text lk_jinja_join_list(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_list *list,
                                        struct lk_jinja_text between) {
    struct lk_jinja_builder out = {.heap = heap};
    for (size_t i = 0; i < list->n; i++) {
        if (i) lk_jinja_add(&out, between);
        lk_jinja_add(&out, lk_jinja_str(heap, list->at[i]));
        lk_jinja_work(heap, 1);
    }
    return lk_jinja_built(&out);
}

/* ---- splitting ---- */

static void push_text(struct lk_jinja_heap *heap, struct lk_jinja_list *list,
                      struct lk_jinja_text text) {
    lk_jinja_push(heap, list, lk_jinja_string(text));
}

static void split_words(struct lk_jinja_heap *heap, struct lk_jinja_text text, int64_t max,
                        struct lk_jinja_list *out) {
    text = lk_jinja_strip(heap, text, NULL, true, false);
    for (int64_t n = 0; text.len; n++) {
        size_t end = 0;
        while (end < text.len && !lk_jinja_is_space(text.at[end])) end++;
        lk_jinja_work(heap, 1 + end / 16);
        if (n == max) {
            push_text(heap, out, lk_jinja_strip(heap, text, NULL, false, true));
            return;
        }
        push_text(heap, out, lk_jinja_slice(text, 0, end));
        text = lk_jinja_strip(heap, lk_jinja_slice(text, end, text.len), NULL, true, false);
    }
}

struct lk_jinja_value lk_jinja_split(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                     const struct lk_jinja_text *at, int64_t max, bool from_right) {
    struct lk_jinja_value out = lk_jinja_list(heap, 0), all = lk_jinja_list(heap, 0);
    ptrdiff_t found;
    size_t from = 0;
    lk_jinja_work(heap, text.len / 16);
    if (!at) {
        split_words(heap, text, max, out.list);
        return out;
    }
    if (at->len == 0) lk_jinja_fail(heap, LK_E_FORMAT, "cannot split at an empty string");
    for (int64_t n = 0; (from_right || n != max); n++) {
        found = lk_jinja_find(heap, text, *at, from);
        if (found < 0) break;
        push_text(heap, all.list, lk_jinja_slice(text, from, (size_t)found));
        from = (size_t)found + at->len;
    }
    push_text(heap, all.list, lk_jinja_slice(text, from, text.len));
    size_t n_joined = from_right && max >= 0 && all.list->n > (size_t)max + 1
                          ? all.list->n - (size_t)max
                          : 1; /* parts that stay one text at the left */
    if (n_joined == 1) return all;
    size_t n_left = text.len;
    for (size_t i = n_joined; i < all.list->n; i++) n_left -= at->len + all.list->at[i].text.len;
    push_text(heap, out.list, lk_jinja_slice(text, 0, n_left));
    for (size_t i = n_joined; i < all.list->n; i++) lk_jinja_push(heap, out.list, all.list->at[i]);
    return out;
}

struct lk_jinja_value lk_jinja_split_lines(struct lk_jinja_heap *heap, struct lk_jinja_text text) {
    struct lk_jinja_value out = lk_jinja_list(heap, 0);
    lk_jinja_work(heap, text.len / 16);
    for (size_t at = 0, end; at < text.len; at = end + 1) {
        for (end = at; end < text.len && lk_jinja_byte(text, end) != '\n';) end++;
        size_t to = end > at && lk_jinja_byte(text, end - 1) == '\r' ? end - 1 : end;
        push_text(heap, out.list, lk_jinja_slice(text, at, to));
    }
    return out;
}

/* ---- formats ---- */

struct lk_jinja_text lk_jinja_percent(struct lk_jinja_heap *heap, struct lk_jinja_text format,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_builder out = {.heap = heap};
    size_t n_used = 0;
    for (size_t i = 0; i < format.len; i++) {
        char kind = i + 1 < format.len ? lk_jinja_byte(format, i + 1) : 0;
        if (lk_jinja_byte(format, i) != '%') {
            lk_jinja_add(&out, lk_jinja_slice(format, i, i + 1));
            continue;
        }
        if (kind == '%') {
            lk_jinja_add(&out, lk_jinja_slice(format, i, i + 1));
        } else if ((kind == 's' || kind == 'd') && n_used < args->n) {
            lk_jinja_add(&out, lk_jinja_str(heap, args->at[n_used++]));
        } else {
            lk_jinja_fail(heap, LK_E_UNSUPPORTED, "cannot format with '%%%c'", kind ? kind : ' ');
        }
        i++;
    }
    return lk_jinja_built(&out);
}

struct lk_jinja_text lk_jinja_format(struct lk_jinja_heap *heap, struct lk_jinja_text format,
                                     const struct lk_jinja_args *args) {
    struct lk_jinja_builder out = {.heap = heap};
    size_t n_used = 0;
    for (size_t i = 0, end; i < format.len; i = end) {
        char c = lk_jinja_byte(format, i);
        end = i + 1;
        if ((c == '{' || c == '}') && end < format.len && lk_jinja_byte(format, end) == c) {
            lk_jinja_add(&out, lk_jinja_slice(format, i, end++));
            continue;
        }
        if (c != '{') {
            lk_jinja_add(&out, lk_jinja_slice(format, i, end));
            continue;
        }
        while (end < format.len && lk_jinja_byte(format, end) != '}') end++;
        lk_jinja_work(heap, 1 + (end - i) / 16);
        struct lk_jinja_text name = lk_jinja_slice(format, i + 1, end);
        struct lk_jinja_value value = lk_jinja_undefined();
        size_t index = 0, k = 0;
        for (; k < name.len && lk_jinja_byte(name, k) >= '0' && lk_jinja_byte(name, k) <= '9'; k++)
            index = index < 1000 ? 10 * index + (size_t)(lk_jinja_byte(name, k) - '0') : index;
        if (k == name.len)
            value = lk_jinja_arg(heap, args, name.len ? index : n_used++, NULL);
        else if (args->named)
            value = lk_jinja_get(heap, args->named, lk_jinja_string(name));
        if (value.kind == LK_JINJA_UNDEFINED)
            lk_jinja_fail(heap, LK_E_UNSUPPORTED, "cannot format: a value is missing");
        lk_jinja_add(&out, lk_jinja_str(heap, value));
        end++;
    }
    return lk_jinja_built(&out);
}
