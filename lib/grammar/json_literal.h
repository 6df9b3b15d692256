/* JSON values in grammars. */
#ifndef LK_TOKEN_JSON_LITERAL_H
#define LK_TOKEN_JSON_LITERAL_H

#include "base/buf.h"

#include <jansson.h>

/* A JSON value as text, owned: free(). Real numbers get the fewest digits that identify them. NULL
 * if there is not enough memory. */
char *lk_json_text(const json_t *value);

/* Append a text as a quoted GBNF literal. */
void lk_gbnf_literal(struct lk_buf *out, const char *text);

/* The strings of a list as keys of an object, for looking them up; owned: json_decref. NULL if
 * there is not enough memory. */
json_t *lk_json_keys(const json_t *list);

#endif
