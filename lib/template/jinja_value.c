/* Texts, lists and dicts of the template engine: making and comparing them. */
#include "template/jinja_value.h"

#include <string.h>

/* ---- making ---- */

struct lk_jinja_value lk_jinja_bool(bool yes) {
    return (struct lk_jinja_value){.kind = LK_JINJA_BOOL, .yes = yes};
}

struct lk_jinja_value lk_jinja_int(int64_t integer) {
    return (struct lk_jinja_value){.kind = LK_JINJA_INT, .integer = integer};
}

struct lk_jinja_value lk_jinja_none(void) {
    return (struct lk_jinja_value){.kind = LK_JINJA_NONE};
}

struct lk_jinja_value lk_jinja_undefined(void) {
    return (struct lk_jinja_value){.kind = LK_JINJA_UNDEFINED};
}

struct lk_jinja_value lk_jinja_string(struct lk_jinja_text text) {
    return (struct lk_jinja_value){.kind = LK_JINJA_STRING, .text = text};
}

struct lk_jinja_text lk_jinja_text_of(struct lk_jinja_heap *heap, const char *bytes, size_t len,
                                      int origin) {
    lk_jinja_work(heap, len / 16);
    if (len > heap->max_byte) lk_jinja_fail(heap, LK_E_UNSUPPORTED, "a text is too long");
    lk_jinja_char *at = lk_jinja_alloc(heap, len * sizeof *at);
    for (size_t i = 0; i < len; i++)
        at[i] = (lk_jinja_char)((unsigned)origin << 8 | (unsigned char)bytes[i]);
    return (struct lk_jinja_text){at, len};
}

struct lk_jinja_text lk_jinja_slice(struct lk_jinja_text text, size_t from, size_t to) {
    if (to > text.len) to = text.len;
    if (from >= to) return (struct lk_jinja_text){0}; /* an empty text may have no memory */
    return (struct lk_jinja_text){text.at + from, to - from};
}

struct lk_jinja_text lk_jinja_concat(struct lk_jinja_heap *heap, struct lk_jinja_text a,
                                     struct lk_jinja_text b) {
    if (b.len == 0) return a;
    if (a.len == 0) return b;
    size_t n = b.len * sizeof *b.at;
    lk_jinja_work(heap, b.len / 16);
    if (lk_jinja_extend(heap, a.at + a.len, n)) {
        memmove((lk_jinja_char *)a.at + a.len, b.at, n);
        return (struct lk_jinja_text){a.at, a.len + b.len};
    }
    lk_jinja_work(heap, a.len / 16);
    size_t n_all = (a.len + b.len) * sizeof *a.at;
    lk_jinja_char *at = lk_jinja_alloc_growing(heap, n_all, n_all / 2);
    memcpy(at, a.at, a.len * sizeof *at);
    memcpy(at + a.len, b.at, n);
    return (struct lk_jinja_text){at, a.len + b.len};
}

struct lk_jinja_value lk_jinja_list(struct lk_jinja_heap *heap, size_t cap) {
    struct lk_jinja_list *list = lk_jinja_alloc(heap, sizeof *list);
    if (cap > heap->max_byte / sizeof *list->at)
        lk_jinja_fail(heap, LK_E_UNSUPPORTED, "a list is too long");
    *list = (struct lk_jinja_list){.cap = cap};
    if (cap) list->at = lk_jinja_alloc(heap, cap * sizeof *list->at);
    return (struct lk_jinja_value){.kind = LK_JINJA_LIST, .list = list};
}

void lk_jinja_push(struct lk_jinja_heap *heap, struct lk_jinja_list *list,
                   struct lk_jinja_value value) {
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 8;
        struct lk_jinja_value *at = lk_jinja_alloc(heap, cap * sizeof *at);
        if (list->n) memcpy(at, list->at, list->n * sizeof *at);
        lk_jinja_work(heap, list->n);
        list->at = at;
        list->cap = cap;
    }
    lk_jinja_work(heap, 1);
    list->at[list->n++] = value;
}

struct lk_jinja_value lk_jinja_dict(struct lk_jinja_heap *heap, size_t cap) {
    struct lk_jinja_dict *dict = lk_jinja_alloc(heap, sizeof *dict);
    if (cap > heap->max_byte / sizeof *dict->at)
        lk_jinja_fail(heap, LK_E_UNSUPPORTED, "a dict is too long");
    *dict = (struct lk_jinja_dict){.cap = cap};
    if (cap) dict->at = lk_jinja_alloc(heap, cap * sizeof *dict->at);
    return (struct lk_jinja_value){.kind = LK_JINJA_DICT, .dict = dict};
}

static struct lk_jinja_item *find_item(struct lk_jinja_heap *heap, const struct lk_jinja_dict *dict,
                                       struct lk_jinja_value key) {
    lk_jinja_work(heap, dict->n / 16);
    for (size_t i = 0; i < dict->n; i++)
        if (dict->at[i].key.kind == key.kind && lk_jinja_equal(heap, dict->at[i].key, key))
            return &dict->at[i];
    return NULL;
}

static void append_item(struct lk_jinja_heap *heap, struct lk_jinja_dict *dict,
                        struct lk_jinja_value key, struct lk_jinja_value value) {
    if (dict->n == dict->cap) {
        size_t cap = dict->cap ? 2 * dict->cap : 8;
        struct lk_jinja_item *at = lk_jinja_alloc(heap, cap * sizeof *at);
        if (dict->n) memcpy(at, dict->at, dict->n * sizeof *at);
        dict->at = at;
        dict->cap = cap;
    }
    lk_jinja_work(heap, 1);
    dict->at[dict->n++] = (struct lk_jinja_item){key, value};
}

void lk_jinja_set(struct lk_jinja_heap *heap, struct lk_jinja_dict *dict, struct lk_jinja_value key,
                  struct lk_jinja_value value) {
    struct lk_jinja_item *item = find_item(heap, dict, key);
    if (item)
        item->value = value;
    else
        append_item(heap, dict, key, value);
}

struct lk_jinja_value lk_jinja_from_json(struct lk_jinja_heap *heap, const json_t *json,
                                         int origin) {
    struct lk_jinja_value out = lk_jinja_none();
    lk_jinja_enter(heap);
    if (json_is_boolean(json)) {
        out = lk_jinja_bool(json_is_true(json));
    } else if (json_is_integer(json)) {
        out = lk_jinja_int(json_integer_value(json));
    } else if (json_is_real(json)) {
        out.kind = LK_JINJA_FLOAT;
        out.real = json_real_value(json);
    } else if (json_is_string(json)) {
        out = lk_jinja_string(
            lk_jinja_text_of(heap, json_string_value(json), json_string_length(json), origin));
    } else if (json_is_array(json)) {
        const json_t *element;
        size_t i;
        out = lk_jinja_list(heap, json_array_size(json));
        json_array_foreach(json, i, element)
            lk_jinja_push(heap, out.list, lk_jinja_from_json(heap, element, origin));
    } else if (json_is_object(json)) {
        const char *key;
        json_t *value;
        out = lk_jinja_dict(heap, json_object_size(json));
        json_object_foreach((json_t *)json, key, value) {
            struct lk_jinja_text name = lk_jinja_text_of(heap, key, strlen(key), origin);
            append_item(heap, out.dict, lk_jinja_string(name),
                        lk_jinja_from_json(heap, value, origin));
        }
    }
    lk_jinja_leave(heap);
    return out;
}

/* ---- asking ---- */

bool lk_jinja_is(struct lk_jinja_text text, const char *word) {
    for (size_t i = 0; i < text.len; i++)
        if (!word[i] || lk_jinja_byte(text, i) != word[i]) return false;
    return word[text.len] == 0;
}

bool lk_jinja_is_space(lk_jinja_char c) {
    unsigned char byte = c & 0xFF;
    return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1C && byte <= 0x1F);
}

static bool same_bytes(const lk_jinja_char *a, const lk_jinja_char *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((a[i] ^ b[i]) & 0xFF) return false;
    return true;
}

ptrdiff_t lk_jinja_find(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                        struct lk_jinja_text part, size_t from) {
    lk_jinja_work(heap, 1);
    if (part.len == 0) return from <= text.len ? (ptrdiff_t)from : -1;
    size_t start = from;
    for (size_t i = from; i + part.len <= text.len; i++) {
        if ((text.at[i] ^ part.at[0]) & 0xFF) continue;
        lk_jinja_work(heap, 1 + part.len / 16);
        if (!same_bytes(text.at + i, part.at, part.len)) continue;
        lk_jinja_work(heap, (i - start) / 16);
        return (ptrdiff_t)i;
    }
    lk_jinja_work(heap, text.len > start ? (text.len - start) / 16 : 0);
    return -1;
}

bool lk_jinja_truth(struct lk_jinja_value value) {
    switch (value.kind) {
    case LK_JINJA_UNDEFINED:
    case LK_JINJA_NONE: return false;
    case LK_JINJA_BOOL: return value.yes;
    case LK_JINJA_INT: return value.integer != 0;
    case LK_JINJA_FLOAT: return value.real != 0;
    case LK_JINJA_STRING: return value.text.len > 0;
    case LK_JINJA_LIST: return value.list->n > 0;
    case LK_JINJA_DICT: return value.dict->n > 0 || value.dict->is_namespace;
    default: return true;
    }
}

bool lk_jinja_is_number(struct lk_jinja_value value) {
    return value.kind == LK_JINJA_BOOL || value.kind == LK_JINJA_INT ||
           value.kind == LK_JINJA_FLOAT;
}

double lk_jinja_real(struct lk_jinja_value value) {
    if (value.kind == LK_JINJA_BOOL) return value.yes;
    if (value.kind == LK_JINJA_INT) return (double)value.integer;
    return value.kind == LK_JINJA_FLOAT ? value.real : 0;
}

static bool equal_lists(struct lk_jinja_heap *heap, const struct lk_jinja_list *a,
                        const struct lk_jinja_list *b) {
    bool equal = a->n == b->n;
    lk_jinja_enter(heap);
    lk_jinja_work(heap, equal ? a->n / 4 : 0);
    for (size_t i = 0; equal && i < a->n; i++) equal = lk_jinja_equal(heap, a->at[i], b->at[i]);
    lk_jinja_leave(heap);
    return equal;
}

static bool equal_dicts(struct lk_jinja_heap *heap, const struct lk_jinja_dict *a,
                        const struct lk_jinja_dict *b) {
    bool equal = a->n == b->n;
    lk_jinja_enter(heap);
    for (size_t i = 0; equal && i < a->n; i++) {
        const struct lk_jinja_item *other = find_item(heap, b, a->at[i].key);
        equal = other && lk_jinja_equal(heap, a->at[i].value, other->value);
    }
    lk_jinja_leave(heap);
    return equal;
}

bool lk_jinja_equal(struct lk_jinja_heap *heap, struct lk_jinja_value a, struct lk_jinja_value b) {
    if (lk_jinja_is_number(a) && lk_jinja_is_number(b)) {
        bool exact = a.kind == LK_JINJA_INT && b.kind == LK_JINJA_INT;
        return exact ? a.integer == b.integer : lk_jinja_real(a) == lk_jinja_real(b);
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case LK_JINJA_STRING:
        if (a.text.len != b.text.len) return false;
        lk_jinja_work(heap, a.text.len / 16);
        return same_bytes(a.text.at, b.text.at, a.text.len);
    case LK_JINJA_LIST: return a.list == b.list || equal_lists(heap, a.list, b.list);
    case LK_JINJA_DICT: return a.dict == b.dict || equal_dicts(heap, a.dict, b.dict);
    case LK_JINJA_MACRO: return a.macro == b.macro;
    default: return a.kind == LK_JINJA_NONE || a.kind == LK_JINJA_UNDEFINED;
    }
}

int lk_jinja_compare(struct lk_jinja_heap *heap, struct lk_jinja_value a, struct lk_jinja_value b) {
    if (lk_jinja_is_number(a) && lk_jinja_is_number(b)) {
        double x = lk_jinja_real(a), y = lk_jinja_real(b);
        return x < y ? -1 : x > y;
    }
    if (a.kind == LK_JINJA_STRING && b.kind == LK_JINJA_STRING) {
        size_t n = a.text.len < b.text.len ? a.text.len : b.text.len;
        lk_jinja_work(heap, n / 16);
        for (size_t i = 0; i < n; i++) {
            unsigned char x = a.text.at[i] & 0xFF, y = b.text.at[i] & 0xFF;
            if (x != y) return x < y ? -1 : 1;
        }
        return a.text.len < b.text.len ? -1 : a.text.len > b.text.len;
    }
    if (a.kind == LK_JINJA_LIST && b.kind == LK_JINJA_LIST) {
        int order = 0;
        lk_jinja_enter(heap);
        lk_jinja_work(heap, a.list->n / 4);
        for (size_t i = 0; order == 0 && i < a.list->n && i < b.list->n; i++)
            if (!lk_jinja_equal(heap, a.list->at[i], b.list->at[i]))
                order = lk_jinja_compare(heap, a.list->at[i], b.list->at[i]);
        lk_jinja_leave(heap);
        if (order) return order;
        return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    lk_jinja_fail(heap, LK_E_FORMAT, "cannot compare %s with %s", lk_jinja_kind_name(a),
                  lk_jinja_kind_name(b));
}

bool lk_jinja_contains(struct lk_jinja_heap *heap, struct lk_jinja_value whole,
                       struct lk_jinja_value part) {
    switch (whole.kind) {
    case LK_JINJA_UNDEFINED:
    case LK_JINJA_NONE: return false;
    case LK_JINJA_STRING:
        return part.kind == LK_JINJA_STRING && lk_jinja_find(heap, whole.text, part.text, 0) >= 0;
    case LK_JINJA_LIST:
        for (size_t i = 0; i < whole.list->n; i++) {
            lk_jinja_work(heap, 1);
            if (lk_jinja_equal(heap, whole.list->at[i], part)) return true;
        }
        return false;
    case LK_JINJA_DICT: return find_item(heap, whole.dict, part) != NULL;
    default:
        lk_jinja_fail(heap, LK_E_FORMAT, "'in' needs a string, list or dict, not %s",
                      lk_jinja_kind_name(whole));
    }
}

struct lk_jinja_value lk_jinja_get(struct lk_jinja_heap *heap, const struct lk_jinja_dict *dict,
                                   struct lk_jinja_value key) {
    const struct lk_jinja_item *item = find_item(heap, dict, key);
    return item ? item->value : lk_jinja_undefined();
}

struct lk_jinja_value lk_jinja_get_name(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_dict *dict, const char *name) {
    lk_jinja_work(heap, dict->n / 16);
    for (size_t i = 0; i < dict->n; i++)
        if (dict->at[i].key.kind == LK_JINJA_STRING && lk_jinja_is(dict->at[i].key.text, name))
            return dict->at[i].value;
    return lk_jinja_undefined();
}

struct lk_jinja_value lk_jinja_arg(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                   size_t i, const char *name) {
    if (i < args->n) return args->at[i];
    return args->named && name ? lk_jinja_get_name(heap, args->named, name) : lk_jinja_undefined();
}

const char *lk_jinja_kind_name(struct lk_jinja_value value) {
    static const char *const names[] = {
        "an undefined value", "none",   "a boolean", "an integer", "a float",
        "a string",           "a list", "a dict",    "a loop",     "a method",
        "a function",         "a macro"};
    return names[value.kind];
}

struct lk_jinja_list *lk_jinja_elements(struct lk_jinja_heap *heap, struct lk_jinja_value value) {
    if (value.kind == LK_JINJA_LIST) return value.list;
    struct lk_jinja_value out = lk_jinja_list(heap, 0);
    if (value.kind == LK_JINJA_DICT) {
        for (size_t i = 0; i < value.dict->n; i++)
            lk_jinja_push(heap, out.list, value.dict->at[i].key);
    } else if (value.kind == LK_JINJA_STRING) {
        for (size_t i = 0, end; i < value.text.len; i = end) {
            for (end = i + 1; end < value.text.len && (value.text.at[end] & 0xC0) == 0x80;) end++;
            lk_jinja_push(heap, out.list, lk_jinja_string(lk_jinja_slice(value.text, i, end)));
        }
    } else if (value.kind != LK_JINJA_UNDEFINED && value.kind != LK_JINJA_NONE) {
        lk_jinja_fail(heap, LK_E_FORMAT, "cannot loop over %s", lk_jinja_kind_name(value));
    }
    return out.list;
}
