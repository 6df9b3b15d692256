#include "serve/sse.h"

#include <stdlib.h>
#include <string.h>

struct stream {
    const struct lk_exchange *x; /* lives as long as it is filled */
    struct lk_answer answer;
    struct lk_buf out;
    size_t given; /* bytes of `out` that went away */
    bool last;    /* nothing follows */
};

static void say(struct stream *s, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text) {
        s->out.failed = true;
        return;
    }
    lk_buf_text(&s->out, "data: ");
    lk_buf_text(&s->out, text);
    lk_buf_text(&s->out, "\n\n");
    free(text);
}

static void finish(struct stream *s) {
    const struct lk_answer *a = &s->answer;
    if (a->call->ask.usage) {
        json_t *chunk = json_pack("{s:s, s:s, s:I, s:s, s:[], s:o}", "id", a->id, "object",
                                  a->call->ask.chat ? "chat.completion.chunk" : "text_completion",
                                  "created", (json_int_t)a->created, "model", a->opts->id,
                                  "choices", "usage", lk_answer_usage(a));
        say(s, chunk);
    }
    lk_buf_text(&s->out, "data: [DONE]\n\n");
    s->last = true;
}

static void tell(struct stream *s, struct lk_event *event) {
    if (event->kind == LK_EVENT_FAULT) {
        say(s, lk_fault_json(&s->answer.call->fault));
        s->last = true;
        return;
    }
    say(s, lk_answer_chunk(&s->answer, event));
    if (lk_answer_complete(&s->answer)) finish(s);
}

/* Wait until there is something to send; now and then a comment, so that nobody takes the silence for the
 * end. False when the client hung up. */
static bool wait_for_more(struct stream *s) {
    const double look_s = 0.25, comment_s = 15;
    double began = lk_now();
    struct lk_event event;
    while (!lk_call_pop(s->answer.call, look_s, &event)) {
        if (!lk_exchange_alive(s->x)) return false;
        if (lk_now() - began < comment_s) continue;
        lk_buf_text(&s->out, ": waiting\n\n");
        return true;
    }
    tell(s, &event);
    while (!s->last && s->out.len < 2048 && lk_call_pop(s->answer.call, 0, &event)) tell(s, &event);
    return true;
}

static ssize_t fill(void *user, char *buf, size_t most) {
    struct stream *s = user;
    if (s->given == s->out.len) {
        s->out.len = s->given = 0;
        if (s->last) return LK_STREAM_END;
        if (!wait_for_more(s) || s->out.failed) return LK_STREAM_BROKEN;
    }
    size_t n = s->out.len - s->given < most ? s->out.len - s->given : most;
    memcpy(buf, s->out.at + s->given, n);
    s->given += n;
    return (ssize_t)n;
}

static void end(void *user) {
    struct stream *s = user;
    struct lk_call *call = s->answer.call;
    call->gone = true;
    lk_answer_free(&s->answer);
    lk_buf_free(&s->out);
    free(s);
    lk_call_release(call);
}

void lk_sse_reply(struct lk_exchange *x, struct lk_call *call, struct lk_event *first) {
    struct stream *s = calloc(1, sizeof *s);
    if (!s || !lk_answer_begin(&s->answer, call, &x->server->opts, ++x->server->n_call)) {
        free(s);
        call->gone = true;
        lk_piece_free(&first->piece);
        lk_call_release(call);
        return;
    }
    s->x = x;
    tell(s, first);
    lk_reply_stream(x, "text/event-stream",
                    &(struct lk_stream_source){.fill = fill, .end = end, .user = s});
}
