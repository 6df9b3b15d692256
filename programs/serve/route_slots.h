/* POST /slots/ID?action=save|restore|erase with the body {"filename": NAME}, as in llama-server. */
#ifndef LK_SERVE_ROUTE_SLOTS_H
#define LK_SERVE_ROUTE_SLOTS_H

#include "serve/exchange.h"

/* If the path is "/slots/ID", reply and return true. */
bool lk_route_slot(struct lk_exchange *x);

#endif
