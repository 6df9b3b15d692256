/* Converts JSON schemas to GBNF grammars, with jansson.
 *
 * The grammar never accepts a text that violates the schema. It is narrower than the schema in
 * these ways: properties come in the schema's order, unlisted properties are allowed only if
 * `additionalProperties` is a schema or there are no `properties`, numbers have limited length, and
 * white space is where JSON writers put it: after commas and inside brackets one space or one
 * newline with an indentation, after colons one space. Strings with a `pattern` or `format`, and
 * numbers with bounds, are narrower too (pattern.h, number_range.h). `oneOf` is treated as `anyOf`.
 *
 * A keyword of JSON Schema that restricts values and is not supported is an error, because ignoring
 * it would accept too much. Others are annotations. Older drafts are rewritten (schema_dialect.h).
 * Depth, number of rules and size of the output are limited, and the work is in
 * proportion to the bytes of the schema:
 *
 *   - A part of a schema is converted once for each place that holds it, and once more at most for
 *     all $ref to it. There are at most MAX_RULES conversions.
 *   - A conversion looks at each keyword once; an unknown one ends it, so there are few.
 *   - Lists (enum, required, anyOf, properties) are read once, and no further after the output has
 *     reached MAX_GRAMMAR.
 *
 * Rules with the same text are one rule, so alternatives that are equal become one. */
#include "base/hash.h"
#include "base/ledger.h"
#include "grammar/schema_dialect.h"
#include "grammar/schema_grammar.h"
#include "grammar/schema_types.h"
#include "lowkey_serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SCHEMA = 1 << 20, /* bytes of schema */
    N_TYPE = 7,           /* types of JSON Schema */
    MAX_MERGED = 64,      /* schemas of a choice next to other keywords */
};

static int add_schema_rule(struct lk_schema_grammar *g, const json_t *schema);

static bool fail_too_large(struct lk_schema_grammar *g) {
    g->status = lk_fail(g->err, LK_E_UNSUPPORTED,
                        "the JSON schema is too large: at most %d levels of nesting, %d parts and "
                        "%d bytes of grammar are supported",
                        LK_SCHEMA_MAX_DEPTH, LK_SCHEMA_MAX_RULES, LK_SCHEMA_MAX_GRAMMAR);
    return false;
}

/* The rules of a list as alternatives, each once. Frees the list. */
static bool write_choice(struct lk_schema_grammar *g, struct lk_buf *rules, struct lk_buf *body) {
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
    return written || lk_schema_fail_no_memory(g);
}

/* One alternative per schema of the list. */
static bool write_alternatives(struct lk_schema_grammar *g, const json_t *list,
                               struct lk_buf *body) {
    struct lk_buf rules = {0};
    if (json_array_size(list) == 0)
        return lk_schema_fail_invalid(g, "a choice has no alternatives");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rule = add_schema_rule(g, json_array_get(list, i));
        if (rule < 0 || rules.len > LK_SCHEMA_MAX_GRAMMAR) {
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

/* Does the value agree with "type", which may be absent? */
static bool has_a_type(const json_t *value, const json_t *type) {
    bool found = !type;
    if (json_is_string(type)) return has_type(value, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        found = found || has_a_type(value, json_array_get(type, i));
    return found;
}

/* One alternative per different value of the list. Values that contradict "type" are left out. */
static bool write_values(struct lk_schema_grammar *g, const json_t *list, const json_t *type,
                         struct lk_buf *body) {
    json_t *seen = json_object();
    bool good = seen || lk_schema_fail_no_memory(g);
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        if (!has_a_type(value, type)) continue;
        char *text = lk_json_text(value);
        if (!text) {
            good = lk_schema_fail_no_memory(g);
        } else if (body->len > LK_SCHEMA_MAX_GRAMMAR) {
            good = fail_too_large(g);
        } else if (!json_object_get(seen, text)) {
            if (body->len) lk_buf_append_str(body, " | ");
            lk_gbnf_literal(body, text);
            good = json_object_set_new(seen, text, json_true()) == 0 || lk_schema_fail_no_memory(g);
        }
        free(text);
    }
    json_decref(seen);
    return good && (body->len > 0 ||
                    lk_schema_fail_invalid(g, "an enum has no values, or none of its type"));
}

/* ---- schemas ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* Read a step of a pointer up to the next slash, with its escapes: ~0, ~1 and %20. Returns what
 * follows; NULL: it is too long. */
static const char *read_step(const char *at, char *name, size_t size) {
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        if (n + 1 >= size) return NULL;
        char c = *at;
        if (c == '%' && hex_digit(at[1]) >= 0 && hex_digit(at[2]) >= 0) {
            c = (char)(16 * hex_digit(at[1]) + hex_digit(at[2]));
            at += 2;
        } else if (c == '~' && (at[1] == '0' || at[1] == '1')) {
            c = *++at == '0' ? '~' : '/';
        }
        name[n++] = c;
    }
    name[n] = 0;
    return at;
}

/* The schema that "#/a/b" refers to, NULL if there is none. *base becomes the innermost schema with
 * an "$id" that contains it: "#" in a $ref refers to that one. */
static const json_t *resolve_ref(const json_t **base, const char *ref) {
    const json_t *at = *base;
    if (*ref != '#') return NULL;
    ref++;
    while (at && *ref == '/') {
        char name[200];
        ref = read_step(ref + 1, name, sizeof name);
        if (!ref) return NULL;
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10))
                               : json_object_get(at, name);
        if (json_is_string(json_object_get(at, "$id"))) *base = at;
    }
    return *ref ? NULL : at;
}

/* The rule of the schema that a $ref refers to. It is made once. */
static int add_ref_rule(struct lk_schema_grammar *g, const json_t *schema) {
    static const char *const known[] = {"$ref", NULL};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *outer = g->base, *base = g->base, *target = ref ? resolve_ref(&base, ref) : NULL;
    if (!lk_schema_check_keywords(g, schema, known)) return -1;
    if (!target) {
        lk_schema_fail_unsupported(g, ref ? ref : "$ref");
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
        if (g->n_made >= LK_SCHEMA_MAX_RULES) return fail_too_large(g), -1;
        g->made[g->n_made++] = (struct lk_made_rule){.schema = target, .rule = rule};
    }
    return rule;
}

/* "type": ["string", "null"]: one alternative per type, with the keywords of the schema. */
static bool write_types(struct lk_schema_grammar *g, const json_t *schema, const json_t *types,
                        struct lk_buf *body) {
    const char *name[N_TYPE];
    size_t n = json_array_size(types);
    if (n == 0) return lk_schema_fail_invalid(g, "'type' lists no types");
    if (n > N_TYPE) return lk_schema_fail_invalid(g, "'type' lists more than seven types");
    for (size_t i = 0; i < n; i++) {
        name[i] = json_string_value(json_array_get(types, i));
        if (!name[i]) return lk_schema_fail_invalid(g, "'type' holds a value that is not a string");
        for (size_t k = 0; k < i; k++)
            if (strcmp(name[i], name[k]) == 0)
                return lk_schema_fail_invalid(g, "'type' lists a type more than once");
    }
    for (size_t i = 0; i < n; i++) {
        struct lk_buf one = {0};
        bool is_null = strcmp(name[i], "null") == 0; /* whatever the other keywords are */
        if (is_null) lk_buf_append_str(&one, "null");
        if (!is_null && !lk_schema_write_type(g, schema, name[i], &one)) {
            lk_buf_free(&one);
            return false;
        }
        int rule = g->n_rule++;
        if (!lk_schema_add_line(g, rule, &one)) return false;
        lk_buf_printf(body, "%sr%d", i ? " | " : "", rule);
    }
    return true;
}

/* Append the strings of a list to another one that does not have them. False: out of memory. */
static bool add_names(json_t *to, const json_t *from) {
    json_t *keys = lk_json_keys(to), *item;
    size_t i;
    bool good = keys != NULL;
    json_array_foreach(from, i, item) {
        const char *name = json_string_value(item);
        if (good && (!name || !json_object_get(keys, name)))
            good = json_array_append(to, item) == 0;
    }
    json_decref(keys);
    return good;
}

/* Add properties to others. One that both have must match both schemas. False: out of memory. */
static bool add_properties(json_t *to, const json_t *from) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)from, name, value) {
        json_t *there = json_object_get(to, name);
        if (there && (json_is_true(value) || json_equal(there, value))) continue;
        json_t *both = there && !json_is_true(there) ? json_pack("{s:[O,O]}", "allOf", there, value)
                                                     : json_incref(value);
        if (json_object_set_new(to, name, both) != 0) return false;
    }
    return true;
}

/* Add the keywords of `part` to `to`: names of "required" and "properties" are collected, others
 * must agree. False: the status is set. */
static bool merge_keywords(struct lk_schema_grammar *g, json_t *to, const json_t *part,
                           const char *choice) {
    const char *key;
    json_t *value;
    char what[60];
    if (!json_is_object(part)) return lk_schema_fail_invalid(g, "a choice holds no schemas");
    json_object_foreach((json_t *)part, key, value) {
        json_t *there = json_object_get(to, key);
        bool good = true;
        if (!there)
            good = json_object_set_new(to, key, json_copy(value)) == 0;
        else if (strcmp(key, "required") == 0 && json_is_array(there))
            good = add_names(there, value);
        else if (strcmp(key, "properties") == 0 && json_is_object(there))
            good = add_properties(there, value);
        else if (strcmp(key, "allOf") == 0 && json_is_array(there) && json_is_array(value))
            good = json_array_extend(there, value) == 0;
        else if (!json_equal(there, value) && !lk_schema_is_annotation(key)) {
            snprintf(what, sizeof what, "%s together with %.30s", choice, key);
            return lk_schema_fail_unsupported(g, what);
        }
        if (!good) return lk_schema_fail_no_memory(g);
    }
    return true;
}

/* The keywords of both schemas; borrowed. NULL: the status is set. */
static const json_t *merge_schemas(struct lk_schema_grammar *g, const json_t *schema,
                                   const json_t *part, const char *choice) {
    json_t *out = json_object();
    if (!g->merged) g->merged = json_array();
    bool good = out && json_array_append(g->merged, out) == 0;
    if (!good) lk_schema_fail_no_memory(g);
    if (good && json_object_get(part, "$ref"))
        good = lk_schema_fail_unsupported(g, "$ref in a choice next to other keywords");
    good = good && merge_keywords(g, out, schema, choice) && merge_keywords(g, out, part, choice);
    json_decref(out); /* g->merged has it */
    return good ? out : NULL;
}

/* Does the schema have keywords that restrict the value, next to `choice`? */
static bool has_more(const json_t *schema, const char *choice) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key,
                        value) if (strcmp(key, choice) != 0 &&
                                   !lk_schema_is_annotation(key)) return true;
    return false;
}

/* "anyOf" next to other keywords, which hold for every alternative; and all schemas of "allOf" as
 * one. */
static bool write_merged(struct lk_schema_grammar *g, const json_t *schema, const char *choice,
                         struct lk_buf *body) {
    const json_t *list = json_object_get(schema, choice);
    bool all = strcmp(choice, "allOf") == 0;
    json_t *parts = json_array(), *rest = json_copy((json_t *)schema);
    const json_t *merged = rest;
    bool good = parts && rest && json_array_size(list) > 0;
    json_object_del(rest, choice);
    if (parts && rest && !good) lk_schema_fail_invalid(g, "a choice has no alternatives");
    if (json_array_size(list) > MAX_MERGED) good = fail_too_large(g);
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        merged = merge_schemas(g, all ? merged : rest, json_array_get(list, i), choice);
        good = merged && (all || json_array_append(parts, (json_t *)merged) == 0);
    }
    if (good && all) good = json_array_append(parts, (json_t *)merged) == 0;
    good = good && write_alternatives(g, parts, body);
    json_decref(parts);
    json_decref(rest);
    if (!good && !g->status) lk_schema_fail_no_memory(g);
    return good;
}

static bool write_schema(struct lk_schema_grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *part;
    if ((part = json_object_get(schema, "const"))) {
        static const char *const known[] = {"type", "const", NULL};
        json_t *list = json_pack("[O]", part);
        bool good = list || lk_schema_fail_no_memory(g);
        good =
            good && lk_schema_check_keywords(g, schema, known) && write_values(g, list, type, body);
        json_decref(list);
        return good;
    }
    if ((part = json_object_get(schema, "enum"))) {
        static const char *const known[] = {"type", "enum", NULL};
        return lk_schema_check_keywords(g, schema, known) && write_values(g, part, type, body);
    }
    for (int i = 0; i < 3; i++) {
        if (!(part = json_object_get(schema, choices[i]))) continue;
        bool merges = has_more(schema, choices[i]) || (i == 2 && json_array_size(part) > 1);
        return merges ? write_merged(g, schema, choices[i], body)
                      : write_alternatives(g, part, body);
    }
    if (json_is_array(type)) return write_types(g, schema, type, body);
    if (json_is_string(type)) return lk_schema_write_type(g, schema, json_string_value(type), body);
    if (type) return lk_schema_fail_invalid(g, "'type' is not a string");
    if (json_object_get(schema, "properties"))
        return lk_schema_write_type(g, schema, "object", body);
    static const char *const none[] = {NULL};
    lk_buf_append_str(body, "value");
    return lk_schema_check_keywords(g, schema, none);
}

/* Add the rule of made[index], unless an earlier one has the same text. Frees the text. Returns the
 * number of the rule, -1 after an error. */
static int finish_rule(struct lk_schema_grammar *g, int index, struct lk_buf *body) {
    struct lk_made_rule *made = &g->made[index];
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, lk_buf_cstr(body), body->len);
    int own = made->rule;
    for (int i = 0; i < g->n_made && !body->failed; i++) {
        const struct lk_made_rule *other = &g->made[i];
        if (other->len == 0 || other->len != body->len || other->hash != hash ||
            memcmp(g->out.at + other->at, lk_buf_cstr(body), body->len) != 0)
            continue;
        made->rule = other->rule;
        lk_buf_free(body);
        if (!made->is_used) return made->rule;
        lk_buf_printf(body, "r%d", made->rule); /* the schema refers to itself */
        return lk_schema_add_line(g, own, body) ? made->rule : -1;
    }
    size_t len = body->len;
    if (!lk_schema_add_line(g, own, body)) return -1;
    made->hash = hash;
    made->len = g->out.failed ? 0 : len;
    made->at = g->out.len - len - 1; /* before the newline */
    return own;
}

static int add_schema_rule(struct lk_schema_grammar *g, const json_t *schema) {
    if (g->depth >= LK_SCHEMA_MAX_DEPTH || g->n_made >= LK_SCHEMA_MAX_RULES ||
        g->out.len > LK_SCHEMA_MAX_GRAMMAR)
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
        g->made[index] = (struct lk_made_rule){.schema = schema, .rule = g->n_rule++};
        if (json_is_true(schema))
            lk_buf_append_str(&body, "value");
        else if (json_is_object(schema))
            written = write_schema(g, schema, &body);
        else
            written = json_is_false(schema)
                          ? lk_schema_fail_unsupported(g, "false")
                          : lk_schema_fail_invalid(g, "a schema is not an object");
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
        "sp ::= \" \"?\n"
        "ws ::= (\" \" | \"\\n\" [ ]{0,16})?\n"
        "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
        "string ::= \"\\\"\" char* \"\\\"\"\n"
        "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17})\n"
        "number ::= integer (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,3})?\n"
        "boolean ::= \"true\" | \"false\"\n"
        "null ::= \"null\"\n"
        "object ::= \"{\" ws (string \":\" sp value (\",\" ws string \":\" sp value)*)? ws \"}\"\n"
        "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
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
    struct lk_schema_grammar *g = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *g); /* 48 KiB */
    if (!g) {
        json_decref(root);
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    }
    lk_schema_rewrite(root);
    g->base = root;
    g->err = err;
    g->add_rule = add_schema_rule;
    int rule = add_schema_rule(g, root);
    json_decref(g->merged);
    json_decref(root);
    lk_buf_printf(&g->out, "root ::= r%d\n", rule);
    lk_buf_append_str(&g->out, common_rules);
    lk_status status = g->status;
    if (!status && g->out.failed)
        status = lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    if (!status && g->out.len > LK_SCHEMA_MAX_GRAMMAR)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "the JSON schema needs a grammar of %zu bytes, at most %d are supported",
                         g->out.len, LK_SCHEMA_MAX_GRAMMAR);
    if (status)
        lk_buf_free(&g->out);
    else
        *grammar = g->out.at;
    lk_release(&ledger, LK_FOR_OTHER, g, sizeof *g);
    return status;
}
