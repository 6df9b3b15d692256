#include "progress.h"

#include "say.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupt_flag;

/* SA_RESETHAND gives the second Ctrl-C its usual meaning. */
static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupt_flag = 1;
}

static void catch_next(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND; /* no SA_RESTART: a waiting read must return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void interrupt_catch(void) {
    struct sigaction action;
    /* Where Ctrl-C is ignored (a background job, nohup), it stays so. */
    if (sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler != SIG_IGN) catch_next();
}

bool interrupted(void) { return interrupt_flag != 0; }

void interrupt_clear(void) {
    interrupt_flag = 0;
    catch_next(); /* a flag that was set had a handler */
}

struct progress progress_begin(const char *what) {
    double now = seconds_now();
    return (struct progress){.what = what, .began = now, .drawn = now};
}

static void draw(const struct progress *p, double now, uint64_t done, uint64_t total) {
    double share = total ? (double)done / (double)total : 0.0;
    if (share > 1.0) share = 1.0;
    fprintf(stderr, "\r%s  %3.0f%%", p->what, 100.0 * share);
    if (share > 0.0) {
        long left = (long)((now - p->began) * (1.0 - share) / share + 0.5);
        if (left >= 3600)
            fprintf(stderr, "  %ld:%02ld:%02ld left", left / 3600, left / 60 % 60, left % 60);
        else
            fprintf(stderr, "  %ld:%02ld left", left / 60, left % 60);
    }
    fputs("\x1b[K", stderr);
    fflush(stderr);
}

bool progress_step(void *user, uint64_t done, uint64_t total) {
    enum { PER_SECOND = 10 };
    struct progress *p = user;
    double now = seconds_now();
    if (now - p->drawn >= 1.0 / PER_SECOND && isatty(STDERR_FILENO)) {
        draw(p, now, done, total);
        p->drawn = now;
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
