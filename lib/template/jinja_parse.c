/* The lexer and the parser of the template engine: recursive descent, one function per level of
 * precedence. */
#include "template/jinja_parse.h"

#include "base/ascii.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lexer ---- */

struct lexer {
    struct lk_jinja_heap *heap;
    const char *at, *end;
    size_t line;
    struct lk_jinja_token *token; /* [n] */
    size_t n, cap;
    bool line_start;   /* the text before was trimmed up to the start of a line */
    bool strip_next;   /* "-" of the tag before: drop white space */
    bool drop_newline; /* the tag before was a block or a comment */
};

static void push_token(struct lexer *l, enum lk_jinja_lexeme kind, const char *at, size_t len) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct lk_jinja_token *token = lk_jinja_alloc(l->heap, cap * sizeof *token);
        if (l->n) memcpy(token, l->token, l->n * sizeof *token);
        l->token = token;
        l->cap = cap;
    }
    lk_jinja_work(l->heap, 1);
    l->token[l->n++] = (struct lk_jinja_token){.kind = kind, .line = l->line, .at = at, .len = len};
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The start of the next tag, or the end. */
static const char *find_tag(const char *at, const char *end) {
    for (; at + 1 < end; at++)
        if (*at == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#')) return at;
    return end;
}

/* Push the text from l->at to the tag at `tag`, or to the end, trimmed on both sides. */
static void push_text(struct lexer *l, const char *tag) {
    const char *from = l->at, *to = tag;
    bool is_block = tag + 2 < l->end && tag[1] != '{';
    char sign = tag + 2 < l->end ? tag[2] : 0;
    bool at_line_start = l->line_start;
    if (l->strip_next) {
        while (from < to && lk_is_space(*from)) from++;
    } else if (l->drop_newline && from < to && *from == '\n') {
        from++;
        at_line_start = true;
    }
    if (tag < l->end && sign == '-') {
        while (to > from && lk_is_space(to[-1])) to--;
    } else if (tag < l->end && is_block && sign != '+') {
        const char *start = to;
        while (start > from && is_blank(start[-1])) start--;
        if (start > from ? start[-1] == '\n' : at_line_start) to = start;
    }
    if (to > from) push_token(l, LK_LEX_TEXT, from, (size_t)(to - from));
    for (const char *c = l->at; c < tag; c++) l->line += *c == '\n';
    l->at = tag;
}

/* The tag ended with this sign before its closing brackets. */
static void end_tag(struct lexer *l, char sign, bool is_block) {
    l->strip_next = sign == '-';
    l->drop_newline = is_block && sign != '+';
    l->line_start = false;
}

static void skip_comment(struct lexer *l) {
    const char *at = l->at + 2;
    for (; at + 1 < l->end && !(at[0] == '#' && at[1] == '}'); at++) l->line += *at == '\n';
    if (at + 1 >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a comment has no end");
    char sign = at > l->at + 2 ? at[-1] : 0;
    l->at = at + 2;
    end_tag(l, sign, true);
}

static void lex_string(struct lexer *l) {
    char quote = *l->at++;
    const char *start = l->at;
    for (; l->at < l->end && *l->at != quote; l->at++) {
        l->line += *l->at == '\n';
        if (*l->at == '\\' && l->at + 1 < l->end) l->at++;
    }
    if (l->at >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a string has no end");
    push_token(l, LK_LEX_STRING, start, (size_t)(l->at - start));
    l->at++;
}

static void lex_number(struct lexer *l) {
    const char *start = l->at;
    while (l->at < l->end && (lk_is_digit(*l->at) || *l->at == '_')) l->at++;
    if (l->at + 1 < l->end && *l->at == '.' && lk_is_digit(l->at[1]))
        for (l->at++; l->at < l->end && lk_is_digit(*l->at);) l->at++;
    push_token(l, LK_LEX_NUMBER, start, (size_t)(l->at - start));
}

static void lex_operator(struct lexer *l) {
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "**", "//"};
    size_t n = 1;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (l->end - l->at >= 2 && memcmp(l->at, pairs[i], 2) == 0) n = 2;
    if (n == 1 && !strchr("+-*/%~<>=.,:|()[]{}", *l->at))
        lk_jinja_fail(l->heap, LK_E_FORMAT, "unexpected character '%c'",
                      *l->at >= ' ' && *l->at < 0x7F ? *l->at : '?');
    push_token(l, LK_LEX_OPERATOR, l->at, n);
    l->at += n;
}

/* Is the tag's end here? Its sign, if it has one, is in *sign. */
static bool at_end_of_tag(const struct lexer *l, bool is_block, int depth, char *sign) {
    const char *at = l->at;
    *sign = 0;
    if (at < l->end && (*at == '-' || (*at == '+' && is_block))) *sign = *at++;
    if (l->end - at < 2 || (depth > 0 && !*sign && !is_block)) return false;
    return at[0] == (is_block ? '%' : '}') && at[1] == '}';
}

static void lex_tag(struct lexer *l) {
    bool is_block = l->at[1] == '%';
    int depth = 0; /* of braces, whose "}}" does not end a tag */
    char sign;
    push_token(l, is_block ? LK_LEX_BLOCK : LK_LEX_OUTPUT, l->at, 2);
    l->at += 2;
    if (l->at < l->end && (*l->at == '-' || (*l->at == '+' && is_block))) l->at++;
    for (;;) {
        while (l->at < l->end && lk_is_space(*l->at)) l->line += *l->at++ == '\n';
        l->heap->line = l->line;
        if (l->at >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a tag has no end");
        if (at_end_of_tag(l, is_block, depth, &sign)) break;
        if (*l->at == '{') depth++;
        if (*l->at == '}') depth--;
        if (*l->at == '"' || *l->at == '\'') {
            lex_string(l);
        } else if (lk_is_digit(*l->at)) {
            lex_number(l);
        } else if (is_letter(*l->at)) {
            const char *start = l->at;
            while (l->at < l->end && (is_letter(*l->at) || lk_is_digit(*l->at))) l->at++;
            push_token(l, LK_LEX_NAME, start, (size_t)(l->at - start));
        } else {
            lex_operator(l);
        }
    }
    push_token(l, is_block ? LK_LEX_BLOCK_END : LK_LEX_OUTPUT_END, l->at, 2);
    l->at += sign ? 3 : 2;
    end_tag(l, sign, is_block);
}

struct lk_jinja_token *lk_jinja_lex(struct lk_jinja_heap *heap, const char *text, size_t len) {
    struct lexer l = {.heap = heap, .at = text, .end = text + len, .line = 1, .line_start = true};
    if (len && text[len - 1] == '\n') l.end--; /* as Jinja does */
    while (l.at < l.end) {
        heap->line = l.line;
        push_text(&l, find_tag(l.at, l.end));
        if (l.at >= l.end) break;
        if (l.at[1] == '#')
            skip_comment(&l);
        else
            lex_tag(&l);
    }
    push_token(&l, LK_LEX_END, l.at, 0);
    return l.token;
}

/* ---- strings ---- */

static size_t encode_utf8(uint32_t c, char *out) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3F)), 2;
    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
    out[0] = (char)(0xE0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3F));
    out[2] = (char)(0x80 | (c & 0x3F));
    return 3;
}

/* The value of n hexadecimal digits at text[0..len), or -1. */
static long read_hex(const char *text, size_t len, int n) {
    uint64_t value;
    return len >= (size_t)n && lk_read_hex(text, n, &value) ? (long)value : -1;
}

struct lk_jinja_text lk_jinja_unescape(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_token *token) {
    static const char letters[] = "nrtbfav0\\\'\"", meaning[] = "\n\r\t\b\f\a\v\0\\\'\"";
    char *out = lk_jinja_alloc(heap, token->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < token->len; i++) {
        const char *rest = token->at + i + 2;
        size_t n_rest = i + 2 < token->len ? token->len - i - 2 : 0;
        char c = token->at[i], next = i + 1 < token->len ? token->at[i + 1] : 0;
        const char *letter = next ? memchr(letters, next, sizeof letters - 1) : NULL;
        long code = -1;
        if (c == '\\' && next == 'u') code = read_hex(rest, n_rest, 4);
        if (c == '\\' && next == 'x') code = read_hex(rest, n_rest, 2);
        if (code >= 0) {
            n += encode_utf8((uint32_t)code, out + n);
            i += next == 'u' ? 5 : 3;
        } else if (c == '\\' && letter) {
            out[n++] = meaning[letter - letters];
            i++;
        } else if (c == '\\' && next == '\n') {
            i++;
        } else {
            out[n++] = c;
        }
    }
    return lk_jinja_text_of(heap, out, n, LK_FROM_TEMPLATE);
}

struct parser {
    struct lk_jinja_heap *heap;
    const struct lk_jinja_token *at;
};

static struct lk_jinja_node *parse_expression(struct parser *p);
static struct lk_jinja_node *parse_unary(struct parser *p, bool with_filters);
static struct lk_jinja_node *parse_body(struct parser *p, const char *const *ends);

static struct lk_jinja_node *new_node(struct parser *p, enum lk_jinja_node_kind op) {
    struct lk_jinja_node *node = lk_jinja_alloc(p->heap, sizeof *node);
    *node = (struct lk_jinja_node){.op = op, .line = p->at->line};
    return node;
}

static struct lk_jinja_node *new_pair(struct parser *p, enum lk_jinja_node_kind op,
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
    struct lk_jinja_node *node = new_node(p, LK_NODE_CONSTANT);
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
    struct lk_jinja_node *node = new_node(p, LK_NODE_CONSTANT);
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
            struct lk_jinja_node *node = new_node(p, LK_NODE_CONSTANT);
            node->value = constants[i].value;
            p->at++;
            return node;
        }
    struct lk_jinja_node *node = new_node(p, LK_NODE_NAME);
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
    struct lk_jinja_node *node = new_node(p, LK_NODE_DICT), **last = &node->list;
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
        struct lk_jinja_node *node = new_node(p, LK_NODE_TUPLE);
        node->list = parse_list(p, ")", &is_single);
        return is_single ? node->list : node;
    }
    if (accept_operator(p, "[")) {
        struct lk_jinja_node *node = new_node(p, LK_NODE_LIST);
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
            struct lk_jinja_node *node = new_node(p, LK_NODE_NAMED);
            node->name = take_name(p);
            p->at++;
            node->a = parse_expression(p);
            *last = node;
        } else if (accept_operator(p, "*")) {
            *last = new_pair(p, LK_NODE_SPREAD, NULL, NULL);
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
    if (n == 0 && !part[0]) fail_here(p, "an index");
    expect_operator(p, "]");
    node = new_pair(p, n ? LK_NODE_SLICE : LK_NODE_ITEM, object, part[0]);
    node->c = part[1];
    node->d = part[2];
    return node;
}

static struct lk_jinja_node *parse_postfix(struct parser *p, struct lk_jinja_node *node) {
    for (;;) {
        if (accept_operator(p, ".")) {
            if (p->at->kind == LK_LEX_NUMBER) {
                node = new_pair(p, LK_NODE_ITEM, node, NULL);
                node->b = parse_number(p);
            } else {
                node = new_pair(p, LK_NODE_ATTRIBUTE, node, NULL);
                node->name = take_name(p);
            }
        } else if (accept_operator(p, "[")) {
            node = parse_subscript(p, node);
        } else if (accept_operator(p, "(")) {
            node = new_pair(p, LK_NODE_CALL, node, NULL);
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
    struct lk_jinja_node *node = new_pair(p, LK_NODE_TEST, operand, NULL);
    node->name = take_name(p);
    if (accept_operator(p, "("))
        node->list = parse_arguments(p);
    else if (starts_argument(p))
        node->list = parse_postfix(p, parse_primary(p));
    return negated ? new_pair(p, LK_NODE_NOT, node, NULL) : node;
}

static struct lk_jinja_node *parse_filters(struct parser *p, struct lk_jinja_node *node) {
    for (;;) {
        if (accept_operator(p, "|")) {
            node = new_pair(p, LK_NODE_FILTER, node, NULL);
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
        node = new_pair(p, LK_NODE_NEGATE, parse_unary(p, false), NULL);
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
    enum lk_jinja_node_kind op;
};

/* One level of operators that bind to the left. The levels are in the order of parse_level. */
static const struct binary operators[][5] = {
    {{"+", LK_NODE_ADD}, {"-", LK_NODE_SUBTRACT}},
    {{"~", LK_NODE_JOIN}},
    {{"*", LK_NODE_MULTIPLY},
     {"/", LK_NODE_DIVIDE},
     {"//", LK_NODE_FLOOR_DIVIDE},
     {"%", LK_NODE_REMAINDER}},
    {{"**", LK_NODE_POWER}},
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
        {"==", LK_NODE_EQUAL},         {"!=", LK_NODE_NOT_EQUAL}, {"<=", LK_NODE_LESS_EQUAL},
        {">=", LK_NODE_GREATER_EQUAL}, {"<", LK_NODE_LESS},       {">", LK_NODE_GREATER}};
    struct lk_jinja_node *left = parse_level(p, 0), *all = NULL;
    for (;;) {
        struct lk_jinja_node *node = NULL;
        for (size_t i = 0; !node && i < sizeof comparisons / sizeof *comparisons; i++)
            if (accept_operator(p, comparisons[i].text))
                node = new_pair(p, comparisons[i].op, left, NULL);
        if (!node && accept_word(p, "in")) node = new_pair(p, LK_NODE_IN, left, NULL);
        if (!node && is_word(p, "not") && token_is(p->at + 1, LK_LEX_NAME, "in")) {
            p->at += 2;
            node = new_pair(p, LK_NODE_NOT_IN, left, NULL);
        }
        if (!node) return all ? all : left;
        node->b = left = parse_level(p, 0);
        all = all ? new_pair(p, LK_NODE_AND, all, node) : node;
    }
}

static struct lk_jinja_node *parse_not(struct parser *p) {
    if (!accept_word(p, "not")) return parse_comparison(p);
    lk_jinja_enter(p->heap);
    struct lk_jinja_node *node = new_pair(p, LK_NODE_NOT, parse_not(p), NULL);
    lk_jinja_leave(p->heap);
    return node;
}

static struct lk_jinja_node *parse_and(struct parser *p) {
    struct lk_jinja_node *node = parse_not(p);
    while (accept_word(p, "and")) node = new_pair(p, LK_NODE_AND, node, parse_not(p));
    return node;
}

static struct lk_jinja_node *parse_or(struct parser *p) {
    struct lk_jinja_node *node = parse_and(p);
    while (accept_word(p, "or")) node = new_pair(p, LK_NODE_OR, node, parse_and(p));
    return node;
}

static struct lk_jinja_node *parse_expression(struct parser *p) {
    lk_jinja_enter(p->heap);
    struct lk_jinja_node *node = parse_or(p);
    while (accept_word(p, "if")) {
        node = new_pair(p, LK_NODE_CONDITION, node, parse_or(p));
        if (accept_word(p, "else")) node->c = parse_expression(p);
    }
    lk_jinja_leave(p->heap);
    return node;
}

/* An expression, or several with commas between them: a tuple. */
static struct lk_jinja_node *parse_tuple(struct parser *p) {
    struct lk_jinja_node *first = parse_expression(p), *node, **last = &first->next;
    if (!is_operator(p, ",")) return first;
    node = new_node(p, LK_NODE_TUPLE);
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
    struct lk_jinja_node *first = new_node(p, LK_NODE_IF), *node = first;
    node->a = parse_expression(p);
    for (;;) {
        end_block(p);
        node->b = parse_body(p, ends);
        p->at++;
        if (accept_word(p, "elif")) {
            node->c = new_node(p, LK_NODE_IF);
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
        enum lk_jinja_node_kind op = (*last)->op;
        if (op != LK_NODE_NAME && op != LK_NODE_ATTRIBUTE && op != LK_NODE_ITEM)
            fail_here(p, "a name");
        last = &(*last)->next;
    } while (accept_operator(p, ","));
    if (in_brackets) expect_operator(p, ")");
    return first;
}

static struct lk_jinja_node *parse_for(struct parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    struct lk_jinja_node *node = new_node(p, LK_NODE_FOR);
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
    return parse_filters(p, new_node(p, LK_NODE_CAPTURED));
}

static struct lk_jinja_node *parse_set(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_NODE_SET);
    node->list = parse_targets(p);
    if (accept_operator(p, "=")) {
        node->a = parse_tuple(p);
        return node;
    }
    node->op = LK_NODE_SET_BLOCK;
    node->a = parse_block_filters(p);
    node->b = parse_body_to(p, "endset");
    return node;
}

/* After "(": parameters with or without defaults. */
static struct lk_jinja_node *parse_parameters(struct parser *p) {
    struct lk_jinja_node *first = NULL, **last = &first;
    while (!is_operator(p, ")")) {
        *last = new_node(p, LK_NODE_NAMED);
        (*last)->name = take_name(p);
        if (accept_operator(p, "=")) (*last)->a = parse_expression(p);
        last = &(*last)->next;
        if (!accept_operator(p, ",")) break;
    }
    expect_operator(p, ")");
    return first;
}

static struct lk_jinja_node *parse_macro(struct parser *p) {
    struct lk_jinja_node *node = new_node(p, LK_NODE_MACRO);
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
    if (accept_word(p, "break")) return new_node(p, LK_NODE_BREAK);
    if (accept_word(p, "continue")) return new_node(p, LK_NODE_CONTINUE);
    if (accept_word(p, "filter")) {
        struct lk_jinja_node *captured = new_node(p, LK_NODE_CAPTURED);
        node = new_node(p, LK_NODE_FILTER_BLOCK);
        node->a = new_pair(p, LK_NODE_FILTER, captured, NULL);
        node->a->name = take_name(p);
        if (accept_operator(p, "(")) node->a->list = parse_arguments(p);
        node->a = parse_filters(p, node->a);
        node->b = parse_body_to(p, "endfilter");
        return node;
    }
    if (accept_word(p, "generation")) { /* marks the assistant's words for training */
        node = new_node(p, LK_NODE_BLOCK);
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
            *last = new_node(p, LK_NODE_TEXT);
            (*last)->value =
                lk_jinja_string(lk_jinja_text_of(p->heap, p->at->at, p->at->len, LK_FROM_TEMPLATE));
            p->at++;
        } else if (p->at->kind == LK_LEX_OUTPUT) {
            p->at++;
            *last = new_node(p, LK_NODE_OUTPUT);
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
