/* Progress with the time left, on stderr and only where that is a terminal; and Ctrl-C. */
#ifndef LK_LOWKEY_PROGRESS_H
#define LK_LOWKEY_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* From here on the first Ctrl-C sets a flag and the second one ends the program. */
void interrupt_catch(void);
bool interrupted(void);
void interrupt_clear(void);

struct progress {
    const char *what; /* "reading the prompt" */
    double began, drawn;
    bool visible;
};

struct progress progress_begin(const char *what);

/* An lk_progress whose user is a struct progress; false once interrupted. */
bool progress_step(void *progress, uint64_t done, uint64_t total);

/* Take the line away. */
void progress_end(struct progress *progress);

#endif
