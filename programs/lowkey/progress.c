/* Draws the progress line. */
#include "progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

struct progress progress_start(const char *what) {
    double now = lk_now();
    return (struct progress){.what = what, .start_time = now, .draw_time = now};
}

static void draw_progress(const struct progress *p, double now, uint64_t done, uint64_t total) {
    double share = total ? (double)done / (double)total : 0.0;
    if (share > 1.0) share = 1.0;
    fprintf(stderr, "\r%s  %3.0f%%", p->what, 100.0 * share);
    if (share > 0.0) {
        long left = (long)((now - p->start_time) * (1.0 - share) / share + 0.5);
        if (left >= 3600)
            fprintf(stderr, "  %ld:%02ld:%02ld left", left / 3600, left / 60 % 60, left % 60);
        else
            fprintf(stderr, "  %ld:%02ld left", left / 60, left % 60);
    }
    fputs("\x1b[K", stderr);
    fflush(stderr);
}

bool progress_step(void *user, uint64_t done, uint64_t total) {
    enum { DRAWS_PER_SECOND = 10 };
    struct progress *p = user;
    double now = lk_now();
    if (now - p->draw_time >= 1.0 / DRAWS_PER_SECOND && isatty(STDERR_FILENO)) {
        draw_progress(p, now, done, total);
        p->draw_time = now;
        p->visible = true;
    }
    return !interrupted();
}

void progress_end(struct progress *p) {
    if (p->visible) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
    p->visible = false;
}
