/* Splits a template into text and tokens. Blocks are trimmed as chat templates expect: the line
 * break after a block is dropped (trim_blocks), and so is the white space before it on its line
 * (lstrip_blocks). */
#ifndef LK_TOKEN_JINJA_LEX_H
#define LK_TOKEN_JINJA_LEX_H

#include "template/jinja_value.h"

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

#endif
