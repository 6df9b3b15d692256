/* Bytes that grow up to a limit. A buffer that could not grow says so once, at its end: whoever fills it
 * need not look after each piece. */
#ifndef LK_BASE_BUF_H
#define LK_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct lk_buf {
    char *at; /* zero terminated; NULL while nothing was added */
    size_t len, cap;
    size_t most; /* bytes it may hold; 0: no limit */
    bool failed; /* something is missing: no memory, or more than `most` */
};

void lk_buf_add(struct lk_buf *buf, const char *bytes, size_t len);
void lk_buf_text(struct lk_buf *buf, const char *text);
void lk_buf_print(struct lk_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Drop the first n bytes. */
void lk_buf_drop(struct lk_buf *buf, size_t n);

/* Give the memory back; the buffer is empty and whole again. */
void lk_buf_free(struct lk_buf *buf);

#endif
