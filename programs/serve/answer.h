/* Answers in OpenAI's form, from a call's events: a chunk for each, or one object of all. */
#ifndef LK_SERVE_ANSWER_H
#define LK_SERVE_ANSWER_H

#include "serve/call.h"

struct lk_choice {
    struct lk_buf text; /* of an answer that is not streamed */
    json_t *tokens;     /* [] of logarithms, likewise */
    size_t n_byte;      /* text given out so far, with tools */
    bool begun, done;
    struct lk_outcome outcome;
};

struct lk_answer {
    struct lk_call *call;
    const struct lk_serve_opts *opts;
    char id[40];
    int64_t created;
    struct lk_choice *choice; /* [call->n_job] */
    size_t n_done;
};

/* The call is borrowed. False without memory. */
bool lk_answer_begin(struct lk_answer *answer, struct lk_call *call,
                     const struct lk_serve_opts *opts, uint64_t number);
void lk_answer_free(struct lk_answer *answer);

/* Add an event to the whole; the piece is freed. False without memory. */
bool lk_answer_take(struct lk_answer *answer, struct lk_event *event);

/* All answers are there. */
bool lk_answer_complete(const struct lk_answer *answer);

/* The object for all answers, and the last chunk's use of tokens; new references, NULL without memory. */
json_t *lk_answer_whole(const struct lk_answer *answer);
json_t *lk_answer_usage(const struct lk_answer *answer);

/* The chunk that tells an event; the piece is freed. */
json_t *lk_answer_chunk(struct lk_answer *answer, struct lk_event *event);

/* A JSON string of bytes that may be no text. */
json_t *lk_json_text(const char *bytes, size_t len);

#endif
