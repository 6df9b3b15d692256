/* An answer as a sequence of blocks, the form of Anthropic, ollama and OpenAI's Responses: a block
 * is a piece of text or a call of a tool. Blocks are made from the chunks of OpenAI's chat form,
 * which may send a call whole or in parts, and from its whole message. */
#ifndef LK_SERVE_ANSWER_BLOCKS_H
#define LK_SERVE_ANSWER_BLOCKS_H

#include "serve/response.h"

/* How a protocol renders blocks. `out` receives bytes of a stream. For a whole response it is NULL,
 * and only `close` is called. */
struct lk_block_ops {
    void (*start)(struct lk_response *response, struct lk_buf *out); /* before the first block */
    void (*open)(struct lk_response *response, struct lk_buf *out);
    /* `len` bytes of text or of a call's arguments, also appended to response->blocks.text. */
    void (*delta)(struct lk_response *response, const char *text, size_t len, struct lk_buf *out);
    /* The block is complete. Returns its JSON, a new reference, which is appended to
     * response->blocks.closed; or NULL to keep nothing. */
    json_t *(*close)(struct lk_response *response, struct lk_buf *out);
    /* All blocks are closed. `finish` is OpenAI's finish reason. */
    void (*end)(struct lk_response *response, const char *finish, struct lk_buf *out);
};

/* Render an event of a stream: the function `event` of a protocol. */
void lk_blocks_event(struct lk_response *response, struct lk_event *event,
                     const struct lk_block_ops *ops, struct lk_buf *out);

/* Call ops->start unless it was called before. */
void lk_blocks_start(struct lk_response *response, const struct lk_block_ops *ops,
                     struct lk_buf *out);

/* Close the blocks of a whole response. Returns OpenAI's finish reason; static. NULL: out of
 * memory. */
const char *lk_blocks_whole(struct lk_response *response, const struct lk_block_ops *ops);

#endif
