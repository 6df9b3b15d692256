/* A minimal HTTP client that sends exactly the bytes it is given. */
#ifndef LK_TESTS_HTTP_H
#define LK_TESTS_HTTP_H

#include <stddef.h>

struct http_reply {
    int status;        /* 0: the connection was closed without a reply */
    char *head, *body; /* owned, zero terminated; the body without chunk headers */
    size_t len;        /* of the body */
};

/* Connect to 127.0.0.1. Returns a socket, or -1. */
int http_connect(int port);

/* Send all bytes; errors are ignored. */
void http_send(int fd, const char *bytes, size_t len);

/* Read a reply until the server closes the connection. Free it with http_free. */
struct http_reply http_read(int fd);
void http_free(struct http_reply *reply);

/* Send one request on a new connection. `headers`: complete lines, or "". */
struct http_reply http_request(int port, const char *method, const char *path, const char *headers,
                               const char *body);

#endif
