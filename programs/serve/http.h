/* The HTTP listener, built on libmicrohttpd. It receives requests within the limits of
 * lk_server_opts and hands each one to lk_route on the connection's own thread. */
#ifndef LK_SERVE_HTTP_H
#define LK_SERVE_HTTP_H

#include "serve/exchange.h"

/* Listen on server->opts.host and port; sets server->daemon and server->port. LK_E_ARG: the host is
 * not an IP address. LK_E_IO: cannot listen. */
lk_status lk_http_start(struct lk_server *server, lk_err *err);

/* Close the listener and wait for all connections. Does nothing if it was not started. */
void lk_http_stop(struct lk_server *server);

#endif
