/* A client that sends exactly the bytes it is given. */
#ifndef LK_TESTS_SUPPORT_HTTP_H
#define LK_TESTS_SUPPORT_HTTP_H

#include <stddef.h>

struct http_reply {
    int status;        /* 0: the connection was closed without a reply */
    char *head, *body; /* zero terminated; a body in chunks is put together */
    size_t len;
};

int http_connect(int port); /* a socket; -1 where it fails */
void http_send(int fd, const char *bytes, size_t len);

/* Read until the server closes. Frees nothing of an earlier reply. */
struct http_reply http_read(int fd);
void http_free(struct http_reply *reply);

/* One request on a connection of its own, closed after the reply. `headers`: whole lines, or "". */
struct http_reply http_ask(int port, const char *method, const char *path, const char *headers,
                           const char *body);

#endif
