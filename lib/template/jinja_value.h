/* Values of the template engine.
 *
 * A text is an array of characters of 16 bits: a byte of UTF-8, and above it where the byte comes
 * from:
 *
 *     15       8 7        0
 *     | origin  |  byte   |
 *
 * Every operation copies whole characters, so the origin of each byte of the output is known,
 * whatever a template does to contents. Only bytes with the origin 0, the template's own, can
 * become control tokens. Comparisons see the bytes alone. */
#ifndef LK_TOKEN_JINJA_VALUE_H
#define LK_TOKEN_JINJA_VALUE_H

#include "template/jinja_heap.h"

#include <jansson.h>
#include <stdbool.h>

typedef uint16_t lk_jinja_char;

enum lk_jinja_origin { LK_FROM_TEMPLATE = 0, LK_FROM_DATA = 1 }; /* larger numbers: see callers */

/* Characters are never changed after they were written; texts share them. */
struct lk_jinja_text {
    const lk_jinja_char *at;
    size_t len;
};

enum lk_jinja_kind {
    LK_JINJA_UNDEFINED,
    LK_JINJA_NONE,
    LK_JINJA_BOOL,
    LK_JINJA_INT,
    LK_JINJA_FLOAT,
    LK_JINJA_STRING,
    LK_JINJA_LIST,
    LK_JINJA_DICT,
    LK_JINJA_LOOP,     /* the variable `loop` */
    LK_JINJA_METHOD,   /* of an object */
    LK_JINJA_FUNCTION, /* a global one */
    LK_JINJA_MACRO,
};

struct lk_jinja_value {
    enum lk_jinja_kind kind;
    union {
        bool yes;
        int64_t integer;
        double real;
        struct lk_jinja_text text;
        struct lk_jinja_list *list;
        struct lk_jinja_dict *dict;
        struct lk_jinja_loop *loop;
        struct lk_jinja_method *method;
        const char *function; /* its name, static */
        const struct lk_jinja_macro *macro;
    };
};

struct lk_jinja_list {
    struct lk_jinja_value *at; /* [n] */
    size_t n, cap;
    bool is_tuple;
};

struct lk_jinja_item {
    struct lk_jinja_value key, value;
};

struct lk_jinja_dict {
    struct lk_jinja_item *at; /* [n] in the order of insertion */
    size_t n, cap;
    bool is_namespace;
};

struct lk_jinja_loop {
    struct lk_jinja_list list; /* as it was when the loop began */
    size_t index;
};

struct lk_jinja_method {
    struct lk_jinja_value object;
    struct lk_jinja_text name;
};

struct lk_jinja_macro {
    const struct lk_jinja_node *node;
    struct lk_jinja_scope *scope; /* of its definition: what its body sees */
};

/* Arguments of a call: [n] by position, and by name. */
struct lk_jinja_args {
    struct lk_jinja_value *at;
    size_t n;
    const struct lk_jinja_dict *named;
};

/* ---- making ---- */

struct lk_jinja_value lk_jinja_bool(bool yes);
struct lk_jinja_value lk_jinja_int(int64_t integer);
struct lk_jinja_value lk_jinja_none(void);
struct lk_jinja_value lk_jinja_undefined(void);
struct lk_jinja_value lk_jinja_string(struct lk_jinja_text text);

/* Text of bytes, with one origin. */
struct lk_jinja_text lk_jinja_text_of(struct lk_jinja_heap *heap, const char *bytes, size_t len,
                                      int origin);
struct lk_jinja_text lk_jinja_slice(struct lk_jinja_text text, size_t from, size_t to);

/* The two texts after each other. Takes time in proportion to `b` if `a` is the newest text. */
struct lk_jinja_text lk_jinja_concat(struct lk_jinja_heap *heap, struct lk_jinja_text a,
                                     struct lk_jinja_text b);

struct lk_jinja_value lk_jinja_list(struct lk_jinja_heap *heap, size_t cap);
void lk_jinja_push(struct lk_jinja_heap *heap, struct lk_jinja_list *list,
                   struct lk_jinja_value value);
struct lk_jinja_value lk_jinja_dict(struct lk_jinja_heap *heap, size_t cap);
void lk_jinja_set(struct lk_jinja_heap *heap, struct lk_jinja_dict *dict, struct lk_jinja_value key,
                  struct lk_jinja_value value);

/* The value of a JSON value; all of its strings have this origin. */
struct lk_jinja_value lk_jinja_from_json(struct lk_jinja_heap *heap, const json_t *json,
                                         int origin);

/* ---- asking ---- */

static inline char lk_jinja_byte(struct lk_jinja_text text, size_t i) {
    return (char)(text.at[i] & 0xFF);
}

bool lk_jinja_is(struct lk_jinja_text text, const char *word);
bool lk_jinja_is_space(lk_jinja_char c);

/* The place of `part` in text[from..), or -1. */
ptrdiff_t lk_jinja_find(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                        struct lk_jinja_text part, size_t from);

bool lk_jinja_truth(struct lk_jinja_value value);
bool lk_jinja_is_number(struct lk_jinja_value value); /* also booleans, as in Python */
double lk_jinja_real(struct lk_jinja_value value);
bool lk_jinja_equal(struct lk_jinja_heap *heap, struct lk_jinja_value a, struct lk_jinja_value b);

/* -1, 0 or 1. Fails for values that have no order. */
int lk_jinja_compare(struct lk_jinja_heap *heap, struct lk_jinja_value a, struct lk_jinja_value b);

/* `part` in `whole`: a part of a string, an element of a list, a key of a dict. */
bool lk_jinja_contains(struct lk_jinja_heap *heap, struct lk_jinja_value whole,
                       struct lk_jinja_value part);

/* The value of a key; undefined if there is none. */
struct lk_jinja_value lk_jinja_get(struct lk_jinja_heap *heap, const struct lk_jinja_dict *dict,
                                   struct lk_jinja_value key);
struct lk_jinja_value lk_jinja_get_name(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_dict *dict, const char *name);

/* An argument by position or, if it has a name, by name; undefined if it is not given. */
struct lk_jinja_value lk_jinja_arg(struct lk_jinja_heap *heap, const struct lk_jinja_args *args,
                                   size_t i, const char *name);

const char *lk_jinja_kind_name(struct lk_jinja_value value);

/* What a for loop goes through: elements, keys or characters. */
struct lk_jinja_list *lk_jinja_elements(struct lk_jinja_heap *heap, struct lk_jinja_value value);

#endif
