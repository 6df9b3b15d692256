/* The HTTP listener: receives requests, enforces the body limits, calls the router, logs. */
#include "serve/http.h"

#include "serve/route.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A reply to a client that is still sending may be lost when the connection closes. So a body that
 * is too large is received and dropped, up to this multiple of the limit. */
enum { MAX_DROPPED_FACTOR = 16 };

/* ---- requests ---- */

static struct lk_exchange *new_exchange(struct lk_server *server, struct MHD_Connection *connection,
                                        const char *method, const char *path) {
    struct lk_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = server;
    x->connection = connection;
    x->start_time = lk_now();
    x->body.max = server->opts.max_body;
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    return x;
}

static void reply_body_too_large(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 413, "body_too_large", NULL,
                     "the request body is larger than the limit of %zu bytes",
                     x->server->opts.max_body);
    lk_exchange_reply_error(x, &error);
}

/* Can a body be refused by its headers? Yes if it is too large and the client either waits for
 * "100 Continue" or announces more than would be dropped. */
static bool should_refuse_early(const struct lk_exchange *x) {
    const char *length = lk_exchange_header(x, "Content-Length");
    unsigned long long max = x->server->opts.max_body, n = length ? strtoull(length, NULL, 10) : 0;
    return n / MAX_DROPPED_FACTOR > max || (n > max && lk_exchange_header(x, "Expect"));
}

static enum MHD_Result receive_body(struct lk_exchange *x, const char *data, size_t *len) {
    x->received += *len;
    lk_buf_append(&x->body, data, *len); /* drops what exceeds the limit */
    *len = 0;
    bool slow = lk_now() - x->start_time > x->server->opts.time_s;
    return slow || x->received / MAX_DROPPED_FACTOR > x->server->opts.max_body ? MHD_NO : MHD_YES;
}

/* libmicrohttpd calls this once for the headers, once per part of the body, and once at the end.
 * MHD_NO closes the connection. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **state) {
    struct lk_exchange *x = *state;
    (void)version;
    if (!x) {
        x = *state = new_exchange(user, connection, method, path);
        if (!x) return MHD_NO;
        if (!should_refuse_early(x)) return MHD_YES;
        reply_body_too_large(x);
        return x->status ? MHD_YES : MHD_NO;
    }
    if (*len) return receive_body(x, data, len);
    if (x->status) return MHD_YES;
    if (x->body.failed)
        reply_body_too_large(x);
    else
        lk_route(x);
    return x->status ? MHD_YES : MHD_NO;
}

static void log_request(const struct lk_exchange *x) {
    const struct lk_server_opts *o = &x->server->opts;
    char line[256];
    if (!o->log) return;
    snprintf(line, sizeof line, "%s %s %d %.3f s", x->method, x->path, x->status,
             lk_now() - x->start_time);
    o->log(o->user, line);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why) {
    struct lk_exchange *x = *state;
    struct lk_server *server = user;
    (void)connection;
    if (!x) return;
    int class = x->status / 100;
    if (class >= 0 && class < 6) server->metrics.answered[class]++;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) server->metrics.disconnected++;
    log_request(x);
    lk_buf_free(&x->body);
    free(x);
    *state = NULL;
}

/* ---- the listener ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static lk_status parse_address(const struct lk_server_opts *o, union address *out, bool *v6,
                               lk_err *err) {
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    *out = (union address){0};
    if (inet_pton(AF_INET, host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)o->port);
        return LK_OK;
    }
    if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)o->port);
        *v6 = true;
        return LK_OK;
    }
    return lk_fail(err, LK_E_ARG,
                   "cannot listen on '%.60s': not an IP address; give e.g. 127.0.0.1, 0.0.0.0 "
                   "or ::1",
                   host);
}

static void ignore_log(void *user, const char *format, va_list args) {
    (void)user;
    (void)format;
    (void)args;
}

lk_status lk_http_start(struct lk_server *s, lk_err *err) {
    enum { HEADER_BYTES = 64 << 10, STACK_BYTES = 8 << 20 }; /* tokenizers recurse deeply */
    union address address;
    bool v6 = false;
    lk_status status = parse_address(&s->opts, &address, &v6, err);
    if (status != LK_OK) return status;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(
        flags | (v6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER,
        ignore_log, NULL, MHD_OPTION_SOCK_ADDR, &address.any, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->opts.n_connection,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)LK_HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!s->daemon)
        return lk_fail(err, LK_E_IO,
                       "cannot listen on %.60s port %d: is another server running there? choose "
                       "another port with --port",
                       s->opts.host, s->opts.port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->opts.port;
    return LK_OK;
}

void lk_http_stop(struct lk_server *s) {
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
