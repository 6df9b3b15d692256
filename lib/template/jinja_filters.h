/* Filters (`x | name`), tests (`x is name`) and global functions. */
#ifndef LK_TOKEN_JINJA_FILTERS_H
#define LK_TOKEN_JINJA_FILTERS_H

#include "template/jinja_value.h"

/* args->at[0] is what is filtered. */
struct lk_jinja_value lk_jinja_filter(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                                      const struct lk_jinja_args *args);

/* The name of a global function, static; NULL if there is none. */
const char *lk_jinja_function_name(struct lk_jinja_text name);
struct lk_jinja_value lk_jinja_call_function(struct lk_jinja_heap *heap, const char *name,
                                             const struct lk_jinja_args *args);

/* args->at[0] is what is tested. */
bool lk_jinja_test(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                   const struct lk_jinja_args *args);

#endif
