/* Filters, tests and global functions of the template engine. */
#include "template/jinja_filters.h"

#include "template/jinja_print.h"
#include "template/jinja_text_ops.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct lk_jinja_value filter_fn(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_args *args);

struct filter {
    const char *name;
    filter_fn *fn;
};

/* ---- arguments ---- */

static struct lk_jinja_text text_arg(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                     size_t i, const char *name) {
    return lk_jinja_str(heap, lk_jinja_arg(heap, args, i, name));
}

static bool is_given(struct lk_jinja_value value) {
    return value.kind != LK_JINJA_UNDEFINED && value.kind != LK_JINJA_NONE;
}

static struct lk_jinja_args rest_of(const struct lk_jinja_args *args, size_t n) {
    if (n > args->n) n = args->n;
    return (struct lk_jinja_args){args->at + n, args->n - n, args->named};
}

/* ---- filters of texts ---- */

static struct lk_jinja_value f_trim(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    bool given = is_given(lk_jinja_arg(heap, args, 1, "chars"));
    struct lk_jinja_text set = given ? text_arg(heap, args, 1, "chars") : (struct lk_jinja_text){0};
    return lk_jinja_string(
        lk_jinja_strip(heap, text_arg(heap, args, 0, NULL), given ? &set : NULL, true, true));
}

static struct lk_jinja_value f_upper(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return lk_jinja_string(lk_jinja_to_case(heap, text_arg(heap, args, 0, NULL), LK_JINJA_UPPER));
}

static struct lk_jinja_value f_lower(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return lk_jinja_string(lk_jinja_to_case(heap, text_arg(heap, args, 0, NULL), LK_JINJA_LOWER));
}

static struct lk_jinja_value f_title(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return lk_jinja_string(
        lk_jinja_to_case(heap, text_arg(heap, args, 0, NULL), LK_JINJA_TITLE_FILTER));
}

static struct lk_jinja_value f_capitalize(struct lk_jinja_heap *heap,
                                          const struct lk_jinja_args *args) {
    return lk_jinja_string(lk_jinja_to_case(heap, text_arg(heap, args, 0, NULL), LK_JINJA_CAPITAL));
}

static struct lk_jinja_value f_replace(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_args *args) {
    struct lk_jinja_value max = lk_jinja_arg(heap, args, 3, "count");
    return lk_jinja_string(lk_jinja_replace(
        heap, text_arg(heap, args, 0, NULL), text_arg(heap, args, 1, "old"),
        text_arg(heap, args, 2, "new"), max.kind == LK_JINJA_INT ? max.integer : -1));
}

static struct lk_jinja_value f_indent(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_value width = lk_jinja_arg(heap, args, 1, "width");
    return lk_jinja_string(lk_jinja_indent(heap, text_arg(heap, args, 0, NULL),
                                           width.kind == LK_JINJA_INT ? width.integer : 4,
                                           lk_jinja_truth(lk_jinja_arg(heap, args, 2, "first"))));
}

static struct lk_jinja_value f_escape(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    static const struct {
        char byte;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    struct lk_jinja_text text = text_arg(heap, args, 0, NULL);
    struct lk_jinja_builder out = {.heap = heap};
    for (size_t i = 0; i < text.len; i++) {
        size_t k = 0, n = sizeof entities / sizeof *entities;
        while (k < n && entities[k].byte != lk_jinja_byte(text, i)) k++;
        if (k < n)
            lk_jinja_add_bytes(&out, entities[k].entity, text.at[i] >> 8);
        else
            lk_jinja_add(&out, lk_jinja_slice(text, i, i + 1));
    }
    return lk_jinja_string(lk_jinja_built(&out));
}

static struct lk_jinja_value f_string(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    return lk_jinja_string(text_arg(heap, args, 0, NULL));
}

static struct lk_jinja_value f_format(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_args rest = rest_of(args, 1);
    return lk_jinja_string(lk_jinja_percent(heap, text_arg(heap, args, 0, NULL), &rest));
}

static struct lk_jinja_value f_tojson(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_json_style style = {.indent = -1};
    struct lk_jinja_value indent = lk_jinja_arg(heap, args, SIZE_MAX, "indent"),
                          separators = lk_jinja_arg(heap, args, SIZE_MAX, "separators");
    style.ascii = lk_jinja_truth(lk_jinja_arg(heap, args, SIZE_MAX, "ensure_ascii"));
    style.sort = lk_jinja_truth(lk_jinja_arg(heap, args, SIZE_MAX, "sort_keys"));
    if (args->n > 1) indent = args->at[1];
    if (indent.kind == LK_JINJA_INT)
        style.indent = indent.integer < 0 ? 0 : indent.integer > 16 ? 16 : (int)indent.integer;
    if (separators.kind == LK_JINJA_LIST && separators.list->n == 2) {
        style.has_separators = true;
        style.comma = lk_jinja_str(heap, separators.list->at[0]);
        style.colon = lk_jinja_str(heap, separators.list->at[1]);
    }
    return lk_jinja_string(lk_jinja_json(heap, args->at[0], &style));
}

/* ---- filters of numbers ---- */

/* The number that a value is or, as Python reads it, that its text holds; false: none. */
static bool read_number(struct lk_jinja_heap *heap, struct lk_jinja_value a,
                        struct lk_jinja_value *out) {
    char digits[64] = "", *end;
    *out = a;
    if (a.kind != LK_JINJA_STRING) return lk_jinja_is_number(a);
    struct lk_jinja_text text = lk_jinja_strip(heap, a.text, NULL, true, true);
    if (text.len == 0 || text.len >= sizeof digits) return false;
    for (size_t i = 0; i < text.len; i++) digits[i] = lk_jinja_byte(text, i);
    if (digits[strspn(digits, "0123456789+-.eE")]) return false; /* C also has 0x1p3 and nan(1) */
    errno = 0;
    *out = lk_jinja_int(strtoll(digits, &end, 10));
    if (!*end && !errno) return true;
    *out = (struct lk_jinja_value){.kind = LK_JINJA_FLOAT, .real = strtod(digits, &end)};
    return !*end;
}

static struct lk_jinja_value f_int(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value a, otherwise = lk_jinja_arg(heap, args, 1, "default");
    double real = read_number(heap, args->at[0], &a) ? lk_jinja_real(a) : INFINITY;
    if (a.kind == LK_JINJA_INT && isfinite(real)) return a;
    if (real > -9e18 && real < 9e18) return lk_jinja_int((int64_t)real);
    return otherwise.kind == LK_JINJA_UNDEFINED ? lk_jinja_int(0) : otherwise;
}

static struct lk_jinja_value f_float(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value a, otherwise = lk_jinja_arg(heap, args, 1, "default"),
                             out = {.kind = LK_JINJA_FLOAT};
    if (read_number(heap, args->at[0], &a))
        out.real = lk_jinja_real(a);
    else if (otherwise.kind != LK_JINJA_UNDEFINED)
        return otherwise;
    return out;
}

static struct lk_jinja_value f_abs(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value a = args->at[0];
    if (a.kind == LK_JINJA_BOOL) return lk_jinja_int(a.yes);
    if (a.kind == LK_JINJA_INT && a.integer > INT64_MIN)
        return lk_jinja_int(a.integer < 0 ? -a.integer : a.integer);
    if (a.kind != LK_JINJA_FLOAT) lk_jinja_fail(heap, LK_E_FORMAT, "'abs' needs a number");
    a.real = fabs(a.real);
    return a;
}

static struct lk_jinja_value f_round(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value precision = lk_jinja_arg(heap, args, 1, "precision"),
                          out = {.kind = LK_JINJA_FLOAT};
    double scale = pow(10, precision.kind == LK_JINJA_INT ? (double)precision.integer : 0);
    out.real = lk_jinja_real(args->at[0]);
    if (isfinite(scale) && scale > 0) out.real = nearbyint(out.real * scale) / scale;
    return out;
}

/* ---- filters of lists ---- */

static struct lk_jinja_value f_length(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_value a = args->at[0];
    if (a.kind == LK_JINJA_STRING)
        return lk_jinja_int((int64_t)lk_jinja_n_code_point(heap, a.text));
    if (a.kind == LK_JINJA_LIST) return lk_jinja_int((int64_t)a.list->n);
    if (a.kind == LK_JINJA_DICT) return lk_jinja_int((int64_t)a.dict->n);
    if (a.kind == LK_JINJA_UNDEFINED) return lk_jinja_int(0);
    lk_jinja_fail(heap, LK_E_FORMAT, "%s has no length", lk_jinja_kind_name(a));
}

static struct lk_jinja_value f_first(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    return list->n ? list->at[0] : lk_jinja_undefined();
}

static struct lk_jinja_value f_last(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    return list->n ? list->at[list->n - 1] : lk_jinja_undefined();
}

static struct lk_jinja_value copy_list(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_list *list) {
    struct lk_jinja_value out = lk_jinja_list(heap, list->n);
    for (size_t i = 0; i < list->n; i++) lk_jinja_push(heap, out.list, list->at[i]);
    return out;
}

static struct lk_jinja_value f_list(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return copy_list(heap, lk_jinja_elements(heap, args->at[0]));
}

static struct lk_jinja_value f_reverse(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value out = lk_jinja_list(heap, list->n);
    for (size_t i = list->n; i-- > 0;) lk_jinja_push(heap, out.list, list->at[i]);
    if (args->at[0].kind != LK_JINJA_STRING) return out;
    return lk_jinja_string(lk_jinja_join_list(heap, out.list, (struct lk_jinja_text){0}));
}

/* The attribute of an element: "a.b" or an index. */
static struct lk_jinja_value attribute_of(struct lk_jinja_heap *heap, struct lk_jinja_value value,
                                          struct lk_jinja_value name) {
    if (name.kind == LK_JINJA_INT && value.kind == LK_JINJA_LIST)
        return name.integer >= 0 && (size_t)name.integer < value.list->n
                   ? value.list->at[name.integer]
                   : lk_jinja_undefined();
    if (name.kind != LK_JINJA_STRING) return lk_jinja_undefined();
    for (size_t at = 0, end; at <= name.text.len; at = end + 1) {
        for (end = at; end < name.text.len && lk_jinja_byte(name.text, end) != '.';) end++;
        lk_jinja_work(heap, 1);
        if (value.kind != LK_JINJA_DICT) return lk_jinja_undefined();
        value = lk_jinja_get(heap, value.dict, lk_jinja_string(lk_jinja_slice(name.text, at, end)));
    }
    return value;
}

static struct lk_jinja_value f_join(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value between = lk_jinja_arg(heap, args, 1, "d"),
                          attribute = lk_jinja_arg(heap, args, 2, "attribute");
    if (is_given(attribute)) {
        list = copy_list(heap, list).list;
        for (size_t i = 0; i < list->n; i++)
            list->at[i] = attribute_of(heap, list->at[i], attribute);
    }
    struct lk_jinja_text text = {0};
    if (is_given(between)) text = lk_jinja_str(heap, between);
    return lk_jinja_string(lk_jinja_join_list(heap, list, text));
}

static struct lk_jinja_value f_default(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_args *args) {
    bool any_false = lk_jinja_truth(lk_jinja_arg(heap, args, 2, "boolean"));
    struct lk_jinja_value a = args->at[0], otherwise = lk_jinja_arg(heap, args, 1, "default_value");
    bool missing = a.kind == LK_JINJA_UNDEFINED || (any_false && !lk_jinja_truth(a));
    if (missing && otherwise.kind == LK_JINJA_UNDEFINED)
        return lk_jinja_string((struct lk_jinja_text){0});
    return missing ? otherwise : a;
}

static struct lk_jinja_value f_items(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value out = lk_jinja_list(heap, 0), a = args->at[0];
    for (size_t i = 0; a.kind == LK_JINJA_DICT && i < a.dict->n; i++) {
        struct lk_jinja_value pair = lk_jinja_list(heap, 2);
        lk_jinja_push(heap, pair.list, a.dict->at[i].key);
        lk_jinja_push(heap, pair.list, a.dict->at[i].value);
        pair.list->is_tuple = true;
        lk_jinja_push(heap, out.list, pair);
    }
    return out;
}

/* What an order looks at: of a text its lower case, unless the argument `i` asks for the text. */
static struct lk_jinja_value order_key(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                       size_t i, struct lk_jinja_value value) {
    if (value.kind == LK_JINJA_STRING &&
        !lk_jinja_truth(lk_jinja_arg(heap, args, i, "case_sensitive")))
        value.text = lk_jinja_to_case(heap, value.text, LK_JINJA_LOWER);
    return value;
}

static struct lk_jinja_value f_dictsort(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_args *args) {
    struct lk_jinja_value by = lk_jinja_arg(heap, args, 2, "by"), out = f_items(heap, args),
                          keys = lk_jinja_list(heap, out.list->n);
    bool reverse = lk_jinja_truth(lk_jinja_arg(heap, args, 3, "reverse"));
    if (args->at[0].kind != LK_JINJA_DICT)
        lk_jinja_fail(heap, LK_E_FORMAT, "'dictsort' needs a dict, not %s",
                      lk_jinja_kind_name(args->at[0]));
    bool by_value = by.kind == LK_JINJA_STRING && lk_jinja_is(by.text, "value");
    for (size_t i = 0; i < out.list->n; i++)
        lk_jinja_push(heap, keys.list,
                      order_key(heap, args, 1, out.list->at[i].list->at[by_value]));
    lk_jinja_sort(heap, keys.list->at, out.list->at, out.list->n, reverse);
    return out;
}

static struct lk_jinja_value f_sort(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value attribute = lk_jinja_arg(heap, args, 3, "attribute"),
                          out = copy_list(heap, lk_jinja_elements(heap, args->at[0])),
                          keys = copy_list(heap, out.list);
    bool reverse = lk_jinja_truth(lk_jinja_arg(heap, args, 1, "reverse"));
    for (size_t i = 0; i < keys.list->n; i++) {
        struct lk_jinja_value *key = &keys.list->at[i];
        if (is_given(attribute)) *key = attribute_of(heap, *key, attribute);
        *key = order_key(heap, args, 2, *key);
    }
    lk_jinja_sort(heap, keys.list->at, out.list->at, out.list->n, reverse);
    return out;
}

static struct lk_jinja_value f_unique(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value out = lk_jinja_list(heap, 0), keys = lk_jinja_list(heap, 0);
    for (size_t i = 0; i < list->n; i++) {
        struct lk_jinja_value key = order_key(heap, args, 1, list->at[i]);
        if (lk_jinja_contains(heap, keys, key)) continue;
        lk_jinja_push(heap, keys.list, key);
        lk_jinja_push(heap, out.list, list->at[i]);
    }
    return out;
}

static struct lk_jinja_value f_sum(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value attribute = lk_jinja_arg(heap, args, 1, "attribute"),
                          out = {.kind = LK_JINJA_FLOAT};
    bool exact = true;
    lk_jinja_work(heap, list->n / 4);
    for (size_t i = 0; i < list->n; i++) {
        struct lk_jinja_value value = list->at[i];
        if (is_given(attribute)) value = attribute_of(heap, value, attribute);
        exact &= value.kind != LK_JINJA_FLOAT;
        out.real += lk_jinja_real(value);
    }
    return exact && fabs(out.real) < 9e15 ? lk_jinja_int((int64_t)out.real) : out;
}

static struct lk_jinja_value extreme(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                     int sign) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value out = list->n ? list->at[0] : lk_jinja_undefined(),
                          best = order_key(heap, args, 1, out);
    lk_jinja_work(heap, list->n / 4);
    for (size_t i = 1; i < list->n; i++) {
        struct lk_jinja_value key = order_key(heap, args, 1, list->at[i]);
        if (sign * lk_jinja_compare(heap, key, best) <= 0) continue;
        best = key;
        out = list->at[i];
    }
    return out;
}

static struct lk_jinja_value f_min(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return extreme(heap, args, -1);
}

static struct lk_jinja_value f_max(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    return extreme(heap, args, 1);
}

/* select, reject, selectattr, rejectattr: the elements that pass a test, or do not. */
static struct lk_jinja_value select_elements(struct lk_jinja_heap *heap,
                                             const struct lk_jinja_args *args, bool by_attribute,
                                             bool keep) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value out = lk_jinja_list(heap, 0);
    struct lk_jinja_args rest = rest_of(args, by_attribute ? 2 : 1);
    for (size_t i = 0; i < list->n; i++) {
        struct lk_jinja_value value = list->at[i], given[4];
        struct lk_jinja_args test = {given, 1, NULL};
        if (by_attribute) value = attribute_of(heap, value, lk_jinja_arg(heap, args, 1, NULL));
        given[0] = value;
        for (size_t k = 1; k < rest.n && test.n < 4; k++) given[test.n++] = rest.at[k];
        bool passes = rest.n && rest.at[0].kind == LK_JINJA_STRING
                          ? lk_jinja_test(heap, rest.at[0].text, &test)
                          : lk_jinja_truth(value);
        if (passes == keep) lk_jinja_push(heap, out.list, list->at[i]);
    }
    return out;
}

static struct lk_jinja_value f_select(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    return select_elements(heap, args, false, true);
}

static struct lk_jinja_value f_reject(struct lk_jinja_heap *heap,
                                      const struct lk_jinja_args *args) {
    return select_elements(heap, args, false, false);
}

static struct lk_jinja_value f_selectattr(struct lk_jinja_heap *heap,
                                          const struct lk_jinja_args *args) {
    return select_elements(heap, args, true, true);
}

static struct lk_jinja_value f_rejectattr(struct lk_jinja_heap *heap,
                                          const struct lk_jinja_args *args) {
    return select_elements(heap, args, true, false);
}

static struct lk_jinja_value f_map(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, args->at[0]);
    struct lk_jinja_value out = lk_jinja_list(heap, list->n),
                          attribute = lk_jinja_arg(heap, args, SIZE_MAX, "attribute"),
                          otherwise = lk_jinja_arg(heap, args, SIZE_MAX, "default");
    struct lk_jinja_args rest = rest_of(args, 1);
    lk_jinja_enter(heap); /* a filter may be "map" again */
    for (size_t i = 0; i < list->n; i++) {
        struct lk_jinja_value value = list->at[i], given[4] = {value};
        struct lk_jinja_args filter = {given, 1, NULL};
        if (is_given(attribute)) {
            value = attribute_of(heap, value, attribute);
            if (value.kind == LK_JINJA_UNDEFINED) value = otherwise;
        } else {
            for (size_t k = 1; k < rest.n && filter.n < 4; k++) given[filter.n++] = rest.at[k];
            value = lk_jinja_filter(heap, text_arg(heap, &rest, 0, NULL), &filter);
        }
        lk_jinja_push(heap, out.list, value);
    }
    lk_jinja_leave(heap);
    return out;
}

static const struct filter filters[] = {
    {"trim", f_trim},
    {"strip", f_trim},
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"replace", f_replace},
    {"indent", f_indent},
    {"escape", f_escape},
    {"e", f_escape},
    {"safe", f_string},
    {"string", f_string},
    {"format", f_format},
    {"tojson", f_tojson},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"length", f_length},
    {"count", f_length},
    {"first", f_first},
    {"last", f_last},
    {"list", f_list},
    {"reverse", f_reverse},
    {"join", f_join},
    {"default", f_default},
    {"d", f_default},
    {"items", f_items},
    {"dictsort", f_dictsort},
    {"sort", f_sort},
    {"unique", f_unique},
    {"sum", f_sum},
    {"min", f_min},
    {"max", f_max},
    {"select", f_select},
    {"reject", f_reject},
    {"map", f_map},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
};

struct lk_jinja_value lk_jinja_filter(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                                      const struct lk_jinja_args *args) {
    lk_jinja_work(heap, 1);
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (lk_jinja_is(name, filters[i].name)) return filters[i].fn(heap, args);
    char word[40] = "";
    for (size_t i = 0; i < name.len && i + 1 < sizeof word; i++) word[i] = lk_jinja_byte(name, i);
    lk_jinja_fail(heap, LK_E_UNSUPPORTED, "there is no filter '%s'", word);
}

/* ---- global functions ---- */

static struct lk_jinja_value g_range(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    int64_t value[3] = {0, 0, 1};
    struct lk_jinja_value out = lk_jinja_list(heap, 0);
    for (size_t i = 0; i < 3 && i < args->n; i++) {
        if (args->at[i].kind != LK_JINJA_INT || args->at[i].integer > INT32_MAX ||
            args->at[i].integer < INT32_MIN)
            lk_jinja_fail(heap, LK_E_FORMAT, "'range' needs small integers");
        value[args->n == 1 ? 1 : i] = args->at[i].integer;
    }
    if (value[2] == 0) lk_jinja_fail(heap, LK_E_FORMAT, "the step of 'range' is 0");
    for (int64_t i = value[0]; value[2] > 0 ? i < value[1] : i > value[1]; i += value[2])
        lk_jinja_push(heap, out.list, lk_jinja_int(i));
    return out;
}

static struct lk_jinja_value g_dict(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value out = lk_jinja_dict(heap, 0), from = lk_jinja_arg(heap, args, 0, NULL);
    for (size_t i = 0; from.kind == LK_JINJA_DICT && i < from.dict->n; i++)
        lk_jinja_set(heap, out.dict, from.dict->at[i].key, from.dict->at[i].value);
    for (size_t i = 0; args->named && i < args->named->n; i++)
        lk_jinja_set(heap, out.dict, args->named->at[i].key, args->named->at[i].value);
    return out;
}

static struct lk_jinja_value g_namespace(struct lk_jinja_heap *heap,
                                         const struct lk_jinja_args *args) {
    struct lk_jinja_value out = g_dict(heap, args);
    out.dict->is_namespace = true;
    return out;
}

static struct lk_jinja_value g_raise(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_text text = text_arg(heap, args, 0, "message");
    char word[160] = "";
    for (size_t i = 0; i < text.len && i + 1 < sizeof word; i++) {
        char c = lk_jinja_byte(text, i);
        word[i] = c >= ' ' && c < 0x7F ? c : ' ';
    }
    lk_jinja_fail(heap, LK_E_FORMAT, "it says: %s", word);
}

static struct lk_jinja_value g_strftime(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_args *args) {
    struct lk_jinja_text text = text_arg(heap, args, 0, "format");
    char format[64] = "", out[256] = "";
    time_t now = time(NULL);
    struct tm parts;
    for (size_t i = 0; i < text.len && i + 1 < sizeof format; i++)
        format[i] = lk_jinja_byte(text, i);
    lk_jinja_work(heap, 64);
    if (text.len >= sizeof format || !localtime_r(&now, &parts))
        lk_jinja_fail(heap, LK_E_FORMAT, "'strftime_now' needs a short format");
    size_t n = strftime(out, sizeof out, format, &parts);
    return lk_jinja_string(lk_jinja_text_of(heap, out, n, LK_FROM_DATA));
}

static const struct filter functions[] = {
    {"range", g_range},           {"dict", g_dict},
    {"namespace", g_namespace},   {"raise_exception", g_raise},
    {"strftime_now", g_strftime},
};

const char *lk_jinja_function_name(struct lk_jinja_text name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (lk_jinja_is(name, functions[i].name)) return functions[i].name;
    return NULL;
}

struct lk_jinja_value lk_jinja_call_function(struct lk_jinja_heap *heap, const char *name,
                                             const struct lk_jinja_args *args) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (functions[i].name == name) return functions[i].fn(heap, args);
    return lk_jinja_undefined();
}

/* ---- tests ---- */

typedef bool test_fn(struct lk_jinja_heap *heap, const struct lk_jinja_args *args);

struct test {
    const char *name;
    test_fn *fn;
};

#define TEST(name, condition)                                                                      \
    static bool name(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {               \
        (void)heap;                                                                                \
        const struct lk_jinja_value a = args->at[0];                                               \
        return condition;                                                                          \
    }

TEST(is_defined, a.kind != LK_JINJA_UNDEFINED)
TEST(is_undefined, a.kind == LK_JINJA_UNDEFINED)
TEST(is_none, a.kind == LK_JINJA_NONE)
TEST(is_string, a.kind == LK_JINJA_STRING)
TEST(is_number, lk_jinja_is_number(a))
TEST(is_integer, a.kind == LK_JINJA_INT)
TEST(is_float, a.kind == LK_JINJA_FLOAT)
TEST(is_boolean, a.kind == LK_JINJA_BOOL)
TEST(is_true, a.kind == LK_JINJA_BOOL && a.yes)
TEST(is_false, a.kind == LK_JINJA_BOOL && !a.yes)
TEST(is_mapping, a.kind == LK_JINJA_DICT && !a.dict->is_namespace)
TEST(is_iterable, a.kind == LK_JINJA_LIST || a.kind == LK_JINJA_DICT || a.kind == LK_JINJA_STRING)
TEST(is_callable, a.kind >= LK_JINJA_METHOD)
TEST(is_odd, a.kind == LK_JINJA_INT && a.integer % 2 != 0)
TEST(is_even, a.kind == LK_JINJA_INT && a.integer % 2 == 0)
TEST(is_equal, lk_jinja_equal(heap, a, lk_jinja_arg(heap, args, 1, NULL)))
TEST(is_not_equal, !lk_jinja_equal(heap, a, lk_jinja_arg(heap, args, 1, NULL)))
TEST(is_less, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) < 0)
TEST(is_less_equal, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) <= 0)
TEST(is_greater, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) > 0)
TEST(is_greater_equal, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) >= 0)
TEST(is_in, lk_jinja_contains(heap, lk_jinja_arg(heap, args, 1, NULL), a))

static bool is_divisible(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value by = lk_jinja_arg(heap, args, 1, NULL);
    if (args->at[0].kind != LK_JINJA_INT || by.kind != LK_JINJA_INT || by.integer == 0)
        lk_jinja_fail(heap, LK_E_FORMAT, "'divisibleby' needs integers other than 0");
    /* cppcheck-suppress zerodivcond ; lk_jinja_fail does not return */
    return by.integer == -1 || args->at[0].integer % by.integer == 0;
}

static bool has_case(struct lk_jinja_heap *heap, struct lk_jinja_text text, char first, char last) {
    bool found = false;
    lk_jinja_work(heap, text.len / 16);
    for (size_t i = 0; i < text.len; i++) {
        char c = lk_jinja_byte(text, i);
        if (((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) && (c < first || c > last))
            return false;
        found |= c >= first && c <= last;
    }
    return found;
}

TEST(is_upper, a.kind == LK_JINJA_STRING && has_case(heap, a.text, 'A', 'Z'))
TEST(is_lower, a.kind == LK_JINJA_STRING && has_case(heap, a.text, 'a', 'z'))

static const struct test tests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"string", is_string},
    {"number", is_number},
    {"integer", is_integer},
    {"float", is_float},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"mapping", is_mapping},
    {"iterable", is_iterable},
    {"sequence", is_iterable},
    {"callable", is_callable},
    {"odd", is_odd},
    {"even", is_even},
    {"equalto", is_equal},
    {"eq", is_equal},
    {"sameas", is_equal},
    {"ne", is_not_equal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"le", is_less_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {"ge", is_greater_equal},
    {"in", is_in},
    {"divisibleby", is_divisible},
    {"upper", is_upper},
    {"lower", is_lower},
};

bool lk_jinja_test(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                   const struct lk_jinja_args *args) {
    lk_jinja_work(heap, 1);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (lk_jinja_is(name, tests[i].name)) return tests[i].fn(heap, args);
    static const struct test symbols[] = {{"==", is_equal},  {"!=", is_not_equal},
                                          {"<", is_less},    {"<=", is_less_equal},
                                          {">", is_greater}, {">=", is_greater_equal}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (lk_jinja_is(name, symbols[i].name)) return symbols[i].fn(heap, args);
    char word[40] = "";
    for (size_t i = 0; i < name.len && i + 1 < sizeof word; i++) word[i] = lk_jinja_byte(name, i);
    lk_jinja_fail(heap, LK_E_UNSUPPORTED, "there is no test '%s'", word);
}
