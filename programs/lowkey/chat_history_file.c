/* Reads and extends the history file. */
#include "chat_history_file.h"

#include "base/atomic_file.h"
#include "base/utf8.h"
#include "xalloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ENTRIES = 1000, MAX_ENTRY_BYTES = 16 * 1024, MAX_HISTORY_BYTES = 64 * 1024 * 1024 };

char *chat_history_path(void) {
    const char *named = getenv("LOWKEY_HISTORY"), *state = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    if (named) return *named ? xasprintf("%s", named) : NULL;
    if (state && *state == '/') return xasprintf("%s/lowkey/history", state);
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
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, file)) > 0;) lk_buf_append(&text, chunk, n);
    fclose(file);
    bool usable = text.len && !text.failed && !memchr(text.at, 0, text.len) &&
                  lk_utf8_valid_prefix(text.at, text.len) == text.len;
    if (!usable) lk_buf_free(&text);
    return usable ? text.at : NULL;
}

void chat_history_read(const char *path, void (*add)(void *user, const char *entry), void *user) {
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
        if (mkdir(folder, S_IRWXU) && errno != EEXIST) break;
        *s = '/';
    }
    free(folder);
}

void chat_history_append(const char *path, const char *entry) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    if (strlen(entry) > MAX_ENTRY_BYTES) return;
    make_folders(path);
    int fd = open(path, flags, S_IRUSR | S_IWUSR);
    if (fd < 0) return;
    char *line = escape(entry), *whole = xasprintf("%s\n", line);
    ssize_t written = write(fd, whole, strlen(whole)); /* one write: other chats append too */
    (void)written;
    close(fd);
    free(line);
    free(whole);
}
