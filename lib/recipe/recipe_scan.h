/* Reading a recipe's text: words, numbers and signs, and errors that show the place. */
#ifndef LK_RECIPE_RECIPE_SCAN_H
#define LK_RECIPE_RECIPE_SCAN_H

#include "base/err.h"

enum { LK_WORD_MAX = 24 };

struct lk_scan {
    const char *text;
    size_t len, at;
    lk_err *err;
};

/* Skip white space and '#' comments. Was a line's end among them? */
bool lk_scan_skip(struct lk_scan *scan);

/* Skip, then: is the text at its end? */
bool lk_scan_done(struct lk_scan *scan);

/* The word (letters, then letters and digits) that comes next, in lower case; an empty string where
 * something else comes. Peek leaves it unread. Longer words are cut, and then match nothing. */
void lk_scan_peek(struct lk_scan *scan, char word[LK_WORD_MAX]);
void lk_scan_word(struct lk_scan *scan, char word[LK_WORD_MAX]);

/* Read `sign` if it comes next; read nothing otherwise. */
bool lk_scan_sign(struct lk_scan *scan, char sign);

/* Read a number of digits with at most three after a point, in thousandths; false where none comes
 * next. Numbers beyond 10^12 are read as 10^12 thousandths. */
bool lk_scan_number(struct lk_scan *scan, int64_t *thousandths);

/* LK_E_FORMAT with the line
 *     recipe, column 9: WHAT: "sink 4: >>x=rot3"
 * for the byte `at` (with a line's number where there are several). `found` goes on to what comes
 * next and adds ", found 'x'". */
lk_status lk_scan_fail(const struct lk_scan *scan, size_t at, bool found, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Copy text[from, to) to out without comments and with single spaces; returns the bytes written,
 * at most to - from. Not zero terminated. */
size_t lk_scan_squeeze(const char *text, size_t from, size_t to, char *out);

#endif
