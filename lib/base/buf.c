/* A growing byte buffer. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Make room for `len` more bytes and a terminating zero. */
static bool reserve(struct lk_buf *buf, size_t len) {
    if (buf->failed) return false;
    bool fits = len < SIZE_MAX / 4 && (!buf->max || len <= buf->max - buf->len);
    if (fits && buf->cap < buf->len + len + 1) {
        size_t cap = buf->len + len + 1 < 128 ? 128 : (buf->len + len + 1) * 2;
        char *bigger = realloc(buf->at, cap);
        fits = bigger != NULL;
        if (fits) {
            buf->at = bigger;
            buf->cap = cap;
        }
    }
    buf->failed = !fits;
    return fits;
}

void lk_buf_append(struct lk_buf *buf, const char *bytes, size_t len) {
    if (!reserve(buf, len)) return;
    if (len) memcpy(buf->at + buf->len, bytes, len);
    buf->len += len;
    buf->at[buf->len] = 0;
}

void lk_buf_append_str(struct lk_buf *buf, const char *text) {
    lk_buf_append(buf, text, strlen(text));
}

void lk_buf_printf(struct lk_buf *buf, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0) {
        buf->failed = true;
        return;
    }
    if (!reserve(buf, (size_t)len)) return;
    va_start(args, format);
    vsnprintf(buf->at + buf->len, (size_t)len + 1, format, args);
    va_end(args);
    buf->len += (size_t)len;
}

void lk_buf_consume(struct lk_buf *buf, size_t n) {
    if (n == 0) return;
    memmove(buf->at, buf->at + n, buf->len - n + 1);
    buf->len -= n;
}

void lk_buf_clear(struct lk_buf *buf) {
    buf->len = 0;
    buf->failed = false;
    if (buf->at) buf->at[0] = 0;
}

char *lk_buf_detach(struct lk_buf *buf) {
    char *contents = buf->at;
    if (buf->failed) {
        free(contents);
        contents = NULL;
    }
    *buf = (struct lk_buf){.max = buf->max};
    return contents;
}

void lk_buf_free(struct lk_buf *buf) {
    free(buf->at);
    *buf = (struct lk_buf){.max = buf->max};
}

size_t lk_print_thousandths(char *buf, size_t cap, unsigned thousandths) {
    int n = snprintf(buf, cap, "%u.%03u", thousandths / 1000, thousandths % 1000);
    while (buf[n - 1] == '0') n--;
    if (buf[n - 1] == '.') n--;
    buf[n] = 0;
    return (size_t)n;
}
