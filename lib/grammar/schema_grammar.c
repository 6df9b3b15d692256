/* Errors, keywords, JSON values and lines of a grammar under construction. */
#include "grammar/schema_grammar.h"

#include <stdio.h>
#include <stdlib.h>
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

bool lk_schema_is_annotation(const char *key) {
    static const char *const restricting[] = {"type",
                                              "enum",
                                              "const",
                                              "anyOf",
                                              "oneOf",
                                              "allOf",
                                              "not",
                                              "if",
                                              "then",
                                              "else",
                                              "properties",
                                              "required",
                                              "items",
                                              "prefixItems",
                                              "additionalItems",
                                              "contains",
                                              "minContains",
                                              "maxContains",
                                              "minItems",
                                              "maxItems",
                                              "uniqueItems",
                                              "minimum",
                                              "maximum",
                                              "exclusiveMinimum",
                                              "multipleOf",
                                              "divisibleBy",
                                              "exclusiveMaximum",
                                              "minLength",
                                              "maxLength",
                                              "pattern",
                                              "format",
                                              "minProperties",
                                              "maxProperties",
                                              "propertyNames",
                                              "dependencies",
                                              "dependentRequired",
                                              "disallow",
                                              "extends",
                                              "dependentSchemas",
                                              "$ref",
                                              "$dynamicRef",
                                              "$recursiveRef",
                                              "patternProperties",
                                              "additionalProperties",
                                              "unevaluatedItems",
                                              "unevaluatedProperties",
                                              NULL};
    return !lk_schema_is_in(key, restricting);
}

bool lk_schema_check_keywords(struct lk_schema_grammar *g, const json_t *schema,
                              const char *const *known) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (!lk_schema_is_in(key, known) && !lk_schema_is_annotation(key))
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

/* ---- JSON values in grammars ---- */

char *lk_json_text(const json_t *value) {
    char *text = NULL;
    for (size_t digits = 15; digits <= 17; digits++) {
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(digits));
        json_t *parsed = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = json_equal(parsed, value);
        json_decref(parsed);
        if (same) break;
    }
    return text;
}

void lk_gbnf_literal(struct lk_buf *out, const char *text) {
    lk_buf_append_str(out, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') lk_buf_append_str(out, "\\");
        lk_buf_append(out, c, 1);
    }
    lk_buf_append_str(out, "\"");
}

json_t *lk_json_keys(const json_t *list) {
    json_t *keys = json_object();
    for (size_t i = 0; keys && i < json_array_size(list); i++) {
        if (json_object_set_new(keys, json_string_value(json_array_get(list, i)), json_true())) {
            json_decref(keys);
            return NULL;
        }
    }
    return keys;
}
