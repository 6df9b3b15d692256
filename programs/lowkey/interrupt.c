/* A flag that SIGINT sets. */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

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

bool interrupted(void) { return interrupt_flag != 0; }

void clear_interrupt(void) {
    interrupt_flag = 0;
    install_handler();
}
