/* Incremental detokenizer: UTF-8 across token boundaries, and stop strings. */
#include "serve/detokenizer.h"

#include "base/os.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

void lk_text_delta_free(struct lk_text_delta *delta) {
    free(delta->text);
    free(delta->lp);
    *delta = (struct lk_text_delta){0};
}

/* s[0..len) is not valid UTF-8. Could more bytes complete it to one character? */
static bool is_incomplete_char(const char *s, size_t len) {
    /* Bounds of the second byte's range, for every kind of first byte. */
    static const unsigned char second[] = {0x80, 0xBF, 0x90, 0x8F, 0xA0, 0x9F};
    char longer[4];
    if (len == 0 || len > 3) return false;
    for (size_t i = 0; i < sizeof second; i++) {
        memcpy(longer, s, len);
        longer[len] = (char)second[i];
        for (size_t n = len + 1; n <= 4; n++) {
            if (n > len + 1) longer[n - 1] = (char)0x80;
            if (lk_utf8_valid_prefix(longer, n) == n) return true;
        }
    }
    return false;
}

/* Append the bytes to `held` as whole characters. A byte that cannot belong to a character becomes
 * U+FFFD. The start of an incomplete character goes to `partial`. */
static void append_chars(struct lk_detokenizer *detok, const char *bytes, size_t len) {
    struct lk_buf all = {0};
    size_t at = 0, old_len = detok->held.len;
    lk_buf_append(&all, detok->partial, detok->n_partial);
    lk_buf_append(&all, bytes, len);
    detok->n_partial = 0;
    while (!all.failed && at < all.len) {
        size_t n = lk_utf8_valid_prefix(all.at + at, all.len - at);
        lk_buf_append(&detok->held, all.at + at, n);
        at += n;
        if (at == all.len) break;
        if (is_incomplete_char(all.at + at, all.len - at)) {
            detok->n_partial = all.len - at;
            memcpy(detok->partial, all.at + at, detok->n_partial);
            break;
        }
        lk_buf_append_str(&detok->held, "\xef\xbf\xbd");
        at++;
    }
    for (size_t i = old_len; i < detok->held.len; i++)
        detok->n_char += ((unsigned char)detok->held.at[i] & 0xC0) != 0x80;
    detok->failed |= all.failed || detok->held.failed;
    lk_buf_free(&all);
}

static void append_logprob(struct lk_detokenizer *detok, const struct lk_logprob *lp,
                           size_t offset) {
    if (detok->n_pending == detok->cap_pending) {
        size_t cap = detok->cap_pending ? 2 * detok->cap_pending : 16;
        void *larger = realloc(detok->pending, cap * sizeof *detok->pending);
        if (!larger) {
            detok->failed = true;
            return;
        }
        detok->pending = larger;
        detok->cap_pending = cap;
    }
    struct lk_pending_logprob *p = &detok->pending[detok->n_pending++];
    p->lp = *lp;
    p->lp.offset = offset;
    p->end = detok->n_emitted + detok->held.len;
}

/* Move the first n held bytes, and the tokens that end in them, to the delta. */
static void emit_held(struct lk_detokenizer *detok, size_t n, struct lk_text_delta *delta) {
    *delta = (struct lk_text_delta){0};
    if (n) {
        delta->text = malloc(n + 1);
        if (!delta->text) {
            detok->failed = true;
            return;
        }
        memcpy(delta->text, detok->held.at, n);
        delta->text[n] = 0;
        delta->len = n;
        lk_buf_consume(&detok->held, n);
        detok->n_emitted += n;
    }
    size_t n_lp = 0;
    while (n_lp < detok->n_pending && detok->pending[n_lp].end <= detok->n_emitted) n_lp++;
    if (n_lp == 0) return;
    delta->lp = malloc(n_lp * sizeof *delta->lp);
    if (!delta->lp) {
        detok->failed = true;
        return;
    }
    for (size_t i = 0; i < n_lp; i++) delta->lp[i] = detok->pending[i].lp;
    delta->n_lp = n_lp;
    detok->n_pending -= n_lp;
    memmove(detok->pending, detok->pending + n_lp, detok->n_pending * sizeof *detok->pending);
}

/* Offset of the stop string in the held text that is complete first, so that the answer does not
 * depend on how its text is split into tokens; the text's length if there is none. */
static size_t find_stop(struct lk_detokenizer *detok) {
    size_t first = detok->held.len, first_end = SIZE_MAX;
    for (size_t i = 0; detok->held.at && i < detok->n_stop; i++) {
        size_t len = strlen(detok->stop[i]);
        const char *at = lk_os_memmem(detok->held.at, detok->held.len, detok->stop[i], len);
        size_t start = at ? (size_t)(at - detok->held.at) : 0;
        if (!at || start + len > first_end || (start + len == first_end && start > first)) continue;
        first = start;
        first_end = start + len;
        detok->found = detok->stop[i];
    }
    return first;
}

/* Bytes at the end of the held text that may be the start of a stop string. */
static size_t partial_stop_len(const struct lk_detokenizer *detok) {
    size_t max = 0;
    for (size_t i = 0; i < detok->n_stop; i++) {
        size_t n = strlen(detok->stop[i]) - 1;
        if (n > detok->held.len) n = detok->held.len;
        while (n > max && memcmp(detok->held.at + detok->held.len - n, detok->stop[i], n) != 0) n--;
        if (n > max) max = n;
    }
    return max;
}

bool lk_detokenizer_push(struct lk_detokenizer *detok, const char *bytes, size_t len,
                         const struct lk_logprob *lp, struct lk_text_delta *delta) {
    size_t offset = detok->n_char;
    append_chars(detok, bytes, len);
    if (lp) append_logprob(detok, lp, offset);
    size_t stop = find_stop(detok);
    bool stopped = stop < detok->held.len;
    emit_held(detok, stopped ? stop : detok->held.len - partial_stop_len(detok), delta);
    return stopped;
}

void lk_detokenizer_finish(struct lk_detokenizer *detok, struct lk_text_delta *delta) {
    if (detok->n_partial) lk_buf_append_str(&detok->held, "\xef\xbf\xbd");
    detok->n_partial = 0;
    emit_held(detok, find_stop(detok), delta);
}

void lk_detokenizer_free(struct lk_detokenizer *detok) {
    lk_buf_free(&detok->held);
    free(detok->pending);
    *detok = (struct lk_detokenizer){0};
}
