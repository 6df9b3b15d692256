/* Decode steps of the running jobs, and their ends. */
#include "serve/running.h"

/* ---- ends of jobs ---- */

lk_status lk_running_add(struct lk_running *r, struct lk_job *job, lk_err *err) {
    const struct lk_request *request = &job->completion->request;
    uint32_t seed = request->sampling.seed + (uint32_t)(job->index % request->n);
    r->job[r->n++] = job;
    job->start_time = lk_now();
    job->result.wait_s = job->start_time - job->submit_time;
    lk_histogram_add(&r->metrics->queue, job->result.wait_s);
    return lk_sampler_copy(&job->sampler, job->completion->sampler, seed, err);
}

/* Take a job off the places, or off the list of parked ones. */
static void unlink_job(struct lk_running *r, struct lk_job *job) {
    if (job->state == LK_JOB_PARKED) {
        struct lk_job **at = &r->parked;
        while (*at != job) at = &(*at)->next;
        *at = job->next;
        job->next = NULL;
        r->n_parked--;
        return;
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->job[i] == job) {
            r->job[i] = r->job[--r->n];
            break;
        }
}

/* Remove a job, free its sampler and its slot for others, and release its completion. */
static void remove_job(struct lk_running *r, struct lk_job *job) {
    unlink_job(r, job);
    lk_sampler_free(job->sampler);
    job->sampler = NULL;
    if (job->slot) {
        job->slot->job = NULL;
        job->slot->last_used = lk_now();
        job->slot = NULL;
    }
    lk_completion_release(job->completion);
}

void lk_running_fail_job(struct lk_running *r, struct lk_job *job,
                         const struct lk_api_error *error) {
    if (error) lk_completion_fail(job->completion, error);
    remove_job(r, job);
}

static void fail_job_with_err(struct lk_running *r, struct lk_job *job, const lk_err *err) {
    struct lk_api_error error;
    lk_api_error_from_work(&error, err);
    lk_running_fail_job(r, job, &error);
}

static void push_text(struct lk_job *job, struct lk_text_delta delta) {
    struct lk_event event = {.kind = LK_EVENT_TEXT, .job = job->index, .delta = delta};
    if (delta.len || delta.n_lp) lk_completion_push(job->completion, &event);
}

/* Complete a job. `flush`: send the text that the detokenizer holds back. */
static void finish_job(struct lk_running *r, struct lk_job *job, const char *finish, bool flush) {
    lk_session_stats stats = lk_session_get_stats(job->slot->session);
    struct lk_text_delta rest = {0};
    if (flush) lk_detokenizer_finish(&job->detok, &rest);
    push_text(job, rest);
    job->result.finish = finish;
    job->result.stop_string = flush ? NULL : job->detok.found;
    job->result.decode_s = lk_now() - job->decode_time;
    job->result.cache_bytes = stats.cache_bytes;
    job->result.f16_bytes = stats.f16_bytes;
    lk_histogram_add(&r->metrics->decode, job->result.decode_s);
    lk_completion_finish_job(job->completion, job);
    remove_job(r, job);
}

/* ---- parking ---- */

/* Jobs whose clients do not read give their places up after this time. It is short, because going
 * on later costs nothing. */
static const double park_s = 0.1;

/* When memory is short, the longest parked job is ended if it is parked for this time. */
static const double end_parked_s = 10;

static void park_job(struct lk_running *r, struct lk_job *job) {
    struct lk_job **last = &r->parked;
    unlink_job(r, job);
    while (*last) last = &(*last)->next;
    *last = job;
    job->next = NULL;
    job->state = LK_JOB_PARKED;
    r->n_parked++;
}

void lk_running_poll_parked(struct lk_running *r) {
    double now = lk_now();
    for (struct lk_job *job = r->parked, *next; job; job = next) {
        next = job->next;
        if (lk_completion_is_over(job->completion)) {
            lk_running_fail_job(r, job, NULL);
        } else if (now - job->start_time > r->opts->time_s) {
            finish_job(r, job, "length", true);
        } else if (r->n < r->opts->n_parallel && lk_completion_has_room(job->completion)) {
            unlink_job(r, job);
            job->state = LK_JOB_DECODING;
            job->blocked_time = 0;
            r->job[r->n++] = job;
        }
    }
    r->metrics->parked = r->n_parked;
}

bool lk_running_end_parked(struct lk_running *r) {
    struct lk_job *job = r->parked;
    if (!job || lk_now() - job->blocked_time < end_parked_s) return false;
    struct lk_api_error error;
    lk_api_error_set(&error, 503, "not_read", NULL,
                     "the answer was not read for %.0f seconds, and its memory was needed",
                     lk_now() - job->blocked_time);
    lk_running_fail_job(r, job, &error);
    return true;
}

/* Is there room for the job's next events? If there was none for some time, park the job. */
static bool has_room(struct lk_running *r, struct lk_job *job) {
    if (lk_completion_has_room(job->completion)) {
        job->blocked_time = 0;
        return true;
    }
    double now = lk_now();
    if (job->blocked_time == 0) job->blocked_time = now;
    if (now - job->blocked_time >= park_s) park_job(r, job);
    return false;
}

/* ---- decoding ---- */

/* Sample the job's next token and push its text. Returns true if the token must be evaluated.
 * Otherwise the job was removed or parked, or its event ring is full. */
static bool advance_job(struct lk_running *r, struct lk_job *job, int32_t *out) {
    const lk_model *model = r->opts->model;
    const struct lk_request *request = &job->completion->request;
    int n_top = request->n_top_logprobs;
    int32_t tok;
    lk_err err = {0};
    if (lk_completion_is_over(job->completion)) {
        lk_running_fail_job(r, job, NULL);
        return false;
    }
    if (lk_now() - job->start_time > r->opts->time_s) {
        finish_job(r, job, "length", true);
        return false;
    }
    if (!has_room(r, job)) return false;
    if (job->prompt->max_tokens == 0) {
        finish_job(r, job, "length", true);
        return false;
    }
    if (lk_sampler_next(job->sampler, job->slot->session, -1, &tok, &err)) {
        struct lk_api_error error;
        lk_api_error_from_work(&error, &err);
        if (error.status == 400) error.param = request->grammar_field;
        lk_running_fail_job(r, job, &error);
        return false;
    }
    size_t len;
    const char *text = lk_token_text(model, tok, &len);
    struct lk_text_delta delta = {0};
    struct lk_logprob lp = {.tok = tok, .n_top = n_top};
    if (n_top >= 0)
        lk_session_logprobs(job->slot->session, -1, tok, &lp.logprob, lp.top, (size_t)n_top, NULL);
    if (lk_token_ends(model, tok)) {
        /* Next to the tokens of a prompt it is listed, because clients tell the two apart by their
         * number. */
        if (request->score) lk_detokenizer_push(&job->detok, "", 0, &lp, &delta);
        push_text(job, delta);
        finish_job(r, job, "stop", true);
        return false;
    }
    bool stop = lk_detokenizer_push(&job->detok, text, len, n_top >= 0 ? &lp : NULL, &delta);
    push_text(job, delta);
    job->result.n_decoded++;
    r->metrics->answer_tokens++;
    if (stop || job->result.n_decoded >= job->prompt->max_tokens || job->detok.failed) {
        finish_job(r, job, stop ? "stop" : "length", !stop);
        return false;
    }
    *out = tok;
    return true;
}

/* Update the job after its token was evaluated, or could not be. */
static void record_token(struct lk_running *r, struct lk_job *job, int32_t tok, const lk_err *err) {
    if (err->code == LK_E_FULL) {
        finish_job(r, job, "length", true);
    } else if (err->code != LK_OK) {
        fail_job_with_err(r, job, err);
    } else {
        lk_slot_append(job->slot, r->opts->model, tok);
    }
}

size_t lk_running_decode_step(struct lk_running *r) {
    struct lk_job *job[LK_MAX_RUNNING];
    int32_t tok[LK_MAX_RUNNING];
    lk_batch_item item[LK_MAX_RUNNING];
    size_t n = 0;
    for (size_t i = r->n; i-- > 0;) { /* backwards, because jobs may be removed */
        if (r->job[i]->state != LK_JOB_DECODING) continue;
        job[n] = r->job[i];
        if (advance_job(r, job[n], &tok[n])) n++;
    }
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++)
        item[i] = (lk_batch_item){.session = job[i]->slot->session, .tok = &tok[i], .n_tok = 1};
    lk_batch_eval(r->batch, item, n, NULL); /* every item has its own error */
    for (size_t i = 0; i < n; i++) record_token(r, job[i], tok[i], &item[i].err);
    r->metrics->decode_steps++;
    return n;
}
