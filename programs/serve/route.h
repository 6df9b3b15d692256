/* The router: maps method and path to a handler. */
#ifndef LK_SERVE_ROUTE_H
#define LK_SERVE_ROUTE_H

#include "serve/exchange.h"

/* Check access, and find the handler of the request: sets x->route. Needs only the headers. False:
 * see `error`. */
bool lk_route_find(struct lk_exchange *x, struct lk_api_error *error);

/* Reply to the request, whose body was received. Returns without a reply only if memory runs out,
 * or if the client is gone. */
void lk_route(struct lk_exchange *x);

#endif
