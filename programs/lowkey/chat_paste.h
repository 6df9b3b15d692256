/* Long texts folded in the line editor: a pasted document is shown as a label, for example
 * "[paste 1: 312 lines, 20 KiB]", and replaced by its text when the line is sent. */
#ifndef LK_LOWKEY_CHAT_PASTE_H
#define LK_LOWKEY_CHAT_PASTE_H

#include "base/buf.h"

enum { MAX_PASTE_BYTES = 16 * 1024 * 1024 };

struct chat_paste {
    char *text, *label;
    size_t len;
};

struct chat_pastes {
    struct chat_paste *paste; /* [n] */
    size_t n;
    size_t total; /* bytes of all texts; the oldest are dropped beyond 4 MAX_PASTE_BYTES */
};

/* What to show for text[0..len): the text itself if it is short, or a label that stands for it.
 * Free it. */
char *chat_paste_fold(struct chat_pastes *pastes, const char *text, size_t len);

/* Append `line` with labels replaced by their texts to `out`. Returns false after printing an error
 * if a label was edited, or if its text is no longer kept. */
bool chat_paste_expand(const struct chat_pastes *pastes, const char *line, struct lk_buf *out);

/* The length in bytes of a label at the end of line[0..len); 0 if there is none. */
size_t chat_paste_label_at_end(const struct chat_pastes *pastes, const char *line, size_t len);

/* Append a pasted text as plain text: line ends become newlines, other control characters except
 * tabs are left out, and bytes that are not UTF-8 become U+FFFD. */
void chat_paste_clean(const char *text, size_t len, struct lk_buf *out);

void chat_pastes_free(struct chat_pastes *pastes);

#endif
