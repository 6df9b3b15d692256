/* Reads lines with libedit, or with getline if it was built without libedit.
 *
 * libedit 3.1 does not know bracketed paste. It gets its characters from read_character, which
 * takes them from chat_terminal.h, and a key binding for the start of a pasted text. */
#include "line_reader.h"

#include "base/os.h"
#include "base/utf8.h"
#include "chat_terminal.h"
#include "interrupt.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LOWKEY_HAVE_LIBEDIT
#include <histedit.h>
#endif

/* ---- pastes ---- */

/* Long texts folded in the line editor: a pasted document is shown as a label, for example
 * "[paste 1: 312 lines, 20 KiB]", and replaced by its text when the line is sent. */
enum { MAX_PASTE_BYTES = 16 * 1024 * 1024 };

struct paste {
    char *text, *label;
    size_t len;
};

struct pastes {
    struct paste *paste; /* [n] */
    size_t n;
    size_t total; /* bytes of all texts; the oldest are dropped beyond 4 MAX_PASTE_BYTES */
};

#define LABEL_START "[paste "

static size_t count_lines(const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += text[i] == '\n';
    return n + (len && text[len - 1] != '\n');
}

/* What to show for text[0..len): the text itself if it is short, or a label that stands for it.
 * Free it. */
static char *paste_fold(struct pastes *pastes, const char *text, size_t len) {
    enum { MAX_SHOWN_LINES = 8, MAX_SHOWN_BYTES = 1000 };
    char bytes[NUMBER_BUF], lines[NUMBER_BUF];
    size_t n_line = count_lines(text, len);
    if (n_line <= MAX_SHOWN_LINES && len <= MAX_SHOWN_BYTES)
        return xasprintf("%.*s", (int)len, text);
    pastes->total += len;
    for (size_t i = 0; i < pastes->n && pastes->total > 4 * (size_t)MAX_PASTE_BYTES; i++) {
        struct paste *old = &pastes->paste[i];
        if (old->text) pastes->total -= old->len;
        free(old->text);
        old->text = NULL;
    }
    struct paste new = {.text = xmalloc(len + 1), .len = len};
    memcpy(new.text, text, len);
    new.text[len] = 0;
    new.label =
        xasprintf(LABEL_START "%zu: %s line%s, %s]", pastes->n + 1, format_count(lines, n_line),
                  n_line == 1 ? "" : "s", format_bytes(bytes, len));
    pastes->paste = xrealloc(pastes->paste, (pastes->n + 1) * sizeof *pastes->paste);
    pastes->paste[pastes->n++] = new;
    return xasprintf("%s", new.label);
}

/* The paste whose label starts at `s`, or NULL. */
static const struct paste *find_paste(const struct pastes *pastes, const char *s) {
    size_t number = strtoul(s + strlen(LABEL_START), NULL, 10);
    if (number == 0 || number > pastes->n) return NULL;
    const struct paste *paste = &pastes->paste[number - 1];
    return strncmp(s, paste->label, strlen(paste->label)) == 0 ? paste : NULL;
}

/* Append `line` with labels replaced by their texts to `out`. Returns false after printing an error
 * if a label was edited, or if its text is no longer kept. */
static bool paste_expand(const struct pastes *pastes, const char *line, struct lk_buf *out) {
    for (const char *s; (s = strstr(line, LABEL_START));) {
        const struct paste *paste = find_paste(pastes, s);
        size_t number = strtoul(s + strlen(LABEL_START), NULL, 10), skip = strlen(LABEL_START);
        if ((paste && !paste->text) || (!paste && number >= 1 && number <= pastes->n)) {
            print_error("paste %zu is %s; paste it again", number,
                        paste ? "no longer kept" : "incomplete: its mark was edited");
            return false;
        }
        xbuf_add(out, line, (size_t)(s - line));
        if (paste) skip = strlen(paste->label);
        xbuf_add(out, paste ? paste->text : s, paste ? paste->len : skip);
        line = s + skip;
    }
    xbuf_add(out, line, strlen(line));
    return true;
}

/* The length in bytes of a label at the end of line[0..len); 0 if there is none. */
static size_t paste_label_at_end(const struct pastes *pastes, const char *line, size_t len) {
    for (size_t i = 0; i < pastes->n; i++) {
        size_t n = strlen(pastes->paste[i].label);
        if (n <= len && memcmp(line + len - n, pastes->paste[i].label, n) == 0) return n;
    }
    return 0;
}

/* Append a pasted text as plain text: line ends become newlines, other control characters except
 * tabs are left out, and bytes that are not UTF-8 become U+FFFD. */
static void paste_clean(const char *text, size_t len, struct lk_buf *out) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\r' && !(i + 1 < len && text[i + 1] == '\n')) {
            xbuf_add(out, "\n", 1);
        } else if (c == '\n' || c == '\t' || (c >= ' ' && c < 127)) {
            xbuf_add(out, text + i, 1);
        } else if (c >= 128) {
            int n = lk_utf8_decode(text + i, len - i, NULL);
            xbuf_add(out, n > 0 ? text + i : "\xef\xbf\xbd", n > 0 ? (size_t)n : 3);
            if (n > 0) i += (size_t)n - 1;
        }
    }
    xbuf_add(out, "", 0);
}

static void pastes_free(struct pastes *pastes) {
    for (size_t i = 0; i < pastes->n; i++) {
        free(pastes->paste[i].text);
        free(pastes->paste[i].label);
    }
    free(pastes->paste);
    *pastes = (struct pastes){0};
}

/* ---- lines ---- */

struct line_reader {
    struct line_reader_opts opts;
    struct chat_terminal *terminal; /* NULL: lines are read with getline */
    struct pastes pastes;
#ifdef LOWKEY_HAVE_LIBEDIT
    EditLine *edit;
    History *history;
    char prompt[64];
    bool cancelled, cancelled_empty;
#endif
};

static enum line_result read_plain_line(const struct line_reader *reader, const char *prompt,
                                        char **line) {
    size_t cap = 0;
    *line = NULL;
    if (reader->opts.terminal) fputs(prompt, stdout);
    fflush(stdout);
    interrupt_blocked_reads(true);
    ptrdiff_t n = lk_os_getline(line, &cap, stdin);
    interrupt_blocked_reads(false);
    if (n >= 0) return LINE_READ;
    free(*line);
    *line = NULL;
    return interrupted() ? LINE_CANCELLED : LINE_END;
}

#ifdef LOWKEY_HAVE_LIBEDIT

static struct line_reader *reader_of(EditLine *edit) {
    struct line_reader *reader = NULL;
    el_get(edit, EL_CLIENTDATA, &reader);
    return reader;
}

static char *editor_prompt(EditLine *edit) { return reader_of(edit)->prompt; }

/* libedit's source of characters. */
static int read_character(EditLine *edit, wchar_t *out) {
    struct line_reader *reader = reader_of(edit);
    char byte[4];
    int n = 0;
    for (;;) {
        uint32_t code;
        enum terminal_input input = chat_terminal_read(reader->terminal, &byte[n]);
        if (input == TERMINAL_END) return 0;
        if (input == TERMINAL_REDRAW) {
            fputs("\r\x1b[J", stdout);
            el_resize(edit);
            el_set(edit, EL_REFRESH);
            continue;
        }
        if (input == TERMINAL_INTERRUPTED) {
            const LineInfo *line = el_line(edit);
            reader->cancelled = true;
            reader->cancelled_empty = line->lastchar == line->buffer;
            errno = EINTR;
            return -1;
        }
        n++;
        int len = lk_utf8_decode(byte, (size_t)n, &code);
        if (len < 0) continue;
        *out = len > 0 ? (wchar_t)code : L'\xfffd';
        return 1;
    }
}

/* ---- keys ---- */

static unsigned char insert_newline(EditLine *edit, int key) {
    (void)key;
    return el_insertstr(edit, "\n") ? CC_ERROR : CC_REFRESH;
}

/* Read a pasted text up to its end mark. Returns false if it is too long; it is skipped then. */
static bool read_paste(struct line_reader *reader, struct lk_buf *text) {
    const size_t n_end = strlen(PASTE_END);
    bool fits = true;
    char byte;
    while (chat_terminal_read(reader->terminal, &byte) == TERMINAL_BYTE) {
        xbuf_add(text, &byte, 1);
        if (text->len >= n_end && memcmp(text->at + text->len - n_end, PASTE_END, n_end) == 0) {
            text->len -= n_end;
            break;
        }
        if (text->len > MAX_PASTE_BYTES + n_end) {
            fits = false;
            lk_buf_consume(text, text->len - n_end);
        }
    }
    return fits;
}

/* Bound to PASTE_START. */
static unsigned char insert_paste(EditLine *edit, int key) {
    struct line_reader *reader = reader_of(edit);
    struct lk_buf raw = {0}, text = {0};
    (void)key;
    bool fits = read_paste(reader, &raw);
    if (!fits) {
        puts("");
        print_error("the pasted text is larger than 16 MiB; use /file NAME");
    } else if (raw.len) {
        paste_clean(raw.at, raw.len, &text);
        char *shown = paste_fold(&reader->pastes, text.at, text.len);
        el_insertstr(edit, shown);
        free(shown);
    }
    lk_buf_free(&raw);
    lk_buf_free(&text);
    return fits ? CC_REFRESH : CC_REDISPLAY;
}

/* Backspace: a label is one character. */
static unsigned char delete_back(EditLine *edit, int key) {
    struct line_reader *reader = reader_of(edit);
    const LineInfo *line = el_line(edit);
    size_t len = (size_t)(line->cursor - line->buffer);
    (void)key;
    if (len == 0) return CC_ERROR;
    size_t n = paste_label_at_end(&reader->pastes, line->buffer, len);
    el_deletestr(edit, n ? (int)n : 1);
    return CC_REFRESH;
}

static unsigned char complete_word(EditLine *edit, int key) {
    struct line_reader *reader = reader_of(edit);
    const LineInfo *line = el_line(edit);
    struct lk_buf insert = {0}, choices = {0};
    (void)key;
    char *before = xasprintf("%.*s", (int)(line->cursor - line->buffer), line->buffer);
    if (reader->opts.complete) reader->opts.complete(before, &insert, &choices);
    bool listed = choices.len && !insert.len;
    if (insert.len) el_insertstr(edit, insert.at);
    if (listed) printf("\n%s", choices.at);
    bool found = insert.len || listed;
    free(before);
    lk_buf_free(&insert);
    lk_buf_free(&choices);
    return listed ? CC_REDISPLAY : found ? CC_REFRESH : CC_ERROR;
}

/* ---- the editor ---- */

static void bind_keys(EditLine *edit) {
    static const struct {
        const char *name, *help;
        unsigned char (*function)(EditLine *, int);
        const char *key[2];
    } binding[] = {
        {"lowkey-paste", "insert a pasted text", insert_paste, {PASTE_START}},
        {"lowkey-newline", "insert a newline", insert_newline, {"\x1b\n", "\x1b\r"}},
        {"lowkey-delete-back", "delete to the left", delete_back, {"^?", "^H"}},
        {"lowkey-complete", "complete a command or a file name", complete_word, {"^I"}},
        {"em-inc-search-prev", NULL, NULL, {"^R"}},
    };
    for (size_t i = 0; i < sizeof binding / sizeof binding[0]; i++) {
        if (binding[i].function)
            el_set(edit, EL_ADDFN, binding[i].name, binding[i].help, binding[i].function);
        for (size_t k = 0; k < 2 && binding[i].key[k]; k++)
            el_set(edit, EL_BIND, binding[i].key[k], binding[i].name, NULL);
    }
}

static bool open_editor(struct line_reader *reader) {
    enum { HISTORY_LINES = 1000 };
    HistEvent event;
    reader->terminal = chat_terminal_open();
    if (!reader->terminal) return false;
    EditLine *edit = reader->edit = el_init("lowkey", stdin, stdout, stderr);
    reader->history = history_init();
    if (!edit || !reader->history) return false;
    history(reader->history, &event, H_SETSIZE, HISTORY_LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(edit, EL_CLIENTDATA, reader);
    el_set(edit, EL_PROMPT_ESC, editor_prompt, '\1');
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, history, reader->history);
    el_set(edit, EL_GETCFN, read_character);
    /* Between two lines, keep the modes of chat_terminal.h. */
    el_set(edit, EL_SETTY, "-x", "-icanon", "-echo", "+noflsh", NULL);
    el_set(edit, EL_SETTY, "-d", "+noflsh", NULL);
    bind_keys(edit);
    el_source(edit, NULL); /* the user's ~/.editrc */
    return true;
}

static void close_editor(struct line_reader *reader) {
    if (reader->edit) el_end(reader->edit);
    if (reader->history) history_end(reader->history);
    reader->edit = NULL;
    reader->history = NULL;
}

static void set_prompt(struct line_reader *reader, const char *prompt) {
    /* Bytes between \1 take no columns. */
    snprintf(reader->prompt, sizeof reader->prompt,
             reader->opts.color ? "\1\x1b[1;36m\1%s\1\x1b[0m\1" : "%s", prompt);
}

static enum line_result read_edited_line(struct line_reader *reader, const char *prompt,
                                         char **line) {
    int n = 0;
    set_prompt(reader, prompt);
    reader->cancelled = false;
    const char *text = el_gets(reader->edit, &n);
    if (reader->cancelled) {
        clear_interrupt();
        putchar('\n');
        return reader->cancelled_empty ? LINE_CANCELLED_EMPTY : LINE_CANCELLED;
    }
    if (!text || n <= 0) return LINE_END;
    *line = xasprintf("%s", text);
    return LINE_READ;
}

void line_reader_remember(struct line_reader *reader, const char *text) {
    HistEvent event;
    if (!reader->history || text[strspn(text, " \t\r\n")] == 0) return;
    char *shown = paste_fold(&reader->pastes, text, strlen(text));
    history(reader->history, &event, H_ENTER, shown);
    free(shown);
}

#else
static bool open_editor(struct line_reader *reader) { return reader->terminal != NULL; }
static void close_editor(struct line_reader *reader) { (void)reader; }
static enum line_result read_edited_line(struct line_reader *reader, const char *prompt,
                                         char **line) {
    return read_plain_line(reader, prompt, line);
}
void line_reader_remember(struct line_reader *reader, const char *text) {
    (void)reader;
    (void)text;
}
#endif

struct line_reader *line_reader_open(const struct line_reader_opts *opts) {
    struct line_reader *reader = xmalloc(sizeof *reader);
    *reader = (struct line_reader){.opts = *opts};
    if (opts->terminal && !open_editor(reader)) {
        close_editor(reader);
        chat_terminal_close(reader->terminal);
        reader->terminal = NULL;
    }
    return reader;
}

void line_reader_close(struct line_reader *reader) {
    if (!reader) return;
    close_editor(reader);
    chat_terminal_close(reader->terminal);
    pastes_free(&reader->pastes);
    free(reader);
}

void line_reader_read_ahead(struct line_reader *reader) {
    if (reader->terminal) chat_terminal_read_ahead(reader->terminal);
}

bool line_reader_expand(struct line_reader *reader, const char *line, struct lk_buf *out) {
    return paste_expand(&reader->pastes, line, out);
}

enum line_result line_reader_next(struct line_reader *reader, const char *prompt, char **line) {
    *line = NULL;
    size_t n_lost = chat_terminal_stop_reading_ahead(reader->terminal);
    if (n_lost)
        print_error("%zu bytes were typed or pasted beyond the 16 MiB that are kept", n_lost);
    enum line_result result = reader->terminal ? read_edited_line(reader, prompt, line)
                                               : read_plain_line(reader, prompt, line);
    size_t len = *line ? strlen(*line) : 0;
    while (len && ((*line)[len - 1] == '\n' || (*line)[len - 1] == '\r')) (*line)[--len] = 0;
    return result;
}
