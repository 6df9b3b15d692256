/* A call's answer as a stream of events: "data: {...}\n\n", and "data: [DONE]\n\n" at the end. */
#ifndef LK_SERVE_SSE_H
#define LK_SERVE_SSE_H

#include "serve/answer.h"
#include "serve/http.h"

/* Answer with a stream that begins with the event `first`. The call is released at its end. */
void lk_sse_reply(struct lk_exchange *x, struct lk_call *call, struct lk_event *first);

#endif
