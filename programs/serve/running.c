/* Decode steps of the running jobs, and their ends. */
#include "serve/running.h"

/* ---- ends of jobs ---- */

/* Remove a job, free its slot for others, and release its completion. */
static void remove_job(struct lk_running *r, struct lk_job *job) {
    for (size_t i = 0; i < r->n; i++)
        if (r->job[i] == job) {
            r->job[i] = r->job[--r->n];
            break;
        }
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
    job->result.decode_s = lk_now() - job->decode_time;
    job->result.cache_bytes = stats.cache_bytes;
    job->result.f16_bytes = stats.f16_bytes;
    lk_histogram_add(&r->metrics->decode, job->result.decode_s);
    lk_completion_finish_job(job->completion, job);
    remove_job(r, job);
}

/* ---- decoding ---- */

/* Sample the next token. If the grammar makes that too slow, fail the job: an ambiguous JSON
 * schema, whose alternatives start alike and contain one another, doubles the parser states with
 * every level of the answer, and all other clients wait for it. Only CPU time of this thread
 * counts, so a machine that is busy with other work does not fail a request. */
static bool sample_token(struct lk_running *r, struct lk_job *job, int32_t *tok) {
    const double max_grammar_s = 1;
    const struct lk_request *request = &job->completion->request;
    lk_err err = {0};
    double start = lk_thread_cpu_seconds();
    if (lk_sampler_next(job->sampler, job->slot->session, tok, &err)) {
        fail_job_with_err(r, job, &err);
        return false;
    }
    double seconds = lk_thread_cpu_seconds() - start;
    if (!request->grammar || seconds <= max_grammar_s) return true;
    struct lk_api_error error;
    lk_api_error_set(&error, 400, "invalid_value", request->grammar_field,
                     "'%s' is too ambiguous: sampling one token takes %.1f seconds",
                     request->grammar_field, seconds);
    lk_running_fail_job(r, job, &error);
    return false;
}

/* Sample the job's next token and push its text. Returns true if the token must be evaluated.
 * Otherwise the job was removed, or its event ring is full. */
static bool advance_job(struct lk_running *r, struct lk_job *job, int32_t *out) {
    const lk_model *model = r->opts->model;
    int n_top = job->completion->request.n_top_logprobs;
    int32_t n_vocab = lk_model_get_info(model).n_vocab, tok;
    if (n_top > n_vocab) n_top = n_vocab;
    if (lk_completion_is_over(job->completion)) {
        lk_running_fail_job(r, job, NULL);
        return false;
    }
    /* Check the time limit before the ring, so that it also ends clients that do not read. */
    if (lk_now() - job->start_time > r->opts->time_s) {
        finish_job(r, job, "length", true);
        return false;
    }
    if (!lk_completion_has_room(job->completion)) return false;
    if (!sample_token(r, job, &tok)) return false;
    if (lk_token_ends(model, tok)) {
        finish_job(r, job, "stop", true);
        return false;
    }
    size_t len;
    const char *text = lk_token_text(model, tok, &len);
    struct lk_text_delta delta;
    struct lk_logprob lp = {.tok = tok, .n_top = n_top};
    if (n_top >= 0)
        lk_session_logprobs(job->slot->session, -1, tok, &lp.logprob, lp.top, (size_t)n_top, NULL);
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
    struct lk_job *job[LK_MAX_PARALLEL];
    int32_t tok[LK_MAX_PARALLEL];
    lk_batch_item item[LK_MAX_PARALLEL];
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
