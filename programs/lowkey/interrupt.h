/* Ctrl-C: the first one asks the program to stop, the second one ends it at once. */
#ifndef LK_LOWKEY_INTERRUPT_H
#define LK_LOWKEY_INTERRUPT_H

#include <stdbool.h>

/* From now on the first SIGINT sets a flag and the second one has its default effect. Does nothing
 * if SIGINT is ignored, as in a background job or under nohup. */
void catch_interrupts(void);

/* From now on every SIGINT sets the flag, for a program that must not end with unsaved work. */
void catch_all_interrupts(void);

/* Whether SIGINT ends a blocked read of a pipe or a terminal, which then fails with EINTR (default:
 * no). Only on around such reads: an interrupted write would lose output. */
void interrupt_blocked_reads(bool on);

/* A write that fails is reported as an error: to a closed pipe, or beyond a limit of the size of
 * files. It sends no signal. */
void report_failed_writes(void);

/* True after the first SIGINT. */
bool interrupted(void);

/* Clear the flag; the next SIGINT is the first one again. */
void clear_interrupt(void);

/* ---- for a server, which one thread stops ----
 *
 * What stops it: SIGINT, SIGTERM, and SIGHUP (the terminal was closed) unless nohup ignores it.
 * Windows: Ctrl-C, Ctrl-Break and the end of the console or session. */

/* From now on these signals wait for stop_wait; threads that are started do not get them. */
void stop_catch(void);

/* Undo that, if the server does not start. */
void stop_release(void);

/* Wait for a signal. */
void stop_wait(void);

/* While the server stops, another SIGINT or SIGTERM ends the process. A closed terminal sends
 * SIGHUP more than once, so more of these are ignored. */
void stop_exit_on_next(void);

#endif
