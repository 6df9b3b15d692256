/* A template engine for chat templates: the part of Jinja 2 that they use.
 *
 * It has no loops, memory or nesting without a bound, and it knows for each character of its output
 * whether the template wrote it (template/jinja_value.h). */
#ifndef LK_TOKEN_JINJA_H
#define LK_TOKEN_JINJA_H

#include "template/jinja_value.h"

enum { LK_JINJA_MAX_TEMPLATE = 1 << 20 }; /* bytes */

struct lk_jinja;

/* Parse a template. *out is owned: lk_jinja_free. LK_E_FORMAT: a syntax error, with its line.
 * LK_E_UNSUPPORTED: too large. LK_E_NOMEM. */
lk_status lk_jinja_parse(struct lk_jinja **out, const char *text, size_t len, lk_err *err);
void lk_jinja_free(struct lk_jinja *jinja);

/* Upper bound of the memory of a rendering with n_input bytes of texts in its variables. */
uint64_t lk_jinja_max_bytes(uint64_t n_input);

/* Sets the variables of a rendering. It may fail with lk_jinja_fail. */
typedef void lk_jinja_setup(struct lk_jinja_heap *heap, struct lk_jinja_dict *variables,
                            void *user);

/* Render a template. *out is owned: free(). Any number of threads may render the same template.
 * LK_E_FORMAT: the template failed or raised an exception; the message has its line.
 * LK_E_UNSUPPORTED: it uses a feature that is not here, or it exceeds a limit. LK_E_NOMEM. */
lk_status lk_jinja_render(const struct lk_jinja *jinja, uint64_t n_input, lk_jinja_setup *setup,
                          void *user, lk_jinja_char **out, size_t *n_out, lk_err *err);

#endif
