/* Work of a request outside the model, which a worker does: parsing, tokenizing, rendering. It is
 * charged to the budget before it starts, and bounded by the length of the body. */
#ifndef LK_SERVE_WORK_H
#define LK_SERVE_WORK_H

#include "serve/exchange.h"
#include "serve/request.h"

/* What a worker makes of a request. */
struct lk_work {
    struct lk_exchange *x;
    double start_time;
    struct lk_charge charge; /* released by the caller of lk_work_run */
    /* For lk_work_convert: append the reply, a JSON text, to `out`. False: see `error`. */
    bool (*convert)(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error);
    struct lk_buf out;                  /* also of lk_answer: a reply that needs no completion */
    const struct lk_endpoint *endpoint; /* for lk_answer */
    struct lk_completion *completion;   /* the same: its result */
    struct lk_api_error error;
};

/* Charge for the parsed form of the body, and for the copies that the endpoint makes of it. */
bool lk_work_charge_body(struct lk_work *work);

/* Run `fn` on a worker, then free the body. False: the client is gone, or work->error is set and no
 * reply was sent. */
bool lk_work_run(struct lk_work *work, void (*fn)(void *arg));

/* For lk_work_run: parse the body, and call work->convert. */
void lk_work_convert(void *arg);

/* Run `fn` on a worker, and reply with the JSON text in work->out or with the error. */
void lk_work_reply(struct lk_work *work, void (*fn)(void *arg));

#endif
