/* Makes text from models and files safe to show on a terminal. */
#include "terminal_text.h"

#include "base/utf8.h"
#include "xalloc.h"

#include <string.h>

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

size_t display_width(const char *s) {
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}
