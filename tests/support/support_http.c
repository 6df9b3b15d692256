/* A minimal HTTP client for the server tests. */
#include "support_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

int http_connect(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((unsigned short)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval timeout = {.tv_sec = 300};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

void http_send(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n <= 0) return;
        bytes += n;
        len -= (size_t)n;
    }
}

/* Remove the chunk headers of a chunked body. Returns its new length. */
static size_t join_chunks(char *body, size_t len) {
    size_t in = 0, out = 0;
    while (in < len) {
        char *end = NULL;
        size_t n = strtoul(body + in, &end, 16);
        in = (size_t)(end - body) + 2;
        if (n == 0 || in + n > len) break;
        memmove(body + out, body + in, n);
        out += n;
        in += n + 2;
    }
    body[out] = 0;
    return out;
}

struct http_reply http_read(int fd) {
    struct http_reply reply = {0};
    size_t len = 0, cap = 1 << 16;
    char *all = malloc(cap + 1);
    ssize_t n;
    while ((n = recv(fd, all + len, cap - len, 0)) > 0) {
        len += (size_t)n;
        if (len == cap) all = realloc(all, (cap *= 2) + 1);
    }
    all[len] = 0;
    char *body = strstr(all, "\r\n\r\n");
    if (!body || sscanf(all, "HTTP/1.%*d %d", &reply.status) != 1) {
        reply.head = all;
        reply.body = strdup("");
        return reply;
    }
    body += 4;
    reply.len = len - (size_t)(body - all);
    reply.body = malloc(reply.len + 1);
    memcpy(reply.body, body, reply.len + 1);
    *body = 0;
    reply.head = all;
    if (strstr(all, "Transfer-Encoding: chunked")) reply.len = join_chunks(reply.body, reply.len);
    return reply;
}

void http_free(struct http_reply *reply) {
    free(reply->head);
    free(reply->body);
    *reply = (struct http_reply){0};
}

struct http_reply http_request(int port, const char *method, const char *path, const char *headers,
                               const char *body) {
    size_t len = strlen(method) + strlen(path) + strlen(headers) + strlen(body) + 200;
    char *text = malloc(len);
    int fd = http_connect(port);
    snprintf(text, len,
             "%s %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n%sContent-Length: "
             "%zu\r\n\r\n%s",
             method, path, port, headers, strlen(body), body);
    http_send(fd, text, strlen(text));
    free(text);
    struct http_reply reply = http_read(fd);
    close(fd);
    return reply;
}
