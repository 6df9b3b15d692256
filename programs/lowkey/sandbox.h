/* The sandbox of `lowkey serve --sandbox`: rights that the whole process gives up for good once its
 * model is open. It limits what an attacker can do who has taken over the process through a defect.
 *
 *   step           when                                 what is refused from then on
 *   sandbox_enter  the model is open, and no thread of  files outside the session directory,
 *                  the server has started               processes, executable memory, system
 *                                                       calls that a server never needs, signals
 *                                                       to others, outgoing connections
 *   sandbox_seal   the server listens                   new sockets; accept still works
 *
 * Both steps cover all threads, also those that libraries have started. What is open before stays
 * open: the mapped model, the listener, stdout and stderr. Path names can still be looked up.
 *
 * Files are Landlock's part, system calls are seccomp's, outgoing connections both's. */
#ifndef LK_LOWKEY_SANDBOX_H
#define LK_LOWKEY_SANDBOX_H

#include "base/err.h"

#include <stdbool.h>

/* What is active after sandbox_enter. */
struct sandbox {
    int landlock_abi; /* version of Landlock; 0: the kernel has none, files are not restricted */
    bool filter;      /* false: no seccomp, system calls are not filtered */
};

/* `session_dir`: the directory that stays accessible, created if it is missing; NULL: none. `port`:
 * the TCP port that may still be bound; 0: any free one. LK_E_UNSUPPORTED if the kernel has neither
 * Landlock nor seccomp. After an error some threads may be restricted: end the process. */
lk_status sandbox_enter(struct sandbox *out, const char *session_dir, int port, lk_err *err);

lk_status sandbox_seal(const struct sandbox *sandbox, lk_err *err);

/* One line for the operator: what is active. Returns `line`. */
enum { SANDBOX_LINE = 200 };
char *sandbox_describe(const struct sandbox *sandbox, char line[SANDBOX_LINE]);

#endif
