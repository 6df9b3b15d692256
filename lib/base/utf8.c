#include "base/utf8.h"

/* Bytes of the valid sequence at s[0..len), 0 if there is none. Overlong forms, surrogates and code
 * points past U+10FFFF show in the second byte's range. */
static size_t sequence(const unsigned char *s, size_t len) {
    unsigned char lead = s[0], lo = 0x80, hi = 0xBF;
    size_t n;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF)
        n = 2;
    else if (lead >= 0xE0 && lead <= 0xEF)
        n = 3;
    else if (lead >= 0xF0 && lead <= 0xF4)
        n = 4;
    else
        return 0;
    if (lead == 0xE0) lo = 0xA0;
    if (lead == 0xED) hi = 0x9F;
    if (lead == 0xF0) lo = 0x90;
    if (lead == 0xF4) hi = 0x8F;
    if (n > len || s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < n; i++) {
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    }
    return n;
}

size_t lk_utf8_valid(const char *text, size_t len) {
    size_t at = 0;
    while (at < len) {
        size_t n = sequence((const unsigned char *)text + at, len - at);
        if (n == 0) break;
        at += n;
    }
    return at;
}
