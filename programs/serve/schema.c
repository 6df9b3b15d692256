#include "serve/schema.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_REPEAT = 1000, MAX_GRAMMAR = 1 << 17, MAX_REF = 1024 };

/* A grammar under construction. Rules are named r0, r1, ...; a rule is begun when its number is given out
 * and its text follows as a whole line when it is known, so that rules may use each other. */
struct grammar {
    struct lk_buf out;
    const struct lk_schema_use *use;
    const json_t *root; /* of the document at hand */
    int n_rule, depth;
    struct {
        const json_t *schema;
        int rule;
    } ref[MAX_REF]; /* schemas named by $ref: one rule each, so that they may contain themselves */
    int n_ref;
    struct lk_fault *fault;
};

static int rule_of(struct grammar *g, const json_t *schema);

/* Keywords that say nothing about what fits. */
static bool is_annotation(const char *key) {
    static const char *const names[] = {"title",     "description", "default",    "examples",
                                        "example",   "$schema",     "$id",        "$comment",
                                        "$defs",     "definitions", "deprecated", "readOnly",
                                        "writeOnly", "strict",      "name",       NULL};
    for (const char *const *name = names; *name; name++)
        if (strcmp(key, *name) == 0) return true;
    return false;
}

static bool refuse(struct grammar *g, const char *what) {
    return lk_fault_set(g->fault, 400, "unsupported_schema", g->use->field,
                        "the JSON schema uses '%.60s', which this server cannot hold an answer to",
                        what);
}

/* No keyword but annotations and those listed. */
static bool only(struct grammar *g, const json_t *schema, const char *const *known) {
    for (void *it = json_object_iter((json_t *)schema); it;
         it = json_object_iter_next((json_t *)schema, it)) {
        const char *key = json_object_iter_key(it);
        bool found = is_annotation(key);
        for (const char *const *name = known; !found && *name; name++)
            found = strcmp(key, *name) == 0;
        if (!found) return refuse(g, key);
    }
    return true;
}

/* A value as a quoted literal: what json writes, with GBNF's own escapes. */
static bool add_literal(struct lk_buf *out, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return false;
    lk_buf_text(out, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') lk_buf_text(out, "\\");
        lk_buf_add(out, c, 1);
    }
    lk_buf_text(out, "\"");
    free(text);
    return true;
}

/* Append "rN ::= body"; frees the body. */
static bool add_rule(struct grammar *g, int rule, struct lk_buf *body) {
    lk_buf_print(&g->out, "r%d ::= ", rule);
    lk_buf_add(&g->out, body->at ? body->at : "", body->len);
    lk_buf_text(&g->out, "\n");
    bool good = !body->failed;
    lk_buf_free(body);
    return good || lk_fault_set(g->fault, 503, "out_of_memory", NULL, "no memory for a grammar");
}

static bool read_count(struct grammar *g, const json_t *schema, const char *key, int64_t *out) {
    const json_t *value = json_object_get(schema, key);
    if (!value) return true;
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= 0 && *out <= MAX_REPEAT) return true;
    return lk_fault_set(g->fault, 400, "unsupported_schema", g->use->field,
                        "the JSON schema's '%s' must be a whole number from 0 to %d", key,
                        MAX_REPEAT);
}

/* The item "{2,5}", "{2,}" or "*" times; most < 0: without end. */
static void add_repeated(struct lk_buf *out, const char *item, int64_t least, int64_t most) {
    if (most == 0) return;
    lk_buf_text(out, item);
    if (most > 0)
        lk_buf_print(out, "{%d,%d}", (int)least, (int)most);
    else if (least > 0)
        lk_buf_print(out, "{%d,}", (int)least);
    else
        lk_buf_text(out, "*");
}

static bool write_string(struct grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type", "minLength", "maxLength", NULL};
    int64_t least = 0, most = -1;
    if (!only(g, schema, known) || !read_count(g, schema, "minLength", &least) ||
        !read_count(g, schema, "maxLength", &most))
        return false;
    if (most >= 0 && most < least) return refuse(g, "maxLength below minLength");
    lk_buf_text(body, "\"\\\"\" ");
    add_repeated(body, "char", least, most);
    lk_buf_text(body, " \"\\\"\"");
    return true;
}

static bool write_array(struct grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type", "items", "minItems", "maxItems", NULL};
    const json_t *items = json_object_get(schema, "items");
    int64_t least = 0, most = -1;
    if (!only(g, schema, known) || !read_count(g, schema, "minItems", &least) ||
        !read_count(g, schema, "maxItems", &most))
        return false;
    if (most >= 0 && most < least) return refuse(g, "maxItems below minItems");
    if (most == 0) {
        lk_buf_text(body, "\"[\" ws \"]\"");
        return true;
    }
    int item = -1;
    if (json_is_object(items) && (item = rule_of(g, items)) < 0) return false;
    char name[24] = "value", more[64];
    if (item >= 0) snprintf(name, sizeof name, "r%d", item);
    snprintf(more, sizeof more, " (ws \",\" ws %s)", name);
    lk_buf_print(body, "\"[\" ws (%s", name);
    add_repeated(body, more, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
    lk_buf_print(body, ")%s ws \"]\"", least == 0 ? "?" : "");
    return true;
}

static bool is_required(const json_t *required, const char *key) {
    const json_t *name;
    size_t i;
    json_array_foreach(required, i,
                       name) if (json_is_string(name) &&
                                 strcmp(json_string_value(name), key) == 0) return true;
    return false;
}

/* Properties one by one, in the schema's order. For the i-th there are two rules: what may follow when
 * nothing was written yet (first) and when something was (then a comma comes before it):
 *
 *   first(i) ::= pair then(i+1)            | first(i+1) where optional
 *   then(i)  ::= "," pair then(i+1)        | then(i+1)  where optional
 *
 * and after the last both are empty. */
static bool write_properties(struct grammar *g, const json_t *schema, struct lk_buf *body) {
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    int n = (int)json_object_size(properties), base = g->n_rule, i = 0;
    g->n_rule += 2 * (n + 1);
    for (void *it = json_object_iter((json_t *)properties); it;
         it = json_object_iter_next((json_t *)properties, it), i++) {
        const char *key = json_object_iter_key(it);
        int value = rule_of(g, json_object_iter_value(it));
        if (value < 0) return false;
        json_t *name = json_string(key);
        for (int after = 0; after < 2; after++) {
            struct lk_buf rule = {0};
            if (after) lk_buf_text(&rule, "ws \",\" ws ");
            bool good = add_literal(&rule, name);
            lk_buf_print(&rule, " ws \":\" ws r%d r%d", value, base + 2 * (i + 1) + 1);
            if (!is_required(required, key))
                lk_buf_print(&rule, " | r%d", base + 2 * (i + 1) + after);
            rule.failed |= !good;
            if (!add_rule(g, base + 2 * i + after, &rule)) {
                json_decref(name);
                return false;
            }
        }
        json_decref(name);
    }
    for (int after = 0; after < 2; after++) {
        struct lk_buf rule = {0};
        lk_buf_text(&rule, "\"\"");
        if (!add_rule(g, base + 2 * n + after, &rule)) return false;
    }
    lk_buf_print(body, "\"{\" ws r%d ws \"}\"", base);
    return true;
}

static bool write_object(struct grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const known[] = {"type", "properties", "required", "additionalProperties",
                                        NULL};
    const json_t *required = json_object_get(schema, "required"),
                 *properties = json_object_get(schema, "properties"), *name;
    const json_t *others = json_object_get(schema, "additionalProperties");
    size_t i;
    if (!only(g, schema, known)) return false;
    if (properties && !json_is_object(properties))
        return refuse(g, "properties that are no object");
    json_array_foreach(
        required, i,
        name) if (!json_is_string(name) ||
                  !json_object_get(
                      properties,
                      json_string_value(
                          name))) return refuse(g, "required names that are no properties");
    if (json_object_size(properties) > 0) {
        if (json_is_object(others)) return refuse(g, "additionalProperties beside properties");
        return write_properties(g, schema, body);
    }
    if (json_is_false(others)) {
        lk_buf_text(body, "\"{\" ws \"}\"");
        return true;
    }
    if (json_object_size(others) == 0) {
        lk_buf_text(body, "object");
        return true;
    }
    int value = rule_of(g, others);
    if (value < 0) return false;
    lk_buf_print(
        body, "\"{\" ws (string ws \":\" ws r%d (ws \",\" ws string ws \":\" ws r%d)*)? ws \"}\"",
        value, value);
    return true;
}

/* One alternative for each schema of a list. */
static bool write_any(struct grammar *g, const json_t *list, struct lk_buf *body) {
    const json_t *item;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return refuse(g, "a choice without alternatives");
    json_array_foreach(list, i, item) {
        int rule = rule_of(g, item);
        if (rule < 0) return false;
        lk_buf_print(body, "%sr%d", i ? " | " : "", rule);
    }
    return true;
}

static bool write_enum(struct grammar *g, const json_t *list, struct lk_buf *body) {
    const json_t *item;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return refuse(g, "an enum without values");
    json_array_foreach(list, i, item) {
        if (i) lk_buf_text(body, " | ");
        if (!add_literal(body, item)) body->failed = true;
    }
    return true;
}

/* The part of the document that "#/a/b" names; NULL where there is none. */
static const json_t *resolve(const json_t *root, const char *ref) {
    const json_t *at = root;
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
    }
    return *ref ? NULL : at;
}

/* The rule of a schema that $ref names: made once. */
static int rule_of_ref(struct grammar *g, const json_t *schema) {
    static const char *const known[] = {"$ref", NULL};
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = ref ? resolve(g->root, ref) : NULL;
    if (!only(g, schema, known)) return -1;
    if (!target) {
        refuse(g, ref ? ref : "$ref");
        return -1;
    }
    for (int i = 0; i < g->n_ref; i++)
        if (g->ref[i].schema == target) return g->ref[i].rule;
    return rule_of(g, target);
}

static bool write_type(struct grammar *g, const json_t *schema, const char *type,
                       struct lk_buf *body) {
    static const char *const known[] = {"type", NULL};
    if (strcmp(type, "string") == 0) return write_string(g, schema, body);
    if (strcmp(type, "array") == 0) return write_array(g, schema, body);
    if (strcmp(type, "object") == 0) return write_object(g, schema, body);
    static const char *const plain[] = {"integer", "number", "boolean", "null", NULL};
    for (const char *const *name = plain; *name; name++)
        if (strcmp(type, *name) == 0) {
            lk_buf_text(body, type);
            return only(g, schema, known);
        }
    return refuse(g, type);
}

/* "type": ["string", "null"]: an alternative for each, with the keywords that belong to it. */
static bool write_types(struct grammar *g, const json_t *schema, const json_t *types,
                        struct lk_buf *body) {
    json_t *any = json_array();
    const json_t *type;
    size_t i;
    json_array_foreach(types, i, type) {
        bool none = json_is_string(type) && strcmp(json_string_value(type), "null") == 0;
        json_t *one = none ? json_object() : json_copy((json_t *)schema);
        json_object_set(one, "type", (json_t *)type);
        json_array_append_new(any, one);
    }
    bool good = write_any(g, any, body);
    json_decref(any);
    return good;
}

static bool write_schema(struct grammar *g, const json_t *schema, struct lk_buf *body) {
    static const char *const of_const[] = {"type", "const", NULL}, *const of_enum[] = {
                                                                       "type", "enum", NULL};
    static const char *const of_any[] = {"anyOf", NULL}, *const of_one[] = {"oneOf", NULL},
                             *const of_all[] = {"allOf", NULL};
    const json_t *type = json_object_get(schema, "type"), *part;
    if ((part = json_object_get(schema, "const"))) {
        if (!add_literal(body, part)) body->failed = true;
        return only(g, schema, of_const);
    }
    if ((part = json_object_get(schema, "enum")))
        return only(g, schema, of_enum) && write_enum(g, part, body);
    if ((part = json_object_get(schema, "anyOf")))
        return only(g, schema, of_any) && write_any(g, part, body);
    if ((part = json_object_get(schema, "oneOf")))
        return only(g, schema, of_one) && write_any(g, part, body);
    if ((part = json_object_get(schema, "allOf"))) {
        if (json_array_size(part) != 1) return refuse(g, "allOf of several");
        return only(g, schema, of_all) && write_any(g, part, body);
    }
    if (json_is_array(type)) return write_types(g, schema, type, body);
    if (json_is_string(type)) return write_type(g, schema, json_string_value(type), body);
    if (type) return refuse(g, "a type that is no text");
    if (json_object_get(schema, "properties")) return write_object(g, schema, body);
    static const char *const nothing[] = {NULL};
    lk_buf_text(body, "value");
    return only(g, schema, nothing);
}

/* A new rule for what is no reference; -1 after a fault. */
static int new_rule(struct grammar *g, const json_t *schema) {
    struct lk_buf body = {0};
    int rule = g->n_rule++;
    bool good = true;
    g->ref[g->n_ref].schema = schema;
    g->ref[g->n_ref++].rule = rule;
    if (json_is_true(schema))
        lk_buf_text(&body, "value");
    else if (json_is_object(schema))
        good = write_schema(g, schema, &body);
    else
        good = refuse(g, "a schema that is no object");
    if (!good) lk_buf_free(&body);
    return good && add_rule(g, rule, &body) ? rule : -1;
}

static bool is_document(const struct lk_schema_use *use, const json_t *schema) {
    for (size_t i = 0; i < use->n_document; i++)
        if (use->document[i] == schema) return true;
    return false;
}

/* The number of a rule for `schema`; -1 after a fault. */
static int rule_of(struct grammar *g, const json_t *schema) {
    if (g->depth >= MAX_DEPTH || g->n_ref >= MAX_REF || g->out.len > MAX_GRAMMAR) {
        refuse(g, "more nesting, or more parts, than there is room for");
        return -1;
    }
    const json_t *outer = g->root;
    if (is_document(g->use, schema)) g->root = schema;
    g->depth++;
    int rule = json_object_get(schema, "$ref") ? rule_of_ref(g, schema) : new_rule(g, schema);
    g->depth--;
    g->root = outer;
    return rule;
}

char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_fault *fault) {
    static const char basics[] =
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
    struct grammar *g = calloc(1, sizeof *g);
    if (!g) {
        lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a grammar");
        return NULL;
    }
    g->use = use;
    g->root = schema;
    g->fault = fault;
    int root = rule_of(g, schema);
    lk_buf_print(&g->out, "root ::= \"%s\" r%d \"%s\"\n", use->before ? use->before : "", root,
                 use->after ? use->after : "");
    lk_buf_text(&g->out, basics);
    char *text = g->out.at;
    bool good = root >= 0;
    if (good && (g->out.failed || g->out.len > MAX_GRAMMAR))
        good = lk_fault_set(fault, 400, "unsupported_schema", use->field,
                            "the JSON schema is too large");
    if (!good) lk_buf_free(&g->out);
    free(g);
    return good ? text : NULL;
}
