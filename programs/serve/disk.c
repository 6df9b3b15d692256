#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* setpriority of a thread */
#endif
#include "serve/disk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Slots, first come, first served. */
struct queue {
    struct lk_serve_slot *first, **last;
};

struct lk_disk {
    const struct lk_serve_opts *opts;
    struct lk_metrics *metrics;
    struct lk_store *store;
    struct lk_serve_slots *slots;
    struct lk_disk_user user;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    struct queue todo, done;
    struct lk_errand *errand; /* not begun */
    size_t n_away;
    bool closed, ending;
};

static void put(struct queue *q, struct lk_serve_slot *slot) {
    slot->order.next = NULL;
    *q->last = slot;
    q->last = &slot->order.next;
}

static struct lk_serve_slot *take(struct queue *q) {
    struct lk_serve_slot *slot = q->first;
    if (slot) q->first = slot->order.next;
    if (!q->first) q->last = &q->first;
    return slot;
}

/* ---- the thread ---- */

static uint64_t size_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static void carry_out(const struct lk_disk *disk, struct lk_serve_slot *slot) {
    struct lk_order *o = &slot->order;
    double began = lk_now();
    o->err = (lk_err){0};
    if (o->kind == LK_ORDER_STORE) {
        lk_store_save(disk->store, slot, &o->bytes, &o->err);
    } else if (o->kind == LK_ORDER_FETCH) {
        lk_store_load(disk->store, slot->session, slot->job->stored, &o->bytes, &o->err);
    } else {
        if (o->kind == LK_ORDER_SAVE)
            lk_session_save(slot->session, NULL, o->errand->path, &o->err);
        else
            lk_session_load(slot->session, NULL, o->errand->path, &o->err);
        o->bytes = size_of(o->errand->path);
    }
    o->seconds = lk_now() - began;
}

static void *run(void *user) {
    struct lk_disk *disk = user;
    const int modest = 10; /* computing comes first: a pass waits for the slowest of its threads */
    setpriority(PRIO_PROCESS, 0, modest);
    pthread_mutex_lock(&disk->lock);
    for (;;) {
        struct lk_serve_slot *slot = take(&disk->todo);
        if (!slot && disk->ending) break;
        if (!slot) {
            pthread_cond_wait(&disk->changed, &disk->lock);
            continue;
        }
        pthread_mutex_unlock(&disk->lock);
        carry_out(disk, slot);
        pthread_mutex_lock(&disk->lock);
        put(&disk->done, slot);
        pthread_cond_broadcast(&disk->changed);
        pthread_mutex_unlock(&disk->lock);
        disk->user.wake(disk->user.user);
        pthread_mutex_lock(&disk->lock);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static void send_away(struct lk_disk *disk, struct lk_serve_slot *slot, enum lk_order_kind kind,
                      struct lk_errand *errand) {
    slot->order = (struct lk_order){.kind = kind, .errand = errand};
    pthread_mutex_lock(&disk->lock);
    put(&disk->todo, slot);
    disk->n_away++;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
}

/* ---- what came of orders ---- */

static void end_errand(struct lk_disk *disk, struct lk_errand *e) {
    disk->user.look(disk->user.user);
    pthread_mutex_lock(&disk->lock);
    e->done = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
}

static struct lk_serve_slot *find_slot(const struct lk_disk *disk, int id) {
    for (size_t i = 0; i < disk->slots->n; i++)
        if (disk->slots->slot[i]->id == id) return disk->slots->slot[i];
    return NULL;
}

/* The reason without the folder's path, which is nobody's business. */
static const char *reason_of(const lk_err *err, const char *path) {
    static const char part[] = ".new"; /* of a file that is being written */
    const char *at = strstr(err->msg, path), *after = at ? at + strlen(path) : NULL;
    if (after && strncmp(after, part, sizeof part - 1) == 0) after += sizeof part - 1;
    return after && strncmp(after, ": ", 2) == 0 ? after + 2
           : at                                  ? lk_status_name(err->code)
                                                 : err->msg;
}

void lk_disk_blame(struct lk_fault *fault, const lk_err *err, const char *path) {
    lk_err shown = {.code = err->code};
    lk_fail(&shown, err->code, "%s", reason_of(err, path));
    lk_fault_of(fault, &shown, "filename");
}

/* The session takes the number that the client gave, and the place of what had it. */
static void put_in_place(struct lk_disk *disk, struct lk_serve_slot *slot, struct lk_errand *e) {
    struct lk_serve_slot *old = find_slot(disk, e->id);
    if (old == slot) old = NULL; /* the number it was made with */
    bool in_use = old && (old->job || old->order.kind != LK_ORDER_NONE);
    if (old && !in_use) lk_serve_slots_drop(disk->slots, old);
    if (in_use)
        e->id = slot->id;
    else
        slot->id = e->id;
    if (slot->id > disk->slots->last_id) disk->slots->last_id = slot->id;
    lk_serve_slots_loaded(disk->slots, slot, NULL);
}

static void settle_errand(struct lk_disk *disk, struct lk_serve_slot *slot) {
    struct lk_order *o = &slot->order;
    struct lk_errand *e = o->errand;
    bool restored = o->kind == LK_ORDER_RESTORE, good = o->err.code == LK_OK;
    o->kind = LK_ORDER_NONE;
    e->bytes = o->bytes;
    e->seconds = o->seconds;
    if (!good) lk_disk_blame(&e->fault, &o->err, e->path);
    if (!good && disk->opts->note) disk->opts->note(disk->opts->user, o->err.msg);
    if (good && restored) put_in_place(disk, slot, e);
    if (good)
        e->n_tok = slot->n_tok;
    else if (restored)
        lk_serve_slots_drop(disk->slots, slot);
    end_errand(disk, e);
}

static void measure(struct lk_disk *disk, const struct lk_order *o) {
    struct lk_metrics *m = disk->metrics;
    bool load = o->kind == LK_ORDER_FETCH || o->kind == LK_ORDER_RESTORE;
    if (o->err.code != LK_OK) {
        m->disk_failures++;
    } else if (load) {
        m->loads++;
        m->loaded_bytes += o->bytes;
        lk_times_add(&m->load, o->seconds);
    } else if (o->bytes) {
        m->saves++;
        m->saved_bytes += o->bytes;
        lk_times_add(&m->save, o->seconds);
    }
}

static void settle(struct lk_disk *disk, struct lk_serve_slot *slot) {
    enum lk_order_kind kind = slot->order.kind;
    measure(disk, &slot->order);
    if (slot->order.errand) {
        settle_errand(disk, slot);
        return;
    }
    slot->order.kind = LK_ORDER_NONE;
    if (kind == LK_ORDER_FETCH) {
        slot->job->state = LK_JOB_LOADED;
        if (slot->order.err.code != LK_OK) return;
        memcpy(slot->origin, slot->job->stored, sizeof slot->origin);
        lk_serve_slots_loaded(disk->slots, slot, slot->job);
    } else if (slot->leaving) {
        lk_serve_slots_drop(disk->slots, slot);
    }
}

/* ---- errands ---- */

/* Room for a session to be restored. False: not yet. */
static bool find_room(struct lk_disk *disk, struct lk_errand *e) {
    uint64_t taken = lk_serve_slots_bytes(disk->slots, NULL) -
                     lk_serve_slots_idle_bytes(disk->slots, NULL),
             most = disk->opts->max_bytes;
    if (taken + e->need <= most)
        return lk_serve_slots_make_room(disk->slots, NULL, e->need) == LK_ROOM_NOW;
    lk_fault_set(&e->fault, 503, "overloaded", NULL,
                 "this session needs %.1f MiB, and %.1f are free", (double)e->need / (1 << 20),
                 (double)(taken < most ? most - taken : 0) / (1 << 20));
    e->fault.retry_s = 5;
    return true;
}

/* False: not yet. */
static bool begin_restore(struct lk_disk *disk, struct lk_errand *e) {
    struct lk_serve_slot *slot = NULL;
    lk_err err = {0};
    if (!find_room(disk, e)) return false;
    if (e->fault.status) return true;
    if (lk_serve_slots_add(disk->slots, e->recipe, &slot, &err) != LK_OK) {
        lk_fault_of(&e->fault, &err, NULL);
        return true;
    }
    slot->need = e->need;
    slot->used = lk_now();
    e->begun = true;
    send_away(disk, slot, LK_ORDER_RESTORE, e);
    return true;
}

/* Begin what the client wants, or find out that it cannot be. False: not yet. */
static bool begin_errand(struct lk_disk *disk, struct lk_errand *e) {
    struct lk_serve_slot *slot = find_slot(disk, e->id);
    if (slot && slot->order.kind != LK_ORDER_NONE) return false;
    if (slot && slot->job) {
        lk_fault_set(&e->fault, 409, "slot_busy", NULL,
                     "the session %d is being used; ask again when its answer is done", e->id);
        e->fault.retry_s = 1;
        return true;
    }
    if (e->kind == LK_ERRAND_RESTORE) return begin_restore(disk, e);
    if (!slot || slot->n_tok == 0) {
        lk_fault_set(&e->fault, 404, "slot_not_found", NULL,
                     "there is no session %d; GET /slots tells which there are", e->id);
    } else if (e->kind == LK_ERRAND_ERASE) {
        e->n_tok = slot->n_tok;
        lk_store_remove(disk->store, slot->recipe, slot->tok, slot->n_tok);
        lk_serve_slots_drop(disk->slots, slot);
    } else {
        e->begun = true;
        send_away(disk, slot, LK_ORDER_SAVE, e);
    }
    return true;
}

static struct lk_errand *next_errand(struct lk_disk *disk, bool *closed) {
    pthread_mutex_lock(&disk->lock);
    struct lk_errand *e = disk->errand;
    *closed = disk->closed;
    pthread_mutex_unlock(&disk->lock);
    return e;
}

static bool set_stopping(struct lk_fault *fault) {
    return lk_fault_set(fault, 503, "stopping", NULL, "the server is stopping");
}

static void begin_errands(struct lk_disk *disk) {
    bool closed;
    for (struct lk_errand *e; (e = next_errand(disk, &closed));) {
        if (closed)
            set_stopping(&e->fault);
        else if (!begin_errand(disk, e))
            return;
        pthread_mutex_lock(&disk->lock);
        disk->errand = e->next;
        pthread_mutex_unlock(&disk->lock);
        if (!e->begun) end_errand(disk, e);
    }
}

bool lk_disk_run(struct lk_disk *disk, struct lk_errand *errand, struct lk_fault *fault) {
    pthread_mutex_lock(&disk->lock);
    if (disk->closed) {
        pthread_mutex_unlock(&disk->lock);
        return set_stopping(fault);
    }
    struct lk_errand **last = &disk->errand;
    while (*last) last = &(*last)->next;
    *last = errand;
    pthread_mutex_unlock(&disk->lock);
    disk->user.wake(disk->user.user);
    pthread_mutex_lock(&disk->lock);
    while (!errand->done) pthread_cond_wait(&disk->changed, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
    if (errand->fault.status) *fault = errand->fault;
    return errand->fault.status == 0;
}

/* ---- for the scheduler ---- */

void lk_disk_tend(struct lk_disk *disk) {
    for (;;) {
        pthread_mutex_lock(&disk->lock);
        struct lk_serve_slot *slot = take(&disk->done);
        if (slot) disk->n_away--;
        pthread_mutex_unlock(&disk->lock);
        if (!slot) break;
        settle(disk, slot);
    }
    begin_errands(disk);
}

void lk_disk_drain(struct lk_disk *disk) {
    for (bool away = true; away;) {
        pthread_mutex_lock(&disk->lock);
        while (disk->n_away && !disk->done.first) pthread_cond_wait(&disk->changed, &disk->lock);
        pthread_mutex_unlock(&disk->lock);
        lk_disk_tend(disk);
        pthread_mutex_lock(&disk->lock);
        away = disk->n_away > 0;
        pthread_mutex_unlock(&disk->lock);
    }
}

struct lk_store *lk_disk_files(struct lk_disk *disk) {
    return disk->store;
}

bool lk_disk_store(struct lk_disk *disk, struct lk_serve_slot *slot) {
    if (slot->hidden || !lk_store_wants(disk->store, slot->recipe, slot->tok, slot->n_tok))
        return false;
    send_away(disk, slot, LK_ORDER_STORE, NULL);
    return true;
}

void lk_disk_fetch(struct lk_disk *disk, struct lk_job *job) {
    job->state = LK_JOB_LOADING;
    send_away(disk, job->slot, LK_ORDER_FETCH, NULL);
}

lk_status lk_disk_start(struct lk_disk **out, const struct lk_serve_opts *opts,
                        struct lk_metrics *metrics, struct lk_serve_slots *slots,
                        const struct lk_disk_user *user, lk_err *err) {
    struct lk_disk *disk = calloc(1, sizeof *disk);
    if (!disk) return lk_fail(err, LK_E_NOMEM, "no memory for the thread of the disk");
    *disk = (struct lk_disk){.opts = opts, .metrics = metrics, .slots = slots, .user = *user};
    disk->todo.last = &disk->todo.first;
    disk->done.last = &disk->done.first;
    lk_status status = lk_store_open(&disk->store, opts, metrics, err);
    if (status != LK_OK) {
        free(disk);
        return status;
    }
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->changed, NULL);
    if (pthread_create(&disk->thread, NULL, run, disk)) {
        pthread_cond_destroy(&disk->changed);
        pthread_mutex_destroy(&disk->lock);
        lk_store_close(disk->store);
        free(disk);
        return lk_fail(err, LK_E_NOMEM, "the system refuses a thread");
    }
    *out = disk;
    return LK_OK;
}

void lk_disk_close(struct lk_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->closed = true;
    pthread_mutex_unlock(&disk->lock);
    lk_disk_tend(disk);
}

static int by_use(const void *a, const void *b) {
    double x = (*(struct lk_serve_slot *const *)a)->used,
           y = (*(struct lk_serve_slot *const *)b)->used;
    return (x > y) - (x < y);
}

void lk_disk_stop(struct lk_disk *disk) {
    if (!disk) return;
    lk_disk_close(disk);
    lk_disk_drain(disk);
    qsort(disk->slots->slot, disk->slots->n, sizeof disk->slots->slot[0],
          by_use); /* what was used last is written last, and stays */
    for (size_t i = 0; i < disk->slots->n; i++) lk_disk_store(disk, disk->slots->slot[i]);
    lk_disk_drain(disk);
    pthread_mutex_lock(&disk->lock);
    disk->ending = true;
    pthread_cond_broadcast(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    pthread_join(disk->thread, NULL);
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->lock);
    lk_store_close(disk->store);
    free(disk);
}
