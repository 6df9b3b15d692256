/* Sessions on their way to disk and back. A thread of its own reads and writes the files, one after the other,
 * so that answers under way go on meanwhile; what there is to do and what came of it passes through the
 * scheduler's thread, to which all functions here belong but for lk_disk_run.
 *
 *   slot idle --lk_disk_store--> away --lk_disk_tend--> freed (it had to leave) or idle again
 *   slot of a job --lk_disk_fetch--> away --lk_disk_tend--> job loaded
 *   client --lk_disk_run--> errand --lk_disk_tend--> slot away --lk_disk_tend--> client goes on
 */
#ifndef LK_SERVE_DISK_H
#define LK_SERVE_DISK_H

#include "serve/slots.h"
#include "serve/store.h"

enum lk_errand_kind { LK_ERRAND_SAVE, LK_ERRAND_RESTORE, LK_ERRAND_ERASE };

/* What a client wants done with a session. */
struct lk_errand {
    struct lk_errand *next;
    enum lk_errand_kind kind;
    int id;           /* of the slot; for restoring the one it will be */
    const char *path; /* of the file */
    size_t recipe;    /* restoring: of the server's; and the bytes to set aside */
    uint64_t need;
    bool begun, done;
    struct lk_fault fault; /* status 0: it was done */
    size_t n_tok;
    uint64_t bytes;
    double seconds;
};

struct lk_disk;

/* Whom the disk serves. */
struct lk_disk_user {
    void (*wake)(void *user); /* lk_disk_tend has something to do; from other threads */
    void (*look)(void *user); /* slots have changed, and a client is about to be told */
    void *user;
};

/* `slots` and what `opts` and `metrics` point at are borrowed. *out is owned: lk_disk_stop. Errors as
 * lk_store_open; LK_E_NOMEM. */
lk_status lk_disk_start(struct lk_disk **out, const struct lk_serve_opts *opts,
                        struct lk_metrics *metrics, struct lk_serve_slots *slots,
                        const struct lk_disk_user *user, lk_err *err);

struct lk_store *lk_disk_files(struct lk_disk *disk);

/* What a client is told of a file that was refused: the reason, and not where the file lies. */
void lk_disk_blame(struct lk_fault *fault, const lk_err *err, const char *path);

/* Take what the thread has done, and begin what clients want. */
void lk_disk_tend(struct lk_disk *disk);

/* Wait until nothing is away, and take it. */
void lk_disk_drain(struct lk_disk *disk);

/* Write an idle session to the store. False where it is not to be kept. */
bool lk_disk_store(struct lk_disk *disk, struct lk_serve_slot *slot);

/* Load job->stored into the job's slot, whose session is empty; then the job is in state LK_JOB_LOADED. */
void lk_disk_fetch(struct lk_disk *disk, struct lk_job *job);

/* On any other thread: have an errand done, and wait for it. False after a fault. */
bool lk_disk_run(struct lk_disk *disk, struct lk_errand *errand, struct lk_fault *fault);

/* Refuse errands from now on, those that wait too. */
void lk_disk_close(struct lk_disk *disk);

/* Write all idle sessions that are to be kept, wait for it, and end the thread. */
void lk_disk_stop(struct lk_disk *disk);

#endif
