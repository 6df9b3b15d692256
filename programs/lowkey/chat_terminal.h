/* The terminal of a chat: its modes, the signals that concern it, and the bytes that it sends.
 *
 * The kernel keeps 4,095 bytes for a program that does not read. What is typed or pasted beyond
 * them is lost, Ctrl-C included. So the chat leaves canonical mode for its whole time, and a thread
 * reads ahead while the program does something else: chat_terminal_read_ahead to
 * chat_terminal_stop_reading_ahead. What it kept is what chat_terminal_read returns next. */
#ifndef LK_LOWKEY_CHAT_TERMINAL_H
#define LK_LOWKEY_CHAT_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

#define PASTE_START "\x1b[200~" /* what a terminal sends around a pasted text */
#define PASTE_END "\x1b[201~"

enum { MAX_READ_AHEAD = 16 * 1024 * 1024 }; /* bytes */

struct chat_terminal;

/* Take over the terminal of standard input and output. Its modes are restored by
 * chat_terminal_close, by exit, while the program is stopped (Ctrl-Z), and if a signal ends it. A
 * program has one such terminal. */
struct chat_terminal *chat_terminal_open(void);
void chat_terminal_close(struct chat_terminal *terminal);

void chat_terminal_read_ahead(struct chat_terminal *terminal);

/* In what was kept, Enter outside of a pasted text becomes Alt-Enter, which inserts a newline: text
 * that was typed before the prompt appeared is not sent by itself. Enter at the end is removed.
 * Returns the number of bytes beyond MAX_READ_AHEAD, which are lost. */
size_t chat_terminal_stop_reading_ahead(struct chat_terminal *terminal);

enum terminal_input {
    TERMINAL_BYTE,
    TERMINAL_END,
    TERMINAL_INTERRUPTED, /* SIGINT; see interrupt.h */
    TERMINAL_REDRAW,      /* its size has changed, or the program was stopped and continues */
};

/* Wait for the next byte. */
enum terminal_input chat_terminal_read(struct chat_terminal *terminal, char *byte);

#endif
