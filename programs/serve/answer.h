/* Answers: a request becomes a completion, and its events become the reply in the form of the
 * endpoint. An endpoint of another API supplies functions that parse its requests and write its
 * replies; queue, budget, streaming, keep-alives and errors are the same for all. */
#ifndef LK_SERVE_ANSWER_H
#define LK_SERVE_ANSWER_H

#include "serve/exchange.h"
#include "serve/request.h"
#include "serve/response.h"

/* The requests and replies of an endpoint. Functions that append to a buffer report lack of memory
 * by its `failed`. */
struct lk_endpoint {
    /* Parse the body, as lk_openai_chat_parse does. request->stream selects the kind of reply. */
    bool (*parse)(struct lk_request *request, const struct lk_server_opts *opts, const char *body,
                  size_t len, struct lk_api_error *error);

    /* Copies of the body that exist at the same time: 0 means 1. One more if it is converted, and
     * more if the reply repeats it. */
    int n_body;

    /* The reply to a request without messages or prompt, a new reference. NULL if parse refuses
     * such requests. */
    json_t *(*empty)(const struct lk_server_opts *opts);

    /* The reply without a stream: one JSON text, once all events were added. */
    bool (*write_whole)(const struct lk_response *response, struct lk_buf *out);

    /* The body of a stream: what an event adds (its delta is freed), what ends it after the last
     * event, and what ends it instead if the completion fails. */
    void (*write_event)(struct lk_response *response, struct lk_event *event, struct lk_buf *out);
    void (*write_end)(struct lk_response *response, struct lk_buf *out);
    void (*write_error)(struct lk_response *response, const struct lk_api_error *error,
                        struct lk_buf *out);
    const char *stream_type; /* NULL: text/event-stream */
    /* Something without meaning, so that clients do not time out. NULL: a comment. */
    void (*write_idle)(struct lk_response *response, struct lk_buf *out);
};

/* Answer the request of x: parse it on a worker, submit it to the scheduler, and reply. */
void lk_answer(struct lk_exchange *x, const struct lk_endpoint *endpoint);

/* What a body says about its model. */
struct lk_wanted {
    char model[256]; /* "": nothing; a longer name is cut */
    double keep_s;   /* ollama's keep_alive in seconds, negative: for ever; NAN: not given */
    bool is_empty;   /* it has no messages and no prompt: ollama's way to load and unload */
};

/* Read it, on a worker. The body stays. False: the client is gone, or see `error`. */
bool lk_wanted_read(struct lk_exchange *x, struct lk_wanted *wanted, struct lk_api_error *error);

/* ---- work of a request outside the model ----
 *
 * A worker does it: parsing, tokenizing, rendering. It is charged to the budget before it starts,
 * and bounded by the length of the body. */

/* What a worker makes of a request. */
struct lk_work {
    struct lk_exchange *x;
    double start_time;
    struct lk_charge charge; /* released by the caller of lk_work_run */
    /* For lk_work_convert: append the reply, a JSON text, to `out`. False: see `error`. */
    bool (*convert)(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error);
    struct lk_buf out;                  /* also of lk_answer: a reply that needs no completion */
    struct lk_wanted *wanted;           /* for lk_wanted_read: its result */
    const struct lk_endpoint *endpoint; /* for lk_answer */
    struct lk_completion *completion;   /* the same: its result */
    struct lk_api_error error;
};

/* Charge for the parsed form of the body, and for the copies that the endpoint makes of it. */
bool lk_work_charge_body(struct lk_work *work);

/* For lk_work_run: parse the body, and call work->convert. */
void lk_work_convert(void *arg);

/* Run `fn` on a worker, and reply with the JSON text in work->out or with the error. */
void lk_work_reply(struct lk_work *work, void (*fn)(void *arg));

#endif
