/* Filling lk_err, and the version that messages name. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *lk_version(void) { return LOWKEY_VERSION; }

#undef lk_fail /* cmake/analyse.h */
lk_status lk_fail(lk_err *err, lk_status status, const char *format, ...) {
    if (!err) return status;
    err->code = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
    /* Messages quote input and other libraries: keep them on one line. */
    for (char *c = err->msg; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    return status;
}

const char *lk_printable(char out[64], const char *text, size_t len) {
    size_t n = len < 60 ? len : 60;
    for (size_t i = 0; i < n; i++) out[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    memcpy(out + n, n < len ? "..." : "", n < len ? 4 : 1);
    return out;
}

const char *lk_status_name(lk_status status) {
    switch (status) {
    case LK_OK: return "ok";
    case LK_E_ARG: return "bad argument";
    case LK_E_NOMEM: return "out of memory";
    case LK_E_IO: return "input or output failed";
    case LK_E_FORMAT: return "malformed input";
    case LK_E_UNSUPPORTED: return "not supported";
    case LK_E_FULL: return "context is full";
    case LK_E_CANCELLED: return "cancelled";
    }
    return "unknown status";
}
