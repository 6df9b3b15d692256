/* Texts and bytes in memory: a growing buffer with an optional limit, and where bytes are written.
 *
 * The buffer:
 *
 * A failure (out of memory, or over the limit) is remembered in `failed`, and later additions do
 * nothing. So a caller that builds a text from many pieces checks once, at the end. `at` is what
 * was added before the failure, always zero terminated. */
#ifndef LK_BASE_BUF_H
#define LK_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

/* {0} is an empty buffer without a limit. */
struct lk_buf {
    char *at; /* zero terminated; NULL until something is added */
    size_t len, cap;
    size_t max;  /* maximum of len; 0: no limit */
    bool failed; /* something is missing: no memory, or more than `max` bytes */
};

/* Append bytes, a string, or printf-formatted text of any length. */
void lk_buf_append(struct lk_buf *buf, const char *bytes, size_t len);
void lk_buf_append_str(struct lk_buf *buf, const char *text);
void lk_buf_printf(struct lk_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The contents as a string, "" if nothing was added. Valid until the buffer changes. */
static inline const char *lk_buf_cstr(const struct lk_buf *buf) { return buf->at ? buf->at : ""; }

/* Remove the first n <= len bytes. */
void lk_buf_consume(struct lk_buf *buf, size_t n);

/* Empty the buffer but keep its memory, and forget a failure. */
void lk_buf_clear(struct lk_buf *buf);

/* Hand the contents over to the caller, who frees them with free(), and leave the buffer empty.
 * NULL if the buffer failed (its contents are freed) or nothing was added. */
char *lk_buf_detach(struct lk_buf *buf);

/* Free the memory. The buffer is empty afterwards, with the same limit and no failure. */
void lk_buf_free(struct lk_buf *buf);

/* Print thousandths / 1000, whatever the locale, without trailing zeros ("12.5", "100") into buf
 * [cap], cap >= 12. Returns the length. */
size_t lk_print_thousandths(char *buf, size_t cap, unsigned thousandths);

/* Destination of bytes that are written piece by piece. */

struct lk_writer {
    bool (*put)(void *user, const void *data, size_t n); /* false if the bytes were not written */
    void *user;
};

#endif
