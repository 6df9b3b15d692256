#include "serve/emit.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lk_logprob lk_logprob_of(const float *logits, int32_t n_vocab, int32_t tok, int n_top) {
    struct lk_logprob out = {.tok = tok};
    float most = -INFINITY;
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] > most) most = logits[i];
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)(logits[i] - most));
    float base = most + (float)log(sum);
    out.logprob = logits[tok] - base;
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        if (out.n_top == n_top && logits[i] - base <= out.top[n_top - 1].logprob) continue;
        int at = out.n_top < n_top ? out.n_top++ : n_top - 1;
        for (; at > 0 && out.top[at - 1].logprob < logits[i] - base; at--)
            out.top[at] = out.top[at - 1];
        out.top[at].tok = i;
        out.top[at].logprob = logits[i] - base;
    }
    return out;
}

void lk_piece_free(struct lk_piece *piece) {
    free(piece->text);
    free(piece->lp);
    *piece = (struct lk_piece){0};
}

/* Could more bytes make a character of s[0..len), which is none? */
static bool may_become_whole(const char *s, size_t len) {
    static const unsigned char after[] = {0x80, 0xBF, 0x90,
                                          0x8F, 0xA0, 0x9F}; /* ends of all second bytes' ranges */
    char longer[4];
    if (len == 0 || len > 3) return false;
    for (size_t i = 0; i < sizeof after; i++) {
        memcpy(longer, s, len);
        longer[len] = (char)after[i];
        for (size_t n = len + 1; n <= 4; n++) {
            if (n > len + 1) longer[n - 1] = (char)0x80;
            if (lk_utf8_valid(longer, n) == n) return true;
        }
    }
    return false;
}

static size_t count_characters(const struct lk_buf *text, size_t from) {
    size_t n = 0;
    for (size_t i = from; i < text->len; i++) n += ((unsigned char)text->at[i] & 0xC0) != 0x80;
    return n;
}

/* Bytes to whole characters at the end of `held`; a byte that belongs to none becomes U+FFFD. */
static void add_text(struct lk_emit *emit, const char *bytes, size_t len) {
    struct lk_buf all = {0};
    size_t at = 0, before = emit->held.len;
    lk_buf_add(&all, emit->cut, emit->n_cut);
    lk_buf_add(&all, bytes, len);
    emit->n_cut = 0;
    while (!all.failed && at < all.len) {
        size_t n = lk_utf8_valid(all.at + at, all.len - at);
        lk_buf_add(&emit->held, all.at + at, n);
        at += n;
        if (at == all.len) break;
        if (may_become_whole(all.at + at, all.len - at)) {
            emit->n_cut = all.len - at;
            memcpy(emit->cut, all.at + at, emit->n_cut);
            break;
        }
        lk_buf_text(&emit->held, "\xef\xbf\xbd");
        at++;
    }
    emit->n_char += count_characters(&emit->held, before);
    emit->failed |= all.failed || emit->held.failed;
    lk_buf_free(&all);
}

static void add_logprob(struct lk_emit *emit, const struct lk_logprob *lp, size_t at) {
    if (emit->n_wait == emit->cap_wait) {
        size_t cap = emit->cap_wait ? 2 * emit->cap_wait : 16;
        void *bigger = realloc(emit->wait, cap * sizeof *emit->wait);
        if (!bigger) {
            emit->failed = true;
            return;
        }
        emit->wait = bigger;
        emit->cap_wait = cap;
    }
    emit->wait[emit->n_wait].lp = *lp;
    emit->wait[emit->n_wait].lp.at = at;
    emit->wait[emit->n_wait++].end = emit->shown + emit->held.len;
}

/* Give out the first n bytes held, and the tokens that end in them. */
static void give(struct lk_emit *emit, size_t n, struct lk_piece *piece) {
    *piece = (struct lk_piece){0};
    if (n) {
        piece->text = malloc(n + 1);
        if (!piece->text) {
            emit->failed = true;
            return;
        }
        memcpy(piece->text, emit->held.at, n);
        piece->text[n] = 0;
        piece->len = n;
        lk_buf_drop(&emit->held, n);
        emit->shown += n;
    }
    size_t k = 0;
    while (k < emit->n_wait && emit->wait[k].end <= emit->shown) k++;
    if (k == 0) return;
    piece->lp = malloc(k * sizeof *piece->lp);
    if (!piece->lp) {
        emit->failed = true;
        return;
    }
    for (size_t i = 0; i < k; i++) piece->lp[i] = emit->wait[i].lp;
    piece->n_lp = k;
    emit->n_wait -= k;
    memmove(emit->wait, emit->wait + k, emit->n_wait * sizeof *emit->wait);
}

/* Where the first stop string begins in the text held; its length where there is none. */
static size_t find_stop(const struct lk_emit *emit) {
    size_t first = emit->held.len;
    for (size_t i = 0; i < emit->n_stop; i++) {
        const char *at = emit->held.at ? strstr(emit->held.at, emit->stop[i]) : NULL;
        if (at && (size_t)(at - emit->held.at) < first) first = (size_t)(at - emit->held.at);
    }
    return first;
}

/* Bytes at the end of the text held that may begin a stop string. */
static size_t maybe_stop(const struct lk_emit *emit) {
    size_t most = 0;
    for (size_t i = 0; i < emit->n_stop; i++) {
        size_t n = strlen(emit->stop[i]) - 1;
        if (n > emit->held.len) n = emit->held.len;
        while (n > most && memcmp(emit->held.at + emit->held.len - n, emit->stop[i], n) != 0) n--;
        if (n > most) most = n;
    }
    return most;
}

bool lk_emit_push(struct lk_emit *emit, const char *bytes, size_t len, const struct lk_logprob *lp,
                  struct lk_piece *piece) {
    size_t at = emit->n_char;
    add_text(emit, bytes, len);
    if (lp) add_logprob(emit, lp, at);
    size_t stop = find_stop(emit);
    bool found = stop < emit->held.len;
    give(emit, found ? stop : emit->held.len - maybe_stop(emit), piece);
    return found;
}

void lk_emit_finish(struct lk_emit *emit, struct lk_piece *piece) {
    if (emit->n_cut) lk_buf_text(&emit->held, "\xef\xbf\xbd");
    emit->n_cut = 0;
    give(emit, emit->held.len, piece);
}

void lk_emit_free(struct lk_emit *emit) {
    lk_buf_free(&emit->held);
    free(emit->wait);
    *emit = (struct lk_emit){0};
}
