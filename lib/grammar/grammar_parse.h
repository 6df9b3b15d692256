/* Reads GBNF. */
#ifndef LK_TOKEN_GRAMMAR_PARSE_H
#define LK_TOKEN_GRAMMAR_PARSE_H

#include "base/buf.h"
#include "grammar/grammar.h"

#include <stdint.h>

/* The arrays of a struct lk_grammar, in buffers. `nullable` is not set yet, and alternatives that
 * match no finite text are still there. */
struct lk_grammar_draft {
    struct lk_buf rule, alt, symbol, repeat, set;
};

/* Parse `text`. The draft is {0} before; free it with lk_grammar_draft_free in any case. Errors as
 * in lk_grammar_new. */
lk_status lk_grammar_parse(struct lk_grammar_draft *draft, const char *text, lk_err *err);
void lk_grammar_draft_free(struct lk_grammar_draft *draft);

/* ---- ranges of code points as sequences of byte ranges ---- */

/* The texts of n bytes whose byte i is from lo[i] to hi[i]. */
struct lk_utf8_sequence {
    int n;
    uint8_t lo[4], hi[4];
};

/* More than any range needs: 1 of one byte, 3 of two, 6 of three and 7 of four. */
enum { LK_MAX_UTF8_SEQUENCES = 20 };

/* The UTF-8 encodings of the code points lo to hi <= 0x10FFFF, without surrogates. Returns the
 * number of sequences written. */
int lk_utf8_ranges(uint32_t lo, uint32_t hi, struct lk_utf8_sequence out[LK_MAX_UTF8_SEQUENCES]);

#endif
