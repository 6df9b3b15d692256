/* JSON schemas of requests as grammars that constrain the response. */
#ifndef LK_SERVE_SCHEMA_H
#define LK_SERVE_SCHEMA_H

#include "serve/api_error.h"

struct lk_schema_use {
    const char *field; /* of the request, for error messages; static */
    /* Text around the JSON, escaped as in a GBNF literal; NULL: none. */
    const char *before, *after;
};

/* A GBNF grammar for the texts that match the schema (lk_schema_to_grammar), owned: free(). NULL
 * after an error. */
char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_api_error *fault);

#endif
