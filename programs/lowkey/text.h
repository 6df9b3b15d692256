/* Text from files, users and models: read, checked to be UTF-8, and made safe to show on a terminal
 * (whole characters, no control characters). */
#ifndef LK_LOWKEY_TEXT_H
#define LK_LOWKEY_TEXT_H

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

/* Read all of `path` ("-": standard input) into `text`: at most `max` bytes of UTF-8 without zero
 * bytes. `what` names the text in error messages ("prompt"). Returns a STATUS_*, after printing an
 * error; silently if interrupted. Free with lk_buf_free. */
int read_text_file(const char *path, const char *what, size_t max, struct lk_buf *text);

/* Print an error and return false if text[0..len) contains a zero byte or is not UTF-8. */
bool check_utf8_text(const char *text, size_t len, const char *what);

#endif
