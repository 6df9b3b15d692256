/* Rewrites schemas of older drafts, of OpenAPI and of careless programs as the newest draft has
 * them, in place. What a schema accepts stays the same, or becomes less where the comment says so.
 *
 *     "type": "STRING", "int", "dict", null     a type of JSON Schema, or none
 *     "nullable": true                           another type "null"
 *     "exclusiveMinimum": true                   the minimum, exclusive (drafts 3 and 4)
 *     "items": [A, B], "additionalItems": C      "prefixItems": [A, B], "items": C
 *     "required": true in a property             nothing (draft 3)
 *     "required" names without properties        properties with any value
 *     "propertyNames": {"enum": [A, B]}          the properties A and B, and no others
 *     "unevaluatedProperties": false             "additionalProperties": false, next to no choice
 *     null, or a value that restricts nothing     the keyword is dropped */
#include "grammar/schema_dialect.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_in(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

/* ---- types ---- */

/* The type that a name means; NULL: the name is not known. "": any. */
static const char *meant_type(const char *name) {
    static const char *const names[][2] = {
        {"string", "string"},   {"integer", "integer"}, {"number", "number"},
        {"boolean", "boolean"}, {"object", "object"},   {"array", "array"},
        {"null", "null"},       {"str", "string"},      {"int", "integer"},
        {"float", "number"},    {"double", "number"},   {"bool", "boolean"},
        {"dict", "object"},     {"map", "object"},      {"list", "array"},
        {"tuple", "array"},     {"none", "null"},       {"any", ""}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(name, names[i][0]) == 0) return names[i][1];
    return NULL;
}

static void fix_type(json_t *schema) {
    json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    const char *meant = json_is_string(type) ? meant_type(json_string_value(type)) : NULL;
    if (meant && !*meant)
        json_object_del(schema, "type");
    else if (meant)
        json_object_set_new(schema, "type", json_string(meant));
    json_array_foreach(type, i, one) {
        meant = json_is_string(one) ? meant_type(json_string_value(one)) : NULL;
        if (meant && *meant) json_array_set_new(type, i, json_string(meant));
    }
}

/* OpenAPI's "nullable". */
static void fix_nullable(json_t *schema) {
    static const char *const outer[] = {"$defs", "definitions", "components", "$id", NULL};
    json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    bool is_nullable = json_is_true(json_object_get(schema, "nullable"));
    json_object_del(schema, "nullable");
    if (!is_nullable) return;
    if (json_is_array(values)) json_array_append_new(values, json_null());
    if (json_is_string(type)) {
        json_object_set_new(schema, "type", json_pack("[O, s]", type, "null"));
    } else if (!type && !values && json_object_size(schema) > 0) {
        json_t *copy = json_copy(schema);
        json_object_clear(schema);
        for (const char *const *key = outer; *key; key++) { /* a $ref finds them there */
            json_t *value = json_object_get(copy, *key);
            if (value) json_object_set(schema, *key, value);
            json_object_del(copy, *key);
        }
        json_object_set_new(schema, "anyOf", json_pack("[o, {s:s}]", copy, "type", "null"));
    }
}

/* ---- bounds ---- */

static void fix_exclusive(json_t *schema, const char *exclusive, const char *bound) {
    json_t *given = json_object_get(schema, exclusive), *limit = json_object_get(schema, bound);
    if (!json_is_boolean(given)) return;
    if (json_is_true(given) && limit) {
        json_object_set(schema, exclusive, limit);
        json_object_del(schema, bound);
    } else {
        json_object_del(schema, exclusive);
    }
}

/* A large maximum becomes less: so many cannot be counted. */
static void fix_maximum(json_t *schema, const char *key) {
    const json_t *given = json_object_get(schema, key);
    if (json_is_number(given) && json_number_value(given) > LK_SCHEMA_MAX_REPEAT)
        json_object_set_new(schema, key, json_integer(LK_SCHEMA_MAX_REPEAT));
}

/* Keywords that restrict nothing with this value. */
static void drop_neutral(json_t *schema) {
    static const char *const keys[] = {"type",
                                       "properties",
                                       "required",
                                       "items",
                                       "additionalProperties",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "minimum",
                                       "maximum",
                                       "minItems",
                                       "maxItems",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "anyOf",
                                       "oneOf",
                                       "allOf",
                                       "enum",
                                       "uniqueItems",
                                       "minProperties",
                                       "maxProperties",
                                       "propertyNames",
                                       "prefixItems",
                                       NULL};
    size_t n_required = json_array_size(json_object_get(schema, "required"));
    const json_t *least = json_object_get(schema, "minProperties");
    for (const char *const *key = keys; *key; key++)
        if (json_is_null(json_object_get(schema, *key))) json_object_del(schema, *key);
    if (json_is_false(json_object_get(schema, "uniqueItems")))
        json_object_del(schema, "uniqueItems");
    if (json_is_integer(least) && json_integer_value(least) <= (json_int_t)n_required)
        json_object_del(schema, "minProperties");
    const json_t *properties = json_object_get(schema, "properties");
    if (json_is_array(properties) && json_array_size(properties) == 0) /* PHP's empty object */
        json_object_set_new(schema, "properties", json_object());
    if (!json_object_get(schema, "if")) {
        json_object_del(schema, "then");
        json_object_del(schema, "else");
    }
}

/* ---- arrays ---- */

static void fix_items(json_t *schema) {
    json_t *items = json_object_get(schema, "items"),
           *more = json_object_get(schema, "additionalItems");
    if (json_is_array(items)) {
        json_object_set(schema, "prefixItems", items);
        if (more)
            json_object_set(schema, "items", more);
        else
            json_object_del(schema, "items");
    }
    json_object_del(schema, "additionalItems");
    json_t *rest = json_object_get(schema, "unevaluatedItems");
    if (json_is_false(rest) && json_object_get(schema, "prefixItems") &&
        !json_object_get(schema, "items"))
        json_object_set_new(schema, "items", json_false());
    if (json_is_boolean(rest)) json_object_del(schema, "unevaluatedItems");
}

/* ---- objects ---- */

static json_t *own_properties(json_t *schema) {
    json_t *properties = json_object_get(schema, "properties");
    if (!properties) json_object_set_new(schema, "properties", json_object());
    return json_object_get(schema, "properties");
}

static void fix_names(json_t *schema) {
    json_t *names = json_object_get(json_object_get(schema, "propertyNames"), "enum"), *name,
           *value = json_object_get(schema, "additionalProperties");
    size_t i;
    if (!json_is_array(names) || json_object_get(schema, "properties") || json_is_false(value))
        return;
    json_t *any = value ? json_incref(value) : json_true();
    json_array_foreach(names, i, name) if (json_is_string(name))
        json_object_set(own_properties(schema), json_string_value(name), any);
    json_decref(any);
    json_object_set_new(schema, "additionalProperties", json_false());
    json_object_del(schema, "propertyNames");
}

/* Every name once, and with a property. */
static void fix_required(json_t *schema) {
    json_t *required = json_object_get(schema, "required"), *name, *once, *seen;
    const json_t *others = json_object_get(schema, "additionalProperties");
    size_t i;
    if (json_is_boolean(required)) json_object_del(schema, "required");
    if (!json_is_array(required)) return;
    once = json_array();
    seen = json_object();
    json_array_foreach(required, i, name) {
        const char *text = json_string_value(name);
        if (text && json_object_get(seen, text)) continue;
        if (text) json_object_set_new(seen, text, json_true());
        json_array_append(once, name);
        bool lacks = text && json_is_object(own_properties(schema)) &&
                     !json_object_get(own_properties(schema), text);
        if (lacks && (!others || json_is_true(others)))
            json_object_set_new(own_properties(schema), text, json_true());
    }
    json_decref(seen);
    json_object_set_new(schema, "required", once);
}

static void fix_unevaluated(json_t *schema) {
    static const char *const others[] = {
        "additionalProperties", "anyOf", "oneOf", "allOf", "$ref", "if", "dependentSchemas", NULL};
    const json_t *given = json_object_get(schema, "unevaluatedProperties");
    bool has_other = false;
    for (const char *const *key = others; *key; key++)
        has_other |= json_object_get(schema, *key) != NULL;
    if (json_is_false(given) && !has_other)
        json_object_set_new(schema, "additionalProperties", json_false());
    if (json_is_true(given) || (json_is_false(given) && !has_other))
        json_object_del(schema, "unevaluatedProperties");
}

/* ---- all ---- */

static void rewrite(json_t *schema, int depth) {
    static const char *const single[] = {
        "items",    "additionalProperties", "additionalItems", "not", "if", "then", "else",
        "contains", "propertyNames",        "components",      NULL};
    static const char *const several[] = {"anyOf",
                                          "oneOf",
                                          "allOf",
                                          "prefixItems",
                                          "items",
                                          "properties",
                                          "$defs",
                                          "definitions",
                                          "schemas",
                                          "patternProperties",
                                          "dependentSchemas",
                                          NULL};
    const char *key, *name;
    json_t *value, *one;
    size_t i;
    if (!json_is_object(schema) || depth > LK_SCHEMA_MAX_DEPTH) return;
    json_object_foreach(schema, key, value) {
        if (is_in(key, single)) rewrite(value, depth + 1);
        if (!is_in(key, several)) continue;
        json_array_foreach(value, i, one) rewrite(one, depth + 1);
        if (strcmp(key, "items") == 0) continue;
        json_object_foreach(value, name, one) rewrite(one, depth + 1);
    }
    drop_neutral(schema);
    fix_type(schema);
    fix_exclusive(schema, "exclusiveMinimum", "minimum");
    fix_exclusive(schema, "exclusiveMaximum", "maximum");
    fix_maximum(schema, "maxLength");
    fix_maximum(schema, "maxItems");
    fix_items(schema);
    fix_names(schema);
    fix_required(schema);
    fix_unevaluated(schema);
    fix_nullable(schema);
}

void lk_schema_rewrite(json_t *schema) { rewrite(schema, 0); }
