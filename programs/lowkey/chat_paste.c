/* Folds long texts in the line editor. */
#include "chat_paste.h"

#include "base/utf8.h"
#include "output.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

#define LABEL_START "[paste "

static size_t count_lines(const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += text[i] == '\n';
    return n + (len && text[len - 1] != '\n');
}

char *chat_paste_fold(struct chat_pastes *pastes, const char *text, size_t len) {
    enum { MAX_SHOWN_LINES = 8, MAX_SHOWN_BYTES = 1000 };
    char bytes[NUMBER_BUF], lines[NUMBER_BUF];
    size_t n_line = count_lines(text, len);
    if (n_line <= MAX_SHOWN_LINES && len <= MAX_SHOWN_BYTES)
        return xasprintf("%.*s", (int)len, text);
    pastes->total += len;
    for (size_t i = 0; i < pastes->n && pastes->total > 4 * (size_t)MAX_PASTE_BYTES; i++) {
        struct chat_paste *old = &pastes->paste[i];
        if (old->text) pastes->total -= old->len;
        free(old->text);
        old->text = NULL;
    }
    struct chat_paste new = {.text = xmalloc(len + 1), .len = len};
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
static const struct chat_paste *find_paste(const struct chat_pastes *pastes, const char *s) {
    size_t number = strtoul(s + strlen(LABEL_START), NULL, 10);
    if (number == 0 || number > pastes->n) return NULL;
    const struct chat_paste *paste = &pastes->paste[number - 1];
    return strncmp(s, paste->label, strlen(paste->label)) == 0 ? paste : NULL;
}

bool chat_paste_expand(const struct chat_pastes *pastes, const char *line, struct lk_buf *out) {
    for (const char *s; (s = strstr(line, LABEL_START));) {
        const struct chat_paste *paste = find_paste(pastes, s);
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

size_t chat_paste_label_at_end(const struct chat_pastes *pastes, const char *line, size_t len) {
    for (size_t i = 0; i < pastes->n; i++) {
        size_t n = strlen(pastes->paste[i].label);
        if (n <= len && memcmp(line + len - n, pastes->paste[i].label, n) == 0) return n;
    }
    return 0;
}

void chat_paste_clean(const char *text, size_t len, struct lk_buf *out) {
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

void chat_pastes_free(struct chat_pastes *pastes) {
    for (size_t i = 0; i < pastes->n; i++) {
        free(pastes->paste[i].text);
        free(pastes->paste[i].label);
    }
    free(pastes->paste);
    *pastes = (struct chat_pastes){0};
}
