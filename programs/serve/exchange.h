/* One HTTP request and its reply, as handlers see it: headers, query, body, and the ways to reply.
 * Together with http.c this is the only code that knows libmicrohttpd. */
#ifndef LK_SERVE_EXCHANGE_H
#define LK_SERVE_EXCHANGE_H

#include "serve/scheduler.h"
#include "serve/workers.h"

#include <sys/types.h>

struct MHD_Connection;
struct MHD_Daemon;

struct lk_server {
    struct lk_server_opts opts;
    struct lk_metrics metrics;
    struct lk_scheduler *scheduler;
    struct lk_workers *workers;
    struct lk_budget budget; /* of all requests in work */
    struct MHD_Daemon *daemon;
    int port;
    int64_t started; /* seconds since 1970 */
    _Atomic uint64_t n_completion;
};

/* A request whose body was received completely, and its reply. */
struct lk_exchange {
    struct lk_server *server;
    struct MHD_Connection *connection;
    char method[12], path[128]; /* truncated if longer; no route is that long */
    struct lk_buf body;
    struct lk_charge charge; /* for the body */
    size_t received;         /* bytes of the body, kept or dropped */
    double start_time;       /* when the request line arrived */
    double alive_check_time; /* last check that the client is still connected */
    int status;              /* of the reply; 0: not replied yet */
};

/* A connection that is idle for this long is closed. */
enum { LK_HTTP_IDLE_S = 60 };

/* Value of a header; borrowed; NULL if absent. */
const char *lk_exchange_header(const struct lk_exchange *x, const char *name);

/* Value of a query parameter; borrowed; NULL if absent. */
const char *lk_exchange_query(const struct lk_exchange *x, const char *name);

/* A hash of the client's address without its port. */
uint64_t lk_exchange_address_hash(const struct lk_exchange *x);

/* Is the client still connected? A client that closed its sending side counts as disconnected. */
bool lk_exchange_is_alive(const struct lk_exchange *x);

/* Call with true before long work and with false after it: suspends the idle timeout of the
 * connection. */
void lk_exchange_set_working(const struct lk_exchange *x, bool working);

/* Replies. Each exchange gets exactly one. If memory runs out, no reply is queued and the
 * connection will be closed. `json` is released. `text` is copied; `static_text` must live as long
 * as the program. */
void lk_exchange_reply_json(struct lk_exchange *x, int status, json_t *json);
void lk_exchange_reply_error(struct lk_exchange *x, const struct lk_api_error *error);
void lk_exchange_reply_text(struct lk_exchange *x, int status, const char *type, const char *text,
                            size_t len);
void lk_exchange_reply_static(struct lk_exchange *x, int status, const char *type,
                              const char *static_text, size_t len);

/* A response body that is produced while it is sent. `fill` blocks until there are bytes. It
 * returns their number, LK_BODY_END or LK_BODY_ABORTED. `end` is always called, once. */
enum { LK_BODY_END = -1, LK_BODY_ABORTED = -2 };
struct lk_stream_body {
    ssize_t (*fill)(void *user, char *buf, size_t cap);
    void (*end)(void *user);
    void *user;
};
void lk_exchange_reply_stream(struct lk_exchange *x, const char *type,
                              const struct lk_stream_body *body);

#endif
