/* Regular expressions (the JSON schema keyword `pattern`) as parts of a grammar. */
#ifndef LK_TOKEN_PATTERN_H
#define LK_TOKEN_PATTERN_H

#include "base/buf.h"
#include "base/err.h"

/* Append to `out` what may stand between the quotes of a JSON string, so that the string matches
 * the expression and has min to max code points; max < 0: no maximum.
 *
 * Supported (ECMA 262): alternatives, groups, classes, \d \w \s and their negations, escapes,
 * repetitions, lazy ones too, and the anchors ^ and $ at the ends of the whole expression or of its
 * outermost alternatives. Without an anchor, anything may precede or follow. A length that the
 * expression itself does not keep is kept by limiting its largest repetitions, so some matching
 * texts are left out. Characters are written in one way each: as themselves if JSON allows it, or
 * else as a short escape.
 *
 * LK_E_FORMAT: not a regular expression. LK_E_UNSUPPORTED: look-around, back references, word
 * boundaries, anchors inside, expressions of more than 4 KiB, or a length that cannot be kept.
 * LK_E_NOMEM. The message does not name the keyword. */
lk_status lk_pattern_gbnf(struct lk_buf *out, const char *pattern, int min, int max, lk_err *err);

#endif
