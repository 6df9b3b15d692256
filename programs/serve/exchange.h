/* One HTTP request and its reply, as handlers see it: headers, query, body, and the ways to reply.
 * Together with http.c this is the only code that knows libmicrohttpd. */
#ifndef LK_SERVE_EXCHANGE_H
#define LK_SERVE_EXCHANGE_H

#include "serve/connections.h"
#include "serve/models.h"
#include "serve/workers.h"

#include <sys/types.h>

struct MHD_Connection;
struct MHD_Daemon;

struct lk_server {
    struct lk_server_opts opts;
    struct lk_metrics metrics; /* of requests; models have others */
    struct lk_models *models;
    struct lk_stored stored; /* by lk_server_close */
    struct lk_workers *workers;
    struct lk_budget budget; /* of all requests in work */
    struct MHD_Daemon *daemon;
    struct lk_connections *connections;
    int listen_fd; /* after the listener was stopped: to be closed; -1: none */
    int port;
    int64_t started; /* seconds since 1970 */
    _Atomic uint64_t n_completion;
};

struct lk_route;

/* What a request cost, for the log: sums over its prompts and answers. */
struct lk_exchange_work {
    size_t n_read, n_reused,
        n_written;          /* tokens: prefilled, of the prompts not prefilled, decoded */
    double read_s, write_s; /* of the longest job */
    size_t n_left_out;      /* messages of a chat that did not fit its context */
    size_t n_omitted;       /* parts of the request that were left out: images and the like */
    char omitted[40];       /* the kind of the first one */
    char ignored[300];      /* names of fields that are not known (serve/fields.h) */
    double first_s;         /* from the headers to the first text; 0: none was sent */
};

/* A request, and its reply. */
struct lk_exchange {
    struct lk_server *server;
    struct lk_served *served; /* the model; NULL: not chosen. Kept until the exchange ends */
    struct MHD_Connection *connection;
    struct lk_connection *place;  /* its entry in server->connections */
    char method[12], path[128];   /* truncated if longer; no route is that long */
    bool is_http_1_0;             /* otherwise HTTP/1.1 */
    const struct lk_route *route; /* set by lk_route_find */
    /* the body of a reply with an error; a new reference */
    json_t *(*error_json)(const struct lk_api_error *error);
    struct lk_api_error refusal; /* found in the headers; status 0: none */
    struct lk_buf body;
    struct lk_charge charge; /* for the body */
    size_t received;         /* bytes of the body, kept or dropped */
    double start_time;       /* when the headers were complete */
    double alive_check_time; /* last check that the client is still connected */
    bool probed;             /* an interim reply was sent, see lk_exchange_is_alive */
    bool close;              /* close the connection after the reply */
    int status;              /* of the reply; 0: not replied yet */
    struct lk_exchange_work work;
};

/* Value of a header; borrowed; NULL if absent. */
const char *lk_exchange_header(const struct lk_exchange *x, const char *name);

/* Value of a query parameter; borrowed; NULL if absent. */
const char *lk_exchange_query(const struct lk_exchange *x, const char *name);

/* The client's address without its port, as text. */
enum { LK_ADDRESS_LEN = 48 };
const char *lk_exchange_address(const struct lk_exchange *x, char text[LK_ADDRESS_LEN]);

/* A hash of the same. */
uint64_t lk_exchange_address_hash(const struct lk_exchange *x);

/* Is the client still connected? A client may close its sending side after the request and still
 * read the reply. To find out, an interim reply ("100 Continue") is sent to it once: if it is gone,
 * its system answers with a reset, which later calls see. That takes HTTP/1.1, and no reply that
 * was started. With HTTP/1.0 a closed sending side counts as disconnected. In a stream only a
 * reset counts, because the data itself causes it. */
bool lk_exchange_is_alive(struct lk_exchange *x);

/* Count an event of the completion that answers the request, for the log. */
void lk_exchange_count(struct lk_exchange *x, const struct lk_event *event);

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
