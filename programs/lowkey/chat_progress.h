/* The line that shows how far a long prefill has come; it disappears afterwards. */
#ifndef LK_LOWKEY_CHAT_PROGRESS_H
#define LK_LOWKEY_CHAT_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_progress {
    size_t n_tok; /* to prefill */
    double start_time, draw_time;
    bool visible;
};

struct chat_progress chat_progress_start(size_t n_tok);

/* An lk_progress callback; `progress` is a struct chat_progress. Draws on stderr if that is a
 * terminal. Returns false once interrupted. */
bool chat_progress_step(void *progress, uint64_t done, uint64_t total);

void chat_progress_end(struct chat_progress *progress);

#endif
