/* Fields of a request's JSON. A field that is absent or null leaves the output as it is; one of another
 * kind or out of range is a fault that names it. */
#ifndef LK_SERVE_FIELD_H
#define LK_SERVE_FIELD_H

#include "serve/fault.h"

bool lk_field_bool(const json_t *body, const char *name, bool *out, struct lk_fault *fault);
bool lk_field_int(const json_t *body, const char *name, int64_t least, int64_t most, int64_t *out,
                  struct lk_fault *fault);
bool lk_field_real(const json_t *body, const char *name, double least, double most, double *out,
                   struct lk_fault *fault);

/* Borrowed from the body. */
bool lk_field_text(const json_t *body, const char *name, const char **out, struct lk_fault *fault);

/* The field is there and says something: not null, not empty. */
bool lk_field_given(const json_t *body, const char *name);

#endif
