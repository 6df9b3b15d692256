/* The body of a streamed reply. */
#include "serve/sse.h"

#include <stdlib.h>
#include <string.h>

struct sse_body {
    struct lk_exchange *x; /* outlives the reading of the body */
    struct lk_models *models;
    struct lk_served *served;
    const struct lk_endpoint *endpoint;
    struct lk_response response;
    struct lk_buf out;
    size_t n_sent;  /* bytes of `out` that were sent */
    bool last;      /* `out` is the end of the body */
    bool has_token; /* text was sent */
    int n_comment;
    double sent_time; /* when something was appended last */
};

/* Append what an event adds, and the end of the stream if it was the last one. */
static void append_event(struct sse_body *b, struct lk_event *event) {
    b->sent_time = lk_now();
    if (event->kind == LK_EVENT_ERROR) {
        b->endpoint->write_error(&b->response, &b->response.completion->error, &b->out);
        b->last = true;
        return;
    }
    lk_exchange_count(b->x, event);
    b->has_token |= event->kind == LK_EVENT_TEXT;
    b->endpoint->write_event(&b->response, event, &b->out);
    if (!lk_response_is_complete(&b->response)) return;
    b->endpoint->write_end(&b->response, &b->out);
    b->last = true;
}

/* Append a comment if nothing was sent for some time: the first one soon, for clients that wait for
 * a byte, then often, so that people see that something happens. */
static bool append_comment(struct sse_body *b) {
    enum { N_OFTEN = 10 };
    const double first_s = 0.5, often_s = 1, seldom_s = 5, token_s = 10;
    double interval = b->n_comment < N_OFTEN ? often_s : seldom_s;
    if (b->n_comment == 0) interval = first_s;
    if (b->has_token) interval = token_s;
    if (lk_now() - b->sent_time < interval) return false;
    int percent = b->response.completion->percent;
    if (b->endpoint->write_idle)
        b->endpoint->write_idle(&b->response, &b->out);
    else if (b->has_token)
        lk_buf_append_str(&b->out, ": waiting\n\n");
    else if (percent < 0)
        lk_buf_append_str(&b->out, ": queued\n\n");
    else
        lk_buf_printf(&b->out, ": prefill %d %%\n\n", percent);
    b->n_comment++;
    b->sent_time = lk_now();
    return true;
}

/* Wait for events and append them, or a comment. False if the client disconnected. */
static bool wait_for_data(struct sse_body *b) {
    enum { MAX_BATCH = 2048 }; /* bytes after which no more events are collected */
    const double check_s = 0.1;
    struct lk_completion *completion = b->response.completion;
    struct lk_event event;
    while (!lk_completion_pop(completion, check_s, &event)) {
        if (!lk_exchange_is_alive(b->x)) return false;
        if (append_comment(b)) return true;
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
    if (n) memcpy(buf, b->out.at + b->n_sent, n); /* an event may have no text */
    b->n_sent += n;
    return (ssize_t)n;
}

static void end_sse_body(void *user) {
    struct sse_body *b = user;
    struct lk_completion *completion = b->response.completion;
    lk_response_free(&b->response);
    lk_buf_free(&b->out);
    lk_scheduler_abandon(b->served->scheduler, completion);
    lk_models_release(b->models, b->served);
    free(b);
}

void lk_sse_reply(struct lk_exchange *x, const struct lk_endpoint *endpoint,
                  struct lk_completion *completion, struct lk_event *first) {
    const char *type = endpoint->stream_type ? endpoint->stream_type : "text/event-stream";
    struct sse_body *b = calloc(1, sizeof *b);
    if (!b ||
        !lk_response_init(&b->response, completion, &x->served->opts, ++x->server->n_completion)) {
        free(b);
        if (first) lk_text_delta_free(&first->delta);
        lk_scheduler_abandon(x->served->scheduler, completion);
        return;
    }
    b->x = x;
    /* The body may end after the exchange. */
    b->models = x->server->models;
    b->served = x->served;
    lk_models_use_loaded(b->models, b->served);
    b->endpoint = endpoint;
    b->sent_time = lk_now();
    if (first) append_event(b, first);
    lk_exchange_reply_stream(
        x, type, &(struct lk_stream_body){.fill = fill_sse_body, .end = end_sse_body, .user = b});
}
