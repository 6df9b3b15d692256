/* libllama's grammar parser prints to stderr and cannot be told not to; a program may catch that. */
#ifndef LK_LOWKEY_CAPTURE_H
#define LK_LOWKEY_CAPTURE_H

#include <stddef.h>
#include <stdio.h>

struct capture {
    FILE *file; /* NULL: could not be set up, nothing is caught */
    int saved;
};

/* Between these, what is written to stderr goes aside. No other thread may write there meanwhile. */
struct capture capture_begin(void);

/* Put stderr back; the first line that was caught, or "". */
void capture_end(struct capture *capture, char *line, size_t cap);

#endif
