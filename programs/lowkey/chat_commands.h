/* The commands of a chat: lines that start with a slash. */
#ifndef LK_LOWKEY_CHAT_COMMANDS_H
#define LK_LOWKEY_CHAT_COMMANDS_H

#include <stddef.h>

struct chat;

/* Run a line such as "/file notes.txt". */
void chat_run_command(struct chat *c, const char *line);

/* The i-th name, "/help"; NULL if there are fewer. */
const char *chat_command_name(size_t i);

/* Remove the next word of `*text`: up to a blank that is not quoted with '' or "" or a backslash.
 * Returns the word without the quotes: free it. NULL if no word is left. */
char *chat_next_word(const char **text);

#endif
