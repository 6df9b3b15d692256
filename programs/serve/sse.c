/* The body of a streamed response. */
#include "serve/sse.h"

#include "serve/json_text.h"
#include "serve/response.h"

#include <stdlib.h>
#include <string.h>

struct sse_body {
    const struct lk_exchange *x; /* outlives the body */
    struct lk_response response;
    struct lk_buf out;
    size_t n_sent; /* bytes of `out` that were sent */
    bool last;     /* `out` is the end of the body */
};

/* Append one event; releases `json`. */
static void append_data(struct sse_body *b, json_t *json) {
    lk_buf_append_str(&b->out, "data: ");
    lk_buf_add_json(&b->out, json);
    lk_buf_append_str(&b->out, "\n\n");
}

/* Append the chunk for an event, and the end of the stream if it was the last one. */
static void append_event(struct sse_body *b, struct lk_event *event) {
    const struct lk_completion *completion = b->response.completion;
    if (event->kind == LK_EVENT_ERROR) {
        append_data(b, lk_api_error_json(&completion->error));
        b->last = true;
        return;
    }
    append_data(b, lk_response_chunk(&b->response, event));
    if (!lk_response_is_complete(&b->response)) return;
    if (completion->request.include_usage) append_data(b, lk_response_usage_chunk(&b->response));
    lk_buf_append_str(&b->out, "data: [DONE]\n\n");
    b->last = true;
}

/* Wait for events and append them. After a while without any, append a comment, so that proxies and
 * clients do not time out. False if the client disconnected. */
static bool wait_for_data(struct sse_body *b) {
    enum { MAX_BATCH = 2048 }; /* bytes after which no more events are collected */
    const double check_s = 0.25, comment_s = 15;
    double start = lk_now();
    struct lk_completion *completion = b->response.completion;
    struct lk_event event;
    while (!lk_completion_pop(completion, check_s, &event)) {
        if (!lk_exchange_is_alive(b->x)) return false;
        if (lk_now() - start < comment_s) continue;
        lk_buf_append_str(&b->out, ": waiting\n\n");
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
        x, "text/event-stream",
        &(struct lk_stream_body){.fill = fill_sse_body, .end = end_sse_body, .user = b});
}
