/* Methods of the template engine's values. */
#include "template/jinja_methods.h"

#include "template/jinja_print.h"
#include "template/jinja_text_ops.h"

#include <string.h>

typedef struct lk_jinja_value method_fn(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                        const struct lk_jinja_args *args);

struct method {
    const char *name;
    method_fn *fn;
};

/* ---- arguments ---- */

static struct lk_jinja_text text_arg(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                     size_t i, const char *name) {
    struct lk_jinja_value value = lk_jinja_arg(heap, args, i, name);
    if (value.kind != LK_JINJA_STRING)
        lk_jinja_fail(heap, LK_E_FORMAT, "expected a string, not %s", lk_jinja_kind_name(value));
    return value.text;
}

/* The argument in *text, or NULL if it is not given or none. */
static const struct lk_jinja_text *optional_text(struct lk_jinja_heap *heap,
                                                 const struct lk_jinja_args *args, size_t i,
                                                 const char *name, struct lk_jinja_text *text) {
    struct lk_jinja_value value = lk_jinja_arg(heap, args, i, name);
    if (value.kind == LK_JINJA_UNDEFINED || value.kind == LK_JINJA_NONE) return NULL;
    *text = text_arg(heap, args, i, name);
    return text;
}

static int64_t int_arg(struct lk_jinja_heap *heap, const struct lk_jinja_args *args, size_t i,
                       const char *name, int64_t otherwise) {
    struct lk_jinja_value value = lk_jinja_arg(heap, args, i, name);
    return value.kind == LK_JINJA_INT ? value.integer : otherwise;
}

/* ---- strings ---- */

static struct lk_jinja_value strip(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    struct lk_jinja_text text;
    return lk_jinja_string(
        lk_jinja_strip(heap, self.text, optional_text(heap, args, 0, "chars", &text), true, true));
}

static struct lk_jinja_value lstrip(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    struct lk_jinja_text text;
    return lk_jinja_string(
        lk_jinja_strip(heap, self.text, optional_text(heap, args, 0, "chars", &text), true, false));
}

static struct lk_jinja_value rstrip(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    struct lk_jinja_text text;
    return lk_jinja_string(
        lk_jinja_strip(heap, self.text, optional_text(heap, args, 0, "chars", &text), false, true));
}

static struct lk_jinja_value split(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    struct lk_jinja_text text;
    return lk_jinja_split(heap, self.text, optional_text(heap, args, 0, "sep", &text),
                          int_arg(heap, args, 1, "maxsplit", -1), false);
}

static struct lk_jinja_value rsplit(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    struct lk_jinja_text text;
    return lk_jinja_split(heap, self.text, optional_text(heap, args, 0, "sep", &text),
                          int_arg(heap, args, 1, "maxsplit", -1), true);
}

static struct lk_jinja_value splitlines(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                        const struct lk_jinja_args *args) {
    (void)args;
    return lk_jinja_split_lines(heap, self.text);
}

static struct lk_jinja_value replace(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                     const struct lk_jinja_args *args) {
    return lk_jinja_string(lk_jinja_replace(heap, self.text, text_arg(heap, args, 0, "old"),
                                            text_arg(heap, args, 1, "new"),
                                            int_arg(heap, args, 2, "count", -1)));
}

/* Does the text start, or end, with one of the strings that are given? */
static bool has_affix(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                      struct lk_jinja_value affix, bool at_end) {
    if (affix.kind == LK_JINJA_LIST) {
        for (size_t i = 0; i < affix.list->n; i++)
            if (affix.list->at[i].kind == LK_JINJA_STRING &&
                has_affix(heap, text, affix.list->at[i], at_end))
                return true;
        return false;
    }
    if (affix.kind != LK_JINJA_STRING)
        lk_jinja_fail(heap, LK_E_FORMAT, "expected a string, not %s", lk_jinja_kind_name(affix));
    if (affix.text.len > text.len) return false;
    size_t from = at_end ? text.len - affix.text.len : 0;
    struct lk_jinja_text part = lk_jinja_slice(text, from, from + affix.text.len);
    return lk_jinja_equal(heap, lk_jinja_string(part), affix);
}

static struct lk_jinja_value startswith(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                        const struct lk_jinja_args *args) {
    return lk_jinja_bool(has_affix(heap, self.text, lk_jinja_arg(heap, args, 0, NULL), false));
}

static struct lk_jinja_value endswith(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                      const struct lk_jinja_args *args) {
    return lk_jinja_bool(has_affix(heap, self.text, lk_jinja_arg(heap, args, 0, NULL), true));
}

static struct lk_jinja_value removeprefix(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                          const struct lk_jinja_args *args) {
    struct lk_jinja_value affix = lk_jinja_arg(heap, args, 0, NULL);
    bool has = has_affix(heap, self.text, affix, false) && affix.kind == LK_JINJA_STRING;
    return lk_jinja_string(lk_jinja_slice(self.text, has ? affix.text.len : 0, self.text.len));
}

static struct lk_jinja_value removesuffix(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                          const struct lk_jinja_args *args) {
    struct lk_jinja_value affix = lk_jinja_arg(heap, args, 0, NULL);
    bool has = has_affix(heap, self.text, affix, true) && affix.kind == LK_JINJA_STRING;
    return lk_jinja_string(
        lk_jinja_slice(self.text, 0, self.text.len - (has ? affix.text.len : 0)));
}

static struct lk_jinja_value upper(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    (void)args;
    return lk_jinja_string(lk_jinja_to_case(heap, self.text, LK_JINJA_UPPER));
}

static struct lk_jinja_value lower(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    (void)args;
    return lk_jinja_string(lk_jinja_to_case(heap, self.text, LK_JINJA_LOWER));
}

static struct lk_jinja_value title(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    (void)args;
    return lk_jinja_string(lk_jinja_to_case(heap, self.text, LK_JINJA_TITLE));
}

static struct lk_jinja_value capitalize(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                        const struct lk_jinja_args *args) {
    (void)args;
    return lk_jinja_string(lk_jinja_to_case(heap, self.text, LK_JINJA_CAPITAL));
}

static struct lk_jinja_value find(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                  const struct lk_jinja_args *args) {
    ptrdiff_t at = lk_jinja_find(heap, self.text, text_arg(heap, args, 0, NULL), 0);
    if (at > 0)
        at = (ptrdiff_t)lk_jinja_n_code_point(heap, lk_jinja_slice(self.text, 0, (size_t)at));
    return lk_jinja_int(at);
}

static struct lk_jinja_value rfind(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    struct lk_jinja_text part = text_arg(heap, args, 0, NULL);
    ptrdiff_t at = -1, next = -1;
    while ((next = lk_jinja_find(heap, self.text, part, (size_t)(next + 1))) >= 0) at = next;
    if (at > 0)
        at = (ptrdiff_t)lk_jinja_n_code_point(heap, lk_jinja_slice(self.text, 0, (size_t)at));
    return lk_jinja_int(at);
}

static struct lk_jinja_value count(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    int64_t n = 0;
    if (self.kind == LK_JINJA_LIST) {
        struct lk_jinja_value value = lk_jinja_arg(heap, args, 0, NULL);
        lk_jinja_work(heap, self.list->n);
        for (size_t i = 0; i < self.list->n; i++)
            n += lk_jinja_equal(heap, self.list->at[i], value);
        return lk_jinja_int(n);
    }
    struct lk_jinja_text part = text_arg(heap, args, 0, NULL);
    if (part.len == 0) lk_jinja_fail(heap, LK_E_FORMAT, "cannot count an empty string");
    for (ptrdiff_t at = 0; (at = lk_jinja_find(heap, self.text, part, (size_t)at)) >= 0; n++)
        at += (ptrdiff_t)part.len;
    return lk_jinja_int(n);
}

static struct lk_jinja_value join(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                  const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = lk_jinja_elements(heap, lk_jinja_arg(heap, args, 0, NULL));
    return lk_jinja_string(lk_jinja_join_list(heap, list, self.text));
}

static struct lk_jinja_value format(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    return lk_jinja_string(lk_jinja_format(heap, self.text, args));
}

static struct lk_jinja_value isdigit_method(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                            const struct lk_jinja_args *args) {
    (void)args;
    bool all = self.text.len > 0;
    lk_jinja_work(heap, self.text.len / 16);
    for (size_t i = 0; all && i < self.text.len; i++)
        all = lk_jinja_byte(self.text, i) >= '0' && lk_jinja_byte(self.text, i) <= '9';
    return lk_jinja_bool(all);
}

static const struct method string_methods[] = {{"strip", strip},
                                               {"lstrip", lstrip},
                                               {"rstrip", rstrip},
                                               {"split", split},
                                               {"rsplit", rsplit},
                                               {"splitlines", splitlines},
                                               {"replace", replace},
                                               {"startswith", startswith},
                                               {"endswith", endswith},
                                               {"removeprefix", removeprefix},
                                               {"removesuffix", removesuffix},
                                               {"upper", upper},
                                               {"lower", lower},
                                               {"title", title},
                                               {"capitalize", capitalize},
                                               {"find", find},
                                               {"index", find},
                                               {"rfind", rfind},
                                               {"count", count},
                                               {"join", join},
                                               {"format", format},
                                               {"isdigit", isdigit_method},
                                               {NULL, NULL}};

/* ---- lists ---- */

static struct lk_jinja_value append(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    heap->n_change++;
    lk_jinja_push(heap, self.list, lk_jinja_arg(heap, args, 0, NULL));
    return lk_jinja_none();
}

static struct lk_jinja_value extend(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    const struct lk_jinja_list *more = lk_jinja_elements(heap, lk_jinja_arg(heap, args, 0, NULL));
    size_t n = more->n; /* of a list that may be extended by itself */
    heap->n_change++;
    for (size_t i = 0; i < n; i++) lk_jinja_push(heap, self.list, more->at[i]);
    return lk_jinja_none();
}

static struct lk_jinja_value pop_element(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                         const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = self.list;
    int64_t i = int_arg(heap, args, 0, NULL, -1);
    if (i < 0) i += (int64_t)list->n;
    if (i < 0 || i >= (int64_t)list->n)
        lk_jinja_fail(heap, LK_E_FORMAT, "the list has no element to pop");
    struct lk_jinja_value out = list->at[i];
    heap->n_change++;
    lk_jinja_work(heap, list->n);
    memmove(list->at + i, list->at + i + 1, (list->n - (size_t)i - 1) * sizeof *list->at);
    list->n--;
    return out;
}

static struct lk_jinja_value insert(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    struct lk_jinja_list *list = self.list;
    int64_t i = int_arg(heap, args, 0, NULL, 0), n = (int64_t)list->n;
    heap->n_change++;
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    if (i > n) i = n;
    lk_jinja_push(heap, list, lk_jinja_none());
    lk_jinja_work(heap, list->n);
    memmove(list->at + i + 1, list->at + i, (size_t)(n - i) * sizeof *list->at);
    list->at[i] = lk_jinja_arg(heap, args, 1, NULL);
    return lk_jinja_none();
}

static struct lk_jinja_value index_of(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                      const struct lk_jinja_args *args) {
    struct lk_jinja_value value = lk_jinja_arg(heap, args, 0, NULL);
    lk_jinja_work(heap, self.list->n);
    for (size_t i = 0; i < self.list->n; i++)
        if (lk_jinja_equal(heap, self.list->at[i], value)) return lk_jinja_int((int64_t)i);
    lk_jinja_fail(heap, LK_E_FORMAT, "the list does not have this element");
}

static const struct method list_methods[] = {
    {"append", append}, {"extend", extend},  {"pop", pop_element}, {"insert", insert},
    {"count", count},   {"index", index_of}, {NULL, NULL}};

/* ---- dicts ---- */

static struct lk_jinja_value items(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    (void)args;
    struct lk_jinja_value out = lk_jinja_list(heap, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++) {
        struct lk_jinja_value pair = lk_jinja_list(heap, 2);
        lk_jinja_push(heap, pair.list, self.dict->at[i].key);
        lk_jinja_push(heap, pair.list, self.dict->at[i].value);
        pair.list->is_tuple = true;
        lk_jinja_push(heap, out.list, pair);
    }
    return out;
}

static struct lk_jinja_value keys(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                  const struct lk_jinja_args *args) {
    (void)args;
    struct lk_jinja_value out = lk_jinja_list(heap, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++) lk_jinja_push(heap, out.list, self.dict->at[i].key);
    return out;
}

static struct lk_jinja_value values(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    (void)args;
    struct lk_jinja_value out = lk_jinja_list(heap, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++) lk_jinja_push(heap, out.list, self.dict->at[i].value);
    return out;
}

static struct lk_jinja_value get(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                 const struct lk_jinja_args *args) {
    struct lk_jinja_value key = lk_jinja_arg(heap, args, 0, NULL),
                          out = lk_jinja_get(heap, self.dict, key);
    if (out.kind == LK_JINJA_UNDEFINED && !lk_jinja_contains(heap, self, key)) {
        out = lk_jinja_arg(heap, args, 1, "default");
        if (out.kind == LK_JINJA_UNDEFINED) out = lk_jinja_none();
    }
    return out;
}

static struct lk_jinja_value pop_key(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                     const struct lk_jinja_args *args) {
    struct lk_jinja_dict *dict = self.dict;
    struct lk_jinja_value key = lk_jinja_arg(heap, args, 0, NULL);
    heap->n_change++;
    lk_jinja_work(heap, dict->n);
    for (size_t i = 0; i < dict->n; i++)
        if (lk_jinja_equal(heap, dict->at[i].key, key)) {
            struct lk_jinja_value out = dict->at[i].value;
            memmove(dict->at + i, dict->at + i + 1, (dict->n - i - 1) * sizeof *dict->at);
            dict->n--;
            return out;
        }
    return lk_jinja_arg(heap, args, 1, NULL);
}

static struct lk_jinja_value update(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                    const struct lk_jinja_args *args) {
    struct lk_jinja_value from = lk_jinja_arg(heap, args, 0, NULL);
    heap->n_change++;
    for (size_t i = 0; from.kind == LK_JINJA_DICT && i < from.dict->n; i++)
        lk_jinja_set(heap, self.dict, from.dict->at[i].key, from.dict->at[i].value);
    for (size_t i = 0; args->named && i < args->named->n; i++)
        lk_jinja_set(heap, self.dict, args->named->at[i].key, args->named->at[i].value);
    return lk_jinja_none();
}

static const struct method dict_methods[] = {{"items", items}, {"keys", keys},   {"values", values},
                                             {"get", get},     {"pop", pop_key}, {"update", update},
                                             {NULL, NULL}};

/* ---- loops ---- */

static struct lk_jinja_value cycle(struct lk_jinja_heap *heap, struct lk_jinja_value self,
                                   const struct lk_jinja_args *args) {
    (void)heap;
    return args->n ? args->at[self.loop->index % args->n] : lk_jinja_undefined();
}

static const struct method loop_methods[] = {{"cycle", cycle}, {NULL, NULL}};

/* ---- all ---- */

static const struct method *find_method(struct lk_jinja_value object, struct lk_jinja_text name) {
    const struct method *at = NULL;
    if (object.kind == LK_JINJA_STRING) at = string_methods;
    if (object.kind == LK_JINJA_LIST) at = list_methods;
    if (object.kind == LK_JINJA_DICT && !object.dict->is_namespace) at = dict_methods;
    if (object.kind == LK_JINJA_LOOP) at = loop_methods;
    while (at && at->name && !lk_jinja_is(name, at->name)) at++;
    return at && at->name ? at : NULL;
}

bool lk_jinja_has_method(struct lk_jinja_value object, struct lk_jinja_text name) {
    return find_method(object, name) != NULL;
}

struct lk_jinja_value lk_jinja_call_method(struct lk_jinja_heap *heap,
                                           const struct lk_jinja_method *method,
                                           const struct lk_jinja_args *args) {
    const struct method *found = find_method(method->object, method->name);
    lk_jinja_work(heap, 1);
    return found ? found->fn(heap, method->object, args) : lk_jinja_undefined();
}
