#include "serve/scheduler.h"

#include "serve/prefix.h"
#include "serve/reading.h"
#include "serve/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lk_scheduler {
    const struct lk_serve_opts *opts;
    struct lk_metrics *metrics;
    pthread_t thread;
    pthread_mutex_t lock; /* of the next ones, down to `view` */
    pthread_cond_t changed;
    struct lk_job *waiting, **last;
    size_t n_waiting, n_view;
    bool stopping, ending, woken; /* woken: there is something to do */
    struct lk_slot_view view[LK_MAX_SLOT];
    /* The thread's own. */
    struct lk_serve_slots slots;
    struct lk_disk *disk; /* or NULL */
    lk_batch *batch;
    struct lk_job *active[LK_MAX_PARALLEL];
    size_t n_active;
    double stepped, looked; /* moments */
};

/* ---- the ends of jobs ---- */

static void forget(struct lk_scheduler *s, struct lk_job *job) {
    for (size_t i = 0; i < s->n_active; i++)
        if (s->active[i] == job) {
            s->active[i] = s->active[--s->n_active];
            break;
        }
    if (job->slot) {
        job->slot->job = NULL;
        job->slot->used = lk_now();
        job->slot = NULL;
    }
    lk_call_release(job->call);
}

static void push_piece(struct lk_job *job, struct lk_piece piece) {
    struct lk_event event = {.kind = LK_EVENT_PIECE, .job = job->index, .piece = piece};
    if (piece.len || piece.n_lp) lk_call_push(job->call, &event);
}

static void end_job(struct lk_scheduler *s, struct lk_job *job, const char *finish, bool flush) {
    lk_session_stats stats = lk_session_get_stats(job->slot->session);
    struct lk_piece rest = {0};
    if (flush) lk_emit_finish(&job->emit, &rest);
    push_piece(job, rest);
    job->outcome.finish = finish;
    job->outcome.decode_s = lk_now() - job->read;
    job->outcome.cache_bytes = stats.cache_bytes;
    job->outcome.f16_bytes = stats.f16_bytes;
    lk_times_add(&s->metrics->decode, job->outcome.decode_s);
    lk_call_done(job->call, job);
    forget(s, job);
}

/* A job ends without an answer; the fault is the whole call's. */
static void fail_job(struct lk_scheduler *s, struct lk_job *job, const struct lk_fault *fault) {
    if (fault) lk_call_fail(job->call, fault);
    forget(s, job);
}

static bool set_stopping(struct lk_fault *fault) {
    return lk_fault_set(fault, 503, "stopping", NULL, "the server is stopping");
}

static void fail_by(struct lk_scheduler *s, struct lk_job *job, const lk_err *err) {
    struct lk_fault fault;
    lk_fault_of_work(&fault, err);
    fail_job(s, job, &fault);
}

/* ---- views ---- */

static void look(struct lk_scheduler *s, bool now_please) {
    const double every = 0.1;
    double now = lk_now();
    if (!now_please && now - s->looked < every) return;
    s->looked = now;
    pthread_mutex_lock(&s->lock);
    s->n_view = s->slots.n;
    for (size_t i = 0; i < s->slots.n; i++) s->view[i] = lk_slot_look(s->slots.slot[i], now);
    s->metrics->waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_view; i++)
        bytes += s->view[i].stats.cache_bytes - s->view[i].stats.shared_bytes +
                 s->view[i].stats.scratch_bytes;
    s->metrics->shared_bytes = lk_model_get_info(s->opts->model).shared_bytes;
    s->metrics->active = s->n_active;
    s->metrics->sessions = s->slots.n;
    s->metrics->cache_bytes = bytes + s->metrics->shared_bytes;
}

/* ---- decoding ---- */

/* What is to be evaluated in a step. */
struct step {
    struct lk_job *job[LK_MAX_PARALLEL];
    int32_t tok[LK_MAX_PARALLEL];
    size_t n;
};

/* Of this thread alone: a machine that is busy otherwise is nobody's fault. */
static double computed_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A schema of objects that begin alike and hold one another doubles the ways to go on with every level of an answer,
 * and everybody waits for whoever asked for it. */
static bool grows_over(struct lk_scheduler *s, struct lk_job *job, double took) {
    const double most_s = 1;
    struct lk_fault fault;
    if (!job->call->ask.grammar || took <= most_s) return false;
    lk_fault_set(&fault, 400, "invalid_value", job->call->ask.held_by,
                 "'%s' leaves so many ways to go on that a token takes %.1f seconds",
                 job->call->ask.held_by, took);
    fail_job(s, job, &fault);
    return true;
}

/* Choose the job's next token and show it. True where the token is to be evaluated; otherwise the job has
 * ended, or has no room to go on. */
static bool choose(struct lk_scheduler *s, struct lk_job *job, int32_t *out) {
    const lk_model *model = s->opts->model;
    lk_session *session = job->slot->session;
    lk_err err = {0};
    int32_t tok;
    if (lk_call_is_over(job->call)) {
        fail_job(s, job, NULL);
        return false;
    }
    if (lk_now() - job->begun > s->opts->time_s) { /* also of a client that does not read */
        end_job(s, job, "length", true);
        return false;
    }
    if (!lk_call_has_room(job->call)) return false;
    double began = computed_s();
    if (lk_sampler_next(job->sampler, session, &tok, &err)) {
        fail_by(s, job, &err);
        return false;
    }
    if (grows_over(s, job, computed_s() - began)) return false;
    if (lk_token_ends(model, tok)) {
        end_job(s, job, "stop", true);
        return false;
    }
    char text[512];
    size_t len = lk_token_text(model, tok, text, sizeof text);
    struct lk_piece piece;
    struct lk_logprob lp;
    int n_top = job->call->ask.n_top;
    if (len >= sizeof text) len = sizeof text - 1;
    if (n_top >= 0)
        lp = lk_logprob_of(lk_session_logits(session, -1), lk_model_get_info(model).n_vocab, tok,
                           n_top);
    bool stop = lk_emit_push(&job->emit, text, len, n_top >= 0 ? &lp : NULL, &piece);
    push_piece(job, piece);
    job->outcome.n_made++;
    s->metrics->answer_tokens++;
    if (stop || job->outcome.n_made >= job->prompt->n_most || job->emit.failed) {
        end_job(s, job, stop ? "stop" : "length", !stop);
        return false;
    }
    *out = tok;
    return true;
}

/* What came of a token that was to be evaluated. */
static void note(struct lk_scheduler *s, struct lk_job *job, int32_t tok, const lk_err *err) {
    char text[512];
    if (err->code == LK_E_FULL) {
        end_job(s, job, "length", true);
    } else if (err->code != LK_OK) {
        fail_by(s, job, err);
    } else {
        size_t len = lk_token_text(s->opts->model, tok, text, sizeof text);
        lk_slot_extend(job->slot, tok, text, len < sizeof text ? len : sizeof text - 1);
    }
}

static void evaluate(struct lk_scheduler *s, struct step *step) {
    lk_batch_item item[LK_MAX_PARALLEL];
    for (size_t i = 0; i < step->n; i++)
        item[i] = (lk_batch_item){
            .session = step->job[i]->slot->session, .tok = &step->tok[i], .n_tok = 1};
    lk_batch_eval(s->batch, item, step->n, NULL); /* each item says what came of it */
    for (size_t i = 0; i < step->n; i++) note(s, step->job[i], step->tok[i], &item[i].err);
}

/* Take every answer that has room one token further. False where nothing could go on. */
static bool decode(struct lk_scheduler *s) {
    struct step step = {.n = 0};
    size_t before = s->n_active;
    for (size_t i = s->n_active; i-- > 0;) { /* from the end: jobs that end leave the list */
        struct lk_job *job = s->active[i];
        if (job->state == LK_JOB_DECODING && choose(s, job, &step.tok[step.n]))
            step.job[step.n++] = job;
    }
    if (step.n) {
        evaluate(s, &step);
        s->metrics->decode_steps++;
    }
    s->stepped = lk_now();
    look(s, s->n_active != before);
    return step.n > 0 || s->n_active != before;
}

/* ---- prompts ---- */

/* Between the portions of a prompt. False where its reading shall end. */
static bool between(void *user) {
    struct lk_scheduler *s = user;
    if (s->disk) lk_disk_tend(s->disk);
    if (lk_now() - s->stepped >= s->opts->slice_s && s->n_active > 1) decode(s);
    look(s, false);
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return !stopping;
}

/* Where the reused tokens came from, and how often that was which. */
static void note_source(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_outcome *o = &job->outcome;
    o->source = o->n_reused == 0 ? LK_FROM_NOTHING
                : job->stored[0] ? LK_FROM_STORE
                                 : LK_FROM_MEMORY;
    if (!s->disk || !s->opts->store_bytes || !job->call->ask.reuse) return;
    if (o->source == LK_FROM_STORE) s->metrics->store_hits++;
    if (o->source == LK_FROM_NOTHING) s->metrics->store_misses++;
}

static void end_reading(struct lk_scheduler *s, struct lk_job *job, const struct lk_fault *fault) {
    struct lk_serve_slot *slot = job->slot;
    bool empty = lk_session_n_tok(slot->session) == 0;
    if (!empty) lk_reading_keep(&s->slots, job);
    fail_job(s, job, fault);
    if (empty) lk_serve_slots_drop(&s->slots, slot);
}

static void read_prompt(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_reading reading = {.slots = &s->slots, .job = job, .between = between, .user = s};
    lk_err err = {0};
    lk_status status = lk_reading_run(&reading, &err);
    if (status != LK_OK) {
        struct lk_fault fault;
        if (reading.late)
            lk_fault_set(&fault, 503, "time_limit", NULL,
                         "the prompt was not read within %.0f seconds", s->opts->time_s);
        else if (status == LK_E_CANCELLED)
            set_stopping(&fault); /* or nobody listens, and it does not matter */
        else
            lk_fault_of_work(&fault, &err);
        end_reading(s, job, &fault);
        return;
    }
    lk_slot_set(job->slot, job);
    note_source(s, job);
    job->outcome.n_prompt = job->n_tok;
    job->state = LK_JOB_DECODING;
    s->metrics->prompt_tokens += job->n_tok;
    s->metrics->reused_tokens += job->outcome.n_reused;
    if (job->n_copied) s->metrics->copied_tokens += job->outcome.n_reused;
    lk_times_add(&s->metrics->prompt, job->outcome.prompt_s);
}

/* ---- admission ---- */

/* What the job reads, unless its slot has chosen already. */
static bool use_tokens(struct lk_job *job, const int32_t *tok, size_t n_tok) {
    if (job->tok) return true;
    job->tok = malloc(n_tok * sizeof *tok);
    if (!job->tok) return false;
    memcpy(job->tok, tok, n_tok * sizeof *tok);
    job->n_tok = n_tok;
    return true;
}

/* A job whose prompt was just read: answers to the same prompt begin with a copy of its cache. */
static struct lk_job *find_leader(const struct lk_scheduler *s, const struct lk_job *job) {
    for (size_t i = 0; i < s->n_active; i++) {
        struct lk_job *other = s->active[i];
        if (other->prompt == job->prompt && other->state == LK_JOB_DECODING &&
            other->slot->n_tok == other->n_tok)
            return other;
    }
    return NULL;
}

/* How to begin by what memory holds; nothing where the store has more of the prompt, which job->stored says then.
 * *later: the slot to begin with is being written to disk. */
static struct lk_start find_beginning(struct lk_scheduler *s, struct lk_job *job, bool *later) {
    const struct lk_prompt *p = job->prompt;
    struct lk_start start = lk_prefix_start(&s->slots, job);
    const struct lk_serve_slot *from = start.take ? start.take : start.copy;
    size_t n_reused = !from      ? 0
                      : job->tok ? from->n_tok
                                 : lk_session_reusable(from->session, p->tok, p->n_tok);
    *later = from && from->order.kind != LK_ORDER_NONE;
    if (*later || !s->disk || !lk_store_find(lk_disk_files(s->disk), job, n_reused, job->stored))
        return start;
    return (struct lk_start){0};
}

/* Find or make a session for the job. *later: there is no room now. */
static lk_status find_slot(struct lk_scheduler *s, struct lk_job *job, struct lk_serve_slot **out,
                           bool *later, lk_err *err) {
    free(job->tok); /* of an earlier try */
    job->tok = NULL;
    job->stored[0] = 0;
    struct lk_job *leader = find_leader(s, job);
    struct lk_start start = {.copy = leader ? leader->slot : NULL, .whole = true};
    if (!leader && job->call->ask.reuse) start = find_beginning(s, job, later);
    lk_status status = LK_OK;
    if (*later) return LK_OK;
    enum lk_room room = lk_prefix_make_room(&s->slots, &start, job->prompt->n_bytes);
    if (room == LK_ROOM_NOT && (start.take || start.copy) &&
        !leader) { /* perhaps what the slot itself holds is what lacks */
        start = (struct lk_start){0};
        room = lk_prefix_make_room(&s->slots, &start, job->prompt->n_bytes);
    }
    *later = room != LK_ROOM_NOW;
    if (*later) return LK_OK;
    struct lk_serve_slot *slot = start.take;
    job->n_keep = start.n_keep;
    job->n_copied = 0;
    if (!slot) {
        free(job->tok); /* chosen for another slot */
        job->tok = NULL;
        status = lk_serve_slots_add(&s->slots, job->call->ask.recipe, &slot, err);
        /* Where there is no memory for a copy there is none for the prompt either, which says so. */
        if (status == LK_OK && start.copy &&
            lk_slot_copy(slot, start.copy, start.whole, NULL) == LK_OK)
            job->n_copied = lk_session_n_tok(slot->session);
    }
    if (status == LK_OK && !use_tokens(job, leader ? leader->tok : job->prompt->tok,
                                       leader ? leader->n_tok : job->prompt->n_tok))
        status = lk_fail(err, LK_E_NOMEM, "no memory for a prompt");
    *out = slot;
    return status;
}

/* Begin the answer that waits longest, if there is room. */
static bool admit(struct lk_scheduler *s) {
    struct lk_serve_slot *slot = NULL;
    bool later = false;
    lk_err err = {0};
    pthread_mutex_lock(&s->lock);
    struct lk_job *job = s->n_active < s->opts->n_parallel ? s->waiting : NULL;
    pthread_mutex_unlock(&s->lock);
    if (!job) return false;
    lk_status status = find_slot(s, job, &slot, &later, &err);
    if (later) return false;
    pthread_mutex_lock(&s->lock);
    s->waiting = job->next;
    if (!s->waiting) s->last = &s->waiting;
    s->n_waiting--;
    pthread_mutex_unlock(&s->lock);
    s->active[s->n_active++] = job;
    job->begun = lk_now();
    job->outcome.wait_s = job->begun - job->asked;
    lk_times_add(&s->metrics->queue, job->outcome.wait_s);
    if (status != LK_OK) {
        fail_by(s, job, &err);
        return true;
    }
    job->slot = slot;
    slot->job = job;
    slot->need = job->prompt->n_bytes;
    slot->used = job->begun;
    slot->hidden = !job->call->ask.reuse;
    if (job->stored[0])
        lk_disk_fetch(s->disk, job);
    else
        read_prompt(s, job);
    return true;
}

/* Go on with a job whose session came from disk. */
static bool resume(struct lk_scheduler *s) {
    for (size_t i = 0; i < s->n_active; i++) {
        if (s->active[i]->state != LK_JOB_LOADED) continue;
        read_prompt(s, s->active[i]);
        return true;
    }
    return false;
}

/* Is the next one to be begun an answer to a prompt that was just read? Then the others wait a little more. */
static bool next_follows(struct lk_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const struct lk_job *job = s->n_active < s->opts->n_parallel ? s->waiting : NULL;
    pthread_mutex_unlock(&s->lock);
    return job && find_leader(s, job);
}

static void refuse(struct lk_scheduler *s, struct lk_job *job) {
    struct lk_fault fault;
    uint64_t taken =
                 lk_serve_slots_bytes(&s->slots, NULL) - lk_serve_slots_idle_bytes(&s->slots, NULL),
             most = s->opts->max_bytes;
    lk_fault_set(&fault, 503, "overloaded", NULL,
                 "this request would need %.1f MiB, %.1f are free; it waited %.0f seconds",
                 (double)job->prompt->n_bytes / (1 << 20),
                 (double)(taken < most ? most - taken : 0) / (1 << 20), s->opts->queue_s);
    fault.retry_s = 5;
    s->metrics->refused++;
    lk_call_fail(job->call, &fault);
}

/* Take those that nobody waits for, and those that at the moment `now` had waited too long, out of the queue. */
static void sweep(struct lk_scheduler *s, double now) {
    struct lk_job *dropped = NULL;
    pthread_mutex_lock(&s->lock);
    for (struct lk_job **at = &s->waiting; *at;) {
        struct lk_job *job = *at;
        if (!lk_call_is_over(job->call) && now - job->asked <= s->opts->queue_s) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        s->n_waiting--;
        job->next = dropped;
        dropped = job;
    }
    s->last = &s->waiting;
    while (*s->last) s->last = &(*s->last)->next;
    pthread_mutex_unlock(&s->lock);
    while (dropped) {
        struct lk_job *job = dropped;
        dropped = job->next;
        if (!lk_call_is_over(job->call)) refuse(s, job);
        lk_call_release(job->call);
    }
}

/* ---- the thread ---- */

static void fail_all(struct lk_scheduler *s) {
    struct lk_fault fault;
    set_stopping(&fault);
    if (s->disk) lk_disk_close(s->disk), lk_disk_drain(s->disk);
    while (s->n_active) fail_job(s, s->active[0], &fault);
    pthread_mutex_lock(&s->lock);
    for (struct lk_job *job = s->waiting; job; job = job->next) lk_call_fail(job->call, &fault);
    pthread_mutex_unlock(&s->lock);
    sweep(s, lk_now());
}

static void wait_for_work(struct lk_scheduler *s, double seconds) {
    struct timespec until;
    double end = lk_now() + seconds;
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)((end - floor(end)) * 1e9);
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

static void *run(void *user) {
    struct lk_scheduler *s = user;
    const double blocked_s = 0.01, idle_s = 0.5;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool stopping = s->stopping, ending = s->ending;
        pthread_mutex_unlock(&s->lock);
        if (stopping) fail_all(s);
        if (ending) break;
        double began = lk_now();
        bool worked = false;
        sweep(s, 0); /* nobody waited too long then */
        if (s->disk) lk_disk_tend(s->disk);
        while (resume(s) || admit(s)) {
            worked = true;
            if (lk_now() - s->stepped >= s->opts->slice_s && !next_follows(s)) decode(s);
        }
        sweep(s, began); /* what may not wait at all was tried; what came since will be */
        worked |= decode(s);
        if (worked) continue;
        look(s, true);
        pthread_mutex_lock(&s->lock);
        if (!s->woken && !s->ending)
            wait_for_work(s, s->n_active || s->waiting ? blocked_s : idle_s);
        s->woken = false;
        pthread_mutex_unlock(&s->lock);
    }
    lk_disk_stop(s->disk);
    return NULL;
}

static void wake(void *user) {
    struct lk_scheduler *s = user;
    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void look_now(void *user) { look(user, true); }

struct lk_disk *lk_scheduler_disk(struct lk_scheduler *s) {
    return s->disk;
}

bool lk_scheduler_submit(struct lk_scheduler *s, struct lk_call *call, struct lk_fault *fault) {
    bool good = true;
    size_t most = s->opts->n_queue;
    if (call->n_job > most) /* however long one waits */
        return lk_fault_set(fault, 400, "invalid_value", "n",
                            "the request asks for %zu answers; at most %zu can wait", call->n_job,
                            most);
    pthread_mutex_lock(&s->lock);
    if (s->stopping) {
        good = set_stopping(fault);
    } else if (s->n_waiting + call->n_job > most) {
        good = lk_fault_set(fault, 429, "queue_full", NULL,
                            "%zu answers wait already; at most %zu may", s->n_waiting, most);
        fault->retry_s = 2;
        s->metrics->refused++;
    } else {
        atomic_fetch_add(&call->refs, (int)call->n_job);
        for (size_t i = 0; i < call->n_job; i++) {
            call->job[i].asked = lk_now();
            *s->last = &call->job[i];
            s->last = &call->job[i].next;
        }
        s->n_waiting += call->n_job;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

size_t lk_scheduler_look(struct lk_scheduler *s, struct lk_slot_view *view, size_t most,
                         size_t *n_waiting) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_view < most ? s->n_view : most;
    memcpy(view, s->view, n * sizeof *view);
    *n_waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void init_locks(struct lk_scheduler *s) {
    pthread_condattr_t attr;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static void free_scheduler(struct lk_scheduler *s) {
    lk_serve_slots_free(&s->slots);
    lk_batch_free(s->batch);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

lk_status lk_scheduler_start(struct lk_scheduler **out, const struct lk_serve_opts *opts,
                             struct lk_metrics *metrics, lk_err *err) {
    struct lk_scheduler *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for the scheduler");
    s->opts = s->slots.opts = opts;
    s->metrics = metrics;
    s->last = &s->waiting;
    metrics->max_bytes = opts->max_bytes;
    init_locks(s);
    lk_status status = lk_batch_new(&s->batch, opts->model, err);
    if (status == LK_OK && opts->session_dir)
        status = lk_disk_start(&s->disk, opts, metrics, &s->slots,
                               &(struct lk_disk_user){wake, look_now, s}, err);
    s->slots.disk = s->disk;
    if (status == LK_OK && pthread_create(&s->thread, NULL, run, s))
        status = lk_fail(err, LK_E_NOMEM, "the system refuses a thread");
    if (status == LK_OK)
        *out = s;
    else
        lk_disk_stop(s->disk), free_scheduler(s);
    return status;
}

static void tell(struct lk_scheduler *s, bool ending) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    s->ending = ending;
    s->woken = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void lk_scheduler_close(struct lk_scheduler *s) { tell(s, false); }

void lk_scheduler_stop(struct lk_scheduler *s) {
    if (!s) return;
    tell(s, true);
    pthread_join(s->thread, NULL);
    free_scheduler(s);
}
