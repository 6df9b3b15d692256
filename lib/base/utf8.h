/* UTF-8 decoding and validation. Overlong forms, surrogates and code points above U+10FFFF are
 * invalid. */
#ifndef LK_BASE_UTF8_H
#define LK_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decode the sequence at the start of s[0..len), len > 0. Returns its length of 1 to 4 bytes and
 * sets *code_point (may be NULL). Returns 0 if the bytes are invalid, and -1 if they are the start
 * of a valid sequence that `len` cuts off. */
int lk_utf8_decode(const char *s, size_t len, uint32_t *code_point);

/* Length of the longest valid prefix of text[0..len). It is len if all of the text is valid. */
size_t lk_utf8_valid_prefix(const char *text, size_t len);

#endif
