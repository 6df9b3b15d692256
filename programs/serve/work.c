/* Work of requests on the worker threads. */
#include "serve/work.h"

#include "serve/answer.h"
#include "serve/json_field.h"

/* The client of a queued task may leave, and its time in the queue is limited. */
static bool keep_waiting(void *user) {
    struct lk_work *work = user;
    double waited = lk_now() - work->start_time, max = work->x->server->opts.queue_s;
    if (waited > max) {
        lk_api_error_set(&work->error, 503, "overloaded", NULL,
                         "the request waited %.0f seconds to be parsed; the workers are busy",
                         waited);
        work->error.retry_s = 2;
        return false;
    }
    return lk_exchange_is_alive(work->x);
}

bool lk_work_charge_body(struct lk_work *work) {
    const struct lk_buf *body = &work->x->body;
    uint64_t n = work->endpoint && work->endpoint->n_body ? (uint64_t)work->endpoint->n_body : 1;
    return lk_charge_add(&work->charge, n * lk_json_parsed_bytes(lk_buf_cstr(body), body->len),
                         &work->error);
}

bool lk_work_run(struct lk_work *work, void (*fn)(void *arg)) {
    struct lk_exchange *x = work->x;
    work->start_time = lk_now();
    work->charge.budget = &x->server->budget;
    enum { LARGE = 256 << 10 }; /* bytes of body, some milliseconds of work */
    bool ran =
        lk_workers_run(x->server->workers, x->body.len > LARGE, fn, work, keep_waiting, work);
    lk_buf_free(&x->body);
    lk_charge_release(&x->charge);
    if (!ran && !work->error.status && lk_exchange_is_alive(x))
        lk_api_error_set_stopping(&work->error);
    return ran && work->error.status == 0;
}

void lk_work_convert(void *arg) {
    struct lk_work *work = arg;
    const struct lk_exchange *x = work->x;
    if (!lk_work_charge_body(work)) return;
    json_t *body = lk_json_parse_body(x->body.at, x->body.len, &work->error);
    if (body && work->convert(&x->server->opts, body, &work->out, &work->error) && work->out.failed)
        lk_api_error_set(&work->error, 503, "out_of_memory", NULL, "out of memory: response");
    json_decref(body);
}

void lk_work_reply(struct lk_work *work, void (*fn)(void *arg)) {
    struct lk_exchange *x = work->x;
    if (lk_work_run(work, fn))
        lk_exchange_reply_text(x, 200, "application/json", work->out.at, work->out.len);
    else if (work->error.status)
        lk_exchange_reply_error(x, &work->error);
    lk_charge_release(&work->charge);
    lk_buf_free(&work->out);
}
