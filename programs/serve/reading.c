#include "serve/reading.h"

#include "serve/prefix.h"
#include "serve/store.h"

static void tell_progress(struct lk_reading *r, double now, uint64_t done, uint64_t total) {
    const double every = 0.1;
    struct lk_job *job = r->job;
    if (!job->call->ask.progress || (now - r->told < every && done < total)) return;
    r->told = now;
    struct lk_event event = {.kind = LK_EVENT_PROGRESS, .job = job->index, .outcome = job->outcome};
    event.outcome.prompt_s = now - job->begun;
    event.n_read = total ? (size_t)((double)r->n_tok * ((double)done / (double)total)) : 0;
    lk_call_push(job->call, &event);
}

static bool on_progress(void *user, uint64_t done, uint64_t total) {
    struct lk_reading *r = user;
    tell_progress(r, lk_now(), done, total);
    bool on = r->between(r->user);
    r->late = lk_now() - r->job->begun > r->slots->opts->time_s;
    return on && !r->late && !lk_call_is_over(r->job->call);
}

static lk_status read_to(struct lk_reading *r, size_t n_tok, size_t *n_reused, lk_err *err) {
    r->n_tok = n_tok;
    return lk_session_sync(r->job->slot->session, r->job->tok, n_tok, n_reused, err);
}

static lk_status read_parts(struct lk_reading *r, size_t *n_reused, lk_err *err) {
    struct lk_job *job = r->job;
    if (!job->n_keep) return read_to(r, job->n_tok, n_reused, err);
    lk_status status = read_to(r, job->n_keep, n_reused, err);
    if (status != LK_OK) return status;
    lk_prefix_keep(r->slots, job->slot, job->tok, job->n_keep);
    return read_to(r, job->n_tok, NULL, err);
}

lk_status lk_reading_run(struct lk_reading *r, lk_err *err) {
    struct lk_job *job = r->job;
    struct lk_serve_slot *slot = job->slot;
    slot->progress = on_progress;
    slot->user = r;
    job->state = LK_JOB_READING;
    job->outcome.n_reused = lk_session_n_tok(slot->session);
    lk_status status = read_parts(r, &job->outcome.n_reused, err);
    slot->progress = NULL;
    job->read = lk_now();
    job->outcome.prompt_s = job->read - job->begun;
    return status;
}

void lk_reading_keep(struct lk_serve_slots *slots, const struct lk_job *job) {
    struct lk_serve_slot *slot = job->slot;
    const int32_t *tok = lk_session_tokens(slot->session);
    size_t n = lk_session_n_tok(slot->session);
    if (n == slot->n_tok && lk_tokens_common(tok, n, slot->tok, n) == n) return;
    lk_serve_slots_loaded(slots, slot, NULL);
    /* Where its tokens are the prompt's they are met again, and their text may end within a word. */
    if (lk_tokens_common(tok, n, job->prompt->tok, job->prompt->n_tok) == n)
        lk_buf_free(&slot->text);
}
