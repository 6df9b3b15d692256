/* The HTTP listener, built on libmicrohttpd. It receives requests within the limits of
 * lk_server_opts and hands each one to lk_route on the connection's own thread. */
#ifndef LK_SERVE_HTTP_H
#define LK_SERVE_HTTP_H

#include "serve/exchange.h"

/* Listen on server->opts.host and port; sets server->daemon, server->connections and server->port.
 * LK_E_ARG: the host is not an IP address. LK_E_IO: cannot listen. LK_E_NOMEM. */
lk_status lk_http_start(struct lk_server *server, lk_err *err);

/* Stop listening, and close connections without a request. Requests get 503 from now on. Does
 * nothing if the listener was not started. */
void lk_http_close(struct lk_server *server);

/* Close, give connections `grace_s` seconds to send their last replies, shut down the others, and
 * free the listener. False if a thread still works on a request after that. Nothing that it uses
 * may then be freed. */
bool lk_http_stop(struct lk_server *server, double grace_s);

#endif
