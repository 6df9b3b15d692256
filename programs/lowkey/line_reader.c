#include "line_reader.h"

#include "say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LOWKEY_HAVE_LIBEDIT
#include <histedit.h>
#endif

struct line_reader {
    bool terminal;
#ifdef LOWKEY_HAVE_LIBEDIT
    EditLine *edit; /* NULL: a pipe */
    History *history;
#endif
};

static char *next_plain(const struct line_reader *reader) {
    char *line = NULL;
    size_t room = 0;
    if (reader->terminal) fputs("> ", stdout);
    fflush(stdout);
    if (getline(&line, &room, stdin) >= 0) return line;
    free(line);
    return NULL;
}

#ifdef LOWKEY_HAVE_LIBEDIT

static char *prompt(EditLine *edit) {
    static char text[] = "> ";
    (void)edit;
    return text;
}

static bool open_editor(struct line_reader *reader) {
    enum { LINES = 1000 };
    HistEvent event;
    reader->edit = el_init("lowkey", stdin, stdout, stderr);
    reader->history = history_init();
    if (!reader->edit || !reader->history) return false;
    history(reader->history, &event, H_SETSIZE, LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->edit, EL_PROMPT, prompt);
    el_set(reader->edit, EL_EDITOR, "emacs");
    el_set(reader->edit, EL_HIST, history, reader->history);
    el_set(reader->edit, EL_SIGNAL,
           1);                     /* put the terminal right before our handler hears of Ctrl-C */
    el_source(reader->edit, NULL); /* the person's own ~/.editrc */
    return true;
}

static void close_editor(struct line_reader *reader) {
    if (reader->edit) el_end(reader->edit);
    if (reader->history) history_end(reader->history);
    reader->edit = NULL;
    reader->history = NULL;
}

static char *next_edited(struct line_reader *reader) {
    HistEvent event;
    int n = 0;
    const char *line = el_gets(reader->edit, &n);
    if (!line || n <= 0) return NULL;
    if (strspn(line, " \t\r\n") < strlen(line)) history(reader->history, &event, H_ENTER, line);
    return must_print("%s", line);
}

#else
static bool open_editor(struct line_reader *reader) { return reader->terminal; }
static void close_editor(struct line_reader *reader) { (void)reader; }
static char *next_edited(struct line_reader *reader) { return next_plain(reader); }
#endif

struct line_reader *line_reader_open(bool terminal) {
    struct line_reader *reader = must_alloc(sizeof *reader);
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
    char *line = reader->terminal ? next_edited(reader) : next_plain(reader);
    if (line) line[strcspn(line, "\r\n")] = 0;
    return line;
}
