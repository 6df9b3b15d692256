#include "text.h"

#include "progress.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void text_add(struct text *text, const char *bytes, size_t len) {
    if (text->cap - text->len < len + 1) {
        text->cap = (text->len + len + 1) * 2;
        text->at = must_grow(text->at, text->cap);
    }
    if (len) memcpy(text->at + text->len, bytes, len);
    text->len += len;
    text->at[text->len] = 0;
}

int utf8_sequence(const char *s, size_t len) {
    const unsigned char *b = (const unsigned char *)s;
    unsigned least, code;
    int n;
    if (b[0] < 0x80) return 1;
    if ((b[0] & 0xe0) == 0xc0)
        n = 2, least = 0x80, code = b[0] & 0x1f;
    else if ((b[0] & 0xf0) == 0xe0)
        n = 3, least = 0x800, code = b[0] & 0x0f;
    else if ((b[0] & 0xf8) == 0xf0)
        n = 4, least = 0x10000, code = b[0] & 0x07;
    else
        return 0;
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len) return -1;
        if ((b[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (b[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least || code > 0x10ffff || surrogate ? 0 : n;
}

size_t utf8_check(const char *s, size_t len) {
    size_t i = 0;
    while (i < len) {
        int n = utf8_sequence(s + i, len - i);
        if (n <= 0) return i;
        i += (size_t)n;
    }
    return len;
}

size_t utf8_columns(const char *s) {
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool is_control(const char *s, int n) {
    unsigned char c = (unsigned char)s[0];
    if (n == 1) return (c < ' ' && c != '\n' && c != '\t') || c == 127;
    return n == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0; /* C1: some terminals obey them */
}

/* Move whole characters from s to out; returns how many bytes at the end are a cut one. */
static size_t move_whole(const char *s, size_t len, bool plain, struct text *out) {
    size_t i = 0;
    while (i < len) {
        int n = utf8_sequence(s + i, len - i);
        if (n < 0) break;
        if (n == 0 || (plain && is_control(s + i, n)))
            text_add(out, "\xef\xbf\xbd", 3);
        else
            text_add(out, s + i, (size_t)n);
        i += n ? (size_t)n : 1;
    }
    return len - i;
}

void utf8_push(struct utf8_stream *stream, const char *bytes, size_t len, struct text *out) {
    struct text whole = {0};
    text_add(&whole, stream->held, stream->n_held);
    text_add(&whole, bytes, len);
    stream->n_held = move_whole(whole.at, whole.len, stream->plain, out);
    memcpy(stream->held, whole.at + whole.len - stream->n_held,
           stream->n_held); /* at most 3 bytes are cut */
    free(whole.at);
}

char *text_clean(const char *s) {
    struct text clean = {0};
    text_add(&clean, "", 0);
    move_whole(s, strlen(s), true, &clean);
    return clean.at;
}

bool check_text(const char *text, size_t len, const char *what) {
    const char *zero = memchr(text, 0, len);
    if (zero) {
        complain("%s: not a text: byte %zu is zero", what, (size_t)(zero - text));
        return false;
    }
    size_t bad = utf8_check(text, len);
    if (bad == len) return true;
    complain("%s: not valid UTF-8: byte %zu is 0x%02x", what, bad, (unsigned char)text[bad]);
    return false;
}

static bool read_all(int fd, const char *name, const char *what, size_t most, struct text *text) {
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR && !interrupted()) continue;
        if (n < 0) {
            if (!interrupted()) complain("%s: cannot read %s: %s", what, name, strerror(errno));
            return false;
        }
        if (n == 0) return true;
        if ((size_t)n > most - text->len) {
            char room[NUMBER_ROOM];
            complain("%s: %s is larger than %s", what, name, say_bytes(room, most));
            return false;
        }
        text_add(text, chunk, (size_t)n);
    }
}

bool read_text(const char *path, const char *what, size_t most, struct text *text) {
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    struct stat info;
    *text = (struct text){0};
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) {
        complain("%s: cannot open %s: %s", what, name, strerror(errno));
        if (fd > 0) close(fd);
        return false;
    }
    bool good = !S_ISDIR(info.st_mode);
    if (!good) complain("%s: %s is a directory", what, name);
    text_add(text, "", 0);
    char *where = must_print("%s: %s", what, name);
    good = good && read_all(fd, name, what, most, text) && check_text(text->at, text->len, where);
    free(where);
    if (!standard) close(fd);
    if (!good) {
        free(text->at);
        *text = (struct text){0};
    }
    return good;
}
