/* The open connections: what each one is doing, since when, and which ones are shut down.
 *
 *   HEADER --headers end--> BODY --complete--> WORKING --reply queued--> SENDING --sent--> IDLE
 *     ^                                              ^                         |               |
 *     |                                              +-- a stream needs more --+               |
 *     +------------------------------ next request line ---------------------------------------+
 *
 * A thread shuts down connections that stay in a state for too long. Only WORKING has no limit.
 *
 * A client that opens many connections cannot keep others out. The listener accepts a few more
 * connections than the limit. For each of these another one is shut down: of the address with the
 * most connections, one that is HEADER or IDLE, otherwise BODY, and of these the oldest. If all
 * others are working or sending, the newcomer is refused instead.
 *
 * A socket is only shut down here, never closed. Its entry is removed before it is closed. So a
 * descriptor that was reused for something else is never touched. All functions are thread-safe. */
#ifndef LK_SERVE_CONNECTIONS_H
#define LK_SERVE_CONNECTIONS_H

#include "serve/server.h"

struct sockaddr;

enum {
    /* Connections beyond the limit that are accepted, so that they can replace others. */
    LK_SPARE_CONNECTIONS = 64,
    /* A body must arrive, and a reply must be read, at this rate after the first seconds. */
    LK_MIN_BYTES_PER_SECOND = 64 << 10
};

enum lk_connection_state {
    LK_CONNECTION_HEADER,  /* the request line and the headers are being received */
    LK_CONNECTION_BODY,    /* the body is being received */
    LK_CONNECTION_WORKING, /* the server works on the answer */
    LK_CONNECTION_SENDING, /* the reply is being sent */
    LK_CONNECTION_IDLE     /* the client may send another request */
};

struct lk_connections;
struct lk_connection;

/* Start the thread. `opts` is borrowed: n_connection, n_per_address and the limits in seconds.
 * LK_E_NOMEM. */
lk_status lk_connections_start(struct lk_connections **out, const struct lk_server_opts *opts,
                               lk_err *err);

/* End the thread, and free everything. All connections must have been removed. NULL is allowed. */
void lk_connections_stop(struct lk_connections *connections);

/* Add a new connection in state HEADER. It may be refused, or replace another one. Waits a little
 * if too many connections were shut down but not removed yet. NULL if out of memory; all functions
 * below ignore NULL. */
struct lk_connection *lk_connections_add(struct lk_connections *connections, int fd,
                                         const struct sockaddr *address);

/* Remove a connection, before its socket is closed. */
void lk_connections_remove(struct lk_connection *connection);

/* Must the connection's request be refused, because there are too many connections? */
bool lk_connection_is_refused(const struct lk_connection *connection);

/* Set the state. `n_bytes`: size of the reply for SENDING, otherwise 0. Returns false if the
 * connection was shut down. */
bool lk_connection_set_state(struct lk_connection *connection, enum lk_connection_state state,
                             size_t n_bytes);

/* The request line was received: an IDLE connection becomes HEADER. A HEADER connection keeps the
 * time since it was opened. */
void lk_connection_start_request(struct lk_connection *connection);

/* Count bytes of a body that were received. */
void lk_connection_add_received(struct lk_connection *connection, size_t n_bytes);

/* From now on shut down connections that are HEADER or IDLE. */
void lk_connections_drain(struct lk_connections *connections);
bool lk_connections_are_draining(struct lk_connections *connections);

/* Wait until all connections were removed. False if some are left after `seconds`. */
bool lk_connections_wait(struct lk_connections *connections, double seconds);

/* Shut down all connections, also WORKING ones. */
void lk_connections_shut_all(struct lk_connections *connections);

#endif
