/* The body of a streamed response. */
#include "serve/sse.h"

#include "serve/protocol.h"

#include <stdlib.h>
#include <string.h>

struct sse_body {
    struct lk_exchange *x; /* outlives the body */
    struct lk_response response;
    struct lk_buf out;
    size_t n_sent; /* bytes of `out` that were sent */
    bool last;     /* `out` is the end of the body */
};

/* Append an event in the form of the protocol. */
static void append_event(struct sse_body *b, struct lk_event *event) {
    const struct lk_protocol *protocol = b->x->protocol;
    if (event->kind == LK_EVENT_ERROR)
        protocol->fail(&b->response, &b->response.completion->error, &b->out);
    else
        protocol->event(&b->response, event, &b->out);
    b->last = event->kind == LK_EVENT_ERROR || lk_response_is_complete(&b->response);
}

/* Wait for events and append them. After a while without any, append the protocol's sign of
 * life. False if the client disconnected. */
static bool wait_for_data(struct sse_body *b) {
    enum { MAX_BATCH = 2048 }; /* bytes after which no more events are collected */
    const double check_s = 0.25, comment_s = 15;
    double start = lk_now();
    struct lk_completion *completion = b->response.completion;
    struct lk_event event;
    while (!lk_completion_pop(completion, check_s, &event)) {
        if (!lk_exchange_is_alive(b->x)) return false;
        if (lk_now() - start < comment_s) continue;
        b->x->protocol->idle(&b->response, &b->out);
        return true;
    }
    append_event(b, &event);
    while (!b->last && b->out.len < MAX_BATCH && lk_completion_pop(completion, 0, &event))
        append_event(b, &event);
    return true;
}

static ssize_t fill_sse_body(void *user, char *buf, size_t cap) {
    struct sse_body *b = user;
    if (b->n_sent == b->out.len) {
        b->out.len = b->n_sent = 0;
        if (b->last) return LK_BODY_END;
        if (!wait_for_data(b) || b->out.failed) return LK_BODY_ABORTED;
    }
    size_t n = b->out.len - b->n_sent < cap ? b->out.len - b->n_sent : cap;
    memcpy(buf, b->out.at + b->n_sent, n);
    b->n_sent += n;
    return (ssize_t)n;
}

static void end_sse_body(void *user) {
    struct sse_body *b = user;
    struct lk_completion *completion = b->response.completion;
    lk_response_free(&b->response);
    lk_buf_free(&b->out);
    free(b);
    lk_completion_abandon(completion);
}

void lk_sse_reply(struct lk_exchange *x, struct lk_completion *completion, struct lk_event *first) {
    struct sse_body *b = calloc(1, sizeof *b);
    if (!b ||
        !lk_response_init(&b->response, completion, &x->server->opts, ++x->server->n_completion)) {
        free(b);
        lk_text_delta_free(&first->delta);
        lk_completion_abandon(completion);
        return;
    }
    b->x = x;
    append_event(b, first);
    lk_exchange_reply_stream(
        x, x->protocol->stream_type,
        &(struct lk_stream_body){.fill = fill_sse_body, .end = end_sse_body, .user = b});
}
