/* Redirects stderr into a temporary file. */
#include "stderr_capture.h"

#include <string.h>
#include <unistd.h>

struct stderr_capture capture_stderr(void) {
    struct stderr_capture capture = {tmpfile(), -1};
    fflush(stderr);
    if (capture.file) capture.saved = dup(STDERR_FILENO);
    if (capture.saved >= 0 && dup2(fileno(capture.file), STDERR_FILENO) >= 0) return capture;
    if (capture.saved >= 0) close(capture.saved);
    if (capture.file) fclose(capture.file);
    return (struct stderr_capture){NULL, -1};
}

void end_capture(struct stderr_capture *capture, char *line, size_t cap) {
    line[0] = 0;
    if (!capture->file) return;
    fflush(stderr);
    dup2(capture->saved, STDERR_FILENO);
    close(capture->saved);
    rewind(capture->file);
    if (!fgets(line, (int)cap, capture->file)) line[0] = 0;
    line[strcspn(line, "\n")] = 0;
    fclose(capture->file);
    capture->file = NULL;
}
