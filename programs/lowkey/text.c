/* Reads and cleans text. */
#include "text.h"

#include "base/os.h"
#include "base/utf8.h"
#include "interrupt.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* C0 except newline and tab, DEL, and C1, which some terminals interpret. */
static bool is_control(uint32_t code) {
    return (code < ' ' && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
}

/* Append s[0..len) to `out` up to a character that is cut off at the end. Returns the number of
 * bytes of that character, 0 to 3. */
static size_t append_whole_characters(const char *s, size_t len, bool plain, struct lk_buf *out) {
    size_t i = 0;
    while (i < len) {
        uint32_t code;
        int n = lk_utf8_decode(s + i, len - i, &code);
        if (n < 0) break;
        if (n == 0 || (plain && is_control(code)))
            xbuf_add(out, "\xef\xbf\xbd", 3);
        else
            xbuf_add(out, s + i, (size_t)n);
        i += n ? (size_t)n : 1;
    }
    return len - i;
}

void utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t len,
                      struct lk_buf *out) {
    struct lk_buf joined = {0};
    xbuf_add(&joined, stream->held, stream->n_held);
    xbuf_add(&joined, bytes, len);
    stream->n_held = append_whole_characters(joined.at, joined.len, stream->plain, out);
    memcpy(stream->held, joined.at + joined.len - stream->n_held, stream->n_held);
    lk_buf_free(&joined);
}

char *printable_copy(const char *s) {
    struct lk_buf copy = {0};
    xbuf_add(&copy, "", 0);
    append_whole_characters(s, strlen(s), true, &copy);
    return copy.at;
}

/* ---- reading ---- */

bool check_utf8_text(const char *text, size_t len, const char *what) {
    const char *zero = memchr(text, 0, len);
    if (zero) {
        print_error("%s: not text: byte %zu is zero", what, (size_t)(zero - text));
        return false;
    }
    size_t n_valid = lk_utf8_valid_prefix(text, len);
    if (n_valid == len) return true;
    print_error("%s: not valid UTF-8: byte %zu is 0x%02x", what, n_valid,
                (unsigned char)text[n_valid]);
    return false;
}

static bool read_to_end(int fd, const char *name, const char *what, size_t max,
                        struct lk_buf *text) {
    char chunk[65536];
    for (;;) {
        interrupt_blocked_reads(true);
        ssize_t n = read(fd, chunk, sizeof chunk);
        interrupt_blocked_reads(false);
        if (n < 0 && errno == EINTR && !interrupted()) continue;
        if (n < 0) {
            if (!interrupted()) print_error("%s: cannot read %s: %s", what, name, strerror(errno));
            return false;
        }
        if (n == 0) return true;
        if ((size_t)n > max - text->len) {
            char limit[NUMBER_BUF];
            print_error("%s: %s is larger than %s", what, name, format_bytes(limit, max));
            return false;
        }
        xbuf_add(text, chunk, (size_t)n);
    }
}

int read_text_file(const char *path, const char *what, size_t max, struct lk_buf *text) {
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    struct stat info;
    *text = (struct lk_buf){0};
    int fd = is_stdin ? STDIN_FILENO : lk_os_open(path, LK_OS_READ, 0);
    if (fd < 0 || fstat(fd, &info)) {
        print_error("%s: cannot open %s: %s", what, name, strerror(errno));
        if (fd > 0) close(fd);
        return STATUS_ERROR;
    }
    bool ok = !S_ISDIR(info.st_mode);
    if (!ok) print_error("%s: %s is a directory", what, name);
    xbuf_add(text, "", 0);
    char *label = xasprintf("%s: %s", what, name);
    ok =
        ok && read_to_end(fd, name, what, max, text) && check_utf8_text(text->at, text->len, label);
    free(label);
    if (!is_stdin) close(fd);
    if (ok) return STATUS_OK;
    lk_buf_free(text);
    return interrupted() ? STATUS_INTERRUPTED : STATUS_ERROR;
}
