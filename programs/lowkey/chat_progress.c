/* Draws the progress of a prefill. */
#include "chat_progress.h"

#include "base/clock.h"
#include "interrupt.h"
#include "output.h"

#include <stdio.h>
#include <unistd.h>

struct chat_progress chat_progress_start(size_t n_tok) {
    enum { FIRST_DRAW_MS = 500 }; /* a short prefill needs no line */
    double now = lk_now();
    return (struct chat_progress){
        .n_tok = n_tok, .start_time = now, .draw_time = now + FIRST_DRAW_MS / 1000.0};
}

static void draw(const struct chat_progress *p, double now, double share) {
    char count[NUMBER_BUF];
    double seconds = now - p->start_time;
    fprintf(stderr, "\rprefill %s tokens  %.0f%%", format_count(count, p->n_tok), 100.0 * share);
    if (share > 0.02) {
        long left = (long)(seconds * (1.0 - share) / share + 0.5);
        fprintf(stderr, "  %.0f tokens/s  %ld:%02ld left", share * (double)p->n_tok / seconds,
                left / 60, left % 60);
    }
    fputs("\x1b[K", stderr);
    fflush(stderr);
}

bool chat_progress_step(void *progress, uint64_t done, uint64_t total) {
    enum { DRAWS_PER_SECOND = 10 };
    struct chat_progress *p = progress;
    double now = lk_now(), share = total ? (double)done / (double)total : 0.0;
    if (now >= p->draw_time && isatty(STDERR_FILENO)) {
        draw(p, now, share > 1.0 ? 1.0 : share);
        p->draw_time = now + 1.0 / DRAWS_PER_SECOND;
        p->visible = true;
    }
    return !interrupted();
}

void chat_progress_end(struct chat_progress *p) {
    if (p->visible) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
    p->visible = false;
}
