/* Texts: reading them whole, checking and streaming UTF-8. */
#ifndef LK_LOWKEY_TEXT_H
#define LK_LOWKEY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A growing text, zero terminated once something was added. Free `at` with free(). */
struct text {
    char *at;
    size_t len, cap;
};

void text_add(struct text *text, const char *bytes, size_t len);

/* Length of the UTF-8 sequence at s (of `len` > 0 bytes); 0: it is not one; -1: it is cut short. */
int utf8_sequence(const char *s, size_t len);

/* Offset of the first byte that is not UTF-8, or `len` where all is well. */
size_t utf8_check(const char *s, size_t len);

/* Characters on the screen, near enough: code points. */
size_t utf8_columns(const char *s);

/* Tokens are pieces of bytes that may end inside a character. What comes out is whole characters;
 * bytes that are none become U+FFFD, and so do control characters where `plain` is set: a model must
 * not steer the terminal. A character still cut at the end never comes out. */
struct utf8_stream {
    char held[4];
    size_t n_held;
    bool plain;
};

void utf8_push(struct utf8_stream *stream, const char *bytes, size_t len, struct text *out);

/* A copy as whole characters without control characters: names that come from files. To be freed. */
char *text_clean(const char *s);

/* Read a whole file ("-": stdin) of at most `most` bytes as UTF-8 without zero bytes. `what` names it
 * in messages ("prompt"). False after a message. Free text->at. */
bool read_text(const char *path, const char *what, size_t most, struct text *text);

/* The same checks for a text that came as an argument. */
bool check_text(const char *text, size_t len, const char *what);

#endif
