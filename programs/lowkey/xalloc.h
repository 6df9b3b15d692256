/* Memory for a command line program: these print "out of memory" and exit instead of failing. */
#ifndef LK_LOWKEY_XALLOC_H
#define LK_LOWKEY_XALLOC_H

#include "base/buf.h"

#include <stdarg.h>
#include <stddef.h>

void *xmalloc(size_t size);
void *xrealloc(void *ptr, size_t size);

/* Format into new memory: free it with free(). */
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2), nonnull(1)));
char *xvasprintf(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* Append to a buffer without a limit. Afterwards buf->at is not NULL, even if `len` is 0. */
void xbuf_add(struct lk_buf *buf, const char *bytes, size_t len);

/* Append formatted text of less than 1024 bytes. */
void xbuf_printf(struct lk_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
