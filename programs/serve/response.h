/* Responses in OpenAI's form, made from the events of a completion: one JSON object for the whole,
 * or one chunk per event. */
#ifndef LK_SERVE_RESPONSE_H
#define LK_SERVE_RESPONSE_H

#include "serve/completion.h"

struct lk_response_choice {
    struct lk_buf text;    /* of the answer; in a stream only collected if there are tools */
    struct lk_logprob *lp; /* [n_lp] of the answer's tokens; not used in a stream */
    size_t n_lp, cap_lp;
    size_t n_sent; /* bytes of text sent so far; only used if there are tools */
    size_t n_next; /* length of text at which to look for calls again */
    bool started;  /* its first chunk was sent */
    struct lk_job_result result;
};

struct lk_response {
    struct lk_completion *completion;
    const struct lk_server_opts *opts;
    char id[40];
    int64_t created;
    struct lk_response_choice *choice; /* [completion->n_job] */
    size_t n_done;
};

/* The completion and `opts` are borrowed. `number` makes the id unique. False if out of memory. */
bool lk_response_init(struct lk_response *response, struct lk_completion *completion,
                      const struct lk_server_opts *opts, uint64_t number);
void lk_response_free(struct lk_response *response);

/* Add an event to the whole response; its delta is freed. False if out of memory. */
bool lk_response_add_event(struct lk_response *response, struct lk_event *event);

/* Are all choices done? */
bool lk_response_is_complete(const struct lk_response *response);

/* Append the whole response as JSON text. False if out of memory. */
bool lk_response_text(const struct lk_response *response, struct lk_buf *out);

/* The chunk for an event; a new reference, NULL if out of memory. The delta is freed. */
json_t *lk_response_chunk(struct lk_response *response, struct lk_event *event);

/* The last chunk of a stream, with "usage"; a new reference. */
json_t *lk_response_usage_chunk(const struct lk_response *response);

#endif
