/* Routes that convert between texts and tokens, without the model's weights. */
#ifndef LK_SERVE_ROUTE_TOKENS_H
#define LK_SERVE_ROUTE_TOKENS_H

#include "serve/exchange.h"

void lk_route_tokenize(struct lk_exchange *x);
void lk_route_detokenize(struct lk_exchange *x);
void lk_route_tokenizer_info(struct lk_exchange *x);
void lk_route_apply_template(struct lk_exchange *x);

#endif
