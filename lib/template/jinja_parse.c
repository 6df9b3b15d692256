/* The parser of the template engine: recursive descent, one function per level of precedence. */
#include "template/jinja_parse.h"

#include "template/jinja_lex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    struct lk_jinja_heap *heap;
    const struct lk_jinja_token *at;
};

static struct lk_jinja_node *parse_expression(struct parser *p);
static struct lk_jinja_node *parse_unary(struct parser *p, bool with_filters);
static struct lk_jinja_node *parse_body(struct parser *p, const char *const *ends);

static struct lk_jinja_node *new_node(struct parser *p, enum lk_jinja_op op) {
    struct lk_jinja_node *node = lk_jinja_alloc(p->heap, sizeof *node);
    *node = (struct lk_jinja_node){.op = op, .line = p->at->line};
    return node;
}

static struct lk_jinja_node *new_pair(struct parser *p, enum lk_jinja_op op,
                                      struct lk_jinja_node *a, struct lk_jinja_node *b) {
    struct lk_jinja_node *node = new_node(p, op);
    node->a = a;
    node->b = b;
    return node;
}

/* ---- tokens ---- */

static bool token_is(const struct lk_jinja_token *token, enum lk_jinja_lexeme kind,
                     const char *text) {
    return token->kind == kind && token->len == strlen(text) &&
           memcmp(token->at, text, token->len) == 0;
}

static bool is_operator(const struct parser *p, const char *text) {
    return token_is(p->at, LK_LEX_OPERATOR, text);
}

static bool is_word(const struct parser *p, const char *text) {
    return token_is(p->at, LK_LEX_NAME, text);
}

static _Noreturn void fail_here(struct parser *p, const char *expected) {
    p->heap->line = p->at->line;
    if (p->at->kind == LK_LEX_END)
        lk_jinja_fail(p->heap, LK_E_FORMAT, "expected %s, but the template ends", expected);
    lk_jinja_fail(p->heap, LK_E_FORMAT, "expected %s, not '%.*s'", expected,
                  (int)(p->at->len < 20 ? p->at->len : 20), p->at->at);
}

static bool accept_operator(struct parser *p, const char *text) {
    bool found = is_operator(p, text);
    p->at += found;
    return found;
}

static bool accept_word(struct parser *p, const char *text) {
    bool found = is_word(p, text);
    p->at += found;
    return found;
}

static void expect_operator(struct parser *p, const char *text) {
    if (!accept_operator(p, text)) fail_here(p, text);
}

static void expect_kind(struct parser *p, enum lk_jinja_lexeme kind, const char *what) {
    if (p->at->kind != kind) fail_here(p, what);
    p->at++;
}

static struct lk_jinja_text take_name(struct parser *p) {
    if (p->at->kind != LK_LEX_NAME) fail_here(p, "a name");
    struct lk_jinja_text name = lk_jinja_text_of(p->heap, p->at->at, p->at->len, LK_FROM_TEMPLATE);
    p->at++;
    return name;
}

/* ---- primary expressions ---- */

static struct lk_jinja_node *parse_number(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_OP_CONSTANT);
    char digits[64];
    size_t n = 0;
    bool is_float = memchr(p->at->at, '.', p->at->len) != NULL;
    for (size_t i = 0; i < p->at->len && n + 1 < sizeof digits; i++)
        if (p->at->at[i] != '_') digits[n++] = p->at->at[i];
    digits[n] = 0;
    node->value = lk_jinja_int(strtoll(digits, NULL, 10));
    if (is_float)
        node->value = (struct lk_jinja_value){.kind = LK_JINJA_FLOAT, .real = strtod(digits, NULL)};
    p->at++;
    return node;
}

static struct lk_jinja_node *parse_string(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_OP_CONSTANT);
    struct lk_jinja_text text = {NULL, 0};
    for (; p->at->kind == LK_LEX_STRING; p->at++)
        text = lk_jinja_concat(p->heap, text, lk_jinja_unescape(p->heap, p->at));
    node->value = lk_jinja_string(text);
    return node;
}

static struct lk_jinja_node *parse_name(struct parser *p) {
    static const struct {
        const char *word;
        struct lk_jinja_value value;
    } constants[] = {{"true", {.kind = LK_JINJA_BOOL, .yes = true}},
                     {"True", {.kind = LK_JINJA_BOOL, .yes = true}},
                     {"false", {.kind = LK_JINJA_BOOL}},
                     {"False", {.kind = LK_JINJA_BOOL}},
                     {"none", {.kind = LK_JINJA_NONE}},
                     {"None", {.kind = LK_JINJA_NONE}}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (is_word(p, constants[i].word)) {
            struct lk_jinja_node *node = new_node(p, LK_OP_CONSTANT);
            node->value = constants[i].value;
            p->at++;
            return node;
        }
    struct lk_jinja_node *node = new_node(p, LK_OP_NAME);
    node->name = take_name(p);
    return node;
}

/* The expressions up to `end`, separated by commas. *is_single: there is one, and no comma. */
static struct lk_jinja_node *parse_list(struct parser *p, const char *end, bool *is_single) {
    struct lk_jinja_node *first = NULL, **last = &first;
    size_t n = 0;
    bool comma = false;
    while (!is_operator(p, end)) {
        *last = parse_expression(p);
        last = &(*last)->next;
        n++;
        comma = accept_operator(p, ",");
        if (!comma) break;
    }
    expect_operator(p, end);
    if (is_single) *is_single = n == 1 && !comma;
    return first;
}

static struct lk_jinja_node *parse_dict(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_OP_DICT), **last = &node->list;
    while (!is_operator(p, "}")) {
        *last = parse_expression(p);
        last = &(*last)->next;
        expect_operator(p, ":");
        *last = parse_expression(p);
        last = &(*last)->next;
        if (!accept_operator(p, ",")) break;
    }
    expect_operator(p, "}");
    return node;
}

static struct lk_jinja_node *parse_primary(struct parser *p) {
    if (p->at->kind == LK_LEX_NAME) return parse_name(p);
    if (p->at->kind == LK_LEX_NUMBER) return parse_number(p);
    if (p->at->kind == LK_LEX_STRING) return parse_string(p);
    if (accept_operator(p, "(")) {
        bool is_single = false;
        struct lk_jinja_node *node = new_node(p, LK_OP_TUPLE);
        node->list = parse_list(p, ")", &is_single);
        return is_single ? node->list : node;
    }
    if (accept_operator(p, "[")) {
        struct lk_jinja_node *node = new_node(p, LK_OP_LIST);
        node->list = parse_list(p, "]", NULL);
        return node;
    }
    if (accept_operator(p, "{")) return parse_dict(p);
    fail_here(p, "an expression");
}

/* ---- what follows a primary expression ---- */

/* After "(". */
static struct lk_jinja_node *parse_arguments(struct parser *p) {
    struct lk_jinja_node *first = NULL, **last = &first;
    while (!is_operator(p, ")")) {
        if (p->at->kind == LK_LEX_NAME && token_is(p->at + 1, LK_LEX_OPERATOR, "=")) {
            struct lk_jinja_node *node = new_node(p, LK_OP_NAMED);
            node->name = take_name(p);
            p->at++;
            node->a = parse_expression(p);
            *last = node;
        } else if (accept_operator(p, "*")) {
            *last = new_pair(p, LK_OP_SPREAD, NULL, NULL);
            (*last)->a = parse_expression(p);
        } else {
            *last = parse_expression(p);
        }
        last = &(*last)->next;
        if (!accept_operator(p, ",")) break;
    }
    expect_operator(p, ")");
    return first;
}

/* After "[". */
static struct lk_jinja_node *parse_subscript(struct parser *p, struct lk_jinja_node *object) {
    struct lk_jinja_node *part[3] = {NULL, NULL, NULL}, *node;
    size_t n = 0;
    for (; n < 3; n++) {
        if (!is_operator(p, ":") && !is_operator(p, "]")) part[n] = parse_expression(p);
        if (!accept_operator(p, ":")) break;
    }
    expect_operator(p, "]");
    node = new_pair(p, n ? LK_OP_SLICE : LK_OP_ITEM, object, part[0]);
    node->c = part[1];
    node->d = part[2];
    if (n == 0 && !part[0]) fail_here(p, "an index");
    return node;
}

static struct lk_jinja_node *parse_postfix(struct parser *p, struct lk_jinja_node *node) {
    for (;;) {
        if (accept_operator(p, ".")) {
            if (p->at->kind == LK_LEX_NUMBER) {
                node = new_pair(p, LK_OP_ITEM, node, NULL);
                node->b = parse_number(p);
            } else {
                node = new_pair(p, LK_OP_ATTRIBUTE, node, NULL);
                node->name = take_name(p);
            }
        } else if (accept_operator(p, "[")) {
            node = parse_subscript(p, node);
        } else if (accept_operator(p, "(")) {
            node = new_pair(p, LK_OP_CALL, node, NULL);
            node->list = parse_arguments(p);
        } else {
            return node;
        }
    }
}

/* The argument of a test without parentheses, as in `x is divisibleby 3`. */
static bool starts_argument(const struct parser *p) {
    static const char *const words[] = {"else", "or", "and", "is", "if", "in", "not", "recursive"};
    if (p->at->kind == LK_LEX_STRING || p->at->kind == LK_LEX_NUMBER) return true;
    if (is_operator(p, "[") || is_operator(p, "{")) return true;
    if (p->at->kind != LK_LEX_NAME) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(p, words[i])) return false;
    return true;
}

static struct lk_jinja_node *parse_test(struct parser *p, struct lk_jinja_node *operand) {
    bool negated = accept_word(p, "not");
    struct lk_jinja_node *node = new_pair(p, LK_OP_TEST, operand, NULL);
    node->name = take_name(p);
    if (accept_operator(p, "("))
        node->list = parse_arguments(p);
    else if (starts_argument(p))
        node->list = parse_postfix(p, parse_primary(p));
    return negated ? new_pair(p, LK_OP_NOT, node, NULL) : node;
}

static struct lk_jinja_node *parse_filters(struct parser *p, struct lk_jinja_node *node) {
    for (;;) {
        if (accept_operator(p, "|")) {
            node = new_pair(p, LK_OP_FILTER, node, NULL);
            node->name = take_name(p);
            if (accept_operator(p, "(")) node->list = parse_arguments(p);
        } else if (accept_word(p, "is")) {
            node = parse_test(p, node);
        } else if (is_operator(p, "(")) {
            node = parse_postfix(p, node);
        } else {
            return node;
        }
    }
}

/* ---- operators ---- */

static struct lk_jinja_node *parse_unary(struct parser *p, bool with_filters) {
    struct lk_jinja_node *node;
    lk_jinja_enter(p->heap);
    if (accept_operator(p, "-"))
        node = new_pair(p, LK_OP_NEGATE, parse_unary(p, false), NULL);
    else if (accept_operator(p, "+"))
        node = parse_unary(p, false);
    else
        node = parse_postfix(p, parse_primary(p));
    if (with_filters) node = parse_filters(p, node);
    lk_jinja_leave(p->heap);
    return node;
}

struct binary {
    const char *text;
    enum lk_jinja_op op;
};

/* One level of operators that bind to the left. The levels are in the order of parse_level. */
static const struct binary operators[][5] = {
    {{"+", LK_OP_ADD}, {"-", LK_OP_SUBTRACT}},
    {{"~", LK_OP_JOIN}},
    {{"*", LK_OP_MULTIPLY},
     {"/", LK_OP_DIVIDE},
     {"//", LK_OP_FLOOR_DIVIDE},
     {"%", LK_OP_REMAINDER}},
    {{"**", LK_OP_POWER}},
};
enum { N_LEVEL = sizeof operators / sizeof *operators };

static struct lk_jinja_node *parse_level(struct parser *p, size_t level) {
    if (level == N_LEVEL) return parse_unary(p, true);
    struct lk_jinja_node *node = parse_level(p, level + 1);
    for (size_t i = 0; operators[level][i].text;) {
        if (accept_operator(p, operators[level][i].text)) {
            node = new_pair(p, operators[level][i].op, node, NULL);
            node->b = parse_level(p, level + 1);
            i = 0;
        } else {
            i++;
        }
    }
    return node;
}

/* Comparisons may be chained: a < b < c. */
static struct lk_jinja_node *parse_comparison(struct parser *p) {
    static const struct binary comparisons[] = {
        {"==", LK_OP_EQUAL},         {"!=", LK_OP_NOT_EQUAL}, {"<=", LK_OP_LESS_EQUAL},
        {">=", LK_OP_GREATER_EQUAL}, {"<", LK_OP_LESS},       {">", LK_OP_GREATER}};
    struct lk_jinja_node *left = parse_level(p, 0), *all = NULL;
    for (;;) {
        struct lk_jinja_node *node = NULL;
        for (size_t i = 0; !node && i < sizeof comparisons / sizeof *comparisons; i++)
            if (accept_operator(p, comparisons[i].text))
                node = new_pair(p, comparisons[i].op, left, NULL);
        if (!node && accept_word(p, "in")) node = new_pair(p, LK_OP_IN, left, NULL);
        if (!node && is_word(p, "not") && token_is(p->at + 1, LK_LEX_NAME, "in")) {
            p->at += 2;
            node = new_pair(p, LK_OP_NOT_IN, left, NULL);
        }
        if (!node) return all ? all : left;
        node->b = left = parse_level(p, 0);
        all = all ? new_pair(p, LK_OP_AND, all, node) : node;
    }
}

static struct lk_jinja_node *parse_not(struct parser *p) {
    if (!accept_word(p, "not")) return parse_comparison(p);
    lk_jinja_enter(p->heap);
    struct lk_jinja_node *node = new_pair(p, LK_OP_NOT, parse_not(p), NULL);
    lk_jinja_leave(p->heap);
    return node;
}

static struct lk_jinja_node *parse_and(struct parser *p) {
    struct lk_jinja_node *node = parse_not(p);
    while (accept_word(p, "and")) node = new_pair(p, LK_OP_AND, node, parse_not(p));
    return node;
}

static struct lk_jinja_node *parse_or(struct parser *p) {
    struct lk_jinja_node *node = parse_and(p);
    while (accept_word(p, "or")) node = new_pair(p, LK_OP_OR, node, parse_and(p));
    return node;
}

static struct lk_jinja_node *parse_expression(struct parser *p) {
    lk_jinja_enter(p->heap);
    struct lk_jinja_node *node = parse_or(p);
    while (accept_word(p, "if")) {
        node = new_pair(p, LK_OP_CONDITION, node, parse_or(p));
        if (accept_word(p, "else")) node->c = parse_expression(p);
    }
    lk_jinja_leave(p->heap);
    return node;
}

/* An expression, or several with commas between them: a tuple. */
static struct lk_jinja_node *parse_tuple(struct parser *p) {
    struct lk_jinja_node *first = parse_expression(p), *node, **last = &first->next;
    if (!is_operator(p, ",")) return first;
    node = new_node(p, LK_OP_TUPLE);
    node->list = first;
    while (accept_operator(p, ",")) {
        if (p->at->kind == LK_LEX_BLOCK_END || p->at->kind == LK_LEX_OUTPUT_END) break;
        *last = parse_expression(p);
        last = &(*last)->next;
    }
    return node;
}

/* ---- statements ---- */

static void end_block(struct parser *p) { expect_kind(p, LK_LEX_BLOCK_END, "%}"); }

/* The body up to the block `end`, which is passed. */
static struct lk_jinja_node *parse_body_to(struct parser *p, const char *end) {
    const char *const ends[] = {end, NULL};
    end_block(p);
    struct lk_jinja_node *body = parse_body(p, ends);
    p->at += 2; /* "{%", the word */
    return body;
}

static struct lk_jinja_node *parse_if(struct parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct lk_jinja_node *first = new_node(p, LK_OP_IF), *node = first;
    node->a = parse_expression(p);
    for (;;) {
        end_block(p);
        node->b = parse_body(p, ends);
        p->at++;
        if (accept_word(p, "elif")) {
            node->c = new_node(p, LK_OP_IF);
            node = node->c;
            node->a = parse_expression(p);
        } else if (accept_word(p, "else")) {
            node->c = parse_body_to(p, "endif");
            return first;
        } else {
            p->at++;
            return first;
        }
    }
}

/* Names or attributes with commas between them, maybe in parentheses. */
static struct lk_jinja_node *parse_targets(struct parser *p) {
    struct lk_jinja_node *first = NULL, **last = &first;
    bool in_brackets = accept_operator(p, "(");
    do {
        *last = parse_postfix(p, parse_name(p));
        enum lk_jinja_op op = (*last)->op;
        if (op != LK_OP_NAME && op != LK_OP_ATTRIBUTE && op != LK_OP_ITEM) fail_here(p, "a name");
        last = &(*last)->next;
    } while (accept_operator(p, ","));
    if (in_brackets) expect_operator(p, ")");
    return first;
}

static struct lk_jinja_node *parse_for(struct parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    struct lk_jinja_node *node = new_node(p, LK_OP_FOR);
    node->list = parse_targets(p);
    if (!accept_word(p, "in")) fail_here(p, "in");
    node->a = parse_or(p);
    if (accept_word(p, "if")) node->d = parse_expression(p);
    accept_word(p, "recursive");
    end_block(p);
    node->b = parse_body(p, ends);
    p->at++;
    if (accept_word(p, "else"))
        node->c = parse_body_to(p, "endfor");
    else
        p->at++;
    return node;
}

/* Filters after a block's name, around the text of its body. */
static struct lk_jinja_node *parse_block_filters(struct parser *p) {
    return parse_filters(p, new_node(p, LK_OP_CAPTURED));
}

static struct lk_jinja_node *parse_set(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_OP_SET);
    node->list = parse_targets(p);
    if (accept_operator(p, "=")) {
        node->a = parse_tuple(p);
        return node;
    }
    node->op = LK_OP_SET_BLOCK;
    node->a = parse_block_filters(p);
    node->b = parse_body_to(p, "endset");
    return node;
}

/* After "(": parameters with or without defaults. */
static struct lk_jinja_node *parse_parameters(struct parser *p) {
    struct lk_jinja_node *first = NULL, **last = &first;
    while (!is_operator(p, ")")) {
        *last = new_node(p, LK_OP_NAMED);
        (*last)->name = take_name(p);
        if (accept_operator(p, "=")) (*last)->a = parse_expression(p);
        last = &(*last)->next;
        if (!accept_operator(p, ",")) break;
    }
    expect_operator(p, ")");
    return first;
}

static struct lk_jinja_node *parse_macro(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_OP_MACRO);
    node->name = take_name(p);
    expect_operator(p, "(");
    node->list = parse_parameters(p);
    node->b = parse_body_to(p, "endmacro");
    return node;
}

static struct lk_jinja_node *parse_statement(struct parser *p) {
    struct lk_jinja_node *node;
    if (accept_word(p, "if")) return parse_if(p);
    if (accept_word(p, "for")) return parse_for(p);
    if (accept_word(p, "set")) return parse_set(p);
    if (accept_word(p, "macro")) return parse_macro(p);
    if (accept_word(p, "break")) return new_node(p, LK_OP_BREAK);
    if (accept_word(p, "continue")) return new_node(p, LK_OP_CONTINUE);
    if (accept_word(p, "filter")) {
        struct lk_jinja_node *captured = new_node(p, LK_OP_CAPTURED);
        node = new_node(p, LK_OP_FILTER_BLOCK);
        node->a = new_pair(p, LK_OP_FILTER, captured, NULL);
        node->a->name = take_name(p);
        if (accept_operator(p, "(")) node->a->list = parse_arguments(p);
        node->a = parse_filters(p, node->a);
        node->b = parse_body_to(p, "endfilter");
        return node;
    }
    if (accept_word(p, "generation")) { /* marks the assistant's words for training */
        node = new_node(p, LK_OP_BLOCK);
        node->b = parse_body_to(p, "endgeneration");
        return node;
    }
    fail_here(p, "a statement");
}

/* The statements up to a block that starts with one of `ends`, which is not passed. NULL: up to the
 * end of the template. */
static struct lk_jinja_node *parse_body(struct parser *p, const char *const *ends) {
    struct lk_jinja_node *first = NULL, **last = &first;
    lk_jinja_enter(p->heap);
    for (; p->at->kind != LK_LEX_END; last = &(*last)->next) {
        if (p->at->kind == LK_LEX_TEXT) {
            *last = new_node(p, LK_OP_TEXT);
            (*last)->value =
                lk_jinja_string(lk_jinja_text_of(p->heap, p->at->at, p->at->len, LK_FROM_TEMPLATE));
            p->at++;
        } else if (p->at->kind == LK_LEX_OUTPUT) {
            p->at++;
            *last = new_node(p, LK_OP_OUTPUT);
            (*last)->a = parse_tuple(p);
            expect_kind(p, LK_LEX_OUTPUT_END, "}}");
        } else {
            for (size_t i = 0; ends && ends[i]; i++)
                if (token_is(p->at + 1, LK_LEX_NAME, ends[i])) {
                    lk_jinja_leave(p->heap);
                    return first;
                }
            p->at++;
            *last = parse_statement(p);
            end_block(p);
        }
    }
    if (ends) fail_here(p, ends[0]);
    lk_jinja_leave(p->heap);
    return first;
}

struct lk_jinja_node *lk_jinja_parse_text(struct lk_jinja_heap *heap, const char *text,
                                          size_t len) {
    struct parser p = {.heap = heap, .at = lk_jinja_lex(heap, text, len)};
    return parse_body(&p, NULL);
}
