/* Responses in OpenAI's form, made from the events of a completion: one JSON object for the whole,
 * or one chunk per event. */
#ifndef LK_SERVE_RESPONSE_H
#define LK_SERVE_RESPONSE_H

#include "serve/completion.h"
#include "serve/thoughts.h"
#include "serve/tools.h"

struct lk_response_choice {
    struct lk_thoughts split;
    /* Of the answer. A stream only collects the text, and only if there are tools. */
    struct lk_buf thoughts, text;
    struct lk_logprob *lp; /* [n_lp] of the answer's tokens; not used in a stream */
    size_t n_lp, cap_lp;
    size_t n_sent;               /* bytes of text sent so far; only used if there are tools */
    size_t n_next;               /* length of text at which to look for calls again */
    struct lk_call_stream calls; /* what was sent of them */
    bool started;                /* its first chunk was sent */
    struct lk_job_result result;
};

/* State of an API that has the answer as blocks, see serve/answer_blocks.h. */
enum lk_block_kind { LK_BLOCK_NONE, LK_BLOCK_THOUGHTS, LK_BLOCK_TEXT, LK_BLOCK_CALL };
struct lk_blocks {
    enum lk_block_kind kind; /* of the open block */
    size_t call_index;       /* which call of the answer it is */
    json_t *id, *name;       /* strings of a call; owned, like `closed` */
    struct lk_buf text;      /* thoughts or text of the block, or the arguments of a call */
    size_t n_closed;         /* blocks before it */
    json_t *closed;          /* array of blocks in the API's form; NULL: none */
    int64_t n_event;         /* number of the next event, if the API numbers them */
    const char *finish;      /* OpenAI's finish reason; static; NULL: not yet */
    bool started, failed;    /* failed: out of memory */
};

static inline void lk_blocks_free(struct lk_blocks *blocks) {
    json_decref(blocks->id);
    json_decref(blocks->name);
    json_decref(blocks->closed);
    lk_buf_free(&blocks->text);
}

struct lk_response {
    struct lk_completion *completion;
    const struct lk_server_opts *opts;
    char id[40];
    char secret[17]; /* a part of ids that other clients cannot guess */
    int64_t created;
    struct lk_response_choice *choice; /* [completion->n_job] */
    size_t n_done;
    struct lk_blocks blocks;
};

/* The completion and `opts` are borrowed. `number` makes the id unique. False if out of memory. */
bool lk_response_init(struct lk_response *response, struct lk_completion *completion,
                      const struct lk_server_opts *opts, uint64_t number);
void lk_response_free(struct lk_response *response);

/* Add an event to the whole response; its delta is freed. False if out of memory. */
bool lk_response_add_event(struct lk_response *response, struct lk_event *event);

/* Are all choices done? */
bool lk_response_is_complete(const struct lk_response *response);

/* A choice of the whole response, without log-probabilities; a new reference, NULL if out of
 * memory. */
json_t *lk_response_choice(const struct lk_response *response, size_t i);

/* Add "left_out_messages", the number of a chat's messages that did not fit, if there are any. */
void lk_response_add_left_out(const struct lk_response *response, json_t *to);

/* Add "timings" and "cache" of a job to an object. */
void lk_response_add_timings(const struct lk_response *response, const struct lk_job_result *result,
                             json_t *to);

/* Append the whole response as JSON text. False if out of memory. */
bool lk_response_text(const struct lk_response *response, struct lk_buf *out);

/* The chunk for an event; a new reference, NULL if out of memory. The delta is freed. */
json_t *lk_response_chunk(struct lk_response *response, struct lk_event *event);

/* Append an event, the end or an error of a stream, as server-sent events. The event's delta is
 * freed. */
void lk_response_write_event(struct lk_response *response, struct lk_event *event,
                             struct lk_buf *out);
void lk_response_write_end(struct lk_response *response, struct lk_buf *out);
void lk_response_write_error(struct lk_response *response, const struct lk_api_error *error,
                             struct lk_buf *out);

#endif
