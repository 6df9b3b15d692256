/* Messages from the user: lines joined to messages, and remembered.
 *
 *   """             starts a text of several lines, which ends with """ at the end of a line
 *   a line \        that ends with a backslash continues on the next line
 *
 * This holds for a terminal and for a pipe. */
#ifndef LK_LOWKEY_CHAT_INPUT_H
#define LK_LOWKEY_CHAT_INPUT_H

#include "line_reader.h"

#include <stddef.h>

struct chat_input;

/* On a terminal, loads and extends the history file. */
struct chat_input *chat_input_open(const struct line_reader_opts *opts);
void chat_input_close(struct chat_input *input);

/* Keep what is typed until the next chat_input_next. */
void chat_input_read_ahead(struct chat_input *input);

enum chat_input_kind {
    INPUT_MESSAGE,
    INPUT_COMMAND,   /* a line such as "/help me"; "/usr/bin is" is a message */
    INPUT_NOTHING,   /* an empty line, or an error that was printed */
    INPUT_END,       /* of the input, or Ctrl-D */
    INPUT_CANCELLED, /* Ctrl-C dropped what was typed */
    INPUT_LEAVE,     /* Ctrl-C, and there was nothing to drop */
};

/* The next message: free *text. NULL unless it is a message or a command. */
enum chat_input_kind chat_input_next(struct chat_input *input, char **text);

#endif
