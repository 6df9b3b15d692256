/* A file that appears under its name when it is whole, and not at all where something fails before.
 *
 * It is written as NAME.new, synced, and renamed; a process that dies on the way leaves the old file, and
 * NAME.new, which the next one writes over. Two that write the same name at once do not meet: the later one
 * is refused. */
#ifndef LK_BASE_ATOMIC_FILE_H
#define LK_BASE_ATOMIC_FILE_H

#include "base/err.h"

#include <stdio.h>

enum { LK_MAX_PATH = 4096 };

struct lk_atomic_file {
    const char *path; /* borrowed */
    char temporary[LK_MAX_PATH];
    FILE *file; /* to be written */
    int folder; /* that holds it, to be synced */
};

/* Only its owner may read it. LK_E_IO where it cannot be written; then there is nothing to close. */
lk_status lk_atomic_file_open(struct lk_atomic_file *f, const char *path, lk_err *err);

/* The same for a file that others may read, as the umask says. */
lk_status lk_atomic_file_open_public(struct lk_atomic_file *f, const char *path, lk_err *err);

/* Keep the file where `status` is LK_OK and all was written, else leave what there was. Returns `status`,
 * or LK_E_IO. */
lk_status lk_atomic_file_close(struct lk_atomic_file *f, lk_status status, lk_err *err);

#endif
