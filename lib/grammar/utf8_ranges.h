/* Ranges of code points as sequences of byte ranges. */
#ifndef LK_TOKEN_UTF8_RANGES_H
#define LK_TOKEN_UTF8_RANGES_H

#include <stdint.h>

/* The texts of n bytes whose byte i is from lo[i] to hi[i]. */
struct lk_utf8_sequence {
    int n;
    uint8_t lo[4], hi[4];
};

/* More than any range needs: 1 of one byte, 3 of two, 6 of three and 7 of four. */
enum { LK_MAX_UTF8_SEQUENCES = 20 };

/* The UTF-8 encodings of the code points lo to hi <= 0x10FFFF, without surrogates. Returns the
 * number of sequences written. */
int lk_utf8_ranges(uint32_t lo, uint32_t hi, struct lk_utf8_sequence out[LK_MAX_UTF8_SEQUENCES]);

#endif
