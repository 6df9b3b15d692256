/* UTF-8 decoding and validation. */
#include "base/utf8.h"

int lk_utf8_decode(const char *s, size_t len, uint32_t *code_point) {
    const unsigned char *b = (const unsigned char *)s;
    uint32_t code = b[0];
    int n = 1;
    if (b[0] >= 0x80) {
        /* The lead byte limits the second byte: this excludes overlong forms (E0, F0), surrogates
         * (ED) and code points above U+10FFFF (F4). */
        unsigned char lo = 0x80, hi = 0xbf;
        if (b[0] >= 0xc2 && b[0] <= 0xdf) {
            n = 2;
            code &= 0x1f;
        } else if (b[0] >= 0xe0 && b[0] <= 0xef) {
            n = 3;
            code &= 0x0f;
            if (b[0] == 0xe0) lo = 0xa0;
            if (b[0] == 0xed) hi = 0x9f;
        } else if (b[0] >= 0xf0 && b[0] <= 0xf4) {
            n = 4;
            code &= 0x07;
            if (b[0] == 0xf0) lo = 0x90;
            if (b[0] == 0xf4) hi = 0x8f;
        } else {
            return 0;
        }
        for (int i = 1; i < n; i++) {
            if ((size_t)i >= len) return -1;
            if (b[i] < lo || b[i] > hi) return 0;
            code = code << 6 | (b[i] & 0x3f);
            lo = 0x80;
            hi = 0xbf;
        }
    }
    if (code_point) *code_point = code;
    return n;
}

size_t lk_utf8_valid_prefix(const char *text, size_t len) {
    size_t at = 0;
    while (at < len) {
        int n = lk_utf8_decode(text + at, len - at, NULL);
        if (n <= 0) break;
        at += (size_t)n;
    }
    return at;
}
