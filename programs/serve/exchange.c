/* Headers of a request, and replies of every kind with their CORS and security headers. */
#include "serve/exchange.h"

#include "base/hash.h"
#include "serve/socket.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return info ? (int)info->connect_fd : -1;
}

/* Send an interim reply. This is the connection's thread, the request was received completely, and
 * no reply was queued. So libmicrohttpd has nothing to send: the socket is between two messages. A
 * part of the text would break the next message, so then the client counts as disconnected. */
static bool send_interim_reply(int fd) {
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    return lk_socket_send_at_once(fd, text, sizeof text - 1);
}

bool lk_exchange_is_alive(struct lk_exchange *x) {
    int fd = socket_of(x);
    enum lk_socket_state state = lk_socket_state(fd);
    if (state == LK_SOCKET_GONE) return false;
    if (state == LK_SOCKET_OPEN || x->status || x->probed) return true;
    x->probed = true;
    return !x->is_http_1_0 && send_interim_reply(fd);
}

const char *lk_exchange_address(const struct lk_exchange *x, char text[LK_ADDRESS_LEN]) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    const void *number = NULL;
    if (address && address->sa_family == AF_INET)
        number = &((const struct sockaddr_in *)address)->sin_addr;
    else if (address && address->sa_family == AF_INET6)
        number = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (!number || !inet_ntop(address->sa_family, number, text, LK_ADDRESS_LEN)) return "-";
    return text;
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

void lk_exchange_count(struct lk_exchange *x, const struct lk_event *event) {
    struct lk_exchange_work *work = &x->work;
    const struct lk_job_result *result = &event->result;
    if (event->kind == LK_EVENT_TEXT && work->first_s == 0)
        work->first_s = lk_now() - x->start_time;
    if (event->kind != LK_EVENT_DONE) return;
    work->n_read += result->n_prompt - result->n_reused;
    work->n_reused += result->n_reused;
    work->n_written += result->n_decoded;
    if (result->prompt_s > work->read_s) work->read_s = result->prompt_s;
    if (result->decode_s > work->write_s) work->write_s = result->decode_s;
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
    MHD_add_response_header(reply, "Access-Control-Expose-Headers",
                            "Retry-After, X-Lowkey-Ignored");
    MHD_add_response_header(reply, "Vary", "Origin, Access-Control-Request-Headers");
    if (strcmp(x->method, "OPTIONS") != 0) return;
    MHD_add_response_header(reply, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(reply, "Access-Control-Allow-Headers", allowed_headers(x));
    MHD_add_response_header(reply, "Access-Control-Max-Age", "86400");
}

/* Queue a reply and release it. `len`: bytes of its body, 0 for a stream. NULL (out of memory)
 * leaves x->status 0. */
static void queue_reply(struct lk_exchange *x, int status, const char *type,
                        struct MHD_Response *reply, size_t len) {
    if (!reply) return;
    if (*type) MHD_add_response_header(reply, "Content-Type", type);
    if (x->work.ignored[0]) MHD_add_response_header(reply, "X-Lowkey-Ignored", x->work.ignored);
    MHD_add_response_header(reply, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(reply, "Cache-Control", "no-store");
    if (x->close || lk_connections_are_draining(x->server->connections))
        MHD_add_response_header(reply, "Connection", "close");
    add_cors_headers(x, reply);
    lk_connection_set_state(x->place, LK_CONNECTION_SENDING, len);
    if (MHD_queue_response(x->connection, (unsigned)status, reply) == MHD_YES) x->status = status;
    MHD_destroy_response(reply);
}

static struct MHD_Response *copied_reply(const char *text, size_t len) {
    return MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
}

static struct MHD_Response *json_reply(json_t *json, size_t *len) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    *len = text ? strlen(text) : 0;
    struct MHD_Response *reply = text ? copied_reply(text, *len) : NULL;
    json_decref(json);
    free(text);
    return reply;
}

void lk_exchange_reply_text(struct lk_exchange *x, int status, const char *type, const char *text,
                            size_t len) {
    queue_reply(x, status, type, copied_reply(text, len), len);
}

void lk_exchange_reply_static(struct lk_exchange *x, int status, const char *type,
                              const char *static_text, size_t len) {
    struct MHD_Response *reply =
        MHD_create_response_from_buffer(len, (void *)static_text, MHD_RESPMEM_PERSISTENT);
    /* The page may run only its own scripts, connect only to this server, and make elements only
     * one by one, never from text. It loads nothing else, and links do not say where it is. */
    if (reply) {
        MHD_add_response_header(reply, "Content-Security-Policy",
                                "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
                                "data:; connect-src 'self'; require-trusted-types-for 'script'; "
                                "trusted-types 'none'; base-uri 'none'; form-action 'none'; "
                                "frame-ancestors 'none'");
        MHD_add_response_header(reply, "Referrer-Policy", "no-referrer");
    }
    queue_reply(x, status, type, reply, len);
}

void lk_exchange_reply_json(struct lk_exchange *x, int status, json_t *json) {
    size_t len;
    struct MHD_Response *reply = json_reply(json, &len);
    queue_reply(x, status, "application/json", reply, len);
}

void lk_exchange_reply_error(struct lk_exchange *x, const struct lk_api_error *error) {
    size_t len;
    struct MHD_Response *reply = json_reply(x->error_json(error), &len);
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", error->retry_s);
    if (reply && error->retry_s) MHD_add_response_header(reply, "Retry-After", seconds);
    if (reply && error->status == 401) MHD_add_response_header(reply, "WWW-Authenticate", "Bearer");
    queue_reply(x, error->status, "application/json", reply, len);
}

/* ---- streamed replies ---- */

struct stream {
    struct lk_stream_body body;
    struct lk_connection *place;
};

/* libmicrohttpd calls this when the socket has accepted the bytes before. While it waits for more,
 * the connection is working: only a client that does not read is shut down. */
static ssize_t fill_stream(void *user, uint64_t pos, char *buf, size_t cap) {
    struct stream *s = user;
    (void)pos;
    lk_connection_set_state(s->place, LK_CONNECTION_WORKING, 0);
    ssize_t n = s->body.fill(s->body.user, buf, cap);
    bool open = lk_connection_set_state(s->place, LK_CONNECTION_SENDING, 0);
    if (n >= 0 && open) return n;
    return n == LK_BODY_END ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void end_stream(void *user) {
    struct stream *s = user;
    s->body.end(s->body.user);
    free(s);
}

void lk_exchange_reply_stream(struct lk_exchange *x, const char *type,
                              const struct lk_stream_body *body) {
    /* A client that does not read fills the kernel's buffer, which would grow to megabytes. */
    enum { BLOCK_SIZE = 4096, SEND_BUFFER = 64 << 10 };
    lk_socket_limit_buffer(socket_of(x), SEND_BUFFER);
    struct stream *s = malloc(sizeof *s);
    struct MHD_Response *reply = NULL;
    if (s) {
        *s = (struct stream){.body = *body, .place = x->place};
        reply = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_SIZE, fill_stream, s,
                                                  end_stream);
    }
    if (!reply) {
        free(s);
        body->end(body->user);
        return;
    }
    MHD_add_response_header(reply, "X-Accel-Buffering", "no"); /* proxies must not buffer events */
    queue_reply(x, 200, type, reply, 0);
}
