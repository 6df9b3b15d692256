/* Writing a file atomically: it appears under its name complete, or not at all.
 *
 * The data goes to NAME.new, which is synced and then renamed. If the process dies before that, the
 * old file stays, and so does NAME.new, which the next writer overwrites. NAME.new is locked: if
 * two processes write the same name at the same time, the second one fails. File systems without
 * locks are written to without one. */
#ifndef LK_BASE_ATOMIC_FILE_H
#define LK_BASE_ATOMIC_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

enum { LK_MAX_PATH = 4096 };

struct lk_atomic_file {
    const char *path; /* borrowed */
    char temporary[LK_MAX_PATH];
    FILE *file; /* write the data here */
    int folder; /* descriptor of the folder, synced after renaming */
};

/* Open a file that only its owner may read. On LK_E_IO there is nothing to close. */
lk_status lk_atomic_file_open(struct lk_atomic_file *f, const char *path, lk_err *err);

/* Open a file that others may read, subject to the umask. */
lk_status lk_atomic_file_open_public(struct lk_atomic_file *f, const char *path, lk_err *err);

/* Close the file. Keep it if `status` is LK_OK and everything was written; otherwise remove it and
 * leave the old file as it was. Returns `status`, or LK_E_IO if writing failed. */
lk_status lk_atomic_file_close(struct lk_atomic_file *f, lk_status status, lk_err *err);

/* Lock a file for this process. Returns 0, also on a file system without locks, or an errno value:
 * EWOULDBLOCK if another process has the lock. */
int lk_lock_file(int fd);

/* Open an earlier file for reading. *file is NULL if no file has this name. What else prevents
 * reading is LK_E_IO, so that callers do not start again and replace what they could not read. */
lk_status lk_open_if_there(FILE **file, const char *path, lk_err *err);

/* Does a file have this name? LK_E_IO if that cannot be said. */
lk_status lk_file_exists(bool *exists, const char *path, lk_err *err);

/* Check that a file can be written, before long work whose result it is to hold. Leaves nothing. */
lk_status lk_atomic_file_check(const char *path, lk_err *err);

#endif
