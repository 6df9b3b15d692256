/* Turns OpenAI's chunks and messages into blocks. */
#include "serve/answer_blocks.h"

#include "serve/json_field.h"

#include <string.h>

void lk_blocks_start(struct lk_response *r, const struct lk_block_ops *ops, struct lk_buf *out) {
    if (r->blocks.started) return;
    r->blocks.started = true;
    if (out && ops->start) ops->start(r, out);
}

static void close_block(struct lk_response *r, const struct lk_block_ops *ops, struct lk_buf *out) {
    struct lk_blocks *b = &r->blocks;
    if (b->kind == LK_BLOCK_NONE) return;
    if (b->text.failed) b->failed = true;
    json_t *closed = ops->close(r, out);
    if (closed) {
        if (!b->closed) b->closed = json_array();
        if (json_array_append_new(b->closed, closed)) b->failed = true;
    }
    b->kind = LK_BLOCK_NONE;
    b->n_closed++;
}

/* Close the open block and open one. */
static void open_block(struct lk_response *r, enum lk_block_kind kind,
                       const struct lk_block_ops *ops, struct lk_buf *out) {
    struct lk_blocks *b = &r->blocks;
    b->kind = kind;
    b->text.len = 0;
    lk_buf_append_str(&b->text, "");
    if (out && ops->open) ops->open(r, out);
}

static void add_text(struct lk_response *r, const json_t *text, const struct lk_block_ops *ops,
                     struct lk_buf *out) {
    size_t len = json_string_length(text);
    if (len == 0) return;
    lk_buf_append(&r->blocks.text, json_string_value(text), len);
    if (out && ops->delta) ops->delta(r, json_string_value(text), len, out);
}

/* Text or thoughts. */
static void add_piece(struct lk_response *r, enum lk_block_kind kind, const json_t *text,
                      const struct lk_block_ops *ops, struct lk_buf *out) {
    if (json_string_length(text) == 0) return;
    if (r->blocks.kind != kind) {
        close_block(r, ops, out);
        open_block(r, kind, ops, out);
    }
    add_text(r, text, ops, out);
}

/* A call, or a part of one: the index says which call it belongs to. */
static void add_call(struct lk_response *r, const json_t *call, size_t position,
                     const struct lk_block_ops *ops, struct lk_buf *out) {
    struct lk_blocks *b = &r->blocks;
    const json_t *given = json_object_get(call, "index");
    size_t index = given ? (size_t)json_integer_value(given) : position;
    if (b->kind != LK_BLOCK_CALL || b->call_index != index) {
        close_block(r, ops, out);
        json_decref(b->id);
        json_decref(b->name);
        b->id = json_incref(json_object_get(call, "id"));
        b->name = json_incref(json_object_get(json_object_get(call, "function"), "name"));
        b->call_index = index;
        open_block(r, LK_BLOCK_CALL, ops, out);
    }
    add_text(r, json_object_get(json_object_get(call, "function"), "arguments"), ops, out);
}

/* `message` is a message or the delta of one. */
static void add_message(struct lk_response *r, const json_t *message,
                        const struct lk_block_ops *ops, struct lk_buf *out) {
    const json_t *call;
    size_t i;
    add_piece(r, LK_BLOCK_THOUGHTS, json_object_get(message, "reasoning_content"), ops, out);
    add_piece(r, LK_BLOCK_TEXT, json_object_get(message, "content"), ops, out);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
        add_call(r, call, i, ops, out);
}

/* The message of a choice: also of a text completion, which has no message. A new reference. */
static json_t *choice_message(const json_t *choice) {
    const json_t *delta = json_object_get(choice, "delta"),
                 *message = json_object_get(choice, "message"),
                 *text = json_object_get(choice, "text");
    if (text) return json_pack("{s:O}", "content", text);
    return json_incref((json_t *)(delta ? delta : message));
}

/* Calls are a reason of their own; the others are the job's. */
static const char *finish_reason(const struct lk_response *r, const json_t *choice) {
    const char *given = json_string_value(json_object_get(choice, "finish_reason"));
    if (given && strcmp(given, "tool_calls") == 0) return "tool_calls";
    return r->choice[0].result.finish;
}

/* An answer has at least one block: an empty text if there is nothing else. */
static void close_last_block(struct lk_response *r, const struct lk_block_ops *ops,
                             struct lk_buf *out) {
    if (r->blocks.kind == LK_BLOCK_NONE && r->blocks.n_closed == 0)
        open_block(r, LK_BLOCK_TEXT, ops, out);
    close_block(r, ops, out);
}

void lk_blocks_write_event(struct lk_response *r, struct lk_event *event,
                           const struct lk_block_ops *ops, struct lk_buf *out) {
    bool done = event->kind == LK_EVENT_DONE;
    json_t *chunk = lk_response_chunk(r, event);
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    lk_blocks_start(r, ops, out);
    if (choice) {
        json_t *message = choice_message(choice);
        add_message(r, message, ops, out);
        json_decref(message);
    }
    if (done) r->blocks.finish = finish_reason(r, choice);
    if (!chunk || r->blocks.failed || r->blocks.text.failed) out->failed = true;
    json_decref(chunk);
}

void lk_blocks_write_end(struct lk_response *r, const struct lk_block_ops *ops,
                         struct lk_buf *out) {
    close_last_block(r, ops, out);
    ops->end(r, out);
    if (r->blocks.failed) out->failed = true;
}

bool lk_blocks_write_whole(const struct lk_response *response, const struct lk_block_ops *ops,
                           struct lk_buf *out) {
    struct lk_response r = *response; /* with blocks of its own */
    r.blocks = (struct lk_blocks){0};
    json_t *choice = lk_response_choice(&r, 0), *message = choice ? choice_message(choice) : NULL;
    if (message) add_message(&r, message, ops, NULL);
    r.blocks.finish = finish_reason(&r, choice);
    close_last_block(&r, ops, NULL);
    bool good = message && !r.blocks.failed;
    if (good) lk_buf_add_json(out, ops->whole(&r));
    json_decref(message);
    json_decref(choice);
    lk_blocks_free(&r.blocks);
    return good && !out->failed;
}
