/* Methods of strings, lists and dicts, as Python has them. */
#ifndef LK_TOKEN_JINJA_METHODS_H
#define LK_TOKEN_JINJA_METHODS_H

#include "template/jinja_value.h"

bool lk_jinja_has_method(struct lk_jinja_value object, struct lk_jinja_text name);

struct lk_jinja_value lk_jinja_call_method(struct lk_jinja_heap *heap,
                                           const struct lk_jinja_method *method,
                                           const struct lk_jinja_args *args);

#endif
