/* The commands of a chat: lines that start with a slash. */
#ifndef LK_LOWKEY_CHAT_COMMANDS_H
#define LK_LOWKEY_CHAT_COMMANDS_H

#include "base/buf.h"

struct chat;

/* Run a line such as "/file notes.txt". */
void chat_run_command(struct chat *c, const char *line);

/* Complete names of commands and files: a line_completer of line_reader.h. */
void chat_complete(const char *before, struct lk_buf *insert, struct lk_buf *choices);

#endif
