/* Context shift: the options of run, chat and serve. */
#ifndef LK_LOWKEY_CONTEXT_SHIFT_H
#define LK_LOWKEY_CONTEXT_SHIFT_H

#include "args.h"
#include "lowkey_shift.h"

struct shift_args {
    bool on;
    int64_t keep; /* tokens at the start; -1: the prompt, or the system message of a chat */
};

struct opt_group shift_options(struct shift_args *args);

/* Can the session shift, if it is to? Returns a STATUS_*, after printing why not. */
int shift_check(const struct shift_args *args, const lk_session *session);

#endif
