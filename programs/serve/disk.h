/* The disk thread: loads and saves sessions while answers continue to be decoded. It works on one
 * file at a time. Work and results pass through the scheduler's thread; all functions here belong
 * to that thread, except for lk_disk_run_job and lk_disk_get_store.
 *
 *   idle slot --evict--> disk thread writes it --lk_disk_poll--> freed
 *   slot of a job --lk_disk_load_slot--> disk thread loads it --lk_disk_poll--> job is LOADED
 *   client --lk_disk_run_job--> job --lk_disk_poll--> disk thread --lk_disk_poll--> client
 */
#ifndef LK_SERVE_DISK_H
#define LK_SERVE_DISK_H

#include "serve/slots.h"
#include "serve/store.h"

enum lk_disk_job_kind { LK_DISK_JOB_SAVE, LK_DISK_JOB_RESTORE, LK_DISK_JOB_ERASE };

/* A client's request to save, restore or erase a session. The client's thread waits for it. */
struct lk_disk_job {
    struct lk_disk_job *next;
    enum lk_disk_job_kind kind;
    int id;           /* of the slot; for RESTORE the id that it will get */
    const char *path; /* of the file */
    size_t recipe;    /* RESTORE: recipe of the file, and bytes to reserve */
    uint64_t need;
    bool started, done;
    struct lk_api_error error; /* result; status 0: success */
    size_t n_tok;
    uint64_t bytes;
    double seconds;
};

struct lk_disk;

struct lk_disk_callbacks {
    void (*wake)(void *user);            /* from other threads: lk_disk_poll has work to do */
    void (*update_snapshot)(void *user); /* slots changed, and a client is about to be notified */
    void *user;
};

/* Open the store, start the thread, and set slots->store_evicted. `slots`, `opts` and `metrics` are
 * borrowed. The caller owns *out and ends it with lk_disk_stop. Errors as for lk_store_open;
 * LK_E_NOMEM. */
lk_status lk_disk_start(struct lk_disk **out, const struct lk_server_opts *opts,
                        struct lk_metrics *metrics, struct lk_slots *slots,
                        const struct lk_disk_callbacks *callbacks, lk_err *err);

struct lk_store *lk_disk_get_store(struct lk_disk *disk);

/* Convert an error about the file at `path` for the client: the reason, without the path. */
void lk_disk_set_error(struct lk_api_error *error, const lk_err *err, const char *path);

/* Process what the thread has finished, and start the jobs of clients. */
void lk_disk_poll(struct lk_disk *disk);

/* Wait until the thread has no work, and process its results. */
void lk_disk_drain(struct lk_disk *disk);

/* Load job->stored into the job's slot, whose session is empty. Afterwards the job's state is
 * LK_JOB_LOADED, whether that succeeded or not. */
void lk_disk_load_slot(struct lk_disk *disk, struct lk_job *job);

/* From a thread other than the scheduler's: run a job and wait for it. False: see `error`. */
bool lk_disk_run_job(struct lk_disk *disk, struct lk_disk_job *job, struct lk_api_error *error);

/* Refuse jobs of clients from now on, waiting ones included. */
void lk_disk_close(struct lk_disk *disk);

/* Refuse jobs of clients, store all idle sessions, and wait for that. */
void lk_disk_store_all(struct lk_disk *disk);

/* What lk_disk_store_all did. */
const struct lk_stored *lk_disk_get_stored(const struct lk_disk *disk);

/* End the thread, and free everything. Nothing is stored. NULL is allowed. */
void lk_disk_stop(struct lk_disk *disk);

#endif
