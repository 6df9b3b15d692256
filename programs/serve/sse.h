/* Streamed replies. Server-sent events are "data: {...}\n\n" per chunk, and "data: [DONE]\n\n" at
 * the end. Until the first token a comment (": reading 12 %") tells every few seconds how far the
 * request is, so that proxies and clients do not time out. */
#ifndef LK_SERVE_SSE_H
#define LK_SERVE_SSE_H

#include "serve/answer.h"

/* Reply with a stream that starts with the event `first`, unless that is NULL. Takes over the
 * caller's reference to the completion. */
void lk_sse_reply(struct lk_exchange *x, const struct lk_endpoint *endpoint,
                  struct lk_completion *completion, struct lk_event *first);

#endif
