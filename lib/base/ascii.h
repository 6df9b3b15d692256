/* Classes of ASCII characters, whatever the locale. Bytes of other characters are in none. */
#ifndef LK_BASE_ASCII_H
#define LK_BASE_ASCII_H

#include <stdbool.h>

static inline bool lk_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline bool lk_is_digit(char c) { return c >= '0' && c <= '9'; }

#endif
