/* From the body of a request to its reply, for all endpoints that generate text. */
#include "serve/answer.h"

#include "serve/auth.h"
#include "serve/json_field.h"
#include "serve/sse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- work on the worker threads ---- */

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

/* Run `fn` on a worker. False: the client is gone, or work->error is set and no reply was sent. */
static bool run_on_worker(struct lk_work *work, void (*fn)(void *arg)) {
    struct lk_exchange *x = work->x;
    work->start_time = lk_now();
    work->charge.budget = &x->server->budget;
    enum { LARGE = 256 << 10 }; /* bytes of body, some milliseconds of work */
    bool ran =
        lk_workers_run(x->server->workers, x->body.len > LARGE, fn, work, keep_waiting, work);
    if (!ran && !work->error.status && lk_exchange_is_alive(x))
        lk_api_error_set_stopping(&work->error);
    return ran && work->error.status == 0;
}

/* The same, then free the body. */
static bool work_run(struct lk_work *work, void (*fn)(void *arg)) {
    bool good = run_on_worker(work, fn);
    lk_buf_free(&work->x->body);
    lk_charge_release(&work->x->charge);
    return good;
}

/* Seconds of a number, or of a text such as "5m" or "1h30m"; NAN: neither. */
static double parse_duration(const json_t *value) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"h", 3600}, {"m", 60}, {"s", 1}, {"", 1}};
    if (json_is_number(value)) return json_number_value(value);
    const char *text = json_string_value(value);
    if (!text || !*text) return NAN;
    double sum = 0, sign = *text == '-' ? -1 : 1;
    text += *text == '-';
    while (*text) {
        char *end;
        size_t i = 0;
        double number = strtod(text, &end);
        while (i < 4 && strncmp(end, units[i].unit, strlen(units[i].unit)) != 0) i++;
        if (end == text || !isfinite(number) || number < 0 || (i == 4 && *end)) return NAN;
        sum += number * units[i].seconds;
        text = end + strlen(units[i].unit);
    }
    return sign * sum;
}

static void read_wanted(void *arg) {
    struct lk_work *work = arg;
    const struct lk_buf *text = &work->x->body;
    if (!lk_work_charge_body(work)) return;
    json_t *body = lk_json_parse_body(lk_buf_cstr(text), text->len, &work->error);
    const json_t *model = json_object_get(body, "model");
    if (!json_is_string(model)) model = json_object_get(body, "name"); /* of /api/show */
    if (json_is_string(model))
        snprintf(work->wanted->model, sizeof work->wanted->model, "%s", json_string_value(model));
    work->wanted->keep_s = parse_duration(json_object_get(body, "keep_alive"));
    work->wanted->is_empty = json_array_size(json_object_get(body, "messages")) == 0 &&
                             json_string_length(json_object_get(body, "prompt")) == 0;
    json_decref(body);
}

bool lk_wanted_read(struct lk_exchange *x, struct lk_wanted *wanted, struct lk_api_error *error) {
    struct lk_work work = {.x = x, .wanted = wanted};
    *wanted = (struct lk_wanted){.keep_s = NAN};
    bool good = run_on_worker(&work, read_wanted);
    lk_charge_release(&work.charge);
    *error = work.error;
    return good;
}

void lk_work_convert(void *arg) {
    struct lk_work *work = arg;
    const struct lk_exchange *x = work->x;
    if (!lk_work_charge_body(work)) return;
    json_t *body = lk_json_parse_body(x->body.at, x->body.len, &work->error);
    if (body && work->convert(&x->served->opts, body, &work->out, &work->error) && work->out.failed)
        lk_api_error_set(&work->error, 503, "out_of_memory", NULL, "out of memory: response");
    json_decref(body);
}

void lk_work_reply(struct lk_work *work, void (*fn)(void *arg)) {
    struct lk_exchange *x = work->x;
    if (work_run(work, fn))
        lk_exchange_reply_text(x, 200, "application/json", work->out.at, work->out.len);
    else if (work->error.status)
        lk_exchange_reply_error(x, &work->error);
    lk_charge_release(&work->charge);
    lk_buf_free(&work->out);
}

/* Wait for the next event of a completion. Returns false if the client disconnected, which is also
 * checked while events arrive. */
static bool wait_event(struct lk_exchange *x, struct lk_completion *completion,
                       struct lk_event *event) {
    const double check_s = 0.1;
    for (;;) {
        double now = lk_now();
        if (now - x->alive_check_time >= check_s) {
            x->alive_check_time = now;
            if (!lk_exchange_is_alive(x)) return false;
        }
        if (lk_completion_pop(completion, check_s, event)) return true;
    }
}

/* Collect all events, and reply with one JSON text. Takes over the reference to the completion. */
static void reply_whole(struct lk_exchange *x, const struct lk_endpoint *endpoint,
                        struct lk_completion *completion) {
    struct lk_response response;
    struct lk_event event = {.kind = LK_EVENT_DONE};
    struct lk_buf text = {0};
    bool good =
        lk_response_init(&response, completion, &x->served->opts, ++x->server->n_completion);
    bool alive = true;
    while (good && !lk_response_is_complete(&response)) {
        alive = wait_event(x, completion, &event);
        if (!alive || event.kind == LK_EVENT_ERROR) break;
        lk_exchange_count(x, &event);
        good = lk_response_add_event(&response, &event);
    }
    bool failed = alive && event.kind == LK_EVENT_ERROR;
    if (good && alive && !failed) good = endpoint->write_whole(&response, &text);
    if (!good) {
        struct lk_api_error error;
        lk_api_error_set(&error, 503, "out_of_memory", NULL,
                         "out of memory: the response was lost");
        lk_exchange_reply_error(x, &error);
    } else if (failed) {
        lk_exchange_reply_error(x, &completion->error);
    } else if (alive) {
        lk_exchange_reply_text(x, 200, "application/json", text.at, text.len);
    }
    lk_response_free(&response);
    lk_buf_free(&text);
    lk_scheduler_abandon(x->served->scheduler, completion);
}

/* Reply with a stream. Its headers are sent at once, so that proxies and clients do not time out
 * while the request waits or its prompt is prefilled. Only a refusal that is known immediately
 * still gets its own status; later ones become an event. */
static void reply_stream(struct lk_exchange *x, const struct lk_endpoint *endpoint,
                         struct lk_completion *completion) {
    const double refusal_s = 0.1;
    struct lk_event first;
    bool has_first = lk_completion_pop(completion, refusal_s, &first);
    if (has_first && first.kind == LK_EVENT_ERROR) {
        lk_exchange_reply_error(x, &completion->error);
        lk_scheduler_abandon(x->served->scheduler, completion);
        return;
    }
    lk_sse_reply(x, endpoint, completion, has_first ? &first : NULL);
}

/* Parse the request, tokenize its prompts and compile its grammar. The order is from cheap to
 * expensive, and each step is charged before it starts. */
static void make_completion(void *arg) {
    struct lk_work *work = arg;
    struct lk_exchange *x = work->x;
    const struct lk_server_opts *opts = &x->served->opts;
    struct lk_request request = {0};
    if (!lk_work_charge_body(work)) return;
    bool parsed = work->endpoint->parse(&request, opts, x->body.at, x->body.len, &work->error);
    x->work.n_omitted = work->error.n_omitted;
    memcpy(x->work.omitted, work->error.omitted, sizeof x->work.omitted);
    memcpy(x->work.ignored, work->error.ignored, sizeof x->work.ignored);
    if (parsed && request.is_empty)
        lk_buf_add_json(&work->out, work->endpoint->empty(opts));
    else if (parsed && lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error) &&
             lk_request_prepare(&request, opts, &work->error))
        work->completion = lk_completion_new(&request, &work->charge, opts, &work->error);
    lk_request_free(&request);
}

void lk_answer(struct lk_exchange *x, const struct lk_endpoint *endpoint) {
    struct lk_work work = {.x = x, .endpoint = endpoint};
    bool good = work_run(&work, make_completion);
    lk_charge_release(&work.charge); /* what the completion did not take over */
    struct lk_completion *completion = work.completion;
    if (good && !completion) {
        lk_exchange_reply_text(x, 200, "application/json", work.out.at, work.out.len);
        lk_buf_free(&work.out);
        return;
    }
    if (good) {
        completion->client = lk_auth_client(x);
        x->work.n_left_out = completion->request.n_left_out;
        good = lk_scheduler_submit(x->served->scheduler, completion, &work.error);
        if (!good) lk_completion_release(completion);
    }
    if (!good && work.error.status)
        lk_exchange_reply_error(x, &work.error);
    else if (good && completion->request.stream)
        reply_stream(x, endpoint, completion);
    else if (good)
        reply_whole(x, endpoint, completion);
}
