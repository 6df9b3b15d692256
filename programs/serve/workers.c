/* The worker pool: a queue of tasks, and threads with a large stack and a low priority. */
#include "serve/workers.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_WORKERS = 16, STACK_BYTES = 8 << 20 }; /* tokenizers recurse deeply */

/* A task lives on the stack of the thread that waits for it. */
struct task {
    struct task *next;
    void (*fn)(void *arg);
    void *arg;
    bool large;
    enum { QUEUED, RUNNING, DONE } state;
    pthread_cond_t changed;
};

struct lk_workers {
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t added;
    struct task *first, **last;
    bool closed, ending;
    size_t n, n_started;
    pthread_t thread[MAX_WORKERS];
};

/* The first task, or the first small one; NULL if there is none. */
static struct task *pop_task(struct lk_workers *w, bool only_small) {
    struct task **at = &w->first, *task;
    while (*at && only_small && (*at)->large) at = &(*at)->next;
    task = *at;
    if (task) *at = task->next;
    if (!*at) w->last = at;
    return task;
}

static void *run_thread(void *user) {
    struct lk_workers *w = user;
    /* Lower than the model's threads: a forward pass waits for the slowest of them. */
    const int nice_value = 5;
    lk_os_lower_priority(nice_value);
    pthread_mutex_lock(&w->lock);
    /* Large tasks never take all threads. */
    bool only_small = w->n_started++ == 0 && w->n > 1;
    while (!w->ending) {
        struct task *task = pop_task(w, only_small);
        if (!task) {
            pthread_cond_wait(&w->added, &w->lock);
            continue;
        }
        task->state = RUNNING;
        pthread_mutex_unlock(&w->lock);
        task->fn(task->arg);
        pthread_mutex_lock(&w->lock);
        task->state = DONE;
        pthread_cond_signal(&task->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

lk_status lk_workers_start(struct lk_workers **out, size_t n, lk_err *err) {
    struct lk_workers *w = calloc(1, sizeof *w);
    pthread_attr_t attr;
    if (!w) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the workers");
    pthread_mutex_init(&w->lock, NULL);
    lk_os_cond_init(&w->added);
    w->last = &w->first;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_mutex_lock(&w->lock); /* threads see the final number */
    while (w->n < n && w->n < MAX_WORKERS &&
           pthread_create(&w->thread[w->n], &attr, run_thread, w) == 0)
        w->n++;
    pthread_mutex_unlock(&w->lock);
    pthread_attr_destroy(&attr);
    if (w->n == 0) {
        lk_workers_stop(w);
        return lk_fail(err, LK_E_NOMEM, "cannot start the workers: thread creation failed");
    }
    *out = w;
    return LK_OK;
}

/* The lock is held and the task is queued. */
static void remove_task(struct lk_workers *w, const struct task *task) {
    struct task **at = &w->first;
    while (*at != task) at = &(*at)->next;
    *at = task->next;
    if (!*at) w->last = at;
}

bool lk_workers_run(struct lk_workers *w, bool large, void (*fn)(void *arg), void *arg,
                    bool (*keep_waiting)(void *user), void *user) {
    const double check_s = 0.25;
    struct task task = {.fn = fn, .arg = arg, .large = large};
    lk_os_cond_init(&task.changed);
    pthread_mutex_lock(&w->lock);
    bool dropped = w->closed;
    if (!dropped) {
        *w->last = &task;
        w->last = &task.next;
        pthread_cond_broadcast(&w->added);
    }
    while (!dropped && task.state != DONE) {
        lk_os_wait_until(&task.changed, &w->lock, lk_now() + check_s);
        if (task.state != QUEUED) continue;
        bool go_on = !w->closed;
        if (go_on) {
            pthread_mutex_unlock(&w->lock);
            go_on = keep_waiting(user);
            pthread_mutex_lock(&w->lock);
        }
        dropped = !go_on && task.state == QUEUED;
        if (dropped) remove_task(w, &task);
    }
    pthread_mutex_unlock(&w->lock);
    pthread_cond_destroy(&task.changed);
    return !dropped;
}

void lk_workers_close(struct lk_workers *w) {
    pthread_mutex_lock(&w->lock);
    w->closed = true;
    for (struct task *task = w->first; task; task = task->next) pthread_cond_signal(&task->changed);
    pthread_mutex_unlock(&w->lock);
}

void lk_workers_stop(struct lk_workers *w) {
    if (!w) return;
    lk_workers_close(w);
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->added);
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < w->n; i++) pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->added);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
