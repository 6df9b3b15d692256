/* Allocation that exits if memory runs out. */
#include "xalloc.h"

#include "output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void exit_out_of_memory(void) {
    print_error("out of memory");
    exit(STATUS_ERROR);
}

void *xmalloc(size_t size) { return xrealloc(NULL, size); }

void *xrealloc(void *ptr, size_t size) {
    void *bigger = realloc(ptr, size ? size : 1);
    if (!bigger) exit_out_of_memory();
    return bigger;
}

char *xvasprintf(const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) exit_out_of_memory();
    char *text = xmalloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

char *xasprintf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = xvasprintf(format, args);
    va_end(args);
    return text;
}

void xbuf_add(struct lk_buf *buf, const char *bytes, size_t len) {
    lk_buf_append(buf, bytes, len);
    if (buf->failed) exit_out_of_memory();
}

void xbuf_printf(struct lk_buf *buf, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0) xbuf_add(buf, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}
