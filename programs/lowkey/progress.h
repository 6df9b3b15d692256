/* A progress line with the remaining time, on stderr if that is a terminal. */
#ifndef LK_LOWKEY_PROGRESS_H
#define LK_LOWKEY_PROGRESS_H

#include "interrupt.h"

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading the model" */
    double start_time, draw_time;
    bool visible;
};

struct progress progress_start(const char *what);

/* An lk_progress callback; `progress` is a struct progress. Returns false once interrupted. */
bool progress_step(void *progress, uint64_t done, uint64_t total);

/* Erase the line. */
void progress_end(struct progress *progress);

#endif
