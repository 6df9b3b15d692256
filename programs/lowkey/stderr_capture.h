/* Captures stderr: libllama's grammar parser prints errors there and has no option not to. */
#ifndef LK_LOWKEY_STDERR_CAPTURE_H
#define LK_LOWKEY_STDERR_CAPTURE_H

#include <stddef.h>
#include <stdio.h>

struct stderr_capture {
    FILE *file; /* NULL: capturing failed, stderr is unchanged */
    int saved;  /* the original stderr */
};

/* Redirect stderr until end_capture. No other thread may write to it meanwhile. */
struct stderr_capture capture_stderr(void);

/* Restore stderr. `line` receives the first captured line, or "". */
void end_capture(struct stderr_capture *capture, char *line, size_t cap);

#endif
