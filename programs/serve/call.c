#include "serve/call.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static bool init_lock(struct lk_call *call) {
    pthread_condattr_t attr;
    pthread_mutex_init(&call->lock, NULL);
    if (pthread_condattr_init(&attr)) return false;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool good = pthread_cond_init(&call->changed, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return good;
}

static void free_call(struct lk_call *call) {
    for (size_t i = 0; i < call->n_job; i++) {
        lk_sampler_free(call->job[i].sampler);
        lk_emit_free(&call->job[i].emit);
        free(call->job[i].tok);
    }
    for (size_t i = 0; i < call->n_event; i++)
        lk_piece_free(&call->ring[(call->first + i) % LK_FEED].piece);
    free(call->job);
    lk_ask_free(&call->ask);
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

/* Answers to one prompt differ by their seeds. */
static bool make_job(struct lk_call *call, const struct lk_ask *ask, size_t i,
                     const lk_model *model, struct lk_fault *fault) {
    struct lk_job *job = &call->job[i];
    lk_sampler_opts sampling = ask->sampling;
    lk_err err = {0};
    sampling.seed += (uint32_t)(i % ask->n);
    job->call = call;
    job->index = i;
    job->prompt = &ask->prompt[i / ask->n];
    job->outcome.n_prompt = job->prompt->n_tok;
    call->n_job = i + 1;
    if (lk_sampler_new(&job->sampler, model, &sampling, &err))
        return lk_fault_of(fault, &err, sampling.grammar ? ask->held_by : NULL);
    return true;
}

struct lk_call *lk_call_new(struct lk_ask *ask, const lk_model *model, struct lk_fault *fault) {
    size_t n = ask->n_prompt * ask->n;
    struct lk_call *call = calloc(1, sizeof *call);
    struct lk_job *job = calloc(n, sizeof *job);
    if (!call || !job || !init_lock(call)) {
        free(call);
        free(job);
        lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a request");
        return NULL;
    }
    call->job = job;
    call->refs = 1;
    for (size_t i = 0; i < n; i++)
        if (!make_job(call, ask, i, model, fault)) {
            free_call(call);
            return NULL;
        }
    call->ask = *ask;
    *ask = (struct lk_ask){0};
    for (size_t i = 0; i < n; i++) {
        job[i].emit.stop = call->ask.stop;
        job[i].emit.n_stop = call->ask.n_stop;
    }
    return call;
}

void lk_call_release(struct lk_call *call) {
    if (atomic_fetch_sub(&call->refs, 1) == 1) free_call(call);
}

bool lk_call_has_room(struct lk_call *call) {
    pthread_mutex_lock(&call->lock);
    bool yes = call->n_event <= LK_FEED / 2;
    pthread_mutex_unlock(&call->lock);
    return yes;
}

void lk_call_push(struct lk_call *call, struct lk_event *event) {
    pthread_mutex_lock(&call->lock);
    if (call->n_event < LK_FEED && !call->gone) {
        call->ring[(call->first + call->n_event++) % LK_FEED] = *event;
        pthread_cond_signal(&call->changed);
    } else {
        lk_piece_free(&event->piece);
    }
    pthread_mutex_unlock(&call->lock);
}

void lk_call_done(struct lk_call *call, struct lk_job *job) {
    pthread_mutex_lock(&call->lock);
    job->done = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

void lk_call_fail(struct lk_call *call, const struct lk_fault *fault) {
    pthread_mutex_lock(&call->lock);
    if (!call->fault.status) {
        call->fault = *fault;
        pthread_cond_signal(&call->changed);
    }
    pthread_mutex_unlock(&call->lock);
}

bool lk_call_is_over(struct lk_call *call) {
    if (call->gone) return true;
    pthread_mutex_lock(&call->lock);
    bool over = call->fault.status != 0;
    pthread_mutex_unlock(&call->lock);
    return over;
}

/* What there is to tell, pieces before ends, and a fault last. */
static bool take_event(struct lk_call *call, struct lk_event *event) {
    if (call->n_event > 0) {
        *event = call->ring[call->first];
        call->first = (call->first + 1) % LK_FEED;
        call->n_event--;
        return true;
    }
    for (size_t i = 0; i < call->n_job; i++) {
        struct lk_job *job = &call->job[i];
        if (!job->done || job->told) continue;
        job->told = true;
        *event = (struct lk_event){.kind = LK_EVENT_DONE, .job = i, .outcome = job->outcome};
        return true;
    }
    if (!call->fault.status || call->ended) return false;
    call->ended = true;
    *event = (struct lk_event){.kind = LK_EVENT_FAULT};
    return true;
}

bool lk_call_pop(struct lk_call *call, double seconds, struct lk_event *event) {
    struct timespec until;
    double end = lk_now() + seconds;
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&call->lock);
    bool got;
    while (!(got = take_event(call, event)))
        if (pthread_cond_timedwait(&call->changed, &call->lock, &until) == ETIMEDOUT) break;
    if (!got) got = take_event(call, event);
    pthread_mutex_unlock(&call->lock);
    return got;
}
