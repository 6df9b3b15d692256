/* Expressions of the template engine. */
#ifndef LK_TOKEN_JINJA_EVAL_H
#define LK_TOKEN_JINJA_EVAL_H

#include "template/jinja_parse.h"

struct lk_jinja_scope {
    struct lk_jinja_scope *outer;
    struct lk_jinja_dict *variables;
};

/* A rendering. */
struct lk_jinja_run {
    struct lk_jinja_heap *heap;
    struct lk_jinja_scope *scope;
    lk_jinja_char *out; /* [n_out] from the C library */
    size_t n_out, cap_out;
    struct lk_jinja_text loop_name; /* "loop" */
    struct lk_jinja_value captured; /* of the block whose filters are evaluated */
    struct lk_jinja_value (*call_macro)(struct lk_jinja_run *run,
                                        const struct lk_jinja_macro *macro,
                                        const struct lk_jinja_args *args);
};

/* A scope without variables, in the heap: a macro may keep it. */
struct lk_jinja_scope *lk_jinja_scope_new(struct lk_jinja_run *run, struct lk_jinja_scope *outer);

struct lk_jinja_value lk_jinja_eval(struct lk_jinja_run *run, const struct lk_jinja_node *node);

#endif
