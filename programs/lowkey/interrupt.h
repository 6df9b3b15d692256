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

/* True after the first SIGINT. */
bool interrupted(void);

/* Clear the flag; the next SIGINT is the first one again. */
void clear_interrupt(void);

#endif
