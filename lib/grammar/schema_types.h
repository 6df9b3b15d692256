/* The types of JSON Schema with their keywords. */
#ifndef LK_TOKEN_SCHEMA_TYPES_H
#define LK_TOKEN_SCHEMA_TYPES_H

#include "grammar/schema_grammar.h"

/* Append what a schema of one type accepts. False: the status is set. */
bool lk_schema_write_type(struct lk_schema_grammar *g, const json_t *schema, const char *type,
                          struct lk_buf *body);

/* The regular expression (pattern.h) of a format ("date-time", "uuid"). Static. NULL if the format
 * does not restrict strings. */
const char *lk_string_format_pattern(const char *format);

#endif
