/* Operations on texts that filters and methods share. All of them copy whole characters, so every
 * character keeps its origin. */
#ifndef LK_TOKEN_JINJA_TEXT_OPS_H
#define LK_TOKEN_JINJA_TEXT_OPS_H

#include "template/jinja_value.h"

/* Words start after any character that is not a letter (str.title), or only after white space, "-"
 * and opening brackets (the filter). */
enum lk_jinja_case {
    LK_JINJA_UPPER,
    LK_JINJA_LOWER,
    LK_JINJA_TITLE,
    LK_JINJA_TITLE_FILTER,
    LK_JINJA_CAPITAL
};

/* Without the characters of `set`, or white space if `set` is NULL, at its ends. */
struct lk_jinja_text lk_jinja_strip(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                    const struct lk_jinja_text *set, bool left, bool right);

struct lk_jinja_text lk_jinja_replace(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                      struct lk_jinja_text from, struct lk_jinja_text to,
                                      int64_t max);

/* ASCII letters only. */
struct lk_jinja_text lk_jinja_to_case(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                      enum lk_jinja_case which);

/* Indent all lines but empty ones and, if !first, the first. */
struct lk_jinja_text lk_jinja_indent(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                     int64_t width, bool first);

struct lk_jinja_text lk_jinja_join_list(struct lk_jinja_heap *heap,
                                        const struct lk_jinja_list *list,
                                        struct lk_jinja_text between);

/* Split at `at`, or at white space if `at` is NULL, at most `max` times (-1: any number). */
struct lk_jinja_value lk_jinja_split(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                     const struct lk_jinja_text *at, int64_t max, bool from_right);
struct lk_jinja_value lk_jinja_split_lines(struct lk_jinja_heap *heap, struct lk_jinja_text text);

/* Python's "%s %d" % values, and "{} {name}".format(...). */
struct lk_jinja_text lk_jinja_percent(struct lk_jinja_heap *heap, struct lk_jinja_text format,
                                      const struct lk_jinja_args *args);
struct lk_jinja_text lk_jinja_format(struct lk_jinja_heap *heap, struct lk_jinja_text format,
                                     const struct lk_jinja_args *args);

/* Code points, and the byte where the i-th one starts. */
size_t lk_jinja_n_code_point(struct lk_jinja_heap *heap, struct lk_jinja_text text);
size_t lk_jinja_code_point_at(struct lk_jinja_heap *heap, struct lk_jinja_text text, size_t i);

#endif
