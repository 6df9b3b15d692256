/* Reads lines with libedit, or with getline if it was built without libedit. */
#include "line_reader.h"

#include "xalloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LOWKEY_HAVE_LIBEDIT
#include <histedit.h>
#endif

struct line_reader {
    bool terminal;
#ifdef LOWKEY_HAVE_LIBEDIT
    EditLine *edit; /* NULL: standard input is not a terminal */
    History *history;
#endif
};

static char *read_plain_line(const struct line_reader *reader) {
    char *line = NULL;
    size_t cap = 0;
    if (reader->terminal) fputs("> ", stdout);
    fflush(stdout);
    if (getline(&line, &cap, stdin) >= 0) return line;
    free(line);
    return NULL;
}

#ifdef LOWKEY_HAVE_LIBEDIT

static char *editor_prompt(EditLine *edit) {
    static char text[] = "> ";
    (void)edit;
    return text;
}

static bool open_editor(struct line_reader *reader) {
    enum { HISTORY_LINES = 1000 };
    HistEvent event;
    reader->edit = el_init("lowkey", stdin, stdout, stderr);
    reader->history = history_init();
    if (!reader->edit || !reader->history) return false;
    history(reader->history, &event, H_SETSIZE, HISTORY_LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->edit, EL_PROMPT, editor_prompt);
    el_set(reader->edit, EL_EDITOR, "emacs");
    el_set(reader->edit, EL_HIST, history, reader->history);
    el_set(reader->edit, EL_SIGNAL, 1); /* restore the terminal before our handler gets SIGINT */
    el_source(reader->edit, NULL);      /* the user's ~/.editrc */
    return true;
}

static void close_editor(struct line_reader *reader) {
    if (reader->edit) el_end(reader->edit);
    if (reader->history) history_end(reader->history);
    reader->edit = NULL;
    reader->history = NULL;
}

static char *read_edited_line(struct line_reader *reader) {
    HistEvent event;
    int n = 0;
    const char *line = el_gets(reader->edit, &n);
    if (!line || n <= 0) return NULL;
    if (strspn(line, " \t\r\n") < strlen(line)) history(reader->history, &event, H_ENTER, line);
    return xasprintf("%s", line);
}

#else
static bool open_editor(struct line_reader *reader) { return reader->terminal; }
static void close_editor(struct line_reader *reader) { (void)reader; }
static char *read_edited_line(struct line_reader *reader) { return read_plain_line(reader); }
#endif

struct line_reader *line_reader_open(bool terminal) {
    struct line_reader *reader = xmalloc(sizeof *reader);
    *reader = (struct line_reader){.terminal = terminal};
    if (terminal && !open_editor(reader)) {
        close_editor(reader);
        reader->terminal = false;
    }
    return reader;
}

void line_reader_close(struct line_reader *reader) {
    if (!reader) return;
    close_editor(reader);
    free(reader);
}

char *line_reader_next(struct line_reader *reader) {
    char *line = reader->terminal ? read_edited_line(reader) : read_plain_line(reader);
    if (line) line[strcspn(line, "\r\n")] = 0;
    return line;
}
