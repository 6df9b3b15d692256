/* Texts of values: as Python's str() and json.dumps() write them. */
#ifndef LK_TOKEN_JINJA_PRINT_H
#define LK_TOKEN_JINJA_PRINT_H

#include "template/jinja_value.h"

/* A text that grows. */
struct lk_jinja_builder {
    struct lk_jinja_heap *heap;
    lk_jinja_char *at; /* [len] */
    size_t len, cap;
    size_t n_uncounted; /* characters added since the last step was counted */
};

void lk_jinja_add(struct lk_jinja_builder *out, struct lk_jinja_text text);
void lk_jinja_add_bytes(struct lk_jinja_builder *out, const char *bytes, int origin);
struct lk_jinja_text lk_jinja_built(const struct lk_jinja_builder *out);

/* What `{{ value }}` writes. A string is returned as it is. Other values have no characters with
 * the template's origin but those of strings in them. */
struct lk_jinja_text lk_jinja_str(struct lk_jinja_heap *heap, struct lk_jinja_value value);

struct lk_jinja_json_style {
    int indent; /* -1: on one line */
    bool ascii, sort;
    bool has_separators; /* false: the defaults */
    struct lk_jinja_text comma, colon;
};

/* The value as JSON. What is not a character of a string has the origin LK_FROM_DATA. */
struct lk_jinja_text lk_jinja_json(struct lk_jinja_heap *heap, struct lk_jinja_value value,
                                   const struct lk_jinja_json_style *style);

/* Sort elements, without changing the order of equal ones. `keys`[n] decide. */
void lk_jinja_sort(struct lk_jinja_heap *heap, struct lk_jinja_value *keys,
                   struct lk_jinja_value *values, size_t n, bool reverse);

#endif
