/* Classes of ASCII characters, whatever the locale. Bytes of other characters are in none. */
#ifndef LK_BASE_ASCII_H
#define LK_BASE_ASCII_H

#include <stdbool.h>
#include <stdint.h>

static inline bool lk_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline bool lk_is_digit(char c) { return c >= '0' && c <= '9'; }
static inline char lk_to_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* The value of a hexadecimal digit; -1 for other characters. */
static inline int lk_hex_digit(char c) {
    char lower = lk_to_lower(c);
    return lk_is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The number of n hexadecimal digits at s, n <= 16. False if they are not digits. */
static inline bool lk_read_hex(const char *s, int n, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        int digit = lk_hex_digit(s[i]);
        if (digit < 0) return false;
        *out = *out << 4 | (unsigned)digit;
    }
    return true;
}

#endif
