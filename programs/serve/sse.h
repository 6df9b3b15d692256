/* Streamed responses: server-sent events or JSON lines, see serve/protocol.h. */
#ifndef LK_SERVE_SSE_H
#define LK_SERVE_SSE_H

#include "serve/exchange.h"

/* Reply with a stream that starts with the event `first`. Takes over the caller's reference to the
 * completion. */
void lk_sse_reply(struct lk_exchange *x, struct lk_completion *completion, struct lk_event *first);

#endif
