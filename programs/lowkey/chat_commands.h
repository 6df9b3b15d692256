/* The commands of a chat: lines that start with a slash. */
#ifndef LK_LOWKEY_CHAT_COMMANDS_H
#define LK_LOWKEY_CHAT_COMMANDS_H

#include <stddef.h>

struct chat;

/* Run a line such as "/file notes.txt". */
void chat_run_command(struct chat *c, const char *line);

/* The i-th name, "/help"; NULL if there are fewer. */
const char *chat_command_name(size_t i);

#endif
