#include "line_reader.h"

#include "say.h"

#include <histedit.h>
#include <stdlib.h>
#include <string.h>

struct line_reader {
    EditLine *edit; /* NULL: a pipe */
    History  *history;
};

static char *prompt(EditLine *edit) {
    static char text[] = "> ";
    (void)edit;
    return text;
}

static bool open_editor(struct line_reader *reader) {
    enum { LINES = 1000 };
    HistEvent event;
    reader->edit    = el_init("lowkey", stdin, stdout, stderr);
    reader->history = history_init();
    if (!reader->edit || !reader->history) return false;
    history(reader->history, &event, H_SETSIZE, LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->edit, EL_PROMPT, prompt);
    el_set(reader->edit, EL_EDITOR, "emacs");
    el_set(reader->edit, EL_HIST, history, reader->history);
    el_set(reader->edit, EL_SIGNAL, 1); /* put the terminal right before our handler hears of Ctrl-C */
    el_source(reader->edit, NULL);      /* the person's own ~/.editrc */
    return true;
}

struct line_reader *line_reader_open(bool editing) {
    struct line_reader *reader = must_alloc(sizeof *reader);
    *reader                    = (struct line_reader){0};
    if (editing && !open_editor(reader)) {
        if (reader->history) history_end(reader->history);
        if (reader->edit) el_end(reader->edit);
        *reader = (struct line_reader){0};
    }
    return reader;
}

void line_reader_close(struct line_reader *reader) {
    if (!reader) return;
    if (reader->edit) el_end(reader->edit);
    if (reader->history) history_end(reader->history);
    free(reader);
}

static char *next_edited(struct line_reader *reader) {
    HistEvent   event;
    int         n    = 0;
    const char *line = el_gets(reader->edit, &n);
    if (!line || n <= 0) return NULL;
    if (strspn(line, " \t\r\n") < strlen(line)) history(reader->history, &event, H_ENTER, line);
    return must_print("%s", line);
}

char *line_reader_next(struct line_reader *reader) {
    char  *line = NULL;
    size_t room = 0;
    if (reader->edit) {
        line = next_edited(reader);
    } else if (getline(&line, &room, stdin) < 0) {
        free(line);
        line = NULL;
    }
    if (line) line[strcspn(line, "\r\n")] = 0;
    return line;
}
