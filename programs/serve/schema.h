/* JSON schemas as grammars (GBNF), which the sampler holds the answer to.
 *
 * The usual subset: type, properties, required, additionalProperties, items, minItems, maxItems, enum,
 * const, minLength, maxLength, anyOf, oneOf, allOf of one, $ref within the document. Annotations are
 * passed over. Any other keyword would silently not hold, and is refused by its name. */
#ifndef LK_SERVE_SCHEMA_H
#define LK_SERVE_SCHEMA_H

#include "serve/fault.h"

/* What a schema is wanted for. */
struct lk_schema_use {
    const char *field; /* of the request, for faults; static */
    const char *before,
        *after; /* around the JSON, as GBNF writes them between quotes; NULL: nothing */
    /* [n_document] schemas within the schema that are documents of their own to $ref */
    const json_t *const *document;
    size_t n_document;
};

/* The grammar's text, owned: free(). Objects get the listed properties in the schema's order, and others
 * only where additionalProperties says of what kind. NULL after a fault. */
char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_fault *fault);

#endif
