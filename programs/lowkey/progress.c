/* Estimates the remaining time and draws the progress line. */
#include "progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

struct progress progress_start(const char *what) {
    return (struct progress){.what = what, .draw_time = lk_now()};
}

struct progress progress_start_prefill(const char *what, size_t n_tok) {
    const double delay_seconds = 0.4; /* in addition to the time between two lines */
    return (struct progress){
        .what = what, .n_tok = (double)n_tok, .draw_time = lk_now() + delay_seconds};
}

/* Update the rate, an exponential mean over some seconds. Before MIN_SECONDS and MIN_SHARE there is
 * too little to estimate from. */
static void update_rate(struct progress *p, double now, double share) {
    const double mean_seconds = 5, min_seconds = 1, min_share = 0.02;
    if (p->first_time == 0 || share < p->last_share) { /* the first report, or a new total */
        p->first_time = p->last_time = now;
        p->first_share = p->last_share = share;
        p->rate = 0;
        return;
    }
    double seconds = now - p->last_time, weight = seconds / (mean_seconds + seconds);
    if (p->rate > 0 && seconds > 0)
        p->rate += weight * ((share - p->last_share) / seconds - p->rate);
    else if (now - p->first_time >= min_seconds && share - p->first_share >= min_share)
        p->rate = (share - p->first_share) / (now - p->first_time);
    p->last_time = now;
    p->last_share = share;
}

void progress_format(struct progress *p, double now, uint64_t done, uint64_t total, char *line,
                     size_t cap) {
    double share = total ? (double)done / (double)total : 0.0;
    if (share > 1.0) share = 1.0;
    if (done) update_rate(p, now, share);
    /* Rounded down: 100% is only what is done. */
    int n = snprintf(line, cap, "%s  %3d%%", p->what, (int)(100.0 * share));
    if (n < 0 || (size_t)n >= cap) return;
    if (share >= 1.0) {
        snprintf(line + n, cap - (size_t)n, "  finishing");
        return;
    }
    if (p->rate <= 0) return;
    if (p->n_tok > 0)
        n += snprintf(line + n, cap - (size_t)n, "  %.0f tokens/s", p->rate * p->n_tok);
    if ((size_t)n >= cap) return;
    long left = (long)((1.0 - share) / p->rate + 0.5);
    if (left >= 3600)
        snprintf(line + n, cap - (size_t)n, "  %ld:%02ld:%02ld left", left / 3600, left / 60 % 60,
                 left % 60);
    else
        snprintf(line + n, cap - (size_t)n, "  %ld:%02ld left", left / 60, left % 60);
}

bool progress_step(void *user, uint64_t done, uint64_t total) {
    enum { DRAWS_PER_SECOND = 10 };
    struct progress *p = user;
    double now = lk_now();
    bool due = now - p->draw_time >= 1.0 / DRAWS_PER_SECOND || (p->visible && done >= total);
    if (due && isatty(STDERR_FILENO)) {
        char line[160];
        progress_format(p, now, done, total, line, sizeof line);
        fprintf(stderr, "\r%s\x1b[K", line);
        fflush(stderr);
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
