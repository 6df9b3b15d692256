/* The scheduler's thread: queue, admission, prefill, decode steps. */
#include "serve/scheduler.h"

#include "base/os.h"
#include "lowkey_serve.h"
#include "serve/running.h"
#include "serve/slot_prefill.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- turns ---- */

void lk_turn_init(struct lk_turn *turn) {
    *turn = (struct lk_turn){0};
    pthread_mutex_init(&turn->lock, NULL);
    pthread_cond_init(&turn->changed, NULL);
}

void lk_turn_destroy(struct lk_turn *turn) {
    pthread_cond_destroy(&turn->changed);
    pthread_mutex_destroy(&turn->lock);
}

static void turn_take(struct lk_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    uint64_t number = turn->n_taken++;
    while (number != turn->n_given) pthread_cond_wait(&turn->changed, &turn->lock);
    pthread_mutex_unlock(&turn->lock);
}

static void turn_give(struct lk_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    turn->n_given++;
    pthread_cond_broadcast(&turn->changed);
    pthread_mutex_unlock(&turn->lock);
}

/* ---- the queue ---- */

/* The waiting jobs, in the order of arrival. Not thread-safe: the scheduler locks it. */
struct lk_queue {
    struct lk_job *first; /* linked by job->next */
    size_t n;
};

/* Append all jobs of a completion. */
static void queue_push(struct lk_queue *q, struct lk_completion *completion) {
    struct lk_job **last = &q->first;
    while (*last) last = &(*last)->next;
    for (size_t i = 0; i < completion->n_job; i++) {
        completion->job[i].submit_time = lk_now();
        *last = &completion->job[i];
        last = &completion->job[i].next;
    }
    *last = NULL;
    q->n += completion->n_job;
}

/* Take out the jobs for which `is_over` returns true; returns them as a list. */
static struct lk_job *queue_remove_if(struct lk_queue *q, bool (*is_over)(void *, struct lk_job *),
                                      void *user) {
    struct lk_job *removed = NULL;
    for (struct lk_job **at = &q->first; *at;) {
        struct lk_job *job = *at;
        if (!is_over(user, job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        q->n--;
        job->next = removed;
        removed = job;
    }
    return removed;
}

static bool is_job(void *user, struct lk_job *job) { return job == user; }

/* Take a job out. */
static void queue_remove(struct lk_queue *q, struct lk_job *job) {
    queue_remove_if(q, is_job, job);
}

/* Number of jobs that will run: of a client, or of all if `client` is NULL. */
static size_t count_jobs(const struct lk_queue *q, const uint64_t *client) {
    size_t n = 0;
    for (const struct lk_job *job = q->first; job; job = job->next)
        n += (!client || job->completion->client == *client) &&
             !lk_completion_is_over(job->completion);
    return n;
}

/* Make room for n jobs of a client among `max`: the client with the most waiting jobs loses its
 * newest request, if it has more than this client would have. So a client that fills the queue does
 * not keep others out. That request fails with `error`; its jobs stay until they are taken out.
 * False: there is no room. */
static bool queue_make_room(struct lk_queue *q, uint64_t client, size_t n, size_t max,
                            const struct lk_api_error *error) {
    while (q->n + n > max && count_jobs(q, NULL) + n > max) {
        struct lk_completion *newest = NULL;
        size_t n_most = count_jobs(q, &client) + n;
        for (struct lk_job *job = q->first; job; job = job->next) {
            size_t n_its = count_jobs(q, &job->completion->client);
            if (lk_completion_is_over(job->completion) || n_its < n_most ||
                (n_its == n_most && !newest))
                continue;
            newest = job->completion;
            n_most = n_its;
        }
        if (!newest) return false;
        lk_completion_fail(newest, error);
    }
    return true;
}

struct lk_scheduler {
    const struct lk_server_opts *opts;
    struct lk_metrics *metrics;
    pthread_t thread;
    pthread_mutex_t lock; /* of the members down to `snapshot` */
    pthread_cond_t changed;
    struct lk_queue queue;
    struct lk_job *chosen; /* from the queue by the thread, which will remove it; or none */
    size_t n_snapshot;
    bool closed, ending, woken; /* woken: there is new work */
    bool finished;              /* the thread was joined; not under the lock */
    struct lk_slot_snapshot snapshot[LK_MAX_SLOT];
    /* Used only by the thread. */
    struct lk_slots slots;
    struct lk_disk *disk; /* or NULL */
    struct lk_running running;
    int n_turn;                      /* calls that need the turn; 0: it is not taken */
    struct reading *reading;         /* the prompt that is prefilled now, or NULL */
    double last_step, last_snapshot; /* times */
    uint64_t last_client;            /* of the job that was admitted last */
};

/* A prompt that is prefilled. Between its chunks a shorter one may be prefilled, so prompts that
 * wait for another one are a list. */
struct reading {
    struct lk_job *job;
    struct reading *outer; /* the prompt that waits for this one, or NULL */
    int depth;             /* number of prompts down to this one */
    double given_s;        /* seconds that it has waited for others */
    double next_look;      /* time of the next search for a shorter one */
    double last_progress;  /* when it was logged last */
};

/* ---- snapshots ---- */

/* Copy the state of all slots for other threads, at most every 0.1 s unless `force` is set. */
static void update_snapshot(struct lk_scheduler *s, bool force) {
    const double interval_s = 0.1, max_age = s->opts->n_rank > 1 ? 1 : 0;
    double now = lk_now();
    if (!force && now - s->last_snapshot < interval_s) return;
    s->last_snapshot = now;
    pthread_mutex_lock(&s->lock);
    s->n_snapshot = s->slots.n;
    for (size_t i = 0; i < s->slots.n; i++)
        s->snapshot[i] = lk_slot_take_snapshot(s->slots.slot[i], now, max_age);
    s->metrics->waiting = s->queue.n;
    pthread_mutex_unlock(&s->lock);
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_snapshot; i++) bytes += s->snapshot[i].rank_bytes;
    s->metrics->shared_bytes = lk_model_get_info(s->opts->model).shared_bytes;
    s->metrics->active = s->running.n;
    s->metrics->sessions = s->slots.n;
    s->metrics->cache_bytes = bytes + s->metrics->shared_bytes;
}

/* ---- decode and prefill ---- */

/* Before and after work with the model. Calls within calls take the turn once. */
static void begin_work(struct lk_scheduler *s) {
    if (s->opts->turn && s->n_turn++ == 0) turn_take(s->opts->turn);
}

static void end_work(struct lk_scheduler *s) {
    if (s->opts->turn && --s->n_turn == 0) turn_give(s->opts->turn);
}

/* Let the models go first that have waited meanwhile. */
static void pass_turn(struct lk_scheduler *s) {
    if (!s->opts->turn) return;
    turn_give(s->opts->turn);
    turn_take(s->opts->turn);
}

/* One decode step of all running jobs. False if no job could continue. */
static bool decode_step(struct lk_scheduler *s) {
    size_t n_before = s->running.n;
    if (n_before) begin_work(s);
    size_t n_decoded = lk_running_decode_step(&s->running);
    if (n_before) end_work(s);
    bool jobs_ended = s->running.n != n_before;
    s->last_step = lk_now();
    update_snapshot(s, jobs_ended);
    return n_decoded > 0 || jobs_ended;
}

/* Log how far the prefill of a job is. */
static void log_progress(const struct lk_scheduler *s, const struct lk_job *job, const char *what) {
    char line[160];
    if (!s->opts->log) return;
    snprintf(line, sizeof line, "session %d: %s %zu of %zu prompt tokens after %.0f s",
             job->slot->id, what, job->n_processed, job->n_tok, lk_now() - job->start_time);
    s->opts->log(s->opts->user, line);
}

/* Decode one step for each slice that has passed since the last one, but not for longer than that.
 * So a chunk that takes many slices delays answers by half. */
static void decode_slices(struct lk_scheduler *s) {
    double start = lk_now(), passed_s = start - s->last_step, due_s = s->opts->slice_s;
    if (s->running.n <= 1) s->last_step = start; /* only this prompt: nothing is due */
    while (s->running.n > 1 && due_s <= passed_s && lk_now() - start <= passed_s) {
        if (!decode_step(s)) return;
        due_s += s->opts->slice_s;
    }
}

static void prefill_shorter(struct lk_scheduler *s);

/* Between the chunks of a prefill. False if the prefill must be cancelled. */
static bool on_prefill_chunk(void *user) {
    const double log_s = 10;
    struct lk_scheduler *s = user;
    struct reading *r = s->reading;
    if (s->opts->beat) s->opts->beat(s->opts->user);
    if (s->disk) lk_disk_poll(s->disk);
    pass_turn(s);
    decode_slices(s);
    update_snapshot(s, false);
    prefill_shorter(s);
    if (lk_now() - r->last_progress > log_s) {
        r->last_progress = lk_now();
        log_progress(s, r->job, "read");
    }
    pthread_mutex_lock(&s->lock);
    bool closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return !closed;
}

/* Record where the reused tokens came from, and count hits and misses of the store. */
static void record_prefix_source(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_job_result *result = &job->result;
    if (result->n_reused == 0)
        result->source = LK_PREFIX_NONE;
    else
        result->source = job->stored[0] ? LK_PREFIX_STORE : LK_PREFIX_MEMORY;
    if (!s->disk || !s->opts->store_bytes || !job->completion->request.reuse) return;
    if (result->source == LK_PREFIX_STORE) s->metrics->store_hits++;
    if (result->source == LK_PREFIX_NONE) s->metrics->store_misses++;
}

/* Tokens, or work on tokens, that a session keeps of a prefill that failed. */
static size_t kept_tokens(const struct lk_slot *slot) {
    size_t n = lk_session_n_tok(slot->session), n_done = 0;
    bool reused = !slot->is_private && !slot->discard;
    if (reused && lk_session_suspended(slot->session, &n_done) > 0) n = n_done;
    return n;
}

/* Fail a job during prefill. Its slot stays if the session keeps anything, so that the next try
 * goes on from there. */
static void fail_prefill(struct lk_scheduler *s, struct lk_job *job,
                         const struct lk_api_error *error) {
    struct lk_slot *slot = job->slot;
    bool empty = kept_tokens(slot) == 0;
    job->n_processed = kept_tokens(slot);
    log_progress(s, job, "the prefill was cut short and keeps");
    if (!empty) lk_slot_prefill_keep_partial(&s->slots, job);
    lk_running_fail_job(&s->running, job, error);
    if (empty) lk_slots_remove(&s->slots, slot);
}

static void prefill_job(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_slot_prefill prefill = {
        .slots = &s->slots, .job = job, .on_chunk = on_prefill_chunk, .user = s};
    struct reading reading = {.job = job,
                              .outer = s->reading,
                              .depth = s->reading ? s->reading->depth + 1 : 1,
                              .last_progress = lk_now()};
    lk_err err = {0};
    s->reading = &reading;
    if (job->prompt->in_parts && lk_session_n_tok(job->slot->session) == 0)
        log_progress(s, job,
                     "an exact prefill exceeds the cache limit, so it goes through the cache:");
    begin_work(s);
    lk_status status = lk_slot_prefill_run(&prefill, &err);
    end_work(s);
    s->reading = reading.outer;
    if (status) {
        struct lk_api_error error;
        if (prefill.timed_out)
            lk_api_error_set(&error, 503, "time_limit", NULL,
                             "prefill of the prompt took more than %.0f seconds; %zu of %zu "
                             "tokens are kept for the next try",
                             s->opts->time_s, kept_tokens(job->slot), job->n_tok);
        else if (status == LK_E_CANCELLED) /* or the client disconnected and sees no error */
            lk_api_error_set_stopping(&error);
        else
            lk_api_error_from_work(&error, &err);
        fail_prefill(s, job, &error);
        return;
    }
    if (!job->completion->request.embed) lk_slot_set_prompt(job->slot, job);
    job->slot->reserved = job->prompt->n_bytes_rest;
    record_prefix_source(s, job);
    job->result.n_prompt = job->n_tok;
    job->state = LK_JOB_DECODING;
    if (s->opts->drafts && job->prompt->max_tokens > 1) /* without memory: no drafts */
        lk_drafter_new(&job->drafter, job->slot->session, NULL);
    s->metrics->prompt_tokens += job->n_tok;
    s->metrics->reused_tokens += job->result.n_reused;
    if (job->n_copied) s->metrics->copied_tokens += job->result.n_reused;
    lk_histogram_add(&s->metrics->prompt, job->result.prompt_s);
}

/* ---- admission ---- */

/* A running job with the same prompt, just prefilled, whose session the job can copy. */
static struct lk_job *find_twin(const struct lk_scheduler *s, const struct lk_job *job) {
    for (size_t i = 0; i < s->running.n; i++) {
        struct lk_job *other = s->running.job[i];
        if (other->prompt == job->prompt && other->state == LK_JOB_DECODING &&
            other->slot->n_tok == other->n_tok)
            return other;
    }
    return NULL;
}

/* Tokens that a session would reuse for the job, with the tokens that were chosen for it. */
static size_t reusable_tokens(const struct lk_slot *slot, const struct lk_job *job) {
    const struct lk_prompt *p = job->prompt;
    return lk_session_reusable(slot->session, job->tok ? job->tok : p->tok,
                               job->tok ? job->n_tok : p->n_tok);
}

/* Choose a source among the slots in memory. If the store has more of the prompt, job->stored is
 * set and the source is empty. *later: the slot to use has a pending disk command. *n_reused:
 * tokens that need not be prefilled. */
static struct lk_slot_source choose_source(struct lk_scheduler *s, struct lk_job *job, bool *later,
                                           size_t *n_reused) {
    struct lk_slot_source source = lk_shared_prefix_choose(&s->slots, job);
    const struct lk_slot *from = source.reuse ? source.reuse : source.copy_from;
    *later = from && from->command.kind != LK_SLOT_CMD_NONE;
    *n_reused = from && !*later ? reusable_tokens(from, job) : 0;
    if (*later || !s->disk) return source;
    size_t n = lk_store_find(lk_disk_get_store(s->disk), job, *n_reused, job->stored);
    if (n == 0) return source;
    *n_reused = n;
    return (struct lk_slot_source){0};
}

/* Forget what was chosen for a waiting job. */
static void reset_choice(struct lk_job *job) {
    free(job->tok);
    job->tok = NULL;
    job->stored[0] = 0;
}

/* Set the tokens to prefill, unless a matching slot has set them already. */
static bool set_job_tokens(struct lk_job *job, const int32_t *tok, size_t n_tok) {
    if (job->tok) return true;
    job->tok = malloc(n_tok * sizeof *tok);
    if (!job->tok) return false;
    memcpy(job->tok, tok, n_tok * sizeof *tok);
    job->n_tok = n_tok;
    return true;
}

/* Memory that the job needs with this source. If a session holds a part of the prompt, the rest
 * goes through the cache. */
static uint64_t needed_bytes(const struct lk_job *job, const struct lk_slot_source *source) {
    const struct lk_slot *from = source->reuse ? source->reuse : source->copy_from;
    bool holds = from && !from->is_partial && reusable_tokens(from, job) > 0;
    return holds ? job->prompt->n_bytes_rest : job->prompt->n_bytes;
}

/* Find or create a slot for the job. *later: there is no room now, and *out is not set. */
static lk_status acquire_slot(struct lk_scheduler *s, struct lk_job *job, struct lk_slot **out,
                              bool *later, lk_err *err) {
    size_t n_reused;
    reset_choice(job); /* of an earlier attempt */
    struct lk_job *twin = find_twin(s, job);
    struct lk_slot_source source = {.copy_from = twin ? twin->slot : NULL, .copy_whole = true};
    if (!twin && job->completion->request.reuse) source = choose_source(s, job, later, &n_reused);
    if (*later) return LK_OK;
    uint64_t need = needed_bytes(job, &source);
    enum lk_room room = lk_shared_prefix_make_room(&s->slots, &source, need);
    if (room == LK_ROOM_NEVER && (source.reuse || source.copy_from) && !twin) {
        /* The slot itself may hold the missing memory: try again without it. */
        source = (struct lk_slot_source){0};
        need = job->prompt->n_bytes;
        room = lk_shared_prefix_make_room(&s->slots, &source, need);
    }
    *later = room != LK_ROOM_NOW;
    if (*later) return LK_OK;
    struct lk_slot *slot = source.reuse;
    lk_status status = LK_OK;
    job->n_prefix = source.n_prefix;
    job->n_copied = 0;
    if (!slot && !source.copy_from) {
        free(job->tok); /* chosen for another slot */
        job->tok = NULL;
    }
    if (!slot) {
        status = lk_slots_add(&s->slots, job->completion->request.recipe, &slot, err);
        /* If memory runs out for the copy, the prefill will fail and report it. */
        if (!status && source.copy_from &&
            !lk_slot_copy(slot, source.copy_from, source.copy_whole, NULL))
            job->n_copied = lk_session_n_tok(slot->session);
    }
    if (!status && !set_job_tokens(job, twin ? twin->tok : job->prompt->tok,
                                   twin ? twin->n_tok : job->prompt->n_tok))
        status = lk_fail(err, LK_E_NOMEM, "out of memory: prompt");
    if (slot) slot->reserved = need;
    *out = slot;
    return status;
}

/* Number of running jobs of the same client, and of the same completion. */
static void count_running(const struct lk_scheduler *s, const struct lk_job *job, size_t *of_client,
                          size_t *of_completion) {
    *of_client = *of_completion = 0;
    for (size_t i = 0; i < s->running.n; i++) {
        const struct lk_completion *other = s->running.job[i]->completion;
        *of_client += other->client == job->completion->client;
        *of_completion += other == job->completion;
    }
}

/* Is job a before job b? First the client with fewer running jobs, then of two clients the one that
 * was not served last, then the request with fewer running jobs. So no client, and no request for
 * many answers, holds all places. */
static bool goes_before(const struct lk_scheduler *s, const struct lk_job *a,
                        const struct lk_job *b) {
    size_t client_a, client_b, completion_a, completion_b;
    uint64_t last = s->last_client;
    count_running(s, a, &client_a, &completion_a);
    count_running(s, b, &client_b, &completion_b);
    if (client_a != client_b) return client_a < client_b;
    if ((a->completion->client == last) != (b->completion->client == last))
        return b->completion->client == last;
    return completion_a < completion_b;
}

enum { SPARE_PART = 4 };

/* Is there a place for the job? Beyond --parallel there are a few spare places, for clients that
 * hold fewer than these: otherwise one client's long answers would keep all others waiting. */
static bool has_place(const struct lk_scheduler *s, const struct lk_job *job) {
    const size_t n_spare = (s->opts->n_parallel + SPARE_PART - 1) / SPARE_PART;
    size_t of_client, of_completion;
    if (s->running.n < s->opts->n_parallel) return true;
    count_running(s, job, &of_client, &of_completion);
    return of_client < n_spare && s->running.n < s->opts->n_parallel + n_spare;
}

/* The waiting job that is next, if another one may run; or NULL. Of jobs with the same rank the one
 * that has waited longest, or another one of its request that can copy a session that was just
 * prefilled. The lock is held. */
static struct lk_job *choose_waiting(const struct lk_scheduler *s) {
    struct lk_job *best = NULL;
    for (struct lk_job *job = s->queue.first; job; job = job->next)
        if (has_place(s, job) && (!best || goes_before(s, job, best))) best = job;
    for (struct lk_job *job = best; job; job = job->next)
        if (job->completion == best->completion && find_twin(s, job)) return job;
    return best;
}

static struct lk_job *next_waiting(struct lk_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    struct lk_job *job = s->chosen = choose_waiting(s);
    pthread_mutex_unlock(&s->lock);
    return job;
}

/* Start a job that was chosen from the queue. False if there is no room for it. */
static bool start_job(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_slot *slot = NULL;
    bool later = false;
    lk_err err = {0};
    lk_status status = acquire_slot(s, job, &slot, &later, &err);
    if (later) return false;
    pthread_mutex_lock(&s->lock);
    queue_remove(&s->queue, job);
    pthread_mutex_unlock(&s->lock);
    s->last_client = job->completion->client;
    lk_status added = lk_running_add(&s->running, job, !status ? &err : NULL);
    if (!status) status = added;
    if (slot) {
        job->slot = slot;
        slot->job = job;
        slot->last_used = job->start_time;
        slot->is_private = !job->completion->request.reuse;
        slot->discard = job->completion->request.score || job->completion->request.embed;
    }
    if (status) {
        struct lk_api_error error;
        lk_api_error_from_work(&error, &err);
        lk_running_fail_job(&s->running, job, &error);
        if (slot && slot->n_tok == 0) lk_slots_remove(&s->slots, slot);
    } else if (job->stored[0]) {
        lk_disk_load_slot(s->disk, job);
    } else {
        prefill_job(s, job);
    }
    return true;
}

/* Start the next job. False if there is none, or no room for it. */
static bool admit_job(struct lk_scheduler *s) {
    struct lk_job *job = next_waiting(s);
    if (!job) return false;
    return start_job(s, job) || lk_running_end_parked(&s->running); /* and try again */
}

/* Continue with a job whose session was loaded from disk, and that has at most n_max tokens to
 * prefill. False if there is none. */
static bool resume_loaded_job(struct lk_scheduler *s, size_t n_max) {
    for (size_t i = 0; i < s->running.n; i++) {
        struct lk_job *job = s->running.job[i];
        if (job->state != LK_JOB_LOADED || job->n_tok - reusable_tokens(job->slot, job) > n_max)
            continue;
        prefill_job(s, job);
        return true;
    }
    return false;
}

/* ---- prompts that are prefilled between the chunks of a longer one ---- */

enum {
    MAX_READING = 3, /* prompts that are prefilled at the same time */
    MUCH_SHORTER = 4 /* the tokens that are left of a prompt, divided by those of one in between */
};

/* Tokens that must be prefilled for a waiting job, at least 1. */
static size_t tokens_to_prefill(struct lk_scheduler *s, struct lk_job *job) {
    const struct lk_request *request = &job->completion->request;
    size_t n_reused = 0, n = 0;
    bool later;
    reset_choice(job);
    if (find_twin(s, job)) return 1;
    if (request->reuse) choose_source(s, job, &later, &n_reused);
    for (size_t i = 0; request->embed && i < request->n_prompt; i++) n += request->prompt[i].n_tok;
    if (!request->embed) n = (job->tok ? job->n_tok : job->prompt->n_tok) - n_reused;
    return n > 0 ? n : 1;
}

/* The waiting job that is next among those with at most n_max tokens to prefill, or NULL. The lock
 * is not held while tokens are counted: that may tokenize. */
static struct lk_job *next_short(struct lk_scheduler *s, size_t n_max) {
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct lk_job *best = NULL;
        for (struct lk_job *job = s->queue.first; job; job = job->next)
            if (job->n_to_prefill <= n_max && has_place(s, job) &&
                !lk_completion_is_over(job->completion) && (!best || goes_before(s, job, best)))
                best = job;
        s->chosen = best;
        pthread_mutex_unlock(&s->lock);
        if (!best) return NULL;
        best->n_to_prefill = tokens_to_prefill(s, best);
        if (best->n_to_prefill <= n_max) return best;
    }
}

/* Prefill a prompt that is much shorter than what is left of the current one, if there is any. So
 * that the current one ends, others get at most the time that it has had itself, and one more. */
static void prefill_shorter(struct lk_scheduler *s) {
    const double look_s = 0.1;
    struct reading *r = s->reading;
    struct lk_job *job = r->job, *next;
    double start = lk_now();
    size_t n_left = job->n_tok > job->n_processed ? job->n_tok - job->n_processed : 0,
           n_max = n_left / MUCH_SHORTER;
    bool may_give = r->depth < MAX_READING && r->given_s <= start - job->start_time;
    if (!may_give || n_max == 0 || start < r->next_look || lk_completion_is_over(job->completion))
        return;
    if (!resume_loaded_job(s, n_max) && (next = next_short(s, n_max)) && !start_job(s, next))
        r->next_look = start + look_s; /* there was no room */
    double given_s = lk_now() - start;
    r->given_s += given_s;
    job->start_time += given_s;
    job->result.wait_s += given_s;
}

/* ---- waiting jobs ---- */

/* Fail a completion that waited too long, with what it waited for: a place, or memory. */
static void refuse_job(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_api_error error;
    uint64_t busy = lk_slots_busy_bytes(&s->slots), max = s->opts->max_bytes,
             free_bytes = busy < max ? max - busy : 0;
    if (free_bytes >= job->prompt->n_bytes)
        lk_api_error_set(&error, 503, "overloaded", NULL,
                         "%zu answers are running and %zu may (--parallel); this request waited "
                         "%.0f seconds",
                         s->running.n, s->opts->n_parallel, s->opts->queue_s);
    else
        lk_api_error_set(&error, 503, "overloaded", NULL,
                         "this request needs %.1f MiB of cache, but only %.1f of %.1f MiB are free "
                         "(--cache-limit); it waited %.0f seconds",
                         (double)job->prompt->n_bytes / (1 << 20), (double)free_bytes / (1 << 20),
                         (double)max / (1 << 20), s->opts->queue_s);
    error.retry_s = 5;
    s->metrics->refused++;
    lk_completion_fail(job->completion, &error);
}

struct sweep {
    double now, queue_s;
};

static bool is_over(void *user, struct lk_job *job) {
    const struct sweep *sweep = user;
    return lk_completion_is_over(job->completion) || sweep->now - job->submit_time > sweep->queue_s;
}

/* Remove queued jobs whose completion is over, or that had waited too long at time `now`. */
static void sweep_queue(struct lk_scheduler *s, double now) {
    struct sweep sweep = {.now = now, .queue_s = s->opts->queue_s};
    pthread_mutex_lock(&s->lock);
    struct lk_job *removed = queue_remove_if(&s->queue, is_over, &sweep);
    pthread_mutex_unlock(&s->lock);
    while (removed) {
        struct lk_job *job = removed;
        removed = job->next;
        if (!lk_completion_is_over(job->completion)) refuse_job(s, job);
        lk_completion_release(job->completion);
    }
}

/* ---- the thread ---- */

static void fail_all_jobs(struct lk_scheduler *s) {
    struct lk_api_error error;
    lk_api_error_set_stopping(&error);
    if (s->disk) lk_disk_close(s->disk), lk_disk_drain(s->disk);
    while (s->running.n) lk_running_fail_job(&s->running, s->running.job[0], &error);
    while (s->running.parked) lk_running_fail_job(&s->running, s->running.parked, &error);
    pthread_mutex_lock(&s->lock);
    for (struct lk_job *job = s->queue.first; job; job = job->next)
        lk_completion_fail(job->completion, &error);
    pthread_mutex_unlock(&s->lock);
    sweep_queue(s, lk_now());
}

/* Wait until the thread is woken, or for a short time if jobs are blocked. */
static void wait_for_work(struct lk_scheduler *s) {
    const double blocked_s = 0.01, idle_s = 0.5;
    pthread_mutex_lock(&s->lock);
    if (!s->woken && !s->ending) {
        double end =
            lk_now() + (s->running.n || s->running.parked || s->queue.n ? blocked_s : idle_s);
        lk_os_wait_until(&s->changed, &s->lock, end);
    }
    s->woken = false;
    pthread_mutex_unlock(&s->lock);
}

static void *run_thread(void *user) {
    struct lk_scheduler *s = user;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool closed = s->closed, ending = s->ending;
        pthread_mutex_unlock(&s->lock);
        if (s->opts->beat) s->opts->beat(s->opts->user);
        if (closed) fail_all_jobs(s);
        if (ending) break;
        double start = lk_now();
        bool worked = false;
        sweep_queue(s, 0); /* at time 0 no job has timed out: removes jobs whose client is gone */
        if (s->disk) lk_disk_poll(s->disk);
        lk_running_poll_parked(&s->running);
        lk_slots_remove_discarded(&s->slots);
        while (resume_loaded_job(s, SIZE_MAX) || admit_job(s)) {
            worked = true;
            if (lk_now() - s->last_step < s->opts->slice_s) continue;
            /* First admit the jobs that can copy the session of a job before it decodes. */
            struct lk_job *next = next_waiting(s);
            if (!next || !find_twin(s, next)) decode_step(s);
        }
        /* Every job that was in the queue at `start` had a chance, even with queue_s = 0. */
        sweep_queue(s, start);
        worked |= decode_step(s);
        if (worked) continue;
        update_snapshot(s, true);
        wait_for_work(s);
    }
    if (s->disk) lk_disk_store_all(s->disk);
    return NULL;
}

static void wake(void *user) {
    struct lk_scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void force_snapshot(void *user) { update_snapshot(user, true); }

/* ---- for other threads ---- */

struct lk_disk *lk_scheduler_disk(struct lk_scheduler *s) {
    return s->disk;
}

bool lk_scheduler_submit(struct lk_scheduler *s, struct lk_completion *completion,
                         struct lk_api_error *error) {
    struct lk_api_error full, lost;
    lk_api_error_set(
        &lost, 429, "queue_full", NULL,
        "the queue is full (--queue %zu), and a client with fewer waiting answers took "
        "the place of this request",
        s->opts->n_queue);
    lost.retry_s = 2;
    pthread_mutex_lock(&s->lock);
    lk_api_error_set(&full, 429, "queue_full", NULL,
                     "the queue is full: this request asks for %zu answers and %zu are waiting; "
                     "the maximum is %zu (--queue)",
                     completion->n_job, s->queue.n, s->opts->n_queue);
    full.retry_s = 2;
    bool good = !s->closed && queue_make_room(&s->queue, completion->client, completion->n_job,
                                              s->opts->n_queue, &lost);
    if (good) {
        atomic_fetch_add(&completion->refs, (int)completion->n_job);
        queue_push(&s->queue, completion);
        pthread_cond_signal(&s->changed);
    } else if (s->closed) {
        lk_api_error_set_stopping(error);
    } else {
        *error = full;
        s->metrics->refused++;
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

struct abandoned {
    const struct lk_completion *completion;
    const struct lk_job *chosen;
};

/* The scheduler removes the job that it has chosen. */
static bool is_abandoned(void *user, struct lk_job *job) {
    const struct abandoned *a = user;
    return job->completion == a->completion && job != a->chosen;
}

void lk_scheduler_abandon(struct lk_scheduler *s, struct lk_completion *completion) {
    pthread_mutex_lock(&s->lock);
    struct abandoned abandoned = {completion, s->chosen};
    struct lk_job *removed = queue_remove_if(&s->queue, is_abandoned, &abandoned);
    pthread_mutex_unlock(&s->lock);
    for (; removed; removed = removed->next) lk_completion_release(completion);
    lk_completion_abandon(completion);
}

size_t lk_scheduler_snapshot(struct lk_scheduler *s, struct lk_slot_snapshot *snapshot, size_t max,
                             size_t *n_waiting) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_snapshot < max ? s->n_snapshot : max;
    memcpy(snapshot, s->snapshot, n * sizeof *snapshot);
    *n_waiting = s->queue.n;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- start and stop ---- */

static void init_locks(struct lk_scheduler *s) {
    pthread_mutex_init(&s->lock, NULL);
    lk_os_cond_init(&s->changed);
}

static void free_scheduler(struct lk_scheduler *s) {
    lk_slots_free(&s->slots);
    lk_batch_free(s->running.batch);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

lk_status lk_scheduler_start(struct lk_scheduler **out, const struct lk_server_opts *opts,
                             struct lk_metrics *metrics, lk_err *err) {
    struct lk_scheduler *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the scheduler");
    s->opts = s->slots.opts = s->running.opts = opts;
    s->metrics = s->running.metrics = metrics;
    metrics->max_bytes = opts->max_bytes;
    metrics->ranks = (uint64_t)opts->n_rank;
    init_locks(s);
    lk_status status = lk_batch_new(&s->running.batch, opts->model, err);
    if (!status && opts->session_dir)
        status = lk_disk_start(&s->disk, opts, metrics, &s->slots,
                               &(struct lk_disk_callbacks){wake, force_snapshot, s}, err);
    if (!status && pthread_create(&s->thread, NULL, run_thread, s))
        status = lk_fail(err, LK_E_NOMEM, "cannot start the scheduler: thread creation failed");
    if (!status)
        *out = s;
    else
        lk_disk_stop(s->disk), free_scheduler(s);
    return status;
}

static void request_stop(struct lk_scheduler *s, bool ending) {
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    s->ending = ending;
    s->woken = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void lk_scheduler_close(struct lk_scheduler *s) { request_stop(s, false); }

void lk_scheduler_finish(struct lk_scheduler *s) {
    if (s->finished) return;
    request_stop(s, true);
    pthread_join(s->thread, NULL);
    s->finished = true;
}

void lk_scheduler_stop(struct lk_scheduler *s) {
    if (!s) return;
    lk_scheduler_finish(s);
    lk_disk_stop(s->disk);
    free_scheduler(s);
}
