/* The bounded event ring between the scheduler and the HTTP thread of a request. */
#include "serve/completion.h"

#include "base/os.h"
#include "lowkey_serve.h"

#include <stdlib.h>
#include <string.h>

static bool init_lock(struct lk_completion *completion) {
    pthread_mutex_init(&completion->lock, NULL);
    return lk_os_cond_init(&completion->changed);
}

static void free_completion(struct lk_completion *completion) {
    for (size_t i = 0; i < completion->n_job; i++) {
        lk_sampler_free(completion->job[i].sampler);
        lk_detokenizer_free(&completion->job[i].detok);
        free(completion->job[i].tok);
    }
    for (size_t i = 0; i < completion->n_event; i++)
        lk_text_delta_free(&completion->ring[(completion->first + i) % LK_EVENT_RING_LEN].delta);
    free(completion->job);
    lk_sampler_free(completion->sampler);
    lk_charge_release(&completion->charge);
    lk_request_free(&completion->request);
    pthread_cond_destroy(&completion->changed);
    pthread_mutex_destroy(&completion->lock);
    free(completion);
}

/* Create the sampler and charge for it and its copies. A job's copy exists while the job runs. */
static bool init_sampler(struct lk_completion *completion, const struct lk_request *request,
                         const struct lk_server_opts *opts, struct lk_api_error *error) {
    lk_err err = {0};
    size_t n = lk_request_n_answer(request);
    if (lk_sampler_new(&completion->sampler, opts->model, &request->sampling, &err))
        return lk_api_error_from_request(error, &err, request->grammar_field);
    if (n > opts->n_parallel) n = opts->n_parallel;
    uint64_t bytes = (n + 1) * lk_sampler_bytes(completion->sampler);
    return lk_charge_add(&completion->charge, bytes + lk_sampler_grammar_bytes(completion->sampler),
                         error);
}

/* Room for the log-probabilities of the prompts or their embeddings, if they are requested. Freed
 * with the request. */
static bool alloc_results(struct lk_request *request, const lk_model *model) {
    if (request->embed) {
        size_t n_embd = (size_t)lk_model_get_info(model).n_embd;
        request->embedding = calloc(request->n_prompt, n_embd * sizeof *request->embedding);
        return request->embedding != NULL;
    }
    for (size_t i = 0; request->score && i < request->n_prompt; i++) {
        struct lk_prompt *p = &request->prompt[i];
        p->lp = calloc(p->n_tok, sizeof *p->lp);
        if (!p->lp) return false;
    }
    return true;
}

struct lk_completion *lk_completion_new(struct lk_request *request, struct lk_charge *charge,
                                        const struct lk_server_opts *opts,
                                        struct lk_api_error *error) {
    size_t n = lk_request_n_answer(request);
    uint64_t bytes = sizeof(struct lk_completion) + n * sizeof(struct lk_job);
    if (!lk_charge_add(charge, bytes + lk_request_answer_bytes(request), error)) return NULL;
    struct lk_completion *completion = calloc(1, sizeof *completion);
    struct lk_job *job = calloc(n, sizeof *job);
    if (!completion || !job || !alloc_results(request, opts->model) || !init_lock(completion)) {
        free(completion);
        free(job);
        lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: request refused");
        return NULL;
    }
    completion->charge = *charge;
    charge->bytes = 0;
    completion->job = job;
    completion->n_job = n;
    completion->refs = 1;
    completion->percent = -1;
    if (!init_sampler(completion, request, opts, error)) {
        free_completion(completion);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        job[i].completion = completion;
        job[i].index = i;
        job[i].prompt = &request->prompt[i / request->n];
        job[i].result.n_prompt = job[i].prompt->n_tok;
        job[i].detok.stop = completion->request.stop;
        job[i].detok.n_stop = request->n_stop;
    }
    completion->request = *request;
    *request = (struct lk_request){0};
    return completion;
}

void lk_completion_release(struct lk_completion *completion) {
    if (atomic_fetch_sub(&completion->refs, 1) == 1) free_completion(completion);
}

void lk_completion_abandon(struct lk_completion *completion) {
    completion->abandoned = true;
    lk_completion_release(completion);
}

bool lk_completion_has_room(struct lk_completion *completion) {
    pthread_mutex_lock(&completion->lock);
    bool has_room = completion->n_event <= LK_EVENT_RING_LEN / 2;
    pthread_mutex_unlock(&completion->lock);
    return has_room;
}

void lk_completion_push(struct lk_completion *completion, struct lk_event *event) {
    pthread_mutex_lock(&completion->lock);
    if (completion->n_event < LK_EVENT_RING_LEN && !completion->abandoned) {
        size_t end = (completion->first + completion->n_event++) % LK_EVENT_RING_LEN;
        completion->ring[end] = *event;
        pthread_cond_signal(&completion->changed);
    } else {
        lk_text_delta_free(&event->delta);
    }
    pthread_mutex_unlock(&completion->lock);
}

void lk_completion_finish_job(struct lk_completion *completion, struct lk_job *job) {
    pthread_mutex_lock(&completion->lock);
    job->done = true;
    pthread_cond_signal(&completion->changed);
    pthread_mutex_unlock(&completion->lock);
}

void lk_completion_fail(struct lk_completion *completion, const struct lk_api_error *error) {
    pthread_mutex_lock(&completion->lock);
    if (!completion->error.status) {
        completion->error = *error;
        pthread_cond_signal(&completion->changed);
    }
    pthread_mutex_unlock(&completion->lock);
}

bool lk_completion_is_over(struct lk_completion *completion) {
    if (completion->abandoned) return true;
    pthread_mutex_lock(&completion->lock);
    bool over = completion->error.status != 0;
    pthread_mutex_unlock(&completion->lock);
    return over;
}

bool lk_job_continues_text(const struct lk_job *job, const struct lk_buf *text) {
    const char *prompt = job->prompt->text;
    return job->completion->request.chat && text->len > 0 && !text->failed &&
           strncmp(prompt, text->at, text->len) == 0 && prompt[text->len];
}

/* The lock is held. */
static bool pop_locked(struct lk_completion *completion, struct lk_event *event) {
    if (completion->n_event > 0) {
        *event = completion->ring[completion->first];
        completion->first = (completion->first + 1) % LK_EVENT_RING_LEN;
        completion->n_event--;
        return true;
    }
    for (size_t i = 0; i < completion->n_job; i++) {
        struct lk_job *job = &completion->job[i];
        if (!job->done || job->reported) continue;
        job->reported = true;
        *event = (struct lk_event){.kind = LK_EVENT_DONE, .job = i, .result = job->result};
        return true;
    }
    if (!completion->error.status || completion->error_reported) return false;
    completion->error_reported = true;
    *event = (struct lk_event){.kind = LK_EVENT_ERROR};
    return true;
}

bool lk_completion_pop(struct lk_completion *completion, double seconds, struct lk_event *event) {
    double end = lk_now() + seconds;
    pthread_mutex_lock(&completion->lock);
    bool found;
    while (!(found = pop_locked(completion, event)))
        if (!lk_os_wait_until(&completion->changed, &completion->lock, end)) break;
    if (!found) found = pop_locked(completion, event);
    pthread_mutex_unlock(&completion->lock);
    return found;
}
