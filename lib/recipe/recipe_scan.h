/* Scanner of recipe texts: words, numbers and signs, errors that show their place, and errors for
 * unknown names, with what was probably meant. */
#ifndef LK_RECIPE_RECIPE_SCAN_H
#define LK_RECIPE_RECIPE_SCAN_H

#include "base/err.h"

enum { LK_WORD_MAX = 24 };

struct lk_scan {
    const char *text;
    size_t len, at;
    lk_err *err;
};

/* Skip white space and '#' comments. Returns whether that passed a line break. */
bool lk_scan_skip_blank(struct lk_scan *scan);

/* Skip blanks and return the offset of what follows, for later error messages. */
size_t lk_scan_next(struct lk_scan *scan);

/* Skip blanks and return whether the text ends there. */
bool lk_scan_at_end(struct lk_scan *scan);

/* Read the next word (a letter, then letters and digits) in lower case. The word is empty if
 * something else follows. A word that is too long is cut and then matches nothing. Peek does not
 * consume it. */
void lk_scan_word(struct lk_scan *scan, char word[LK_WORD_MAX]);
void lk_scan_peek(struct lk_scan *scan, char word[LK_WORD_MAX]);

/* Consume `sign` if it is next. */
bool lk_scan_accept(struct lk_scan *scan, char sign);

/* Read a number with at most three digits after the point, in thousandths. False if none is next.
 * Results above 10^12 thousandths are set to 10^12. */
bool lk_scan_number(struct lk_scan *scan, int64_t *thousandths);

/* Return LK_E_FORMAT with a message for byte `at`:
 *     recipe, column 9: WHAT: "sink 4: >>x=rot3"
 * The line number is included if the text has several lines. `found` first skips blanks and appends
 * ", found 'x'" to WHAT; a word that is close to one of the grammar replaces WHAT by "found 'x',
 * did you mean 'y'?". */
lk_status lk_scan_fail(const struct lk_scan *scan, size_t at, bool found, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Copy text[from, to) to `out` without comments and with single spaces. Returns the number of
 * bytes, at most to - from. Not zero terminated. */
size_t lk_scan_normalize(const char *text, size_t from, size_t to, char *out);

/* Return LK_E_FORMAT with a message for a recipe that is one unknown name, name[0..len): the
 * closest preset or codec, or what comes next to a cache type of llama.cpp. */
lk_status lk_recipe_fail_name(const struct lk_scan *scan, const char *name, size_t len);

#endif
