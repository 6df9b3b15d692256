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

/* Add "timings" and "cache" of a job to an object. */
void lk_response_add_timings(const struct lk_response *response, const struct lk_job_result *result,
                             json_t *to);

/* Append the whole response as JSON text. False if out of memory. */
bool lk_response_text(const struct lk_response *response, struct lk_buf *out);

/* Append an event, the end or an error of a stream, as server-sent events. The event's delta is
 * freed. */
void lk_response_write_event(struct lk_response *response, struct lk_event *event,
                             struct lk_buf *out);
void lk_response_write_end(struct lk_response *response, struct lk_buf *out);
void lk_response_write_error(struct lk_response *response, const struct lk_api_error *error,
                             struct lk_buf *out);

#endif
