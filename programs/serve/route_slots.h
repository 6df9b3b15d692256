/* POST /slots/ID?action=save|restore|erase with the body {"filename": NAME}, as in llama-server. */
#ifndef LK_SERVE_ROUTE_SLOTS_H
#define LK_SERVE_ROUTE_SLOTS_H

#include "serve/exchange.h"

/* Reply to a request whose path starts with "/slots/". */
void lk_route_slot(struct lk_exchange *x);

#endif
