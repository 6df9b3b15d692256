/* Lines from the user: from a terminal with editing and history, or from a pipe.
 *
 * On a terminal, a pasted text is inserted into the line, folded if it is long, and
 * Alt-Enter inserts a newline. So a "line" may contain newlines. */
#ifndef LK_LOWKEY_LINE_READER_H
#define LK_LOWKEY_LINE_READER_H

#include "base/buf.h"

#include <stdbool.h>

struct line_reader;

/* Complete the word at the end of `before`, the text before the cursor: append what to insert to
 * `insert`, and, if several words are possible, those to show to `choices`, one per line. */
typedef void line_completer(const char *before, struct lk_buf *insert, struct lk_buf *choices);

struct line_reader_opts {
    bool terminal; /* standard input and output are a terminal */
    bool color;    /* of the prompt */
    line_completer *complete;
};

struct line_reader *line_reader_open(const struct line_reader_opts *opts);
void line_reader_close(struct line_reader *reader); /* restores the terminal */

/* From now to the next line_reader_next, keep what is typed or pasted. */
void line_reader_read_ahead(struct line_reader *reader);

enum line_result {
    LINE_READ,
    LINE_END,       /* of the input, or Ctrl-D */
    LINE_CANCELLED, /* Ctrl-C: the line is dropped */
    LINE_CANCELLED_EMPTY,
};

/* The next line without the newline at its end: free *line. */
enum line_result line_reader_next(struct line_reader *reader, const char *prompt, char **line);

/* Append `line` with the folded texts in their places to `out`. Returns false after printing an
 * error. */
bool line_reader_expand(struct line_reader *reader, const char *line, struct lk_buf *out);

/* Add a line or a text to the history. It is folded if it is long. */
void line_reader_remember(struct line_reader *reader, const char *text);

#endif
