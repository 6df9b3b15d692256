/* Which request is answered by what. */
#ifndef LK_SERVE_ROUTE_H
#define LK_SERVE_ROUTE_H

#include "serve/http.h"

/* Reply to a request. Without a reply (no memory) the connection is closed. */
void lk_route(struct lk_exchange *x);

/* May the client ask for anything at all: its key, and where it comes from. */
bool lk_guard(const struct lk_exchange *x, struct lk_fault *fault);

/* Reply where the path is "/slots/ID": save, restore or erase a session, as llama.cpp's server does. */
bool lk_route_slot(struct lk_exchange *x);

/* Are the two texts the same? Takes a time that depends on the lengths only. */
bool lk_same_secret(const char *given, const char *key);

#endif
