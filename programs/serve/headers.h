/* Checks of a request's headers that libmicrohttpd leaves to the application. */
#ifndef LK_SERVE_HEADERS_H
#define LK_SERVE_HEADERS_H

#include "serve/exchange.h"

/* Are the headers unambiguous? Otherwise a proxy in front of the server might see another host or
 * another end of the body than the server does. False, status 400: a name that is not a token, a
 * control character, a Host that is missing (HTTP/1.1) or repeated, a length that is repeated or
 * given in two ways, or a transfer coding other than chunked. Then close the connection. */
bool lk_headers_check(const struct lk_exchange *x, struct lk_api_error *error);

#endif
