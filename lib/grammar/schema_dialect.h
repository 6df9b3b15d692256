/* Older drafts and other dialects of JSON Schema. */
#ifndef LK_TOKEN_SCHEMA_DIALECT_H
#define LK_TOKEN_SCHEMA_DIALECT_H

#include "grammar/schema_grammar.h"

/* Write a schema, and all in it, as the newest draft has it. If there is not enough memory, parts
 * stay as they are. */
void lk_schema_rewrite(json_t *schema);

#endif
