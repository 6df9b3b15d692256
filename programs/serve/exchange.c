/* Headers of a request, and replies of every kind with their CORS and security headers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POLLRDHUP */
#endif
#include "serve/exchange.h"

#include "base/fnv1a.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- the request ---- */

const char *lk_exchange_header(const struct lk_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *lk_exchange_query(const struct lk_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

static int socket_of(const struct lk_exchange *x) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

bool lk_exchange_is_alive(const struct lk_exchange *x) {
    struct pollfd at = {.fd = socket_of(x), .events = POLLRDHUP};
    return poll(&at, 1, 0) <= 0 || !(at.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

uint64_t lk_exchange_address_hash(const struct lk_exchange *x) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        return lk_fnv1a(LK_FNV1A_INIT, &v4->sin_addr, sizeof v4->sin_addr);
    }
    if (address && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
        return lk_fnv1a(LK_FNV1A_INIT, &v6->sin6_addr, sizeof v6->sin6_addr);
    }
    return 0;
}

/* Setting a timeout on a connection that had none also restarts its idle clock. */
void lk_exchange_set_working(const struct lk_exchange *x, bool working) {
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              working ? 0u : (unsigned)LK_HTTP_IDLE_S);
}

/* ---- replies ---- */

/* Headers that a page may send: the ones it asks for, if the list is plain header names. */
static const char *allowed_headers(const struct lk_exchange *x) {
    static const char header_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+.^_`|~-, ";
    enum { MAX_LEN = 2000 };
    const char *asked = lk_exchange_header(x, "Access-Control-Request-Headers");
    size_t len = asked ? strlen(asked) : 0;
    return len > 0 && len <= MAX_LEN && strspn(asked, header_chars) == len
               ? asked
               : "Authorization, Content-Type";
}

static void add_cors_headers(const struct lk_exchange *x, struct MHD_Response *reply) {
    if (!x->server->opts.origin) return;
    MHD_add_response_header(reply, "Access-Control-Allow-Origin", x->server->opts.origin);
    MHD_add_response_header(reply, "Access-Control-Expose-Headers", "Retry-After");
    MHD_add_response_header(reply, "Vary", "Origin, Access-Control-Request-Headers");
    if (strcmp(x->method, "OPTIONS") != 0) return;
    MHD_add_response_header(reply, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(reply, "Access-Control-Allow-Headers", allowed_headers(x));
    MHD_add_response_header(reply, "Access-Control-Max-Age", "86400");
}

/* Queue a reply and release it. NULL (out of memory) leaves x->status 0. */
static void queue_reply(struct lk_exchange *x, int status, const char *type,
                        struct MHD_Response *reply) {
    if (!reply) return;
    if (*type) MHD_add_response_header(reply, "Content-Type", type);
    MHD_add_response_header(reply, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(reply, "Cache-Control", "no-store");
    add_cors_headers(x, reply);
    if (MHD_queue_response(x->connection, (unsigned)status, reply) == MHD_YES) x->status = status;
    MHD_destroy_response(reply);
}

static struct MHD_Response *copied_reply(const char *text, size_t len) {
    return MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
}

static struct MHD_Response *json_reply(json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    struct MHD_Response *reply = text ? copied_reply(text, strlen(text)) : NULL;
    json_decref(json);
    free(text);
    return reply;
}

void lk_exchange_reply_text(struct lk_exchange *x, int status, const char *type, const char *text,
                            size_t len) {
    queue_reply(x, status, type, copied_reply(text, len));
}

void lk_exchange_reply_static(struct lk_exchange *x, int status, const char *type,
                              const char *static_text, size_t len) {
    struct MHD_Response *reply =
        MHD_create_response_from_buffer(len, (void *)static_text, MHD_RESPMEM_PERSISTENT);
    /* The page may run only its own script and connect only to this server. */
    if (reply)
        MHD_add_response_header(reply, "Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; img-src data:; connect-src 'self'; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    queue_reply(x, status, type, reply);
}

void lk_exchange_reply_json(struct lk_exchange *x, int status, json_t *json) {
    queue_reply(x, status, "application/json", json_reply(json));
}

void lk_exchange_reply_error(struct lk_exchange *x, const struct lk_api_error *error) {
    struct MHD_Response *reply = json_reply(lk_api_error_json(error));
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", error->retry_s);
    if (reply && error->retry_s) MHD_add_response_header(reply, "Retry-After", seconds);
    if (reply && error->status == 401) MHD_add_response_header(reply, "WWW-Authenticate", "Bearer");
    queue_reply(x, error->status, "application/json", reply);
}

/* ---- streamed replies ---- */

static ssize_t fill_stream_body(void *user, uint64_t pos, char *buf, size_t cap) {
    struct lk_stream_body *body = user;
    (void)pos;
    ssize_t n = body->fill(body->user, buf, cap);
    if (n >= 0) return n;
    return n == LK_BODY_END ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void end_stream_body(void *user) {
    struct lk_stream_body *body = user;
    body->end(body->user);
    free(body);
}

void lk_exchange_reply_stream(struct lk_exchange *x, const char *type,
                              const struct lk_stream_body *body) {
    /* A client that does not read fills the kernel's buffer, which would grow to megabytes. */
    enum { BLOCK_SIZE = 4096, SEND_BUFFER = 64 << 10 };
    int send_buffer = SEND_BUFFER;
    setsockopt(socket_of(x), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    struct lk_stream_body *copy = malloc(sizeof *copy);
    struct MHD_Response *reply = NULL;
    if (copy) {
        *copy = *body;
        reply = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_SIZE, fill_stream_body,
                                                  copy, end_stream_body);
    }
    if (!reply) {
        free(copy);
        body->end(body->user);
        return;
    }
    MHD_add_response_header(reply, "X-Accel-Buffering", "no"); /* proxies must not buffer events */
    queue_reply(x, 200, type, reply);
}
