/* Splits ranges of code points where their encodings stop being a product of byte ranges. */
#include "grammar/utf8_ranges.h"

static int encode(uint32_t code, uint8_t out[4]) {
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(lead[n] | code);
    return n;
}

/* The last code point of the longest range that starts at lo, ends at or before hi, and is one
 * sequence. */
static uint32_t sequence_end(uint32_t lo, uint32_t hi) {
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff}; /* of 1, 2 and 3 bytes */
    for (int i = 0; i < 3; i++)
        if (lo <= last[i] && hi > last[i]) hi = last[i];
    if (hi < 0x80) return hi;
    for (int bits = 18; bits > 0; bits -= 6) { /* the bits of the last 3, 2 and 1 bytes */
        uint32_t mask = (1u << bits) - 1;
        if ((lo & ~mask) == (hi & ~mask)) continue; /* the bytes before are equal */
        if (lo & mask)
            hi = lo | mask; /* first complete the block in which lo starts */
        else if ((hi & mask) != mask)
            hi = (hi & ~mask) - 1; /* whole blocks first, then the rest */
    }
    return hi;
}

int lk_utf8_ranges(uint32_t lo, uint32_t hi, struct lk_utf8_sequence out[LK_MAX_UTF8_SEQUENCES]) {
    int n = 0;
    while (lo <= hi && n < LK_MAX_UTF8_SEQUENCES) {
        if (lo >= 0xd800 && lo <= 0xdfff) {
            lo = 0xe000;
            continue;
        }
        uint32_t end = sequence_end(lo, lo < 0xd800 && hi >= 0xd800 ? 0xd7ff : hi);
        out[n].n = encode(lo, out[n].lo);
        encode(end, out[n].hi);
        n++;
        lo = end + 1;
    }
    return n;
}
