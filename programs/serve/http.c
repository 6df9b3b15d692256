#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POLLRDHUP */
#endif
#include "serve/http.h"

#include "serve/route.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IDLE_S = 60 }; /* a connection on which nothing passes that long is closed */

/* A reply to a client that still sends may be lost with the connection, so a body that is too large is read
 * and dropped, up to so many times what is accepted. */
enum { DROPPED_MOST = 16 };

/* ---- replies ---- */

const char *lk_exchange_header(const struct lk_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *lk_exchange_argument(const struct lk_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

bool lk_exchange_alive(const struct lk_exchange *x) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd at = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    return poll(&at, 1, 0) <= 0 || !(at.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* Setting the time from none to some also begins it anew. */
void lk_exchange_working(const struct lk_exchange *x, bool working) {
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              working ? 0u : (unsigned)IDLE_S);
}

/* Which headers a page may send: those that it asks for, if that is a plain list of names. */
static const char *allowed_headers(const struct lk_exchange *x) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+.^_`|~-, ";
    enum { LONGEST = 2000 };
    const char *wanted = lk_exchange_header(x, "Access-Control-Request-Headers");
    size_t len = wanted ? strlen(wanted) : 0;
    return len > 0 && len <= LONGEST && strspn(wanted, plain) == len
               ? wanted
               : "Authorization, Content-Type";
}

static void add_cors(const struct lk_exchange *x, struct MHD_Response *response) {
    if (!x->server->opts.origin) return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", x->server->opts.origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "Retry-After");
    MHD_add_response_header(response, "Vary", "Origin, Access-Control-Request-Headers");
    if (strcmp(x->method, "OPTIONS") != 0) return;
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(response, "Access-Control-Allow-Headers", allowed_headers(x));
    MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
}

/* Queue a response and let go of it; NULL (no memory) closes the connection. */
static void reply(struct lk_exchange *x, int status, const char *type,
                  struct MHD_Response *response) {
    if (!response) return;
    if (*type) MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    add_cors(x, response);
    if (MHD_queue_response(x->connection, (unsigned)status, response) == MHD_YES)
        x->status = status;
    MHD_destroy_response(response);
}

static struct MHD_Response *copy_of(const char *text, size_t len) {
    return MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
}

void lk_reply_text(struct lk_exchange *x, int status, const char *type, const char *text,
                   size_t len) {
    reply(x, status, type, copy_of(text, len));
}

void lk_reply_static(struct lk_exchange *x, int status, const char *type, const char *text,
                     size_t len) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_PERSISTENT);
    /* The page runs nothing but its own script and talks to nobody but this server. */
    if (response)
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; img-src data:; connect-src 'self'; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    reply(x, status, type, response);
}

void lk_reply_json(struct lk_exchange *x, int status, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text) return;
    reply(x, status, "application/json", copy_of(text, strlen(text)));
    free(text);
}

void lk_reply_fault(struct lk_exchange *x, const struct lk_fault *fault) {
    json_t *json = lk_fault_json(fault);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL, seconds[16];
    json_decref(json);
    struct MHD_Response *response = text ? copy_of(text, strlen(text)) : NULL;
    free(text);
    snprintf(seconds, sizeof seconds, "%d", fault->retry_s);
    if (response && fault->retry_s) MHD_add_response_header(response, "Retry-After", seconds);
    if (response && fault->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    reply(x, fault->status, "application/json", response);
}

static ssize_t fill_stream(void *user, uint64_t pos, char *buf, size_t most) {
    struct lk_stream_source *source = user;
    (void)pos;
    ssize_t n = source->fill(source->user, buf, most);
    return n >= 0               ? n
           : n == LK_STREAM_END ? MHD_CONTENT_READER_END_OF_STREAM
                                : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void end_stream(void *user) {
    struct lk_stream_source *source = user;
    source->end(source->user);
    free(source);
}

void lk_reply_stream(struct lk_exchange *x, const char *type,
                     const struct lk_stream_source *source) {
    enum { PIECE = 4096 };
    struct lk_stream_source *own = malloc(sizeof *own);
    struct MHD_Response *response = NULL;
    if (own) *own = *source;
    if (own)
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, fill_stream, own,
                                                     end_stream);
    if (!response) {
        free(own);
        source->end(source->user);
        return;
    }
    MHD_add_response_header(response, "X-Accel-Buffering",
                            "no"); /* proxies shall pass events on at once */
    reply(x, 200, type, response);
}

/* ---- requests ---- */

static struct lk_exchange *begin_exchange(struct lk_server *server,
                                          struct MHD_Connection *connection, const char *method,
                                          const char *path) {
    struct lk_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = server;
    x->connection = connection;
    x->began = lk_now();
    x->body.most = server->opts.max_body;
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    return x;
}

static void refuse_body(struct lk_exchange *x) {
    struct lk_fault fault;
    lk_fault_set(&fault, 413, "body_too_large", NULL,
                 "the request is larger than the %zu bytes that are accepted",
                 x->server->opts.max_body);
    lk_reply_fault(x, &fault);
}

/* Does the client announce more than is accepted, and wait to be asked for it or mean to send far too much?
 * Then it is told at once. */
static bool announces_too_much(const struct lk_exchange *x) {
    const char *length = lk_exchange_header(x, "Content-Length");
    unsigned long long most = x->server->opts.max_body, n = length ? strtoull(length, NULL, 10) : 0;
    return n / DROPPED_MOST > most || (n > most && lk_exchange_header(x, "Expect"));
}

static enum MHD_Result take_body(struct lk_exchange *x, const char *data, size_t *len) {
    x->received += *len;
    lk_buf_add(&x->body, data, *len); /* what does not fit is dropped */
    *len = 0;
    bool slow = lk_now() - x->began > x->server->opts.time_s;
    return slow || x->received / DROPPED_MOST > x->server->opts.max_body ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *len, void **state) {
    struct lk_exchange *x = *state;
    (void)version;
    if (!x) {
        x = *state = begin_exchange(user, connection, method, path);
        if (x && announces_too_much(x)) refuse_body(x);
        return x && (x->status || !announces_too_much(x)) ? MHD_YES : MHD_NO;
    }
    if (*len) return take_body(x, data, len);
    if (x->status) return MHD_YES;
    if (x->body.failed)
        refuse_body(x);
    else
        lk_route(x);
    return x->status ? MHD_YES : MHD_NO;
}

static void tell(const struct lk_exchange *x) {
    const struct lk_serve_opts *o = &x->server->opts;
    char line[256];
    if (!o->log) return;
    snprintf(line, sizeof line, "%s %s %d %.3f s", x->method, x->path, x->status,
             lk_now() - x->began);
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
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) server->metrics.gone++;
    tell(x);
    lk_buf_free(&x->body);
    free(x);
    *state = NULL;
}

/* ---- the server ---- */

struct lk_serve_opts lk_serve_defaults(void) {
    return (struct lk_serve_opts){.host = "127.0.0.1",
                                  .port = 8080,
                                  .n_predict = 1 << 20,
                                  .n_parallel = 8,
                                  .n_queue = 64,
                                  .n_connection = 256,
                                  .max_body = 8u << 20,
                                  .max_bytes = 1u << 30,
                                  .queue_s = 60,
                                  .time_s = 600,
                                  .slice_s = 0.05};
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static lk_status read_address(struct lk_server *s, union address *out, bool *v6, lk_err *err) {
    const char *host = strcmp(s->opts.host, "localhost") == 0 ? "127.0.0.1" : s->opts.host;
    *out = (union address){0};
    if (inet_pton(AF_INET, host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)s->opts.port);
        return LK_OK;
    }
    if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)s->opts.port);
        *v6 = true;
        return LK_OK;
    }
    return lk_fail(err, LK_E_ARG,
                   "'%.60s' is no address to listen on; give one like 127.0.0.1, 0.0.0.0 or ::1",
                   host);
}

static void be_quiet(void *user, const char *format, va_list args) {
    (void)user;
    (void)format;
    (void)args;
}

static lk_status listen_at(struct lk_server *s, lk_err *err) {
    enum { HEADER_BYTES = 64 << 10, STACK = 8 << 20 }; /* tokenizers recurse */
    union address address;
    bool v6 = false;
    lk_status status = read_address(s, &address, &v6, err);
    if (status != LK_OK) return status;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(
        flags | (v6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER,
        be_quiet, NULL, MHD_OPTION_SOCK_ADDR, &address.any, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->opts.n_connection,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!s->daemon)
        return lk_fail(err, LK_E_IO,
                       "cannot listen on %.60s port %d; is another server there? see --port",
                       s->opts.host, s->opts.port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->opts.port;
    return LK_OK;
}

static lk_status check_opts(const struct lk_serve_opts *o, lk_err *err) {
    if (!o->model || !o->id || o->n_recipe == 0)
        return lk_fail(err, LK_E_ARG, "a server needs a model, its name and a recipe");
    if (o->port < 0 || o->port > 65535)
        return lk_fail(err, LK_E_ARG, "%d is no port; give 1 to 65535, or 0 for any", o->port);
    if (o->n_parallel < 1 || o->n_parallel > LK_MAX_PARALLEL)
        return lk_fail(err, LK_E_ARG, "%zu answers at once are not possible; give 1 to %d",
                       o->n_parallel, LK_MAX_PARALLEL);
    if (o->n_ctx < 2 || o->n_connection < 1 || o->max_body < 1 || o->n_queue < 1 ||
        o->n_predict < 1)
        return lk_fail(err, LK_E_ARG,
                       "context, connections, queue, body and answer must have room");
    return LK_OK;
}

lk_status lk_serve_try(const struct lk_serve_opts *o, const lk_recipe *recipe, lk_err *err) {
    lk_session_opts session_opts = {.n_ctx = o->n_ctx};
    lk_session *session = NULL;
    lk_plan plan;
    lk_err why = {0};
    lk_status status = lk_session_new(&session, o->model, recipe, &session_opts, &why);
    lk_session_free(session);
    if (status == LK_OK)
        status = lk_plan_make(o->model, recipe, (size_t)o->n_ctx, false, &plan, &why);
    return status == LK_OK ? LK_OK
                           : lk_fail(err, status, "'%.100s' with a context of %d: %s",
                                     lk_recipe_text(recipe), o->n_ctx, why.msg);
}

lk_status lk_server_start(struct lk_server **out, const struct lk_serve_opts *opts, lk_err *err) {
    lk_status status = check_opts(opts, err);
    for (size_t i = 0; status == LK_OK && i < opts->n_recipe; i++)
        status = lk_serve_try(opts, opts->recipe[i], err);
    if (status != LK_OK) return status;
    struct lk_server *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for a server");
    s->opts = *opts;
    s->started = (int64_t)time(NULL);
    status = lk_scheduler_start(&s->scheduler, &s->opts, &s->metrics, err);
    if (status == LK_OK) status = listen_at(s, err);
    if (status != LK_OK)
        lk_server_stop(s);
    else
        *out = s;
    return status;
}

int lk_server_port(const struct lk_server *server) { return server->port; }

void lk_server_stop(struct lk_server *s) {
    if (!s) return;
    if (s->scheduler) lk_scheduler_close(s->scheduler); /* who waits for events gets the last one */
    if (s->daemon) MHD_stop_daemon(s->daemon);
    lk_scheduler_stop(s->scheduler);
    free(s);
}
