/* Routes of other APIs: OpenAI's Responses, Anthropic's messages, ollama's. */
#ifndef LK_SERVE_ROUTE_CLIENTS_H
#define LK_SERVE_ROUTE_CLIENTS_H

#include "serve/exchange.h"

void lk_route_responses(struct lk_exchange *x);

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
