/* A progress line with the remaining time, on stderr if that is a terminal. */
#ifndef LK_LOWKEY_PROGRESS_H
#define LK_LOWKEY_PROGRESS_H

#include "interrupt.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading the model" */
    double n_tok;     /* tokens of the whole work: the line shows their speed; 0: it does not */
    double draw_time;
    bool visible;
    /* The estimate of the remaining time. The first report is its start: what comes before it, such
     * as reading weights from the disk, says nothing about the rest. */
    double first_time, first_share, last_time, last_share;
    double rate; /* recent share per second, smoothed; 0: not known yet */
};

struct progress progress_start(const char *what);

/* For the prefill of n_tok tokens. The line appears after half a second only. */
struct progress progress_start_prefill(const char *what, size_t n_tok);

/* An lk_progress callback; `progress` is a struct progress. Returns false once interrupted. */
bool progress_step(void *progress, uint64_t done, uint64_t total);

/* Write the line for `done` of `total` at time `now` to `line`, which has `cap` bytes. The
 * remaining time is left out until it can be estimated. */
void progress_format(struct progress *progress, double now, uint64_t done, uint64_t total,
                     char *line, size_t cap);

/* Erase the line. */
void progress_end(struct progress *progress);

#endif
