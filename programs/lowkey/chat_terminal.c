/* Modes and signals of a chat's terminal, and the thread that reads ahead. */
#include "chat_terminal.h"

#include "interrupt.h"
#include "terminate.h"
#include "xalloc.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

struct chat_terminal {
    struct lk_buf bytes; /* read, from bytes.at[n_used] on not yet returned */
    size_t n_used;
    struct lk_buf ahead; /* of the thread */
    size_t n_lost;
    pthread_t thread;
    bool thread_runs;
    int stop_thread[2]; /* a pipe */
};

/* For signal handlers and atexit: the modes before the chat, while it has others. */
static struct termios modes_before;
static volatile sig_atomic_t modes_changed, must_redraw;

static void write_sequence(const char *sequence) {
    ssize_t written = write(STDOUT_FILENO, sequence, strlen(sequence));
    (void)written;
}

static void restore_modes(void) {
    if (!modes_changed) return;
    modes_changed = 0;
    write_sequence("\x1b[?2004l");
    tcsetattr(STDIN_FILENO, TCSANOW, &modes_before);
}

/* ---- signals ---- */

static void on_redraw(int signal_number) {
    (void)signal_number;
    must_redraw = 1;
}

static void on_fatal(int signal_number) {
    restore_modes();
    if (signal_number == SIGBUS) end_after_lost_page(signal_number);
    raise(signal_number); /* SA_RESETHAND: blocked until this handler returns, then fatal */
}

static void set_handler(int signal_number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags | SA_RESTART; /* an interrupted write would lose output */
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

/* Ctrl-Z: stop with the modes from before the chat, continue with the present ones. */
static void on_stop(int signal_number) {
    int saved_errno = errno;
    struct termios modes;
    sigset_t stop;
    bool known = tcgetattr(STDIN_FILENO, &modes) == 0;
    restore_modes();
    set_handler(signal_number, SIG_DFL, 0);
    sigemptyset(&stop);
    sigaddset(&stop, signal_number);
    raise(signal_number);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL); /* stops here */
    set_handler(signal_number, on_stop, 0);
    tcgetattr(STDIN_FILENO, &modes_before); /* the shell may have changed them */
    if (known) tcsetattr(STDIN_FILENO, TCSANOW, &modes);
    write_sequence("\x1b[?2004h");
    modes_changed = must_redraw = 1;
    errno = saved_errno;
}

static void install_handlers(void) {
    static const int fatal[] = {SIGHUP, SIGTERM, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        struct sigaction action;
        if (sigaction(fatal[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            set_handler(fatal[i], on_fatal, (int)SA_RESETHAND);
    }
    set_handler(SIGTSTP, on_stop, 0);
    set_handler(SIGWINCH, on_redraw, 0);
    catch_all_interrupts();
}

/* ---- modes ---- */

struct chat_terminal *chat_terminal_open(void) {
    struct chat_terminal *t = xmalloc(sizeof *t);
    struct termios modes;
    *t = (struct chat_terminal){.stop_thread = {-1, -1}};
    if (tcgetattr(STDIN_FILENO, &modes_before) || pipe(t->stop_thread)) {
        chat_terminal_close(t);
        return NULL;
    }
    modes = modes_before;
    /* NOFLSH: Ctrl-C must not discard what was pasted before it. */
    modes.c_lflag = (modes.c_lflag & ~(tcflag_t)(ICANON | ECHO)) | NOFLSH;
    modes.c_cc[VMIN] = 1;
    modes.c_cc[VTIME] = 0;
    modes_changed = 1;
    atexit(restore_modes);
    install_handlers();
    tcsetattr(STDIN_FILENO, TCSANOW, &modes);
    write_sequence("\x1b[?2004h");
    return t;
}

void chat_terminal_close(struct chat_terminal *t) {
    if (!t) return;
    chat_terminal_stop_reading_ahead(t);
    restore_modes();
    if (t->stop_thread[0] >= 0) close(t->stop_thread[0]);
    if (t->stop_thread[1] >= 0) close(t->stop_thread[1]);
    lk_buf_free(&t->bytes);
    free(t);
}

/* ---- reading ahead ---- */

static void keep_bytes(struct chat_terminal *t, const char *bytes, size_t n) {
    size_t n_kept = MAX_READ_AHEAD - t->ahead.len;
    if (n_kept > n) n_kept = n;
    lk_buf_append(&t->ahead, bytes, n_kept);
    t->n_lost += n - n_kept;
}

static void *read_ahead(void *arg) {
    struct chat_terminal *t = arg;
    struct pollfd fd[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = t->stop_thread[0], .events = POLLIN}};
    char chunk[4096];
    for (;;) {
        if (poll(fd, 2, -1) < 0 && errno != EINTR) return NULL;
        if (fd[1].revents) return NULL;
        if (!fd[0].revents) continue;
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n > 0)
            keep_bytes(t, chunk, (size_t)n);
        else if (n == 0 || errno != EINTR)
            fd[0].fd = -1; /* hung up */
    }
}

void chat_terminal_read_ahead(struct chat_terminal *t) {
    sigset_t all, before;
    if (!t || t->thread_runs) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals go to the program's own thread */
    t->thread_runs = pthread_create(&t->thread, NULL, read_ahead, t) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool starts_with(const char *s, const char *end, const char *prefix) {
    size_t n = strlen(prefix);
    return (size_t)(end - s) >= n && memcmp(s, prefix, n) == 0;
}

/* Append what was typed to `out`, with Alt-Enter instead of Enter outside of pasted texts. */
static void add_typed(const char *s, size_t len, struct lk_buf *out) {
    const char *end = s + len;
    bool pasted = false;
    while (end > s && (end[-1] == '\n' || end[-1] == '\r')) end--;
    for (; s < end; s++) {
        if (starts_with(s, end, pasted ? PASTE_END : PASTE_START)) pasted = !pasted;
        if (!pasted && (*s == '\n' || *s == '\r'))
            xbuf_add(out, "\x1b\n", 2);
        else
            xbuf_add(out, s, 1);
    }
}

size_t chat_terminal_stop_reading_ahead(struct chat_terminal *t) {
    if (!t || !t->thread_runs) return 0;
    char byte = 0;
    while (write(t->stop_thread[1], &byte, 1) < 0 && errno == EINTR) continue;
    pthread_join(t->thread, NULL);
    t->thread_runs = false;
    while (read(t->stop_thread[0], &byte, 1) < 0 && errno == EINTR) continue;

    struct lk_buf all = {0};
    size_t n_lost = t->n_lost;
    if (t->bytes.len) xbuf_add(&all, t->bytes.at + t->n_used, t->bytes.len - t->n_used);
    if (t->ahead.len) xbuf_add(&all, t->ahead.at, t->ahead.len);
    lk_buf_free(&t->ahead);
    t->n_lost = t->n_used = t->bytes.len = 0;
    if (all.len) add_typed(all.at, all.len, &t->bytes);
    lk_buf_free(&all);
    return n_lost;
}

/* ---- reading ---- */

/* True if there is input, waiting with this signal mask until there is or a signal arrives. */
static bool has_input(const struct timespec *timeout, const sigset_t *mask) {
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(STDIN_FILENO, &readable);
    int n = pselect(STDIN_FILENO + 1, &readable, NULL, NULL, timeout, mask);
    return n > 0 || (n < 0 && errno != EINTR);
}

/* Wait until there is input. What was typed before Ctrl-C comes before it. Signals are handled only
 * while waiting, so none is missed. */
static enum terminal_input wait_for_input(void) {
    static const struct timespec now = {0};
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGWINCH);
    sigaddset(&blocked, SIGTSTP);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    bool ready = has_input(&now, &blocked);
    while (!ready && !interrupted() && !must_redraw) ready = has_input(NULL, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (ready) return TERMINAL_BYTE;
    if (interrupted()) return TERMINAL_INTERRUPTED;
    must_redraw = 0;
    return TERMINAL_REDRAW;
}

enum terminal_input chat_terminal_read(struct chat_terminal *t, char *byte) {
    while (t->n_used == t->bytes.len) {
        char chunk[4096];
        enum terminal_input input = wait_for_input();
        if (input != TERMINAL_BYTE) return input;
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n == 0 || (n < 0 && errno != EINTR)) return TERMINAL_END;
        if (n < 0) continue;
        t->bytes.len = t->n_used = 0;
        xbuf_add(&t->bytes, chunk, (size_t)n);
    }
    *byte = t->bytes.at[t->n_used++];
    return TERMINAL_BYTE;
}
