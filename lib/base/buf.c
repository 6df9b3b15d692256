#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct lk_buf *buf, size_t len) {
    size_t need = buf->len + len + 1;
    if (buf->failed || (buf->most && buf->len + len > buf->most)) return false;
    if (need <= buf->cap) return true;
    size_t cap = need < 128 ? 128 : need * 2;
    char *bigger = realloc(buf->at, cap);
    if (!bigger) return false;
    buf->at = bigger;
    buf->cap = cap;
    return true;
}

void lk_buf_add(struct lk_buf *buf, const char *bytes, size_t len) {
    if (!make_room(buf, len)) {
        buf->failed = true;
        return;
    }
    if (len) memcpy(buf->at + buf->len, bytes, len);
    buf->len += len;
    buf->at[buf->len] = 0;
}

void lk_buf_text(struct lk_buf *buf, const char *text) { lk_buf_add(buf, text, strlen(text)); }

void lk_buf_print(struct lk_buf *buf, const char *format, ...) {
    char piece[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof piece)
        buf->failed = true;
    else
        lk_buf_add(buf, piece, (size_t)n);
}

void lk_buf_drop(struct lk_buf *buf, size_t n) {
    if (n == 0) return;
    memmove(buf->at, buf->at + n, buf->len - n + 1);
    buf->len -= n;
}

void lk_buf_free(struct lk_buf *buf) {
    free(buf->at);
    *buf = (struct lk_buf){.most = buf->most};
}
