/* Reads GBNF. */
#ifndef LK_TOKEN_GRAMMAR_PARSE_H
#define LK_TOKEN_GRAMMAR_PARSE_H

#include "base/buf.h"
#include "grammar/grammar.h"

/* The arrays of a struct lk_grammar, in buffers. `nullable` is not set yet, and alternatives that
 * match no finite text are still there. */
struct lk_grammar_draft {
    struct lk_buf rule, alt, symbol, repeat, set;
};

/* Parse `text`. The draft is {0} before; free it with lk_grammar_draft_free in any case. Errors as
 * in lk_grammar_new. */
lk_status lk_grammar_parse(struct lk_grammar_draft *draft, const char *text, lk_err *err);
void lk_grammar_draft_free(struct lk_grammar_draft *draft);

#endif
