/* Lines from a person, with editing and history, or from a pipe. */
#ifndef LOWKEY_LINE_READER_H
#define LOWKEY_LINE_READER_H

#include <stdbool.h>

struct line_reader;

/* `editing`: standard input and output are a terminal. */
struct line_reader *line_reader_open(bool editing);
void                line_reader_close(struct line_reader *reader); /* restores the terminal */

/* The next line without its end; NULL at the end of the input or after Ctrl-C. To be freed. */
char *line_reader_next(struct line_reader *reader);

#endif
