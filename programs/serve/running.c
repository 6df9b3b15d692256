/* Decode steps of the running jobs, and their ends. */
#include "serve/running.h"

#include "lowkey_serve.h"

/* ---- ends of jobs ---- */

/* An answer that a grammar constrains from its start has no thoughts. They are followed if they
 * have a budget, or may contain the trigger of a grammar. */
static void start_thoughts(struct lk_job *job, const struct lk_server_opts *opts) {
    const struct lk_request *request = &job->completion->request;
    const char *trigger = request->sampling.trigger,
               *template = lk_model_chat_template(opts->model);
    const struct lk_thought_form *form = lk_thought_form_of(template);
    bool is_constrained = lk_request_is_constrained(request),
         has_budget = request->max_thoughts != LK_NO_LIMIT && request->n_thought_end;
    struct lk_thought_budget *b = &job->thoughts;
    b->is_on = request->chat && !is_constrained && job->prompt->text &&
               (has_budget || (trigger && lk_thought_form_is_in(form, template)));
    b->n_left = has_budget ? request->max_thoughts : SIZE_MAX;
    b->end = request->thought_end;
    b->n_end = request->n_thought_end;
    if (b->is_on) lk_thoughts_init(&b->split, form, job->prompt->text, false);
}

lk_status lk_running_add(struct lk_running *r, struct lk_job *job, lk_err *err) {
    const struct lk_request *request = &job->completion->request;
    uint32_t seed = request->sampling.seed + (uint32_t)(job->index % request->n);
    r->job[r->n++] = job;
    job->start_time = lk_now();
    job->result.wait_s = job->start_time - job->submit_time;
    lk_histogram_add(&r->metrics->queue, job->result.wait_s);
    start_thoughts(job, r->opts);
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
    lk_drafter_free(job->drafter);
    lk_thoughts_free(&job->thoughts.split);
    job->sampler = NULL;
    job->drafter = NULL;
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

/* Has the job used up its time? A stream's starts when its prompt was read. */
static bool is_late(const struct lk_running *r, const struct lk_job *job) {
    double start = job->completion->request.stream ? job->decode_time : job->start_time;
    return lk_now() - start > r->opts->time_s;
}

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
    for (struct lk_job *job = r->parked, *next; job; job = next) {
        next = job->next;
        if (lk_completion_is_over(job->completion)) {
            lk_running_fail_job(r, job, NULL);
        } else if (is_late(r, job)) {
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

/* What follows from choosing a token. */
struct choice {
    int32_t tok;
    enum { GOES_ON, ENDS, FAILS } outcome;
    const char *finish; /* ENDS: as of finish_job, like `flush` */
    bool flush;
    lk_err err; /* FAILS */
};

static bool is_stop_token(const struct lk_request *request, int32_t tok) {
    for (size_t i = 0; i < request->n_stop_tok; i++)
        if (request->stop_tok[i] == tok) return true;
    return false;
}

/* Choose the token that follows the i-th one of the job's last pass, and push its text. */
static struct choice choose_token(struct lk_running *r, struct lk_job *job, int32_t i) {
    const lk_model *model = r->opts->model;
    const struct lk_request *request = &job->completion->request;
    int n_top = request->n_top_logprobs;
    struct choice c = {.outcome = FAILS};
    int32_t forced = lk_thought_budget_next(&job->thoughts);
    c.tok = forced;
    lk_sampler_set_thoughts(job->sampler, lk_thought_budget_is_inside(&job->thoughts));
    if (forced >= 0 ? lk_sampler_accept(job->sampler, forced, &c.err)
                    : lk_sampler_next(job->sampler, job->slot->session, i, &c.tok, &c.err))
        return c;
    size_t len;
    const char *text = lk_token_text(model, c.tok, &len);
    struct lk_text_delta delta = {0};
    struct lk_logprob lp = {.tok = c.tok, .n_top = n_top};
    if (n_top >= 0)
        lk_session_logprobs(job->slot->session, i, c.tok, &lp.logprob, lp.top, (size_t)n_top, NULL);
    if (forced < 0 && (lk_token_ends(model, c.tok) || is_stop_token(request, c.tok))) {
        /* Next to the tokens of a prompt it is listed, because clients tell the two apart by their
         * number. */
        if (request->score) lk_detokenizer_push(&job->detok, "", 0, &lp, &delta);
        push_text(job, delta);
        return (struct choice){.tok = c.tok, .outcome = ENDS, .finish = "stop", .flush = true};
    }
    lk_thought_budget_push(&job->thoughts, text, len);
    bool stop = lk_detokenizer_push(&job->detok, text, len, n_top >= 0 ? &lp : NULL, &delta);
    push_text(job, delta);
    job->result.n_decoded++;
    r->metrics->answer_tokens++;
    c.outcome = GOES_ON;
    if (stop || job->result.n_decoded >= job->prompt->max_tokens || job->detok.failed)
        c = (struct choice){c.tok, ENDS, stop ? "stop" : "length", !stop, {0}};
    return c;
}

/* End the job if a choice ends it. */
static bool end_job(struct lk_running *r, struct lk_job *job, const struct choice *c) {
    struct lk_api_error error;
    switch (c->outcome) {
    case GOES_ON: return false;
    case ENDS: finish_job(r, job, c->finish, c->flush); return true;
    case FAILS: break;
    }
    lk_api_error_from_work(&error, &c->err);
    if (error.status == 400) error.param = job->completion->request.grammar_field;
    lk_running_fail_job(r, job, &error);
    return true;
}

/* Set job->next_tok, the token to evaluate. False if the job was removed or parked, or its event
 * ring is full. */
static bool advance_job(struct lk_running *r, struct lk_job *job) {
    if (lk_completion_is_over(job->completion)) {
        lk_running_fail_job(r, job, NULL);
        return false;
    }
    if (is_late(r, job) || job->prompt->max_tokens == 0) {
        finish_job(r, job, "length", true);
        return false;
    }
    if (!has_room(r, job)) return false;
    if (job->has_next) return true;
    struct choice c = choose_token(r, job, -1);
    if (end_job(r, job, &c)) return false;
    job->next_tok = c.tok;
    job->has_next = true;
    return true;
}

/* The part of a job in a pass: its next token, and drafts. */
struct part {
    struct lk_job *job;
    int32_t tok[LK_SERVE_PASS];
    size_t n_tok;
};

/* Drafts for a job, in a pass with n_other tokens of other jobs. */
static void add_drafts(struct part *part, size_t n_other) {
    struct lk_job *job = part->job;
    size_t max = job->prompt->max_tokens - job->result.n_decoded;
    part->tok[0] = job->next_tok;
    part->n_tok = 1;
    if (max > LK_SERVE_PASS) max = LK_SERVE_PASS;
    if (max > LK_BATCH_MAX - n_other) max = LK_BATCH_MAX - n_other;
    if (job->drafter) part->n_tok = lk_drafter_next(job->drafter, part->tok, max, n_other);
}

/* Keep the first n_kept tokens of a pass. */
static lk_status keep_tokens(struct lk_running *r, const struct part *part, size_t n_kept,
                             lk_err *err) {
    struct lk_slot *slot = part->job->slot;
    size_t n_wrong = part->n_tok - n_kept;
    for (size_t i = 0; i < n_kept; i++) lk_slot_append(slot, r->opts->model, part->tok[i]);
    part->job->result.n_drafted += part->n_tok - 1;
    part->job->result.n_accepted += n_kept - 1;
    r->metrics->draft_tokens += part->n_tok - 1;
    r->metrics->draft_accepted += n_kept - 1;
    if (n_wrong == 0) return LK_OK;
    return lk_session_truncate(slot->session, lk_session_n_tok(slot->session) - n_wrong, err);
}

/* Update the job after its part of a pass of n_row tokens was evaluated, or could not be: choose
 * tokens as long as they are the next drafts. */
static void record_part(struct lk_running *r, const struct part *part, size_t n_row, double seconds,
                        const lk_err *err) {
    struct lk_job *job = part->job;
    size_t n_kept = 1;
    struct choice c = {.outcome = GOES_ON};
    if (err->code == LK_E_FULL) {
        finish_job(r, job, "length", true);
        return;
    }
    if (err->code) {
        fail_job_with_err(r, job, err);
        return;
    }
    job->has_next = false;
    while (n_kept < part->n_tok && !job->has_next && lk_completion_has_room(job->completion)) {
        c = choose_token(r, job, (int32_t)n_kept - 1);
        if (c.outcome != GOES_ON) break;
        job->has_next = c.tok != part->tok[n_kept];
        job->next_tok = c.tok;
        n_kept += !job->has_next;
    }
    double start = lk_now();
    if (keep_tokens(r, part, n_kept, &c.err)) c.outcome = FAILS;
    seconds += lk_now() - start;
    if (job->drafter)
        lk_drafter_report(job->drafter, part->n_tok, n_kept, n_row - part->n_tok, seconds);
    end_job(r, job, &c);
}

/* Evaluate the parts. If there is no memory for a part with drafts, without these. */
static void evaluate_parts(struct lk_running *r, struct part *part, lk_batch_entry *item,
                           size_t n) {
    for (size_t i = 0; i < n; i++)
        item[i] = (lk_batch_entry){.session = part[i].job->slot->session,
                                   .tok = part[i].tok,
                                   .n_tok = part[i].n_tok,
                                   .all = part[i].n_tok > 1};
    lk_batch_eval(r->batch, item, n, NULL); /* every item has its own error */
    for (size_t i = 0; i < n; i++) {
        if (item[i].err.code != LK_E_NOMEM || item[i].n_tok == 1 ||
            lk_session_n_tok(item[i].session) != part[i].job->slot->n_tok)
            continue;
        item[i].n_tok = part[i].n_tok = 1;
        item[i].all = false;
        lk_batch_eval(r->batch, &item[i], 1, NULL);
    }
}

size_t lk_running_decode_step(struct lk_running *r) {
    struct part part[LK_MAX_RUNNING];
    lk_batch_entry item[LK_MAX_RUNNING];
    size_t n = 0, n_row = 0;
    for (size_t i = r->n; i-- > 0;) { /* backwards, because jobs may be removed */
        if (r->job[i]->state != LK_JOB_DECODING) continue;
        part[n].job = r->job[i];
        if (advance_job(r, part[n].job)) n++;
    }
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) {
        add_drafts(&part[i], n_row + n - 1 - i);
        n_row += part[i].n_tok;
    }
    double start = lk_now();
    evaluate_parts(r, part, item, n);
    double seconds = lk_now() - start;
    for (size_t i = 0; i < n; i++) record_part(r, &part[i], n_row, seconds, &item[i].err);
    r->metrics->decode_steps++;
    return n;
}
