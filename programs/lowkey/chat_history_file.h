/* The file that keeps what was typed in a chat from one run to the next: one entry per line, with a
 * newline written as \n and a backslash as \\. */
#ifndef LK_LOWKEY_CHAT_HISTORY_FILE_H
#define LK_LOWKEY_CHAT_HISTORY_FILE_H

#include <stddef.h>

/* $LOWKEY_HISTORY, or lowkey/history in $XDG_STATE_HOME or ~/.local/state: free it. NULL if
 * $LOWKEY_HISTORY is empty, or without a home. */
char *chat_history_path(void);

/* Call `add` with each entry, the oldest first. A file that has become long is shortened to its
 * newest 1000 entries. Without a file or with one that is not text, nothing happens. */
void chat_history_read(const char *path, void (*add)(void *user, const char *entry), void *user);

/* Append an entry. The file and its folders are made if necessary, for their owner only. Entries of
 * more than 16 KiB are left out. Errors are ignored: the history is a convenience. */
void chat_history_append(const char *path, const char *entry);

#endif
