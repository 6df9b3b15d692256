/* Finds the form of a model's calls, and writes its grammar. */
#include "serve/call_grammar.h"

#include "serve/tool_calls.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GRAMMAR = 1 << 17 }; /* bytes; the limit of lk_sampler_new */

/* ---- forms ---- */

enum kind { FORM_NONE, FORM_NAMED, FORM_MESSAGE, FORM_FUNCTIONS, FORM_GEMMA, FORM_PYTHON };

/* The words around the parts of a call, after the trigger. */
struct form {
    enum kind kind;
    char trigger[64];
    bool is_first, is_repeated, is_list;
    char before[128], between[128], after[128];
    char opening[128]; /* before the trigger */
    const char *close; /* static */
};

static const char name[] = "probe_name", key[] = "probe_key";

/* Copy text[0..n) without marks. False: it does not fit. */
static bool copy_part(char *out, size_t size, const char *text, size_t n) {
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == 0xFF || c == 0xFE) continue; /* the marks of lk_chat_format */
        if (len + 1 >= size) return false;
        out[len++] = text[i];
    }
    out[len] = 0;
    return true;
}

/* A form whose arguments are the JSON object that starts at `open`. */
static bool find_named(struct form *f, const char *at, const char *open, const char *rest,
                       const char *word) {
    const char *end = strchr(open, '}'), *stop;
    if (!end) return false;
    end++;
    stop = *f->close ? strstr(end, f->close) : NULL;
    if (!stop) stop = end + strcspn(end, "\xFF"), f->close = "";
    f->kind = FORM_NAMED;
    f->is_repeated = *f->close;
    if (!word) { /* {"name": "f", "parameters": {...}} */
        f->is_first = true;
        rest = at - strlen(name);
    }
    return copy_part(f->before, sizeof f->before, rest, (size_t)(at - strlen(name) - rest)) &&
           copy_part(f->between, sizeof f->between, at, (size_t)(open - at)) &&
           copy_part(f->after, sizeof f->after, end, (size_t)(stop - end));
}

static struct form find_form(const lk_call_words *words) {
    static const struct form none = {.kind = FORM_NONE, .close = ""};
    struct form f = none;
    const char *sample = words->sample, *at = strstr(sample, name);
    if (!at) return none;
    char head[sizeof words->sample] = "";
    const char *rest = NULL, *word = NULL, *open = strchr(at, '{'), *its_key = strstr(at, key);
    if (!its_key || !copy_part(head, sizeof head, sample, (size_t)(at - sample))) return none;
    word = lk_tool_calls_word(head, &rest);
    if (word) {
        snprintf(f.trigger, sizeof f.trigger, "%s", word);
        f.close = lk_tool_calls_close(word);
    }
    at += strlen(name);
    if (strstr(head, " to=functions.") && strstr(at, "<|message|>")) {
        f.kind = FORM_MESSAGE; /* its header may come in another order */
        snprintf(f.trigger, sizeof f.trigger, " to=functions.");
        f.close = "";
        return f;
    }
    if (*at == '>' && strstr(at, "<parameter=")) {
        f.kind = FORM_FUNCTIONS;
        snprintf(f.trigger, sizeof f.trigger, "<function=");
        return f;
    }
    if (*at == '(' && word) {
        f.kind = FORM_PYTHON;
        f.is_list = strchr(rest, '[');
        return f;
    }
    if (*at == '{' && its_key == at + 1 && word) {
        f.kind = FORM_GEMMA;
        return f;
    }
    if (!open || open > its_key) return none;
    /* The words before the name, as they are in the sample. */
    const char *start = sample;
    if (word) {
        size_t n_left = strlen(rest), n_seen = 0;
        for (start = at - strlen(name); start > sample && n_seen < n_left; start--)
            n_seen += (unsigned char)start[-1] < 0xFE;
    } else {
        start += strspn(start, " \n\xFF\xFE");
    }
    if (!find_named(&f, at, open, start, word)) return none;
    if (!f.is_first) return f;
    /* The trigger is all that precedes the name: an answer may start with another brace. */
    if (strncmp(start, "{\"name\"", 7) != 0 ||
        !copy_part(f.trigger, sizeof f.trigger, start, (size_t)(at - strlen(name) - start)))
        return none;
    f.before[0] = 0;
    return f;
}

/* ---- a grammar under construction ---- */

struct maker {
    const struct form *form;
    struct lk_buf rules;
    char *common; /* rules of all schemas; owned */
    int n_schema;
    bool is_whole;   /* an answer that is one call */
    bool is_generic; /* parameters are not looked at: the grammar was too large with them */
};

void lk_gbnf_add_literal(struct lk_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\n')
            lk_buf_append_str(out, "\\n");
        else
            lk_buf_printf(out, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
}

static void add_literal(struct lk_buf *out, const char *text) {
    if (!*text) return;
    lk_buf_append_str(out, " \"");
    lk_gbnf_add_literal(out, text);
    lk_buf_append_str(out, "\"");
}

/* Append the rules r0, r1, ... of a schema's grammar as sN-r0, sN-r1, ... */
static void append_numbered(struct lk_buf *out, const char *grammar, size_t len, int number) {
    for (size_t i = 0, n; i < len; i += n) {
        char c = grammar[i];
        n = 1;
        if (c == '"' || c == '[') {
            char end = c == '[' ? ']' : '"';
            while (i + n < len && grammar[i + n] != end) n += grammar[i + n] == '\\' ? 2 : 1;
            n++;
        } else if (isalpha((unsigned char)c)) {
            while (i + n < len && isalnum((unsigned char)grammar[i + n])) n++;
            if (c == 'r' && n > 1 && isdigit((unsigned char)grammar[i + 1]))
                lk_buf_printf(out, "s%d-", number);
        }
        lk_buf_append(out, grammar + i, n);
    }
}

/* Append a reference to JSON values of a schema; NULL or one that cannot be expressed: `other`. */
static void add_json(struct maker *m, const json_t *schema, const char *other, struct lk_buf *out) {
    static const char root[] = "\nroot ::= ";
    char *text =
             schema && !m->is_generic ? json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT) : NULL,
         *grammar = NULL;
    lk_err ignored = {0};
    if (text && lk_schema_to_grammar(text, strlen(text), &grammar, &ignored)) grammar = NULL;
    free(text);
    const char *at = grammar ? strstr(grammar, root) : NULL;
    if (!at) {
        lk_buf_printf(out, " %s", other);
        free(grammar);
        return;
    }
    size_t n_rules = (size_t)(at + 1 - grammar), n_root;
    at += strlen(root);
    n_root = strcspn(at, "\n");
    append_numbered(&m->rules, grammar, n_rules, m->n_schema);
    lk_buf_append_str(out, " ");
    append_numbered(out, at, n_root, m->n_schema);
    if (!m->common) m->common = strdup(at + n_root + 1);
    m->n_schema++;
    free(grammar);
}

/* ---- values ---- */

static const char *type_of(const json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type ? type : "";
}

/* "a" | "b" of an "enum" of strings, with `quote` around each. False: it is none. */
static bool add_words(const json_t *schema, const char *quote, struct lk_buf *out) {
    const json_t *values = json_object_get(schema, "enum"), *value;
    size_t i;
    if (json_array_size(values) == 0) return false;
    json_array_foreach(values, i, value) if (!json_is_string(value) ||
                                             strlen(json_string_value(value)) !=
                                                 json_string_length(value)) return false;
    json_array_foreach(values, i, value) {
        lk_buf_append_str(out, i ? " | \"" : " (\"");
        lk_gbnf_add_literal(out, quote);
        lk_gbnf_add_literal(out, json_string_value(value));
        lk_gbnf_add_literal(out, quote);
        lk_buf_append_str(out, "\"");
    }
    lk_buf_append_str(out, ")");
    return true;
}

/* The value of a parameter. */
static void add_value(struct maker *m, const json_t *schema, struct lk_buf *out) {
    const char *type = type_of(schema);
    bool is_string = strcmp(type, "string") == 0,
         is_number = strcmp(type, "number") == 0 || strcmp(type, "integer") == 0,
         is_boolean = strcmp(type, "boolean") == 0;
    switch (m->form->kind) {
    case FORM_FUNCTIONS: /* without a type, or with several, it may be a string */
        if (is_number || is_boolean || strcmp(type, "array") == 0 || strcmp(type, "object") == 0) {
            add_json(m, schema, "value", out);
            lk_buf_append_str(out, " \"\\n\"");
        } else if (add_words(schema, "", out)) {
            lk_buf_append_str(out, " \"\\n\"");
        } else {
            lk_buf_append_str(out, " text");
        }
        break;
    case FORM_GEMMA:
        if (is_number || is_boolean)
            add_json(m, schema, is_number ? "number" : "boolean", out);
        else if (!add_words(schema, "<|\"|>", out))
            lk_buf_append_str(out, is_string ? " gstring" : " gvalue");
        break;
    default:
        if (is_number || is_string)
            add_json(m, schema, is_number ? "number" : "string", out);
        else
            lk_buf_append_str(out, is_boolean ? " (\"True\" | \"False\")" : " pvalue");
    }
}

/* ---- parameters ---- */

/* The schema of a property, in which a $ref finds the definitions of all. */
static json_t *with_definitions(const json_t *parameters, const json_t *property) {
    static const char *const names[] = {"$defs", "definitions"};
    json_t *out = json_is_object(property) ? json_copy((json_t *)property) : json_object();
    for (int i = 0; i < 2; i++) {
        json_t *all = json_object_get(parameters, names[i]);
        if (all && !json_object_get(out, names[i])) json_object_set(out, names[i], all);
    }
    return out;
}

static bool is_required(const json_t *parameters, const char *property) {
    const json_t *list = json_object_get(parameters, "required"), *one;
    size_t i;
    json_array_foreach(list, i, one) if (json_is_string(one) &&
                                         strcmp(json_string_value(one), property) == 0) return true;
    return false;
}

/* One parameter with its name. */
static void add_parameter(struct maker *m, const char *property, const json_t *schema,
                          struct lk_buf *out) {
    bool functions = m->form->kind == FORM_FUNCTIONS;
    lk_buf_append_str(out, functions ? "\"<parameter=" : "\"");
    lk_gbnf_add_literal(out, property);
    lk_buf_append_str(out, functions ? ">\\n\"" : m->form->kind == FORM_GEMMA ? ":\"" : "=\"");
    add_value(m, schema, out);
    if (functions) lk_buf_append_str(out, " \"</parameter>\\n\"");
}

/* The parameters of a tool in the order of its schema: those that are required, then each other one
 * or not. */
static void add_parameters(struct maker *m, const json_t *parameters, struct lk_buf *out) {
    const json_t *properties = json_object_get(parameters, "properties");
    bool functions = m->form->kind == FORM_FUNCTIONS;
    const char *property;
    json_t *schema;
    size_t n_required = 0;
    if (m->is_generic || !json_is_object(properties)) {
        lk_buf_append_str(out, functions                     ? " anything*"
                               : m->form->kind == FORM_GEMMA ? " gmembers?"
                                                             : " pmembers?");
        return;
    }
    for (int pass = 0; pass < 2; pass++) {
        size_t n_open = 0;
        json_object_foreach((json_t *)properties, property, schema) {
            if (is_required(parameters, property) != (pass == 0)) continue;
            json_t *whole = with_definitions(parameters, schema);
            bool comma = !functions && n_required > 0;
            lk_buf_append_str(out, pass ? " (" : " ");
            if (comma) lk_buf_append_str(out, "\",\" [ ]? ");
            add_parameter(m, property, whole, out);
            /* Without a required one, a comma needs one before it: what follows nests. */
            if (pass && (functions || n_required))
                lk_buf_append_str(out, ")?");
            else if (pass)
                n_open++, n_required++;
            else
                n_required++;
            json_decref(whole);
        }
        for (; pass && n_open > 0; n_open--) lk_buf_append_str(out, ")?");
    }
}

/* ---- calls ---- */

static void add_call(struct maker *m, const char *function, const json_t *parameters,
                     struct lk_buf *out) {
    const struct form *f = m->form;
    add_literal(out, f->kind == FORM_GEMMA ? "call:" : f->before);
    add_literal(out, function);
    switch (f->kind) {
    case FORM_FUNCTIONS:
        add_literal(out, ">\n");
        add_parameters(m, parameters, out);
        add_literal(out, "</function>");
        break;
    case FORM_GEMMA:
    case FORM_PYTHON:
        add_literal(out, f->kind == FORM_GEMMA ? "{" : "(");
        add_parameters(m, parameters, out);
        add_literal(out, f->kind == FORM_GEMMA ? "}" : ")");
        break;
    default:
        if (f->kind == FORM_MESSAGE)
            lk_buf_append_str(out, " \"<|channel|>commentary\"? ((\" \" \"<|constrain|>\"? | "
                                   "\"<|constrain|>\") \"json\")? \"<|message|>\"");
        add_literal(out, f->between);
        add_json(m, json_is_object(parameters) ? parameters : NULL, "object", out);
        add_literal(out, f->after);
    }
}

/* The root, and the rules that values of these forms need. */
static void add_root(struct maker *m, const char *calls, struct lk_buf *out) {
    static const char words[] =
        "text ::= ([^<] | \"<\" [^/] | \"</\" [^p] | \"</p\" [^a])*\n"
        "anything ::= \"<parameter=\" [a-zA-Z0-9_.-]{1,64} \">\\n\" text \"</parameter>\\n\"\n"
        "gstring ::= \"<|\\\"|>\" ([^<] | \"<\" [^|])* \"<|\\\"|>\"\n"
        "gname ::= [a-zA-Z0-9_.-]{1,64}\n"
        "gmembers ::= gname \":\" gvalue (\",\" gname \":\" gvalue)*\n"
        "gvalue ::= gstring | number | boolean | null | \"{\" gmembers? \"}\" | "
        "\"[\" (gvalue (\",\" gvalue)*)? \"]\"\n"
        "pvalue ::= string | number | \"True\" | \"False\" | \"None\" | \"[\" (pvalue (\",\" [ ]? "
        "pvalue)*)? \"]\" | \"{\" (string \":\" [ ]? pvalue (\",\" [ ]? string \":\" [ ]? "
        "pvalue)*)? \"}\"\n"
        "pmembers ::= [a-zA-Z_] [a-zA-Z0-9_]{0,63} \"=\" pvalue (\",\" [ ]? [a-zA-Z_] "
        "[a-zA-Z0-9_]{0,63} \"=\" pvalue)*\n";
    const struct form *f = m->form;
    lk_buf_printf(out, "call ::= %s\nroot ::=", calls);
    if (m->is_whole) {
        add_literal(out, f->opening);
        add_literal(out, f->trigger);
    }
    if (f->is_list && m->is_whole)
        lk_buf_append_str(out, " \"[\" call \"]\"");
    else if (m->is_whole)
        lk_buf_append_str(out, strstr(f->opening, "<tool_call>") && f->kind == FORM_FUNCTIONS
                                   ? " call \"\\n</tool_call>\""
                                   : " call");
    else if (f->is_list)
        lk_buf_append_str(out, " [ \\n]{0,2} \"[\" call (\",\" [ ]? call)* \"]\"");
    else if (f->kind == FORM_GEMMA || f->kind == FORM_PYTHON || f->is_repeated)
        lk_buf_append_str(out, " [\\n]? call ([\\n]? call)* [\\n]?");
    else
        lk_buf_append_str(out, " call");
    if (f->kind != FORM_FUNCTIONS) add_literal(out, f->close);
    lk_buf_printf(out, "\n%s", words);
}

/* The grammar; NULL if it is too large, or there is no memory. Owned. */
static char *make_grammar(const struct form *form, const json_t *tools, const json_t *allowed,
                          bool is_whole, bool is_generic) {
    struct maker m = {.form = form, .is_whole = is_whole, .is_generic = is_generic};
    struct lk_buf calls = {0}, out = {0}, unused = {0};
    const json_t *tool;
    size_t i, n = 0;
    json_t *any = json_pack("{s:s}", "type", "object");
    m.is_generic = false;
    add_json(&m, any, "object", &unused); /* for the common rules */
    m.is_generic = is_generic;
    json_decref(any);
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *its_name = json_string_value(json_object_get(function, "name"));
        if (!its_name || (allowed && !json_object_get(allowed, its_name))) continue;
        lk_buf_append_str(&calls, n++ ? " |" : "");
        add_call(&m, its_name, json_object_get(function, "parameters"), &calls);
    }
    add_root(&m, lk_buf_cstr(&calls), &out);
    lk_buf_append(&out, lk_buf_cstr(&m.rules), m.rules.len);
    if (m.common) lk_buf_append_str(&out, m.common);
    bool good = n > 0 && m.common && !calls.failed && !m.rules.failed && !unused.failed &&
                !out.failed && out.len <= MAX_GRAMMAR;
    lk_buf_free(&calls);
    lk_buf_free(&m.rules);
    lk_buf_free(&unused);
    free(m.common);
    if (good) return lk_buf_detach(&out);
    lk_buf_free(&out);
    return NULL;
}

/* Set what the template writes before the trigger. False: it is too long. */
static bool find_opening(struct form *f, const char *sample) {
    char head[sizeof((lk_call_words *)0)->sample];
    const char *at, *last = NULL;
    if (!copy_part(head, sizeof head, sample, strlen(sample))) return false;
    const char *end = strstr(head, name);
    for (at = head; end && (at = strstr(at, f->trigger)) && at < end; at++) last = at;
    return last && copy_part(f->opening, sizeof f->opening, head, (size_t)(last - head));
}

struct lk_call_grammar lk_call_grammar_make(const lk_call_words *words, const json_t *tools,
                                            const json_t *allowed, bool is_whole) {
    struct lk_call_grammar out = {.text = NULL};
    struct form form = find_form(words);
    if (form.kind == FORM_NONE || (is_whole && !find_opening(&form, words->sample))) return out;
    out.text = make_grammar(&form, tools, allowed, is_whole, false);
    if (!out.text) out.text = make_grammar(&form, tools, allowed, is_whole, true);
    memcpy(out.trigger, form.trigger, sizeof out.trigger);
    out.trigger_first = form.is_first;
    return out;
}
