/* Tests (`x is name`). */
#ifndef LK_TOKEN_JINJA_TESTS_H
#define LK_TOKEN_JINJA_TESTS_H

#include "template/jinja_value.h"

/* args->at[0] is what is tested. */
bool lk_jinja_test(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                   const struct lk_jinja_args *args);

#endif
