/* The types of JSON Schema with their keywords, as parts of a grammar. */
#include "grammar/schema_types.h"

#include "grammar/number_range.h"
#include "grammar/pattern.h"
#include "grammar/schema_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The formats of JSON Schema as regular expressions. */

#define YEAR_MONTH_DAY                                                                             \
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
    "02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|"                       \
    "([2468][048]|[13579][26])00)-02-29)"
#define TIME_OF_DAY "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define ZONE "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HEX4 "[0-9A-Fa-f]{1,4}"

const char *lk_string_format_pattern(const char *format) {
    /* Fewer texts than the standards allow (RFC 3339, 4122, 5322, 1123, 3986, ISO 8601), and none
     * that they do not allow. */
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" YEAR_MONTH_DAY "$"},
        {"time", "^" TIME_OF_DAY ZONE "$"},
        {"date-time", "^" YEAR_MONTH_DAY "T" TIME_OF_DAY ZONE "$"},
        {"duration", "^P([0-9]{1,6}W|[0-9]{1,6}D(T[0-9]{1,6}[HMS])?|"
                     "T([0-9]{1,6}H)?[0-9]{1,6}M([0-9]{1,6}S)?|T[0-9]{1,6}[HS])$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"email",
         "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,31})?@(" LABEL "\\.){1,3}[A-Za-z]{2,20}$"},
        {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
        {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
        {"ipv6", "^(" HEX4 "(:" HEX4 "){7}|::1|::|" HEX4 "(:" HEX4 "){0,5}::(" HEX4 ")?)$"},
        {"uri", "^[a-z][a-z0-9+.-]{1,15}://" LABEL "(\\." LABEL "){0,3}(:[1-9][0-9]{0,3})?"
                "(/[A-Za-z0-9_.~!$&'()*+,;=:@-]{0,200}){0,16}"
                "(\\?[A-Za-z0-9_.~!$&'()*+,;=:@/?-]{0,500})?(#[A-Za-z0-9_.~-]{0,100})?$"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(format, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

/* Read the bounds of a length. *max is -1 if there is none. */
static bool read_bounds(struct lk_schema_grammar *g, const json_t *schema, const char *min_key,
                        const char *max_key, int *min, int *max) {
    const char *const key[] = {min_key, max_key};
    int *const out[] = {min, max};
    *min = 0;
    *max = -1;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(schema, key[i]);
        if (!value) continue;
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > LK_SCHEMA_MAX_REPEAT) {
            g->status =
                lk_fail(g->err,
                        json_is_integer(value) && json_integer_value(value) > LK_SCHEMA_MAX_REPEAT
                            ? LK_E_UNSUPPORTED
                            : LK_E_FORMAT,
                        "the JSON schema's '%s' must be an integer from 0 to %d", key[i],
                        LK_SCHEMA_MAX_REPEAT);
            return false;
        }
        *out[i] = (int)json_integer_value(value);
    }
    if (*max >= 0 && *max < *min) {
        char what[64];
        snprintf(what, sizeof what, "%s is less than %s", max_key, min_key);
        return lk_schema_fail_invalid(g, what);
    }
    return true;
}

/* `item`, repeated min to max times. max < 0: no limit. */
static void add_repeated(struct lk_buf *out, const char *item, int min, int max) {
    if (max == 0) return;
    lk_buf_append_str(out, item);
    if (max > 0)
        lk_buf_printf(out, "{%d,%d}", min, max);
    else if (min > 0)
        lk_buf_printf(out, "{%d,}", min);
    else
        lk_buf_append_str(out, "*");
}

/* A failure of a part that was converted elsewhere: "KEYWORD: reason". */
static bool fail_part(struct lk_schema_grammar *g, const char *keyword, lk_status status,
                      const lk_err *reason) {
    if (status == LK_E_NOMEM) return lk_schema_fail_no_memory(g);
    g->status = lk_fail(g->err, status, "the JSON schema's '%s' cannot be used: %.300s", keyword,
                        reason->msg);
    return false;
}

/* A format that restricts nothing here is an annotation, as the standard has it. */
static bool write_string(struct lk_schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type",    "minLength", "maxLength",
                                        "pattern", "format",    NULL};
    const json_t *given = json_object_get(schema, "pattern"),
                 *format = json_object_get(schema, "format");
    int min, max;
    if (!lk_schema_check_keywords(g, schema, known) ||
        !read_bounds(g, schema, "minLength", "maxLength", &min, &max))
        return false;
    if ((given && !json_is_string(given)) || (format && !json_is_string(format)))
        return lk_schema_fail_invalid(g, "'pattern' or 'format' is not a string");
    /* Libraries that write both mean the same by them. The format's own pattern is narrow. */
    const char *of_format = format ? lk_string_format_pattern(json_string_value(format)) : NULL,
               *keyword = of_format ? "format" : "pattern",
               *pattern = of_format ? of_format : json_string_value(given);
    lk_buf_append_str(body, "\"\\\"\" ");
    if (pattern) {
        lk_err reason = {0};
        lk_status status = lk_pattern_gbnf(body, pattern, min, max, &reason);
        if (status) return fail_part(g, keyword, status, &reason);
    } else {
        add_repeated(body, "char", min, max);
    }
    lk_buf_append_str(body, " \"\\\"\"");
    return true;
}

/* `type`: "integer" or "number". */
static bool write_number(struct lk_schema_grammar *g, const json_t *schema, const char *type,
                         struct lk_buf *body) {
    static const char *const known[] = {
        "type",       "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "format",  NULL};
    if (!lk_schema_check_keywords(g, schema, known)) return false;
    if (!lk_number_range_is_bounded(schema)) {
        lk_buf_append_str(body, type);
        return true;
    }
    g->status = lk_number_range_gbnf(body, schema, strcmp(type, "integer") == 0, g->err);
    return !g->status;
}

/* "prefixItems", at least the first `min`, and then items that `rest` names, if it is not NULL: [A,
 * B, C, ...]. What may be missing nests. */
static bool write_tuple(struct lk_schema_grammar *g, const json_t *prefix, const char *rest,
                        int min, int max, struct lk_buf *body) {
    int n = (int)json_array_size(prefix), n_open = 0;
    if (max >= 0 && max < n) n = max;
    lk_buf_append_str(body, "\"[\" ws");
    for (int i = 0; i < n; i++) {
        int item = g->add_rule(g, json_array_get(prefix, (size_t)i));
        if (item < 0) return false;
        if (i >= min) lk_buf_append_str(body, " ("), n_open++;
        lk_buf_printf(body, "%s r%d", i ? " \",\" ws" : "", item);
    }
    if (rest && (max < 0 || max > n)) {
        char more[64];
        snprintf(more, sizeof more, " (\",\" ws %s)", rest);
        add_repeated(body, more, min > n ? min - n : 0, max < 0 ? -1 : max - n);
    }
    for (; n_open > 0; n_open--) lk_buf_append_str(body, ")?");
    lk_buf_append_str(body, " ws \"]\"");
    return true;
}

static bool write_array(struct lk_schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type",     "items",    "prefixItems",
                                        "minItems", "maxItems", NULL};
    const json_t *items = json_object_get(schema, "items"),
                 *prefix = json_object_get(schema, "prefixItems");
    int min, max;
    if (!lk_schema_check_keywords(g, schema, known) ||
        !read_bounds(g, schema, "minItems", "maxItems", &min, &max))
        return false;
    int n_prefix = (int)json_array_size(prefix);
    if (items && !json_is_object(items) && !json_is_boolean(items))
        return lk_schema_fail_unsupported(g, "items that are not one schema");
    if (json_is_false(items) && (max < 0 || max > n_prefix)) max = n_prefix;
    if (max >= 0 && min > max)
        return lk_schema_fail_invalid(g, "minItems is more than there may be items");
    if (max == 0) {
        lk_buf_append_str(body, "\"[\" ws \"]\"");
        return true;
    }
    char name[24] = "value", more[64];
    if (json_is_object(items)) {
        int item = g->add_rule(g, items);
        if (item < 0) return false;
        snprintf(name, sizeof name, "r%d", item);
    }
    bool has_rest = items || min > n_prefix; /* items that are not listed are not written */
    if (n_prefix > 0) return write_tuple(g, prefix, has_rest ? name : NULL, min, max, body);
    snprintf(more, sizeof more, " (\",\" ws %s)", name);
    lk_buf_printf(body, "\"[\" ws (%s", name);
    add_repeated(body, more, min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1);
    lk_buf_printf(body, ")%s ws \"]\"", min == 0 ? "?" : "");
    return true;
}

/* The two rules of a property; see write_properties. `first` is the number of the first one. */
static bool write_property(struct lk_schema_grammar *g, const char *key, int value, bool optional,
                           int first) {
    json_t *name = json_string(key);
    char *text = name ? lk_json_text(name) : NULL;
    json_decref(name);
    if (!text) return lk_schema_fail_no_memory(g);
    bool added = true;
    for (int then = 0; added && then < 2; then++) {
        struct lk_buf rule = {0};
        if (then) lk_buf_append_str(&rule, "\",\" ws ");
        lk_gbnf_literal(&rule, text);
        lk_buf_printf(&rule, " \":\" sp r%d r%d", value, first + 3);
        if (optional) lk_buf_printf(&rule, " | r%d", first + 2 + then);
        added = lk_schema_add_line(g, first + then, &rule);
    }
    free(text);
    return added;
}

/* Properties in the schema's order. Property i has two rules: what follows if no property was
 * written so far (first), and if one was (then), so that it is preceded by a comma:
 *
 *   first(i) ::= pair then(i+1)       | first(i+1) if optional
 *   then(i)  ::= "," pair then(i+1)   | then(i+1)  if optional
 *
 * After the last property, both are empty. Rule base + 2 i is first(i), and the next one is
 * then(i). */
static bool write_properties(struct lk_schema_grammar *g, const json_t *schema,
                             struct lk_buf *body) {
    json_t *properties = json_object_get(schema, "properties"), *property;
    json_t *required = lk_json_keys(json_object_get(schema, "required"));
    int n = (int)json_object_size(properties), base = g->n_rule, i = 0;
    const char *key;
    if (!required) return lk_schema_fail_no_memory(g);
    g->n_rule += 2 * (n + 1);
    bool good = true;
    json_object_foreach(properties, key, property) {
        int value = g->add_rule(g, property);
        bool optional = !json_object_get(required, key);
        good = value >= 0 && write_property(g, key, value, optional, base + 2 * i);
        if (!good) break;
        i++;
    }
    json_decref(required);
    for (int then = 0; good && then < 2; then++) {
        struct lk_buf rule = {0};
        lk_buf_append_str(&rule, "\"\"");
        good = lk_schema_add_line(g, base + 2 * n + then, &rule);
    }
    lk_buf_printf(body, "\"{\" ws r%d ws \"}\"", base);
    return good;
}

/* Does a schema of "propertyNames" accept every name? */
static bool accepts_all_names(const json_t *names) {
    const char *key;
    json_t *value;
    if (names && !json_is_object(names)) return json_is_true(names);
    json_object_foreach((json_t *)names, key, value) {
        const char *type = json_string_value(value);
        if (strcmp(key, "type") == 0 ? !type || strcmp(type, "string") != 0
                                     : !lk_schema_is_annotation(key))
            return false;
    }
    return true;
}

static bool check_object(struct lk_schema_grammar *g, const json_t *schema) {
    static const char *const known[] = {
        "type", "properties", "required", "additionalProperties", "propertyNames", NULL};
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required"),
                 *others = json_object_get(schema, "additionalProperties");
    if (!lk_schema_check_keywords(g, schema, known)) return false;
    if (properties && !json_is_object(properties))
        return lk_schema_fail_invalid(g, "'properties' is not an object");
    if (required && !json_is_array(required))
        return lk_schema_fail_invalid(g, "'required' is not an array");
    if (!accepts_all_names(json_object_get(schema, "propertyNames")))
        return lk_schema_fail_unsupported(g, "propertyNames");
    if (others && !json_is_boolean(others) && !json_is_object(others))
        return lk_schema_fail_invalid(g, "'additionalProperties' is not a schema");
    if (json_array_size(required) > json_object_size(properties))
        return lk_schema_fail_unsupported(g, "required names that are not in properties");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name)
            return lk_schema_fail_invalid(g, "'required' holds a value that is not a string");
        if (!json_object_get(properties, name))
            return lk_schema_fail_unsupported(g, "required names that are not in properties");
    }
    if (json_object_size(properties) > 0 && json_is_object(others))
        return lk_schema_fail_unsupported(g, "additionalProperties together with properties");
    return true;
}

static bool write_object(struct lk_schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (!check_object(g, schema)) return false;
    if (json_object_size(json_object_get(schema, "properties")) > 0)
        return write_properties(g, schema, body);
    if (json_is_false(others)) {
        lk_buf_append_str(body, "\"{\" ws \"}\"");
        return true;
    }
    if (json_object_size(others) == 0) {
        lk_buf_append_str(body, "object");
        return true;
    }
    int value = g->add_rule(g, others);
    if (value < 0) return false;
    lk_buf_printf(body, "\"{\" ws (string \":\" sp r%d (\",\" ws string \":\" sp r%d)*)? ws \"}\"",
                  value, value);
    return true;
}

bool lk_schema_write_type(struct lk_schema_grammar *g, const json_t *schema, const char *type,
                          struct lk_buf *body) {
    static const char *const known[] = {"type", NULL}, *const scalar[] = {"boolean", "null", NULL};
    if (strcmp(type, "string") == 0) return write_string(g, schema, body);
    if (strcmp(type, "array") == 0) return write_array(g, schema, body);
    if (strcmp(type, "object") == 0) return write_object(g, schema, body);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return write_number(g, schema, type, body);
    if (lk_schema_is_in(type, scalar)) {
        lk_buf_append_str(body, type);
        return lk_schema_check_keywords(g, schema, known);
    }
    char what[100];
    snprintf(what, sizeof what, "'%.60s' is not a type", type);
    return lk_schema_fail_invalid(g, what);
}
