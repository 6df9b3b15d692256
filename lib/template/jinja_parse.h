/* The tokens and the syntax tree of a template. The tree does not change after parsing, so threads
 * share it. */
#ifndef LK_TOKEN_JINJA_PARSE_H
#define LK_TOKEN_JINJA_PARSE_H

#include "template/jinja_value.h"

/* ---- lexer ----
 *
 * Splits a template into text and tokens. Blocks are trimmed as chat templates expect: the line
 * break after a block is dropped (trim_blocks), and so is the white space before it on its line
 * (lstrip_blocks). */

enum lk_jinja_lexeme {
    LK_LEX_TEXT,
    LK_LEX_OUTPUT,     /* {{ */
    LK_LEX_OUTPUT_END, /* }} */
    LK_LEX_BLOCK,      /* {% */
    LK_LEX_BLOCK_END,  /* %} */
    LK_LEX_NAME,
    LK_LEX_STRING,
    LK_LEX_NUMBER,
    LK_LEX_OPERATOR,
    LK_LEX_END,
};

struct lk_jinja_token {
    enum lk_jinja_lexeme kind;
    size_t line;
    const char *at; /* [len] in the template; of a string without its quotes */
    size_t len;
};

/* All tokens; the last is LK_LEX_END. The template is borrowed. */
struct lk_jinja_token *lk_jinja_lex(struct lk_jinja_heap *heap, const char *text, size_t len);

/* The value of a string token. */
struct lk_jinja_text lk_jinja_unescape(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_token *token);

enum lk_jinja_op {
    /* statements */
    LK_OP_TEXT,         /* value */
    LK_OP_OUTPUT,       /* a: expression */
    LK_OP_IF,           /* a: condition, b: body, c: else */
    LK_OP_FOR,          /* list: targets, a: what, b: body, c: else, d: condition */
    LK_OP_SET,          /* list: targets, a: expression */
    LK_OP_SET_BLOCK,    /* list: target, b: body, a: filters around LK_OP_CAPTURED, or NULL */
    LK_OP_FILTER_BLOCK, /* b: body, a: filters around LK_OP_CAPTURED */
    LK_OP_MACRO,        /* name, list: parameters (LK_OP_NAMED), b: body */
    LK_OP_BLOCK,        /* b: body, without a scope of its own */
    LK_OP_BREAK,
    LK_OP_CONTINUE,
    /* expressions */
    LK_OP_CONSTANT, /* value */
    LK_OP_CAPTURED, /* the text of the body around */
    LK_OP_NAME,
    LK_OP_LIST, /* list */
    LK_OP_TUPLE,
    LK_OP_DICT,      /* list: keys and values in turns */
    LK_OP_CONDITION, /* a if b else c; c may be NULL */
    LK_OP_AND,
    LK_OP_OR,
    LK_OP_NOT,
    LK_OP_NEGATE,
    LK_OP_ADD,
    LK_OP_SUBTRACT,
    LK_OP_MULTIPLY,
    LK_OP_DIVIDE,
    LK_OP_FLOOR_DIVIDE,
    LK_OP_REMAINDER,
    LK_OP_POWER,
    LK_OP_JOIN, /* ~ */
    LK_OP_EQUAL,
    LK_OP_NOT_EQUAL,
    LK_OP_LESS,
    LK_OP_LESS_EQUAL,
    LK_OP_GREATER,
    LK_OP_GREATER_EQUAL,
    LK_OP_IN,
    LK_OP_NOT_IN,
    LK_OP_ATTRIBUTE, /* a.name */
    LK_OP_ITEM,      /* a[b] */
    LK_OP_SLICE,     /* a[b:c:d] */
    LK_OP_CALL,      /* a(list) */
    LK_OP_FILTER,    /* a | name(list) */
    LK_OP_TEST,      /* a is name(list) */
    LK_OP_NAMED,     /* name=a, in a list of arguments; of parameters, a may be NULL */
    LK_OP_SPREAD,    /* *a, in a list of arguments */
};

struct lk_jinja_node {
    enum lk_jinja_op op;
    size_t line;
    struct lk_jinja_text name;
    struct lk_jinja_value value;
    struct lk_jinja_node *a, *b, *c, *d, *list;
    struct lk_jinja_node *next; /* in a list or a body */
};

/* Parse a template. Its nodes are in the heap, its text is borrowed. */
struct lk_jinja_node *lk_jinja_parse_text(struct lk_jinja_heap *heap, const char *text, size_t len);

#endif
