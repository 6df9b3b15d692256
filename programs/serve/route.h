/* The router: maps method and path to a handler. */
#ifndef LK_SERVE_ROUTE_H
#define LK_SERVE_ROUTE_H

#include "serve/exchange.h"

/* Check access and reply to the request. Returns without a reply only if memory runs out. */
void lk_route(struct lk_exchange *x);

#endif
