/* Errors, keywords and lines of a grammar under construction. */
#include "grammar/schema_grammar.h"

#include <stdio.h>
#include <string.h>

/* ---- errors: these set the status and return false ---- */

bool lk_schema_fail_unsupported(struct lk_schema_grammar *g, const char *what) {
    g->status =
        lk_fail(g->err, LK_E_UNSUPPORTED,
                "the JSON schema uses '%.60s', which cannot be expressed as a grammar", what);
    return false;
}

bool lk_schema_fail_invalid(struct lk_schema_grammar *g, const char *what) {
    g->status = lk_fail(g->err, LK_E_FORMAT, "the JSON schema is not valid: %.100s", what);
    return false;
}

bool lk_schema_fail_no_memory(struct lk_schema_grammar *g) {
    g->status = lk_fail(g->err, LK_E_NOMEM, "not enough memory for a grammar");
    return false;
}

/* ---- reading keywords ---- */

bool lk_schema_is_in(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

bool lk_schema_check_keywords(struct lk_schema_grammar *g, const json_t *schema,
                              const char *const *known) {
    static const char *const annotations[] = {"title",
                                              "description",
                                              "default",
                                              "examples",
                                              "example",
                                              "$schema",
                                              "$id",
                                              "$comment",
                                              "$defs",
                                              "definitions",
                                              "deprecated",
                                              "readOnly",
                                              "writeOnly",
                                              "strict",
                                              "name",
                                              "discriminator",
                                              "contentMediaType",
                                              "contentEncoding",
                                              NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (!lk_schema_is_in(key, known) && !lk_schema_is_in(key, annotations))
            return lk_schema_fail_unsupported(g, key);
    }
    return true;
}

/* ---- writing rules ---- */

bool lk_schema_add_line(struct lk_schema_grammar *g, int rule, struct lk_buf *body) {
    lk_buf_printf(&g->out, "r%d ::= ", rule);
    lk_buf_append(&g->out, body->at ? body->at : "", body->len);
    lk_buf_append_str(&g->out, "\n");
    bool complete = !body->failed;
    lk_buf_free(body);
    return complete || lk_schema_fail_no_memory(g);
}
