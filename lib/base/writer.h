/* Destination of bytes that are written piece by piece. */
#ifndef LK_BASE_WRITER_H
#define LK_BASE_WRITER_H

#include <stdbool.h>
#include <stddef.h>

struct lk_writer {
    bool (*put)(void *user, const void *data, size_t n); /* false if the bytes were not written */
    void *user;
};

#endif
