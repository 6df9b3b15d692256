/* Input lines: from a terminal with editing and history, or from a pipe. */
#ifndef LK_LOWKEY_LINE_READER_H
#define LK_LOWKEY_LINE_READER_H

#include <stdbool.h>

struct line_reader;

/* `terminal`: standard input and output are a terminal; with libedit, lines can be edited. */
struct line_reader *line_reader_open(bool terminal);
void line_reader_close(struct line_reader *reader); /* restores the terminal */

/* The next line without its newline: free it. NULL at the end of the input or after Ctrl-C. */
char *line_reader_next(struct line_reader *reader);

#endif
