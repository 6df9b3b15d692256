/* Joins lines to messages, and keeps the history. */
#include "chat_input.h"

#include "base/atomic_file.h"
#include "base/os.h"
#include "base/utf8.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- history ---- */

/* The file keeps what was typed in a chat from one run to the next: one entry per line, with a
 * newline written as \n and a backslash as \\. */

enum { MAX_ENTRIES = 1000, MAX_ENTRY_BYTES = 16 * 1024, MAX_HISTORY_BYTES = 64 * 1024 * 1024 };

/* $LOWKEY_HISTORY, or lowkey/history in $XDG_STATE_HOME or ~/.local/state: free it. NULL if
 * $LOWKEY_HISTORY is empty, or without a home. */
static char *history_path(void) {
    const char *named = getenv("LOWKEY_HISTORY"), *state = getenv("XDG_STATE_HOME"),
               *home = lk_os_home();
    if (named) return *named ? xasprintf("%s", named) : NULL;
    if (state && lk_os_is_absolute(state)) return xasprintf("%s/lowkey/history", state);
    return home && *home ? xasprintf("%s/.local/state/lowkey/history", home) : NULL;
}

static char *escape(const char *entry) {
    struct lk_buf out = {0};
    xbuf_add(&out, "", 0);
    for (; *entry; entry++) {
        if (*entry == '\n')
            xbuf_add(&out, "\\n", 2);
        else if (*entry == '\\')
            xbuf_add(&out, "\\\\", 2);
        else
            xbuf_add(&out, entry, 1);
    }
    return out.at;
}

/* In place. */
static void unescape(char *line) {
    char *out = line;
    for (; *line; line++) {
        if (*line == '\\' && line[1]) {
            line++;
            *out++ = *line == 'n' ? '\n' : *line;
        } else {
            *out++ = *line;
        }
    }
    *out = 0;
}

/* Keep the newest entries of a file with `n` of them. */
static void shorten(const char *path, const char *text, size_t n) {
    struct lk_atomic_file file;
    for (; n > MAX_ENTRIES; n--) text = strchr(text, '\n') + 1;
    if (lk_atomic_file_open(&file, path, NULL)) return;
    fputs(text, file.file);
    lk_atomic_file_close(&file, LK_OK, NULL);
}

static char *read_history(const char *path) {
    struct lk_buf text = {.max = MAX_HISTORY_BYTES};
    char chunk[16384];
    FILE *file = lk_os_open_to_read(path);
    if (!file) return NULL;
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, file)) > 0;) lk_buf_append(&text, chunk, n);
    bool whole = !ferror(file); /* a part must not replace the file in shorten() */
    fclose(file);
    bool usable = whole && text.len && !text.failed && !memchr(text.at, 0, text.len) &&
                  lk_utf8_valid_prefix(text.at, text.len) == text.len;
    if (!usable) lk_buf_free(&text);
    return usable ? text.at : NULL;
}

/* Call `add` with each entry, the oldest first. A file that has become long is shortened to its
 * newest 1000 entries. Without a file or with one that is not text, nothing happens. */
static void history_read(const char *path, void (*add)(void *user, const char *entry), void *user) {
    char *text = read_history(path);
    size_t n = 0;
    if (!text) return;
    for (char *s = text; (s = strchr(s, '\n')); s++) n++;
    if (n > 2 * MAX_ENTRIES) shorten(path, text, n);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n--) {
        *end = 0;
        if (n > MAX_ENTRIES) continue;
        unescape(line);
        add(user, line);
    }
    free(text);
}

static void make_folders(const char *path) {
    char *folder = xasprintf("%s", path);
    for (char *s = folder + 1; (s = strchr(s, '/')); s++) {
        *s = 0;
        if (lk_os_make_folder(folder, true) && errno != EEXIST) break;
        *s = '/';
    }
    free(folder);
}

/* Append an entry. The file and its folders are made if necessary, for their owner only. Entries of
 * more than 16 KiB are left out. Errors are ignored: the history is a convenience. */
static void history_append(const char *path, const char *entry) {
    if (strlen(entry) > MAX_ENTRY_BYTES) return;
    make_folders(path);
    int fd = lk_os_open(path, LK_OS_WRITE | LK_OS_CREATE | LK_OS_APPEND, S_IRUSR | S_IWUSR);
    if (fd < 0) return;
    char *line = escape(entry), *whole = xasprintf("%s\n", line);
    ssize_t written = write(fd, whole, strlen(whole)); /* one write: other chats append too */
    (void)written;
    close(fd);
    free(line);
    free(whole);
}

/* ---- messages ---- */

#define QUOTES "\"\"\""
#define BLANKS " \t\r\n"

struct chat_input {
    struct line_reader *reader;
    bool terminal;
    char *history_path; /* NULL: none */
    char *last;         /* entry of the history */
};

static void remember_loaded(void *user, const char *entry) { line_reader_remember(user, entry); }

struct chat_input *chat_input_open(const struct line_reader_opts *opts) {
    struct chat_input *input = xmalloc(sizeof *input);
    *input = (struct chat_input){.reader = line_reader_open(opts), .terminal = opts->terminal};
    if (opts->terminal) input->history_path = history_path();
    if (input->history_path) history_read(input->history_path, remember_loaded, input->reader);
    return input;
}

void chat_input_close(struct chat_input *input) {
    if (!input) return;
    line_reader_close(input->reader);
    free(input->history_path);
    free(input->last);
    free(input);
}

void chat_input_read_ahead(struct chat_input *input) { line_reader_read_ahead(input->reader); }

/* ---- lines ---- */

/* The length of text[0..len) without blanks at its end. */
static size_t trimmed(const char *text, size_t len) {
    while (len && strchr(BLANKS, text[len - 1])) len--;
    return len;
}

static bool ends_with_quotes(const char *text, size_t len) {
    size_t n = strlen(QUOTES);
    len = trimmed(text, len);
    return len >= n && memcmp(text + len - n, QUOTES, n) == 0;
}

/* True if more lines belong to the text; removes the mark that says so from its end. */
static bool continues(struct lk_buf *text, size_t start, bool quoted) {
    size_t n = quoted ? strlen(QUOTES) : 0;
    if (quoted) return !ends_with_quotes(text->at + start + n, text->len - start - n);
    if (text->len == start || text->at[text->len - 1] != '\\') return false;
    text->at[--text->len] = 0;
    return true;
}

/* Read lines up to the end of a message. The result is as typed, with folded texts. */
static enum line_result read_lines(struct chat_input *input, struct lk_buf *text, bool *quoted) {
    char *line;
    enum line_result result = line_reader_next(input->reader, "> ", &line);
    if (result != LINE_READ) return result;
    xbuf_add(text, line, strlen(line));
    size_t start = strspn(line, BLANKS);
    *quoted = strncmp(line + start, QUOTES, strlen(QUOTES)) == 0;
    free(line);
    while (continues(text, start, *quoted)) {
        result = line_reader_next(input->reader, ". ", &line);
        if (result == LINE_CANCELLED_EMPTY) result = LINE_CANCELLED;
        if (result != LINE_READ) break;
        xbuf_add(text, "\n", 1);
        xbuf_add(text, line, strlen(line));
        free(line);
    }
    if (result == LINE_END && *quoted) {
        print_error("the input ended inside of " QUOTES "; nothing was sent");
        if (input->terminal) result = LINE_CANCELLED; /* Ctrl-D drops the text, not the chat */
    } else if (result == LINE_END) {
        result = LINE_READ; /* the end of the input also ends a continued line */
    }
    return result;
}

/* "/help me", but not a path such as "/usr/bin". */
static bool is_command(const char *text) {
    return text[0] == '/' && !strchr(text, '\n') && text[1 + strcspn(text + 1, "/" BLANKS)] != '/';
}

static void remember(struct chat_input *input, const char *shown, const char *full) {
    if (input->last && strcmp(input->last, full) == 0) return;
    line_reader_remember(input->reader, shown);
    if (input->history_path) history_append(input->history_path, full);
    free(input->last);
    input->last = xasprintf("%s", full);
}

/* The message in text[0..len), without quotes and the blanks around it; NULL if nothing is left. */
static char *message_text(const char *text, size_t len, bool quoted) {
    size_t n_quote = quoted ? strlen(QUOTES) : 0;
    len = trimmed(text, len);
    text += n_quote;
    len = trimmed(text, len - 2 * n_quote);
    while (quoted && len && *text == '\n') text++, len--;
    return len ? xasprintf("%.*s", (int)len, text) : NULL;
}

enum chat_input_kind chat_input_next(struct chat_input *input, char **text) {
    static const enum chat_input_kind kind[] = {[LINE_END] = INPUT_END,
                                                [LINE_CANCELLED] = INPUT_CANCELLED,
                                                [LINE_CANCELLED_EMPTY] = INPUT_LEAVE};
    struct lk_buf typed = {0}, full = {0};
    bool quoted = false, command = false;
    *text = NULL;
    enum line_result result = read_lines(input, &typed, &quoted);
    if (result == LINE_READ) {
        typed.at[trimmed(typed.at, typed.len)] = 0;
        const char *shown = typed.at + strspn(typed.at, BLANKS);
        command = !quoted && is_command(shown);
        if (*shown && line_reader_expand(input->reader, shown, &full)) {
            remember(input, shown, full.at);
            *text = message_text(full.at, full.len, quoted);
        }
    }
    lk_buf_free(&typed);
    lk_buf_free(&full);
    if (result != LINE_READ) return kind[result];
    return !*text ? INPUT_NOTHING : command ? INPUT_COMMAND : INPUT_MESSAGE;
}
