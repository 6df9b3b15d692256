/* A grammar that is made from a JSON schema: what the files of the conversion share. */
#ifndef LK_TOKEN_SCHEMA_GRAMMAR_H
#define LK_TOKEN_SCHEMA_GRAMMAR_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

enum {
    LK_SCHEMA_MAX_GRAMMAR = 1 << 17, /* bytes of grammar; the limit of lk_sampler_new */
    LK_SCHEMA_MAX_DEPTH = 64,
    LK_SCHEMA_MAX_RULES = 1024,     /* rules that belong to a schema */
    LK_SCHEMA_MAX_REPEAT = 1 << 16, /* of minItems, maxItems, minLength, maxLength */
};

/* A grammar under construction. Rules are named r0, r1, ... A rule gets its number first, and its
 * text is appended as one line when it is complete, so that rules can refer to each other. */
struct lk_schema_grammar {
    struct lk_buf out;
    const json_t *base; /* the schema that "#" of a $ref refers to */
    int n_rule, depth;
    struct lk_made_rule {
        const json_t *schema;
        int rule;
        bool is_used;            /* a $ref has returned the rule's number */
        uint64_t hash;           /* of the rule's text in `out`, when it is complete */
        size_t at, len;          /* len 0: not complete */
    } made[LK_SCHEMA_MAX_RULES]; /* one rule per schema, so that a schema may refer to itself */
    int n_made;
    json_t *merged; /* schemas that were made of others: they live as long as the grammar */
    /* The number of a rule that accepts what `schema` accepts, -1 after an error. */
    int (*add_rule)(struct lk_schema_grammar *g, const json_t *schema);
    lk_status status; /* of the first error */
    lk_err *err;
};

/* Errors: these set the status and return false. */
bool lk_schema_fail_unsupported(struct lk_schema_grammar *g, const char *what);
bool lk_schema_fail_invalid(struct lk_schema_grammar *g, const char *what);
bool lk_schema_fail_no_memory(struct lk_schema_grammar *g);

/* Is the word in a list that ends with NULL? */
bool lk_schema_is_in(const char *word, const char *const *list);

/* Is it a keyword that does not restrict the value, such as "title", or that JSON Schema does not
 * have? */
bool lk_schema_is_annotation(const char *key);

/* Reject keywords other than `known` and annotations, which do not restrict the value. */
bool lk_schema_check_keywords(struct lk_schema_grammar *g, const json_t *schema,
                              const char *const *known);

/* Append the line "rN ::= body". Frees the body. */
bool lk_schema_add_line(struct lk_schema_grammar *g, int rule, struct lk_buf *body);

/* ---- JSON values in grammars ---- */

/* A JSON value as text, owned: free(). Real numbers get the fewest digits that identify them. NULL
 * if there is not enough memory. */
char *lk_json_text(const json_t *value);

/* Append a text as a quoted GBNF literal. */
void lk_gbnf_literal(struct lk_buf *out, const char *text);

/* The strings of a list as keys of an object, for looking them up; owned: json_decref. NULL if
 * there is not enough memory. */
json_t *lk_json_keys(const json_t *list);

#endif
