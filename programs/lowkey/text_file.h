/* Reading text: whole files and standard input, checked to be UTF-8. */
#ifndef LK_LOWKEY_TEXT_FILE_H
#define LK_LOWKEY_TEXT_FILE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Read all of `path` ("-": standard input) into `text`: at most `max` bytes of UTF-8 without zero
 * bytes. `what` names the text in error messages ("prompt"). Returns false after printing an error,
 * or silently if interrupted. Free with lk_buf_free. */
bool read_text_file(const char *path, const char *what, size_t max, struct lk_buf *text);

/* Print an error and return false if text[0..len) contains a zero byte or is not UTF-8. */
bool check_utf8_text(const char *text, size_t len, const char *what);

#endif
