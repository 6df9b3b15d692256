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

enum lk_jinja_node_kind {
    /* statements */
    LK_NODE_TEXT,         /* value */
    LK_NODE_OUTPUT,       /* a: expression */
    LK_NODE_IF,           /* a: condition, b: body, c: else */
    LK_NODE_FOR,          /* list: targets, a: what, b: body, c: else, d: condition */
    LK_NODE_SET,          /* list: targets, a: expression */
    LK_NODE_SET_BLOCK,    /* list: target, b: body, a: filters around LK_NODE_CAPTURED, or NULL */
    LK_NODE_FILTER_BLOCK, /* b: body, a: filters around LK_NODE_CAPTURED */
    LK_NODE_MACRO,        /* name, list: parameters (LK_NODE_NAMED), b: body */
    LK_NODE_BLOCK,        /* b: body, without a scope of its own */
    LK_NODE_BREAK,
    LK_NODE_CONTINUE,
    /* expressions */
    LK_NODE_CONSTANT, /* value */
    LK_NODE_CAPTURED, /* the text of the body around */
    LK_NODE_NAME,
    LK_NODE_LIST, /* list */
    LK_NODE_TUPLE,
    LK_NODE_DICT,      /* list: keys and values in turns */
    LK_NODE_CONDITION, /* a if b else c; c may be NULL */
    LK_NODE_AND,
    LK_NODE_OR,
    LK_NODE_NOT,
    LK_NODE_NEGATE,
    LK_NODE_ADD,
    LK_NODE_SUBTRACT,
    LK_NODE_MULTIPLY,
    LK_NODE_DIVIDE,
    LK_NODE_FLOOR_DIVIDE,
    LK_NODE_REMAINDER,
    LK_NODE_POWER,
    LK_NODE_JOIN, /* ~ */
    LK_NODE_EQUAL,
    LK_NODE_NOT_EQUAL,
    LK_NODE_LESS,
    LK_NODE_LESS_EQUAL,
    LK_NODE_GREATER,
    LK_NODE_GREATER_EQUAL,
    LK_NODE_IN,
    LK_NODE_NOT_IN,
    LK_NODE_ATTRIBUTE, /* a.name */
    LK_NODE_ITEM,      /* a[b] */
    LK_NODE_SLICE,     /* a[b:c:d] */
    LK_NODE_CALL,      /* a(list) */
    LK_NODE_FILTER,    /* a | name(list) */
    LK_NODE_TEST,      /* a is name(list) */
    LK_NODE_NAMED,     /* name=a, in a list of arguments; of parameters, a may be NULL */
    LK_NODE_SPREAD,    /* *a, in a list of arguments */
};

struct lk_jinja_node {
    enum lk_jinja_node_kind op;
    size_t line;
    struct lk_jinja_text name;
    struct lk_jinja_value value;
    struct lk_jinja_node *a, *b, *c, *d, *list;
    struct lk_jinja_node *next; /* in a list or a body */
};

/* Parse a template. Its nodes are in the heap, its text is borrowed. */
struct lk_jinja_node *lk_jinja_parse_text(struct lk_jinja_heap *heap, const char *text, size_t len);

#endif
