/* Converts JSON schemas to GBNF grammars, with jansson.
 *
 * The grammar never accepts a text that violates the schema. It is narrower than the schema in
 * three ways: properties come in the schema's order, unlisted properties are allowed only if
 * `additionalProperties` is a schema or there are no `properties`, and numbers and white space have
 * limited length. `oneOf` is treated as `anyOf`.
 *
 * A keyword that is neither supported nor an annotation is an error, because ignoring it would
 * accept too much. Depth, number of rules and size of the output are limited, and the work is in
 * proportion to the bytes of the schema:
 *
 *   - A part of a schema is converted once for each place that holds it, and once more at most for
 *     all $ref to it. There are at most MAX_RULES conversions.
 *   - A conversion looks at each keyword once; an unknown one ends it, so there are few.
 *   - Lists (enum, required, anyOf, properties) are read once, and no further after the output has
 *     reached MAX_GRAMMAR.
 *
 * Rules with the same text are one rule, so alternatives that are equal become one. */
#include "base/buf.h"
#include "base/err.h"
#include "base/fnv1a.h"
#include "base/ledger.h"
#include "token/json_literal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SCHEMA = 1 << 20,  /* bytes of schema */
    MAX_GRAMMAR = 1 << 17, /* bytes of grammar; the limit of lk_sampler_new */
    MAX_DEPTH = 64,
    MAX_REPEAT = 1 << 16, /* of minItems, maxItems, minLength, maxLength */
    MAX_RULES = 1024,     /* rules that belong to a schema */
    N_TYPE = 7,           /* types of JSON Schema */
};

/* A grammar under construction. Rules are named r0, r1, ... A rule gets its number first, and its
 * text is appended as one line when it is complete, so that rules can refer to each other. */
struct schema_grammar {
    struct lk_buf out;
    const json_t *base; /* the schema that "#" of a $ref refers to */
    int n_rule, depth;
    struct made_rule {
        const json_t *schema;
        int rule;
        bool is_used;   /* a $ref has returned the rule's number */
        uint64_t hash;  /* of the rule's text in `out`, when it is complete */
        size_t at, len; /* len 0: not complete */
    } made[MAX_RULES];  /* one rule per schema, so that a schema may refer to itself */
    int n_made;
    lk_status status; /* of the first error */
    lk_err *err;
};

static int add_schema_rule(struct schema_grammar *g, const json_t *schema);

/* ---- errors: these set the status and return false ---- */

static bool fail_unsupported(struct schema_grammar *g, const char *what) {
    g->status =
        lk_fail(g->err, LK_E_UNSUPPORTED,
                "the JSON schema uses '%.60s', which cannot be expressed as a grammar", what);
    return false;
}

static bool fail_invalid(struct schema_grammar *g, const char *what) {
    g->status = lk_fail(g->err, LK_E_FORMAT, "the JSON schema is not valid: %.100s", what);
    return false;
}

static bool fail_too_large(struct schema_grammar *g) {
    g->status = lk_fail(g->err, LK_E_UNSUPPORTED,
                        "the JSON schema is too large: at most %d levels of nesting, %d parts and "
                        "%d bytes of grammar are supported",
                        MAX_DEPTH, MAX_RULES, MAX_GRAMMAR);
    return false;
}

static bool fail_no_memory(struct schema_grammar *g) {
    g->status = lk_fail(g->err, LK_E_NOMEM, "not enough memory for a grammar");
    return false;
}

/* ---- reading keywords ---- */

static bool is_in(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

/* Reject keywords other than `known` and annotations, which do not restrict the value. */
static bool check_keywords(struct schema_grammar *g, const json_t *schema,
                           const char *const *known) {
    static const char *const annotations[] = {"title",     "description", "default",    "examples",
                                              "example",   "$schema",     "$id",        "$comment",
                                              "$defs",     "definitions", "deprecated", "readOnly",
                                              "writeOnly", "strict",      "name",       NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (!is_in(key, known) && !is_in(key, annotations)) return fail_unsupported(g, key);
    }
    return true;
}

/* Read the bounds of a length. *max is -1 if there is none. */
static bool read_bounds(struct schema_grammar *g, const json_t *schema, const char *min_key,
                        const char *max_key, int *min, int *max) {
    const char *const key[] = {min_key, max_key};
    int *const out[] = {min, max};
    *min = 0;
    *max = -1;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(schema, key[i]);
        if (!value) continue;
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > MAX_REPEAT) {
            g->status = lk_fail(
                g->err,
                json_is_integer(value) && json_integer_value(value) > MAX_REPEAT ? LK_E_UNSUPPORTED
                                                                                 : LK_E_FORMAT,
                "the JSON schema's '%s' must be an integer from 0 to %d", key[i], MAX_REPEAT);
            return false;
        }
        *out[i] = (int)json_integer_value(value);
    }
    if (*max >= 0 && *max < *min) {
        char what[64];
        snprintf(what, sizeof what, "%s is less than %s", max_key, min_key);
        return fail_invalid(g, what);
    }
    return true;
}

/* ---- writing rules ---- */

/* Append the line "rN ::= body". Frees the body. */
static bool add_rule(struct schema_grammar *g, int rule, struct lk_buf *body) {
    lk_buf_printf(&g->out, "r%d ::= ", rule);
    lk_buf_append(&g->out, body->at ? body->at : "", body->len);
    lk_buf_append_str(&g->out, "\n");
    bool complete = !body->failed;
    lk_buf_free(body);
    return complete || fail_no_memory(g);
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

static bool write_string(struct schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type", "minLength", "maxLength", NULL};
    int min, max;
    if (!check_keywords(g, schema, known) ||
        !read_bounds(g, schema, "minLength", "maxLength", &min, &max))
        return false;
    lk_buf_append_str(body, "\"\\\"\" ");
    add_repeated(body, "char", min, max);
    lk_buf_append_str(body, " \"\\\"\"");
    return true;
}

static bool write_array(struct schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type", "items", "minItems", "maxItems", NULL};
    const json_t *items = json_object_get(schema, "items");
    int min, max;
    if (!check_keywords(g, schema, known) ||
        !read_bounds(g, schema, "minItems", "maxItems", &min, &max))
        return false;
    if (items && !json_is_object(items) && !json_is_true(items))
        return fail_unsupported(g, "items that are not one schema");
    if (max == 0) {
        lk_buf_append_str(body, "\"[\" ws \"]\"");
        return true;
    }
    char name[24] = "value", more[64];
    if (json_is_object(items)) {
        int item = add_schema_rule(g, items);
        if (item < 0) return false;
        snprintf(name, sizeof name, "r%d", item);
    }
    snprintf(more, sizeof more, " (ws \",\" ws %s)", name);
    lk_buf_printf(body, "\"[\" ws (%s", name);
    add_repeated(body, more, min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1);
    lk_buf_printf(body, ")%s ws \"]\"", min == 0 ? "?" : "");
    return true;
}

/* The two rules of a property; see write_properties. `first` is the number of the first one. */
static bool write_property(struct schema_grammar *g, const char *key, int value, bool optional,
                           int first) {
    json_t *name = json_string(key);
    char *text = name ? lk_json_text(name) : NULL;
    json_decref(name);
    if (!text) return fail_no_memory(g);
    bool added = true;
    for (int then = 0; added && then < 2; then++) {
        struct lk_buf rule = {0};
        if (then) lk_buf_append_str(&rule, "ws \",\" ws ");
        lk_gbnf_literal(&rule, text);
        lk_buf_printf(&rule, " ws \":\" ws r%d r%d", value, first + 3);
        if (optional) lk_buf_printf(&rule, " | r%d", first + 2 + then);
        added = add_rule(g, first + then, &rule);
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
static bool write_properties(struct schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    json_t *properties = json_object_get(schema, "properties"), *property;
    json_t *required = lk_json_keys(json_object_get(schema, "required"));
    int n = (int)json_object_size(properties), base = g->n_rule, i = 0;
    const char *key;
    if (!required) return fail_no_memory(g);
    g->n_rule += 2 * (n + 1);
    bool good = true;
    json_object_foreach(properties, key, property) {
        int value = add_schema_rule(g, property);
        bool optional = !json_object_get(required, key);
        good = value >= 0 && write_property(g, key, value, optional, base + 2 * i);
        if (!good) break;
        i++;
    }
    json_decref(required);
    for (int then = 0; good && then < 2; then++) {
        struct lk_buf rule = {0};
        lk_buf_append_str(&rule, "\"\"");
        good = add_rule(g, base + 2 * n + then, &rule);
    }
    lk_buf_printf(body, "\"{\" ws r%d ws \"}\"", base);
    return good;
}

static bool check_object(struct schema_grammar *g, const json_t *schema) {
    static const char *const known[] = {"type", "properties", "required", "additionalProperties",
                                        NULL};
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required"),
                 *others = json_object_get(schema, "additionalProperties");
    if (!check_keywords(g, schema, known)) return false;
    if (properties && !json_is_object(properties))
        return fail_invalid(g, "'properties' is not an object");
    if (required && !json_is_array(required)) return fail_invalid(g, "'required' is not an array");
    if (others && !json_is_boolean(others) && !json_is_object(others))
        return fail_invalid(g, "'additionalProperties' is not a schema");
    if (json_array_size(required) > json_object_size(properties))
        return fail_unsupported(g, "required names that are not in properties");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name) return fail_invalid(g, "'required' holds a value that is not a string");
        if (!json_object_get(properties, name))
            return fail_unsupported(g, "required names that are not in properties");
    }
    if (json_object_size(properties) > 0 && json_is_object(others))
        return fail_unsupported(g, "additionalProperties together with properties");
    return true;
}

static bool write_object(struct schema_grammar *g, const json_t *schema, struct lk_buf *body) {
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
    int value = add_schema_rule(g, others);
    if (value < 0) return false;
    lk_buf_printf(
        body, "\"{\" ws (string ws \":\" ws r%d (ws \",\" ws string ws \":\" ws r%d)*)? ws \"}\"",
        value, value);
    return true;
}

/* The rules of a list as alternatives, each once. Frees the list. */
static bool write_choice(struct schema_grammar *g, struct lk_buf *rules, struct lk_buf *body) {
    struct lk_ledger ledger = {0};
    size_t n = rules->len / sizeof(int), n_seen = (size_t)g->n_rule;
    bool *seen = rules->failed ? NULL : lk_alloc(&ledger, LK_FOR_OTHER, n_seen);
    const char *between = "";
    for (size_t i = 0; seen && i < n; i++) {
        int rule;
        memcpy(&rule, rules->at + i * sizeof rule, sizeof rule);
        if (seen[rule]) continue;
        seen[rule] = true;
        lk_buf_printf(body, "%sr%d", between, rule);
        between = " | ";
    }
    bool written = seen != NULL;
    lk_release(&ledger, LK_FOR_OTHER, seen, n_seen);
    lk_buf_free(rules);
    return written || fail_no_memory(g);
}

/* One alternative per schema of the list. */
static bool write_alternatives(struct schema_grammar *g, const json_t *list, struct lk_buf *body) {
    struct lk_buf rules = {0};
    if (json_array_size(list) == 0) return fail_invalid(g, "a choice has no alternatives");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rule = add_schema_rule(g, json_array_get(list, i));
        if (rule < 0 || rules.len > MAX_GRAMMAR) {
            lk_buf_free(&rules);
            return rule < 0 ? false : fail_too_large(g);
        }
        lk_buf_append(&rules, (const char *)&rule, sizeof rule);
    }
    return write_choice(g, &rules, body);
}

static bool has_type(const json_t *value, const char *type) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return strcmp(type, "object") == 0;
    case JSON_ARRAY: return strcmp(type, "array") == 0;
    case JSON_STRING: return strcmp(type, "string") == 0;
    case JSON_INTEGER: return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    case JSON_REAL: return strcmp(type, "number") == 0;
    case JSON_NULL: return strcmp(type, "null") == 0;
    default: return strcmp(type, "boolean") == 0;
    }
}

/* One alternative per different value of the list. Values that contradict "type" are left out. */
static bool write_values(struct schema_grammar *g, const json_t *list, const json_t *type,
                         struct lk_buf *body) {
    json_t *seen = json_object();
    bool good = seen || fail_no_memory(g);
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        if (json_is_string(type) && !has_type(value, json_string_value(type))) continue;
        char *text = lk_json_text(value);
        if (!text) {
            good = fail_no_memory(g);
        } else if (body->len > MAX_GRAMMAR) {
            good = fail_too_large(g);
        } else if (!json_object_get(seen, text)) {
            if (body->len) lk_buf_append_str(body, " | ");
            lk_gbnf_literal(body, text);
            good = json_object_set_new(seen, text, json_true()) == 0 || fail_no_memory(g);
        }
        free(text);
    }
    json_decref(seen);
    return good && (body->len > 0 || fail_invalid(g, "an enum has no values, or none of its type"));
}

/* ---- schemas ---- */

/* The schema that "#/a/b" refers to, NULL if there is none. *base becomes the innermost schema with
 * an "$id" that contains it: "#" in a $ref refers to that one. */
static const json_t *resolve_ref(const json_t **base, const char *ref) {
    const json_t *at = *base;
    if (*ref != '#') return NULL;
    ref++;
    while (at && *ref == '/') {
        char name[200];
        size_t n = strcspn(++ref, "/");
        if (n >= sizeof name) return NULL;
        memcpy(name, ref, n);
        name[n] = 0;
        ref += n;
        at = json_object_get(at, name);
        if (json_is_string(json_object_get(at, "$id"))) *base = at;
    }
    return *ref ? NULL : at;
}

/* The rule of the schema that a $ref refers to. It is made once. */
static int add_ref_rule(struct schema_grammar *g, const json_t *schema) {
    static const char *const known[] = {"$ref", NULL};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *outer = g->base, *base = g->base, *target = ref ? resolve_ref(&base, ref) : NULL;
    if (!check_keywords(g, schema, known)) return -1;
    if (!target) {
        fail_unsupported(g, ref ? ref : "$ref");
        return -1;
    }
    for (int i = 0; i < g->n_made; i++) {
        if (g->made[i].schema != target) continue;
        g->made[i].is_used = true;
        return g->made[i].rule;
    }
    g->base = base;
    int rule = add_schema_rule(g, target);
    g->base = outer;
    if (rule >= 0 && json_object_get(target, "$ref")) { /* do not follow a chain again */
        if (g->n_made >= MAX_RULES) return fail_too_large(g), -1;
        g->made[g->n_made++] = (struct made_rule){.schema = target, .rule = rule};
    }
    return rule;
}

static bool write_type(struct schema_grammar *g, const json_t *schema, const char *type,
                       struct lk_buf *body) {
    static const char *const known[] = {"type", NULL}, *const scalar[] = {"integer", "number",
                                                                          "boolean", "null", NULL};
    if (strcmp(type, "string") == 0) return write_string(g, schema, body);
    if (strcmp(type, "array") == 0) return write_array(g, schema, body);
    if (strcmp(type, "object") == 0) return write_object(g, schema, body);
    if (is_in(type, scalar)) {
        lk_buf_append_str(body, type);
        return check_keywords(g, schema, known);
    }
    char what[100];
    snprintf(what, sizeof what, "'%.60s' is not a type", type);
    return fail_invalid(g, what);
}

/* "type": ["string", "null"]: one alternative per type, with the keywords of the schema. */
static bool write_types(struct schema_grammar *g, const json_t *schema, const json_t *types,
                        struct lk_buf *body) {
    const char *name[N_TYPE];
    size_t n = json_array_size(types);
    if (n == 0) return fail_invalid(g, "'type' lists no types");
    if (n > N_TYPE) return fail_invalid(g, "'type' lists more than seven types");
    for (size_t i = 0; i < n; i++) {
        name[i] = json_string_value(json_array_get(types, i));
        if (!name[i]) return fail_invalid(g, "'type' holds a value that is not a string");
        for (size_t k = 0; k < i; k++)
            if (strcmp(name[i], name[k]) == 0)
                return fail_invalid(g, "'type' lists a type more than once");
    }
    for (size_t i = 0; i < n; i++) {
        struct lk_buf one = {0};
        bool is_null = strcmp(name[i], "null") == 0; /* whatever the other keywords are */
        if (is_null) lk_buf_append_str(&one, "null");
        if (!is_null && !write_type(g, schema, name[i], &one)) {
            lk_buf_free(&one);
            return false;
        }
        int rule = g->n_rule++;
        if (!add_rule(g, rule, &one)) return false;
        lk_buf_printf(body, "%sr%d", i ? " | " : "", rule);
    }
    return true;
}

static bool write_schema(struct schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *part;
    if ((part = json_object_get(schema, "const"))) {
        static const char *const known[] = {"type", "const", NULL};
        if (!check_keywords(g, schema, known)) return false;
        char *text = lk_json_text(part);
        if (text) lk_gbnf_literal(body, text);
        free(text);
        return text != NULL || fail_no_memory(g);
    }
    if ((part = json_object_get(schema, "enum"))) {
        static const char *const known[] = {"type", "enum", NULL};
        return check_keywords(g, schema, known) && write_values(g, part, type, body);
    }
    for (int i = 0; i < 3; i++) {
        const char *const known[] = {choices[i], NULL};
        if (!(part = json_object_get(schema, choices[i]))) continue;
        if (i == 2 && json_array_size(part) > 1)
            return fail_unsupported(g, "allOf with more than one schema");
        return check_keywords(g, schema, known) && write_alternatives(g, part, body);
    }
    if (json_is_array(type)) return write_types(g, schema, type, body);
    if (json_is_string(type)) return write_type(g, schema, json_string_value(type), body);
    if (type) return fail_invalid(g, "'type' is not a string");
    if (json_object_get(schema, "properties")) return write_object(g, schema, body);
    static const char *const none[] = {NULL};
    lk_buf_append_str(body, "value");
    return check_keywords(g, schema, none);
}

/* Add the rule of made[index], unless an earlier one has the same text. Frees the text. Returns the
 * number of the rule, -1 after an error. */
static int finish_rule(struct schema_grammar *g, int index, struct lk_buf *body) {
    struct made_rule *made = &g->made[index];
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, lk_buf_cstr(body), body->len);
    int own = made->rule;
    for (int i = 0; i < g->n_made && !body->failed; i++) {
        const struct made_rule *other = &g->made[i];
        if (other->len == 0 || other->len != body->len || other->hash != hash ||
            memcmp(g->out.at + other->at, lk_buf_cstr(body), body->len) != 0)
            continue;
        made->rule = other->rule;
        lk_buf_free(body);
        if (!made->is_used) return made->rule;
        lk_buf_printf(body, "r%d", made->rule); /* the schema refers to itself */
        return add_rule(g, own, body) ? made->rule : -1;
    }
    size_t len = body->len;
    if (!add_rule(g, own, body)) return -1;
    made->hash = hash;
    made->len = g->out.failed ? 0 : len;
    made->at = g->out.len - len - 1; /* before the newline */
    return own;
}

/* The number of a rule that accepts what `schema` accepts, -1 after an error. */
static int add_schema_rule(struct schema_grammar *g, const json_t *schema) {
    if (g->depth >= MAX_DEPTH || g->n_made >= MAX_RULES || g->out.len > MAX_GRAMMAR)
        return fail_too_large(g), -1;
    const json_t *outer = g->base;
    if (json_is_string(json_object_get(schema, "$id"))) g->base = schema;
    g->depth++;
    int rule = -1;
    if (json_object_get(schema, "$ref")) {
        rule = add_ref_rule(g, schema);
    } else {
        struct lk_buf body = {0};
        bool written = true;
        int index = g->n_made++;
        g->made[index] = (struct made_rule){.schema = schema, .rule = g->n_rule++};
        if (json_is_true(schema))
            lk_buf_append_str(&body, "value");
        else if (json_is_object(schema))
            written = write_schema(g, schema, &body);
        else
            written = json_is_false(schema) ? fail_unsupported(g, "false")
                                            : fail_invalid(g, "a schema is not an object");
        if (written)
            rule = finish_rule(g, index, &body);
        else
            lk_buf_free(&body);
    }
    g->depth--;
    g->base = outer;
    return rule;
}

lk_status lk_schema_to_grammar(const char *schema, size_t len, char **grammar, lk_err *err) {
    static const char common_rules[] =
        "ws ::= (\" \" | \"\\n\" [ ]{0,16})?\n"
        "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
        "string ::= \"\\\"\" char* \"\\\"\"\n"
        "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17})\n"
        "number ::= integer (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,3})?\n"
        "boolean ::= \"true\" | \"false\"\n"
        "null ::= \"null\"\n"
        "object ::= \"{\" ws (string ws \":\" ws value (ws \",\" ws string ws \":\" ws value)*)? "
        "ws \"}\"\n"
        "array ::= \"[\" ws (value (ws \",\" ws value)*)? ws \"]\"\n"
        "value ::= object | array | string | number | boolean | null\n";
    if (len > MAX_SCHEMA)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the JSON schema has %zu bytes, at most %d are supported", len, MAX_SCHEMA);
    json_error_t where;
    json_t *root = json_loadb(schema, len, JSON_DECODE_ANY, &where);
    if (!root)
        return lk_fail(err, LK_E_FORMAT, "the JSON schema is not valid JSON: line %d: %.100s",
                       where.line, where.text);
    struct lk_ledger ledger = {0};
    struct schema_grammar *g = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *g); /* 48 KiB */
    if (!g) {
        json_decref(root);
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    }
    g->base = root;
    g->err = err;
    int rule = add_schema_rule(g, root);
    json_decref(root);
    lk_buf_printf(&g->out, "root ::= r%d\n", rule);
    lk_buf_append_str(&g->out, common_rules);
    lk_status status = g->status;
    if (!status && g->out.failed)
        status = lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    if (!status && g->out.len > MAX_GRAMMAR)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "the JSON schema needs a grammar of %zu bytes, at most %d are supported",
                         g->out.len, MAX_GRAMMAR);
    if (status)
        lk_buf_free(&g->out);
    else
        *grammar = g->out.at;
    lk_release(&ledger, LK_FOR_OTHER, g, sizeof *g);
    return status;
}
