/* HTTP, by libmicrohttpd: listening, reading requests within limits, and replies. No other file but sse.c's
 * callers need know of it. */
#ifndef LK_SERVE_HTTP_H
#define LK_SERVE_HTTP_H

#include "serve/scheduler.h"

#include <sys/types.h>

struct MHD_Connection;
struct MHD_Daemon;

struct lk_server {
    struct lk_serve_opts opts;
    struct lk_metrics metrics;
    struct lk_scheduler *scheduler;
    struct MHD_Daemon *daemon;
    int port;
    int64_t started; /* seconds since 1970 */
    _Atomic uint64_t n_call;
};

/* A request that was read whole, and its reply. */
struct lk_exchange {
    struct lk_server *server;
    struct MHD_Connection *connection;
    char method[12], path[128]; /* cut where longer: no route is */
    struct lk_buf body;
    size_t received; /* bytes of the body, kept or not */
    double began,
        looked; /* moments: of its first line; of the last look whether the client is there */
    int status; /* of the reply; 0: none yet */
};

/* A header's value, borrowed; NULL where it is absent. */
const char *lk_exchange_header(const struct lk_exchange *x, const char *name);

/* An argument behind the path's question mark, likewise. */
const char *lk_exchange_argument(const struct lk_exchange *x, const char *name);

/* Is the client still there? It hung up when its side is closed. */
bool lk_exchange_alive(const struct lk_exchange *x);

/* Before and after work that takes long: the connection is not idle, though nothing passes over it. */
void lk_exchange_working(const struct lk_exchange *x, bool working);

/* Replies: one for each exchange. `json` is released. `text` lives as long as the program does. */
void lk_reply_json(struct lk_exchange *x, int status, json_t *json);
void lk_reply_fault(struct lk_exchange *x, const struct lk_fault *fault);
void lk_reply_text(struct lk_exchange *x, int status, const char *type, const char *text,
                   size_t len);
void lk_reply_static(struct lk_exchange *x, int status, const char *type, const char *text,
                     size_t len);

/* A reply whose bytes come from fill: it waits until there are some, and returns how many, LK_STREAM_END
 * or LK_STREAM_BROKEN. `end` is called in any case. */
enum { LK_STREAM_END = -1, LK_STREAM_BROKEN = -2 };
struct lk_stream_source {
    ssize_t (*fill)(void *user, char *buf, size_t most);
    void (*end)(void *user);
    void *user;
};
void lk_reply_stream(struct lk_exchange *x, const char *type,
                     const struct lk_stream_source *source);

#endif
