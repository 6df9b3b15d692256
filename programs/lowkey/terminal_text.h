/* Text that is safe to show on a terminal: whole UTF-8 characters, no control characters. */
#ifndef LK_LOWKEY_TERMINAL_TEXT_H
#define LK_LOWKEY_TERMINAL_TEXT_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Joins the text of tokens into whole characters. A token may end inside a character; its bytes are
 * held until the next token completes it. Bytes that are not UTF-8 become U+FFFD. With `plain`,
 * control characters except newline and tab also become U+FFFD: the output of a model must not
 * control the terminal. A character that is still incomplete at the end is never written. */
struct utf8_stream {
    char held[4];
    size_t n_held;
    bool plain;
};

void utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t len,
                      struct lk_buf *out);

/* A copy of a name from a file, without invalid bytes and control characters: free it. */
char *printable_copy(const char *s);

/* Columns that `s` takes on a terminal, taking every code point as one column. */
size_t display_width(const char *s);

#endif
