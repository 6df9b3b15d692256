/* Access control: API keys, and without keys the checks of Host and Origin. */
#ifndef LK_SERVE_AUTH_H
#define LK_SERVE_AUTH_H

#include "serve/exchange.h"

/* May the client use the server? If the server has keys, the request must carry one of them.
 * Otherwise its Host and Origin headers must not name another site. False: see `error`. */
bool lk_auth_check(const struct lk_exchange *x, struct lk_api_error *error);

/* Compare two strings in a time that depends only on their lengths. */
bool lk_auth_secret_equal(const char *given, const char *key);

/* Who sent the request, for fair shares: a number for its API key; without keys one for the
 * address of the client. */
uint64_t lk_auth_client(const struct lk_exchange *x);

#endif
