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

void lk_route_responses(struct lk_exchange *x);
void lk_route_response(struct lk_exchange *x); /* one that is kept: GET, DELETE */

void lk_route_messages(struct lk_exchange *x);
void lk_route_count_tokens(struct lk_exchange *x);

void lk_route_ollama_chat(struct lk_exchange *x);
void lk_route_ollama_generate(struct lk_exchange *x);
void lk_route_ollama_show(struct lk_exchange *x);
void lk_route_ollama_tags(struct lk_exchange *x);
void lk_route_ollama_ps(struct lk_exchange *x);
void lk_route_ollama_version(struct lk_exchange *x);
void lk_route_ollama_embed(struct lk_exchange *x);
void lk_route_ollama_embeddings(struct lk_exchange *x);
void lk_route_ollama_models(struct lk_exchange *x); /* changes the list of models; refused: 501 */

#endif
