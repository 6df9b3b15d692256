/* A flag that SIGINT sets, and waiting for a signal. program_windows.c is this for Windows. */
#include "interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupt_flag;
static bool catch_all;       /* not only the first SIGINT */
static bool interrupt_reads; /* a blocked call fails with EINTR */

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupt_flag = 1;
}

static void install_handler(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    /* SA_RESETHAND: the second SIGINT has its default effect. */
    action.sa_flags = (catch_all ? 0 : (int)SA_RESETHAND) | (interrupt_reads ? 0 : SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void catch_interrupts(void) {
    struct sigaction action;
    if (sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler != SIG_IGN) install_handler();
}

void catch_all_interrupts(void) {
    catch_all = true;
    catch_interrupts();
}

void interrupt_blocked_reads(bool on) {
    interrupt_reads = on;
    if (!interrupt_flag) catch_interrupts(); /* otherwise the next SIGINT is the second one */
}

void report_failed_writes(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

bool interrupted(void) { return interrupt_flag != 0; }

void clear_interrupt(void) {
    interrupt_flag = 0;
    install_handler();
}

/* ---- for a server ---- */

static sigset_t mask_before; /* stop_catch */

static void stop_signals(sigset_t *set) {
    struct sigaction hup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hup) != 0 || hup.sa_handler != SIG_IGN) sigaddset(set, SIGHUP);
}

void stop_catch(void) {
    sigset_t signals;
    stop_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, &mask_before);
}

void stop_release(void) { pthread_sigmask(SIG_SETMASK, &mask_before, NULL); }

void stop_wait(void) {
    sigset_t signals;
    int signal_number;
    stop_signals(&signals);
    sigwait(&signals, &signal_number);
}

static void exit_at_once(int signal_number) { _exit(128 + signal_number); }

void stop_exit_on_next(void) {
    struct sigaction action = {.sa_handler = exit_at_once};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGHUP, SIG_IGN);
    stop_release();
}
