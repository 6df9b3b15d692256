/* The HTTP listener: receives requests, enforces the limits of bodies and connections, calls the
 * router, logs. */
#include "serve/http.h"

#include "serve/route.h"
#include "serve/socket.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- headers ---- */

struct header_counts {
    int n_host, n_length, n_coding;
    const char *invalid; /* name of a header that is not allowed; NULL: none */
};

/* A name may only have the characters of a token (RFC 9110, 5.6.2). So "Host : x" is refused. */
static bool is_token(const char *name) {
    static const char token_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~";
    size_t len = strlen(name);
    return len > 0 && strspn(name, token_chars) == len;
}

static bool has_control_characters(const char *value) {
    for (; *value; value++)
        if (((unsigned char)*value < ' ' && *value != '\t') || *value == 127) return true;
    return false;
}

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    struct header_counts *counts = user;
    (void)kind;
    if (!is_token(name) || (value && has_control_characters(value))) counts->invalid = name;
    counts->n_host += strcasecmp(name, "Host") == 0;
    counts->n_length += strcasecmp(name, "Content-Length") == 0;
    counts->n_coding += strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* Checks that libmicrohttpd leaves to the application: are the headers unambiguous? Otherwise a
 * proxy in front of the server might see another host or another end of the body. False, status
 * 400: a name that is not a token, a control character, a Host that is missing (HTTP/1.1) or
 * repeated, a length that is repeated or given in two ways, or a transfer coding other than
 * chunked. Then close the connection. */
static bool are_unambiguous(const struct lk_exchange *x, struct lk_api_error *error) {
    struct header_counts counts = {0};
    const char *coding = lk_exchange_header(x, "Transfer-Encoding");
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_header, &counts);
    if (counts.invalid)
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the header '%.60s' has characters that are not allowed",
                                counts.invalid);
    if (counts.n_host > 1 || (counts.n_host == 0 && !x->is_http_1_0))
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the request must have exactly one Host header, but has %d",
                                counts.n_host);
    if (counts.n_length + counts.n_coding > 1)
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the length of the body is given more than once: send either "
                                "Content-Length or Transfer-Encoding");
    if (coding && (x->is_http_1_0 || strcasecmp(coding, "chunked") != 0))
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "Transfer-Encoding is '%.40s', but must be chunked, in HTTP/1.1",
                                coding);
    return true;
}

/* A reply to a client that is still sending may be lost when the connection closes. So a refused
 * body is received and dropped before the reply, unless it is larger than this. */
enum { MAX_DROPPED = 64 << 10 };
/* A body that is too large is dropped up to this multiple of the limit. */
enum { MAX_DROPPED_FACTOR = 16 };

/* ---- requests ---- */

static struct lk_connection *connection_place(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static struct lk_exchange *new_exchange(struct lk_server *server, struct MHD_Connection *connection,
                                        const char *method, const char *path, const char *version) {
    struct lk_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = server;
    x->connection = connection;
    x->place = connection_place(connection);
    x->start_time = lk_now();
    x->body.max = server->opts.max_body;
    x->charge.budget = &server->budget;
    x->error_json = lk_api_error_json;
    x->is_http_1_0 = strcmp(version, "HTTP/1.0") == 0;
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    return x;
}

/* The length that the headers announce; 0 if there is no body, or it is chunked. */
static unsigned long long announced_length(const struct lk_exchange *x) {
    const char *length = lk_exchange_header(x, "Content-Length");
    return length ? strtoull(length, NULL, 10) : 0;
}

static bool refuse_too_large(const struct lk_exchange *x, struct lk_api_error *error) {
    return lk_api_error_set(error, 413, "body_too_large", NULL,
                            "the request body is larger than the limit of %zu bytes",
                            x->server->opts.max_body);
}

/* Is there a place for the request? */
static bool check_place(const struct lk_exchange *x, struct lk_api_error *error) {
    if (lk_connections_are_draining(x->server->connections))
        return lk_api_error_set_stopping(error);
    if (!lk_connection_is_refused(x->place)) return true;
    lk_api_error_set(error, 503, "too_many_connections", NULL,
                     "the server has too many connections, and all of them are in use");
    error->retry_s = 5;
    return false;
}

/* Check everything that does not need the body, before any of it is kept. False: x->refusal. */
static bool check_coding(const struct lk_exchange *x, struct lk_api_error *error) {
    const char *coding = lk_exchange_header(x, "Content-Encoding");
    return !coding || !*coding || strcasecmp(coding, "identity") == 0 ||
           lk_api_error_set(error, 415, "unsupported_encoding", NULL,
                            "the body has the Content-Encoding '%.40s', but must be plain JSON: "
                            "send it without compression",
                            coding);
}

static bool check_headers(struct lk_exchange *x) {
    struct lk_api_error *error = &x->refusal;
    bool ambiguous = !are_unambiguous(x, error), has_place = !ambiguous && check_place(x, error);
    x->close = ambiguous || !has_place;
    return has_place && lk_route_find(x, error) && check_coding(x, error) &&
           (announced_length(x) <= x->server->opts.max_body || refuse_too_large(x, error)) &&
           lk_charge_add(&x->charge, announced_length(x), error);
}

/* Should a refused request get its reply before its body was received? The connection then closes
 * after the reply. */
static bool should_refuse_early(const struct lk_exchange *x) {
    unsigned long long n = announced_length(x), max = MAX_DROPPED;
    if (x->refusal.status == 413)
        max = (unsigned long long)x->server->opts.max_body * MAX_DROPPED_FACTOR;
    bool waits = n > 0 && lk_exchange_header(x, "Expect");
    return n > max || waits || lk_exchange_header(x, "Transfer-Encoding");
}

static enum MHD_Result receive_headers(struct lk_exchange *x) {
    lk_connection_set_state(x->place, LK_CONNECTION_BODY, 0);
    if (check_headers(x) || !should_refuse_early(x)) return MHD_YES;
    lk_exchange_reply_error(x, &x->refusal);
    return x->status ? MHD_YES : MHD_NO;
}

static enum MHD_Result receive_body(struct lk_exchange *x, const char *data, size_t *len) {
    x->received += *len;
    lk_connection_add_received(x->place, *len);
    /* The parts of a chunked body are charged as they come. */
    if (!x->refusal.status && x->received > x->charge.bytes && x->received <= x->body.max)
        lk_charge_add(&x->charge, x->received - x->charge.bytes, &x->refusal);
    if (x->refusal.status)
        lk_buf_free(&x->body);
    else
        lk_buf_append(&x->body, data, *len); /* drops what exceeds the limit */
    *len = 0;
    return x->received / MAX_DROPPED_FACTOR > x->server->opts.max_body ? MHD_NO : MHD_YES;
}

static enum MHD_Result reply_to_request(struct lk_exchange *x) {
    if (!lk_connection_set_state(x->place, LK_CONNECTION_WORKING, 0)) return MHD_NO;
    if (!x->refusal.status && x->body.failed) refuse_too_large(x, &x->refusal);
    if (x->refusal.status)
        lk_exchange_reply_error(x, &x->refusal);
    else
        lk_route(x);
    return x->status ? MHD_YES : MHD_NO;
}

/* libmicrohttpd calls this once for the headers, once per part of the body, and once at the end.
 * MHD_NO closes the connection. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **state) {
    struct lk_exchange *x = *state;
    if (!x) {
        x = *state = new_exchange(user, connection, method, path, version);
        return x ? receive_headers(x) : MHD_NO;
    }
    if (*len) return receive_body(x, data, len);
    return x->status ? MHD_YES : reply_to_request(x);
}

/* "prefill 2214 tokens (1000 more reused) 512.3/s, decode 20 61.0/s, first after 4322 ms" */
static void append_work(const struct lk_exchange_work *work, struct lk_buf *line) {
    if (work->n_left_out)
        lk_buf_printf(line, ", left out the oldest %zu messages", work->n_left_out);
    if (work->ignored[0]) lk_buf_printf(line, ", ignored fields: %s", work->ignored);
    if (work->n_omitted)
        lk_buf_printf(line, ", left out %zu parts that are not text (%s)", work->n_omitted,
                      work->omitted);
    if (work->n_read + work->n_reused == 0) return;
    lk_buf_printf(line, ", prefill %zu tokens", work->n_read);
    if (work->n_reused) lk_buf_printf(line, " (%zu more reused)", work->n_reused);
    if (work->read_s > 0) lk_buf_printf(line, " %.1f/s", (double)work->n_read / work->read_s);
    lk_buf_printf(line, ", decode %zu", work->n_written);
    if (work->n_written && work->write_s > 0)
        lk_buf_printf(line, " %.1f/s", (double)work->n_written / work->write_s);
    if (work->first_s > 0) lk_buf_printf(line, ", first after %.0f ms", 1e3 * work->first_s);
}

static void log_request(const struct lk_exchange *x) {
    const struct lk_server_opts *o = &x->server->opts;
    char address[LK_ADDRESS_LEN];
    struct lk_buf line = {0};
    if (!o->log) return;
    lk_buf_printf(&line, "%s %s %s %d %.3f s", lk_exchange_address(x, address), x->method, x->path,
                  x->status, lk_now() - x->start_time);
    append_work(&x->work, &line);
    if (!line.failed) o->log(o->user, line.at);
    lk_buf_free(&line);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why) {
    struct lk_exchange *x = *state;
    struct lk_server *server = user;
    lk_connection_set_state(connection_place(connection), LK_CONNECTION_IDLE, 0);
    if (!x) return;
    int class = x->status / 100;
    if (class >= 0 && class < 6) server->metrics.answered[class]++;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) server->metrics.disconnected++;
    log_request(x);
    lk_models_release(server->models, x->served);
    lk_buf_free(&x->body);
    lk_charge_release(&x->charge);
    free(x);
    *state = NULL;
}

/* ---- connections ---- */

/* libmicrohttpd calls this before the thread of a connection starts. It calls it again when that
 * thread has ended, right before it closes the socket. */
static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    struct lk_server *server = user;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        lk_connections_remove(*context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = (int)info->connect_fd;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    *context = lk_connections_add(server->connections, fd, info->client_addr);
    if (!*context) lk_socket_shut(fd);
}

/* libmicrohttpd calls this when it has the request line. */
static void *on_request_line(void *user, const char *uri, struct MHD_Connection *connection) {
    (void)user;
    (void)uri;
    lk_connection_start_request(connection_place(connection));
    return NULL; /* the state of on_request */
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
    enum { HEADER_BYTES = 64 << 10, STACK_BYTES = 1 << 20 }; /* of a connection's thread */
    union address address;
    bool v6 = false;
    lk_status status = parse_address(&s->opts, &address, &v6, err);
    if (!status) status = lk_connections_start(&s->connections, &s->opts, err);
    if (status) return status;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG,
             n_connection = (unsigned)s->opts.n_connection + LK_SPARE_CONNECTIONS;
    s->daemon = MHD_start_daemon(
        flags | (v6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER,
        ignore_log, NULL, MHD_OPTION_SOCK_ADDR, &address.any, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_URI_LOG_CALLBACK, on_request_line, s, MHD_OPTION_CONNECTION_LIMIT, n_connection,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_END);
    if (!s->daemon)
        return lk_fail(err, LK_E_IO,
                       "cannot listen on %.60s port %d: is another server running there? choose "
                       "another port with --port",
                       s->opts.host, s->opts.port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->opts.port;
    return LK_OK;
}

void lk_http_close(struct lk_server *s) {
    if (!s->daemon || s->listen_fd >= 0) return;
    s->listen_fd = (int)MHD_quiesce_daemon(s->daemon);
    if (s->listen_fd >= 0) lk_socket_shut(s->listen_fd); /* refuses connections from now on */
    lk_connections_drain(s->connections);
}

bool lk_http_stop(struct lk_server *s, double grace_s) {
    const double last_s = 5; /* for threads whose sockets were shut down */
    if (!s->daemon) {
        lk_connections_stop(s->connections);
        return true;
    }
    lk_http_close(s);
    if (!lk_connections_wait(s->connections, grace_s)) {
        lk_connections_shut_all(s->connections);
        if (!lk_connections_wait(s->connections, last_s)) return false;
    }
    MHD_stop_daemon(s->daemon);
    if (s->listen_fd >= 0) lk_socket_close(s->listen_fd);
    lk_connections_stop(s->connections);
    return true;
}
