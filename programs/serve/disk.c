/* The disk thread, and the hand-over of slots between it and the scheduler. */
#include "serve/disk.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A queue of slots, linked by slot->command.next. */
struct slot_queue {
    struct lk_slot *first, **last;
};

struct lk_disk {
    const struct lk_server_opts *opts;
    struct lk_metrics *metrics;
    struct lk_store *store;
    struct lk_slots *slots;
    struct lk_disk_callbacks callbacks;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    struct slot_queue todo, done;
    struct lk_disk_job *waiting; /* jobs of clients that were not started yet */
    size_t n_busy;               /* slots in `todo`, in `done`, or in the thread */
    bool closed, ending;
    struct lk_stored stored; /* by lk_disk_store_all; used only by the scheduler's thread */
};

static void push_slot(struct slot_queue *q, struct lk_slot *slot) {
    slot->command.next = NULL;
    *q->last = slot;
    q->last = &slot->command.next;
}

static struct lk_slot *pop_slot(struct slot_queue *q) {
    struct lk_slot *slot = q->first;
    if (slot) q->first = slot->command.next;
    if (!q->first) q->last = &q->first;
    return slot;
}

/* ---- the thread ---- */

static void run_command(const struct lk_disk *disk, struct lk_slot *slot) {
    struct lk_slot_command *c = &slot->command;
    double start = lk_now();
    c->err = (lk_err){0};
    if (c->kind == LK_SLOT_CMD_STORE) {
        lk_store_save(disk->store, slot, &c->bytes, &c->err);
    } else if (c->kind == LK_SLOT_CMD_FETCH) {
        lk_store_load(disk->store, slot->session, slot->job->stored, &c->bytes, &c->err);
    } else {
        const char *path = c->disk_job->path;
        struct stat info;
        if (c->kind == LK_SLOT_CMD_SAVE)
            lk_session_save(slot->session, NULL, path, &c->err);
        else
            lk_session_load(slot->session, NULL, path, &c->err);
        c->bytes = stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
    }
    c->seconds = lk_now() - start;
}

static void *run_thread(void *user) {
    struct lk_disk *disk = user;
    /* Low priority: a forward pass waits for the slowest of its threads. But several ranks wait for
     * this thread while it saves or loads. */
    const int nice_value = 10;
    if (disk->opts->n_rank == 1) lk_os_lower_priority(nice_value);
    pthread_mutex_lock(&disk->lock);
    for (;;) {
        struct lk_slot *slot = pop_slot(&disk->todo);
        if (!slot && disk->ending) break;
        if (!slot) {
            pthread_cond_wait(&disk->changed, &disk->lock);
            continue;
        }
        pthread_mutex_unlock(&disk->lock);
        run_command(disk, slot);
        pthread_mutex_lock(&disk->lock);
        push_slot(&disk->done, slot);
        pthread_cond_broadcast(&disk->changed);
        pthread_mutex_unlock(&disk->lock);
        disk->callbacks.wake(disk->callbacks.user);
        pthread_mutex_lock(&disk->lock);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static void submit_command(struct lk_disk *disk, struct lk_slot *slot,
                           enum lk_slot_command_kind kind, struct lk_disk_job *job) {
    slot->command = (struct lk_slot_command){.kind = kind, .disk_job = job};
    pthread_mutex_lock(&disk->lock);
    push_slot(&disk->todo, slot);
    disk->n_busy++;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
}

/* A prefill that was cut short is in one process, and in RAM. */
static bool can_store(const struct lk_disk *disk, const struct lk_slot *slot) {
    return !slot->is_partial || disk->opts->n_rank == 1;
}

/* Start to write an idle session to the store. False if it should not be stored. */
static bool store_slot(void *user, struct lk_slot *slot) {
    struct lk_disk *disk = user;
    if (slot->is_private || !can_store(disk, slot) || !lk_store_should_save(disk->store, slot))
        return false;
    submit_command(disk, slot, LK_SLOT_CMD_STORE, NULL);
    return true;
}

/* ---- results ---- */

static void finish_job(struct lk_disk *disk, struct lk_disk_job *job) {
    disk->callbacks.update_snapshot(disk->callbacks.user);
    pthread_mutex_lock(&disk->lock);
    job->done = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
}

static struct lk_slot *find_slot_id(const struct lk_disk *disk, int id) {
    for (size_t i = 0; i < disk->slots->n; i++)
        if (disk->slots->slot[i]->id == id) return disk->slots->slot[i];
    return NULL;
}

void lk_disk_set_error(struct lk_api_error *error, const lk_err *err, const char *path) {
    static const char suffix[] = ".new"; /* of a file while it is written */
    const char *at = strstr(err->msg, path), *reason = err->msg;
    lk_err shown = {.code = err->code};
    if (at) { /* "cannot read PATH: reason" */
        const char *after = at + strlen(path);
        if (strncmp(after, suffix, sizeof suffix - 1) == 0) after += sizeof suffix - 1;
        reason = strncmp(after, ": ", 2) == 0 ? after + 2 : lk_status_name(err->code);
    }
    lk_fail(&shown, err->code, "%s", reason);
    lk_api_error_from_request(error, &shown, "filename");
}

/* Give a restored session the id that the client chose, and remove the slot that had it. If that
 * slot is in use, the session keeps its own id. */
static void assign_restored_id(struct lk_disk *disk, struct lk_slot *slot,
                               struct lk_disk_job *job) {
    struct lk_slot *old = find_slot_id(disk, job->id);
    if (old == slot) old = NULL; /* it was created with this id */
    bool in_use = old && (old->job || old->command.kind != LK_SLOT_CMD_NONE);
    if (old && !in_use) lk_slots_remove(disk->slots, old);
    if (in_use)
        job->id = slot->id;
    else
        slot->id = job->id;
    lk_slots_after_load(disk->slots, slot, NULL);
}

static void finish_client_command(struct lk_disk *disk, struct lk_slot *slot) {
    struct lk_slot_command *c = &slot->command;
    struct lk_disk_job *job = c->disk_job;
    bool restore = c->kind == LK_SLOT_CMD_RESTORE, good = !c->err.code;
    c->kind = LK_SLOT_CMD_NONE;
    job->bytes = c->bytes;
    job->seconds = c->seconds;
    if (!good) lk_disk_set_error(&job->error, &c->err, job->path);
    if (!good && disk->opts->note) disk->opts->note(disk->opts->user, c->err.msg);
    if (good && restore) assign_restored_id(disk, slot, job);
    if (good)
        job->n_tok = slot->n_tok;
    else if (restore)
        lk_slots_remove(disk->slots, slot);
    finish_job(disk, job);
}

static void count_command(struct lk_disk *disk, const struct lk_slot_command *c) {
    struct lk_metrics *m = disk->metrics;
    bool load = c->kind == LK_SLOT_CMD_FETCH || c->kind == LK_SLOT_CMD_RESTORE;
    if (c->err.code) {
        m->disk_failures++;
    } else if (load) {
        m->loads++;
        m->loaded_bytes += c->bytes;
        lk_histogram_add(&m->load, c->seconds);
    } else if (c->bytes) {
        m->saves++;
        m->saved_bytes += c->bytes;
        lk_histogram_add(&m->save, c->seconds);
    }
}

static void finish_command(struct lk_disk *disk, struct lk_slot *slot) {
    enum lk_slot_command_kind kind = slot->command.kind;
    count_command(disk, &slot->command);
    if (slot->command.disk_job) {
        finish_client_command(disk, slot);
        return;
    }
    slot->command.kind = LK_SLOT_CMD_NONE;
    if (kind == LK_SLOT_CMD_FETCH) {
        slot->job->state = LK_JOB_LOADED;
        if (slot->command.err.code) return;
        memcpy(slot->stored, slot->job->stored, sizeof slot->stored);
        lk_slots_after_load(disk->slots, slot, slot->job);
    } else if (slot->evicting) {
        lk_slots_remove(disk->slots, slot);
    }
}

/* ---- jobs of clients ---- */

/* Start to restore a file. Returns false if that must wait for memory; otherwise the job was
 * started, or has failed. */
static bool start_restore(struct lk_disk *disk, struct lk_disk_job *job) {
    struct lk_slot *slot = NULL;
    lk_err err = {0};
    uint64_t busy = lk_slots_busy_bytes(disk->slots), max = disk->opts->max_bytes;
    if (busy + job->need > max) {
        lk_api_error_set(&job->error, 503, "overloaded", NULL,
                         "this session needs %.1f MiB, but only %.1f MiB are free",
                         (double)job->need / (1 << 20),
                         (double)(busy < max ? max - busy : 0) / (1 << 20));
        job->error.retry_s = 5;
        return true;
    }
    if (lk_slots_make_room(disk->slots, NULL, job->need) != LK_ROOM_NOW) return false;
    if (lk_slots_add(disk->slots, job->recipe, &slot, &err)) {
        lk_api_error_from_request(&job->error, &err, NULL);
        return true;
    }
    slot->reserved = job->need;
    slot->last_used = lk_now();
    job->started = true;
    submit_command(disk, slot, LK_SLOT_CMD_RESTORE, job);
    return true;
}

/* Returns false if the job must wait; otherwise it was started, is complete, or has failed. */
static bool start_job(struct lk_disk *disk, struct lk_disk_job *job) {
    struct lk_slot *slot = find_slot_id(disk, job->id);
    if (slot && slot->command.kind != LK_SLOT_CMD_NONE) return false;
    if (slot && slot->job) {
        lk_api_error_set(&job->error, 409, "slot_busy", NULL,
                         "session %d is busy; retry when its answer is complete", job->id);
        job->error.retry_s = 1;
        return true;
    }
    if (job->kind == LK_DISK_JOB_RESTORE) return start_restore(disk, job);
    if (!slot || slot->n_tok == 0) {
        lk_api_error_set(&job->error, 404, "slot_not_found", NULL,
                         "session %d not found; GET /slots lists the sessions", job->id);
    } else if (job->kind == LK_DISK_JOB_ERASE) {
        job->n_tok = slot->n_tok;
        lk_store_remove(disk->store, slot->recipe, slot->tok, slot->n_tok);
        lk_slots_remove(disk->slots, slot);
    } else {
        job->started = true;
        submit_command(disk, slot, LK_SLOT_CMD_SAVE, job);
    }
    return true;
}

static void start_jobs(struct lk_disk *disk) {
    for (;;) {
        pthread_mutex_lock(&disk->lock);
        struct lk_disk_job *job = disk->waiting;
        bool closed = disk->closed;
        pthread_mutex_unlock(&disk->lock);
        if (!job) return;
        if (closed)
            lk_api_error_set_stopping(&job->error);
        else if (!start_job(disk, job))
            return;
        pthread_mutex_lock(&disk->lock);
        disk->waiting = job->next;
        pthread_mutex_unlock(&disk->lock);
        if (!job->started) finish_job(disk, job);
    }
}

bool lk_disk_run_job(struct lk_disk *disk, struct lk_disk_job *job, struct lk_api_error *error) {
    pthread_mutex_lock(&disk->lock);
    if (disk->closed) {
        pthread_mutex_unlock(&disk->lock);
        return lk_api_error_set_stopping(error);
    }
    struct lk_disk_job **last = &disk->waiting;
    while (*last) last = &(*last)->next;
    *last = job;
    pthread_mutex_unlock(&disk->lock);
    disk->callbacks.wake(disk->callbacks.user);
    pthread_mutex_lock(&disk->lock);
    while (!job->done) pthread_cond_wait(&disk->changed, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
    if (job->error.status) *error = job->error;
    return job->error.status == 0;
}

/* ---- for the scheduler ---- */

void lk_disk_poll(struct lk_disk *disk) {
    for (;;) {
        pthread_mutex_lock(&disk->lock);
        struct lk_slot *slot = pop_slot(&disk->done);
        if (slot) disk->n_busy--;
        pthread_mutex_unlock(&disk->lock);
        if (!slot) break;
        finish_command(disk, slot);
    }
    start_jobs(disk);
}

void lk_disk_drain(struct lk_disk *disk) {
    for (bool busy = true; busy;) {
        pthread_mutex_lock(&disk->lock);
        while (disk->n_busy && !disk->done.first) pthread_cond_wait(&disk->changed, &disk->lock);
        pthread_mutex_unlock(&disk->lock);
        lk_disk_poll(disk);
        pthread_mutex_lock(&disk->lock);
        busy = disk->n_busy > 0;
        pthread_mutex_unlock(&disk->lock);
    }
}

struct lk_store *lk_disk_get_store(struct lk_disk *disk) {
    return disk->store;
}

void lk_disk_load_slot(struct lk_disk *disk, struct lk_job *job) {
    job->state = LK_JOB_LOADING;
    submit_command(disk, job->slot, LK_SLOT_CMD_FETCH, NULL);
}

/* ---- start and stop ---- */

static void free_disk(struct lk_disk *disk) {
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->lock);
    lk_store_close(disk->store);
    free(disk);
}

lk_status lk_disk_start(struct lk_disk **out, const struct lk_server_opts *opts,
                        struct lk_metrics *metrics, struct lk_slots *slots,
                        const struct lk_disk_callbacks *callbacks, lk_err *err) {
    struct lk_disk *disk = calloc(1, sizeof *disk);
    if (!disk) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the disk thread");
    *disk =
        (struct lk_disk){.opts = opts, .metrics = metrics, .slots = slots, .callbacks = *callbacks};
    disk->todo.last = &disk->todo.first;
    disk->done.last = &disk->done.first;
    lk_status status = lk_store_open(&disk->store, opts, metrics, err);
    if (status) {
        free(disk);
        return status;
    }
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->changed, NULL);
    if (pthread_create(&disk->thread, NULL, run_thread, disk)) {
        free_disk(disk);
        return lk_fail(err, LK_E_NOMEM, "cannot start the disk thread: thread creation failed");
    }
    slots->store_evicted = store_slot;
    slots->store_user = disk;
    *out = disk;
    return LK_OK;
}

void lk_disk_close(struct lk_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->closed = true;
    pthread_mutex_unlock(&disk->lock);
    lk_disk_poll(disk);
}

static int compare_last_used(const void *a, const void *b) {
    double x = (*(struct lk_slot *const *)a)->last_used,
           y = (*(struct lk_slot *const *)b)->last_used;
    return (x > y) - (x < y);
}

/* Count the result of storing a session. A session that the store can never hold, because it
 * exceeds the limit, is not lost. */
static void count_stored(struct lk_stored *stored, const lk_err *err) {
    if (!err->code) {
        stored->n_stored++;
    } else if (err->code != LK_E_FULL) {
        stored->n_lost++;
        stored->why = *err;
    }
}

static void note_dropped(const struct lk_disk *disk, const struct lk_slot *slot) {
    char line[128];
    snprintf(line, sizeof line,
             "a prefill of %zu tokens that was cut short is dropped: several ranks store only "
             "complete ones",
             slot->n_tok);
    if (disk->opts->note) disk->opts->note(disk->opts->user, line);
}

void lk_disk_store_all(struct lk_disk *disk) {
    lk_disk_close(disk);
    lk_disk_drain(disk);
    /* Write the most recently used session last: if the limit is exceeded, it stays. */
    qsort(disk->slots->slot, disk->slots->n, sizeof disk->slots->slot[0], compare_last_used);
    for (size_t i = 0; i < disk->slots->n; i++) {
        struct lk_slot *slot = disk->slots->slot[i];
        if (!can_store(disk, slot)) note_dropped(disk, slot);
        if (!store_slot(disk, slot)) continue;
        lk_disk_drain(disk);
        count_stored(&disk->stored, &slot->command.err);
    }
}

const struct lk_stored *lk_disk_get_stored(const struct lk_disk *disk) { return &disk->stored; }

void lk_disk_stop(struct lk_disk *disk) {
    if (!disk) return;
    pthread_mutex_lock(&disk->lock);
    disk->ending = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    pthread_join(disk->thread, NULL);
    disk->slots->store_evicted = NULL;
    free_disk(disk);
}
