/* An answer as a sequence of blocks, the form of Anthropic, ollama and OpenAI's Responses: a block
 * is a piece of text, of thoughts, or a call of a tool. Blocks are made from the chunks of OpenAI's
 * chat form, which may send a call whole or in parts, and from its whole message. */
#ifndef LK_SERVE_ANSWER_BLOCKS_H
#define LK_SERVE_ANSWER_BLOCKS_H

#include "serve/response.h"

/* How an API renders blocks. `out` receives bytes of a stream. For a whole response it is NULL,
 * and only `close` is called. */
struct lk_block_ops {
    void (*start)(struct lk_response *response, struct lk_buf *out); /* before the first block */
    void (*open)(struct lk_response *response, struct lk_buf *out);
    /* `len` bytes of text, thoughts or arguments, also appended to response->blocks.text. */
    void (*delta)(struct lk_response *response, const char *text, size_t len, struct lk_buf *out);
    /* The block is complete. Returns its JSON, a new reference, which is appended to
     * response->blocks.closed; or NULL to keep nothing. */
    json_t *(*close)(struct lk_response *response, struct lk_buf *out);
    /* The end of a stream, after the last block. */
    void (*end)(struct lk_response *response, struct lk_buf *out);
    /* The whole response, from response->blocks.closed. */
    json_t *(*whole)(struct lk_response *response);
};

/* Render an event of a stream and its end, like the functions of struct lk_endpoint. Before `end`
 * response->blocks.finish is set. */
void lk_blocks_write_event(struct lk_response *response, struct lk_event *event,
                           const struct lk_block_ops *ops, struct lk_buf *out);
void lk_blocks_write_end(struct lk_response *response, const struct lk_block_ops *ops,
                         struct lk_buf *out);

/* Call ops->start unless it was called before. */
void lk_blocks_start(struct lk_response *response, const struct lk_block_ops *ops,
                     struct lk_buf *out);

/* Append the whole response. False if out of memory. */
bool lk_blocks_write_whole(const struct lk_response *response, const struct lk_block_ops *ops,
                           struct lk_buf *out);

#endif
