/* The program's parts for Windows: Ctrl-C (interrupt.h), and the console of a chat, whose lines the
 * system edits (chat_terminal.h). */
#define WIN32_LEAN_AND_MEAN
#include "chat_terminal.h"
#include "interrupt.h"

#include <windows.h>

/* ---- Ctrl-C: Windows calls a handler on a thread of its own ---- */

static volatile LONG interrupt_flag, catches_all;
static HANDLE stop_event; /* NULL: no server waits */
static volatile LONG is_stopping;

/* FALSE: the next handler ends the process. */
static BOOL WINAPI on_control(DWORD kind) {
    if (stop_event) {
        if (InterlockedExchange(&is_stopping, 1) && kind == CTRL_C_EVENT) return FALSE;
        SetEvent(stop_event);
        if (kind == CTRL_C_EVENT || kind == CTRL_BREAK_EVENT) return TRUE;
        Sleep(INFINITE); /* Windows ends the process when the handler returns; the server does it */
    }
    if (kind != CTRL_C_EVENT) return FALSE;
    bool again = InterlockedExchange(&interrupt_flag, 1) != 0;
    return !again || catches_all;
}

void catch_interrupts(void) { SetConsoleCtrlHandler(on_control, TRUE); }

void catch_all_interrupts(void) { InterlockedExchange(&catches_all, 1); }

/* A read of the console ends by itself at Ctrl-C. */
void interrupt_blocked_reads(bool on) { (void)on; }

/* Windows sends no signals for failed writes. */
void report_failed_writes(void) {}

bool interrupted(void) { return interrupt_flag != 0; }

void clear_interrupt(void) { InterlockedExchange(&interrupt_flag, 0); }

void stop_catch(void) { stop_event = CreateEventA(NULL, TRUE, FALSE, NULL); }

void stop_release(void) { stop_event = NULL; }

void stop_wait(void) { WaitForSingleObject(stop_event, INFINITE); }

void stop_exit_on_next(void) {} /* see on_control */

/* ---- the console: as without a terminal, for lines are edited by the system ---- */

struct chat_terminal *chat_terminal_open(void) {
    return NULL;
}

void chat_terminal_close(struct chat_terminal *terminal) { (void)terminal; }

void chat_terminal_read_ahead(struct chat_terminal *terminal) { (void)terminal; }

size_t chat_terminal_stop_reading_ahead(struct chat_terminal *terminal) {
    (void)terminal;
    return 0;
}

enum terminal_input chat_terminal_read(struct chat_terminal *terminal, char *byte) {
    (void)terminal, (void)byte;
    return TERMINAL_END;
}
