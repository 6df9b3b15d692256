/* Collects and sorts the texts of tokens. */
#include "grammar/token_bytes.h"

#include <string.h>

/* ---- sorting ---- */

struct text {
    const char *at;
    uint32_t len;
    int32_t tok;
};

static bool is_less(const struct text *a, const struct text *b) {
    uint32_t n = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->at, b->at, n);
    return order ? order < 0 : a->len != b->len ? a->len < b->len : a->tok < b->tok;
}

/* Heapsort: n log n comparisons for any input, and no memory. */
static void sink(struct text *t, uint32_t root, uint32_t n) {
    struct text moved = t[root];
    for (;;) {
        uint32_t child = 2 * root + 1;
        if (child >= n) break;
        if (child + 1 < n && is_less(&t[child], &t[child + 1])) child++;
        if (!is_less(&moved, &t[child])) break;
        t[root] = t[child];
        root = child;
    }
    t[root] = moved;
}

static void sort_texts(struct text *t, uint32_t n) {
    for (uint32_t i = n / 2; i > 0; i--) sink(t, i - 1, n);
    for (uint32_t i = n; i > 1; i--) {
        struct text last = t[i - 1];
        t[i - 1] = t[0];
        t[0] = last;
        sink(t, 0, i - 1);
    }
}

/* ---- entries ---- */

static void *alloc_array(struct lk_token_bytes *t, size_t n, size_t size) {
    return lk_alloc(&t->ledger, LK_FOR_OTHER, n ? n * size : 1);
}

/* Fill the arrays from sorted texts. */
static void fill_entries(struct lk_token_bytes *t, const struct text *text) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t shared = 0;
        if (i > 0)
            while (shared < text[i].len && shared < text[i - 1].len &&
                   text[i].at[shared] == text[i - 1].at[shared])
                shared++;
        t->tok[i] = text[i].tok;
        t->start[i] = at;
        t->n_shared[i] = (uint16_t)shared;
        t->entry[text[i].tok] = i;
        memcpy(t->bytes + at, text[i].at, text[i].len);
        at += text[i].len;
        if (text[i].len > t->longest) t->longest = text[i].len;
    }
    t->start[t->n] = at;
}

lk_status lk_token_bytes_new(struct lk_token_bytes **out, const char *const *text,
                             const size_t *len, uint32_t n_vocab, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_token_bytes *t = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *t);
    size_t sorted_size = (n_vocab ? n_vocab : 1) * sizeof(struct text), total = 0;
    struct text *sorted = lk_alloc(&ledger, LK_FOR_OTHER, sorted_size);
    bool complete = t && sorted;
    if (complete) {
        t->n_vocab = n_vocab;
        for (uint32_t i = 0; i < n_vocab; i++) {
            if (len[i] == 0 || len[i] > LK_MAX_TOKEN_BYTES) continue;
            sorted[t->n++] = (struct text){text[i], (uint32_t)len[i], (int32_t)i};
            total += len[i];
        }
        t->tok = alloc_array(t, t->n, sizeof *t->tok);
        t->start = alloc_array(t, t->n + 1, sizeof *t->start);
        t->n_shared = alloc_array(t, t->n, sizeof *t->n_shared);
        t->entry = alloc_array(t, n_vocab, sizeof *t->entry);
        t->bytes = alloc_array(t, total, 1);
        complete = t->tok && t->start && t->n_shared && t->entry && t->bytes;
    }
    if (complete) {
        memset(t->entry, 0xff, n_vocab * sizeof *t->entry);
        sort_texts(sorted, t->n);
        fill_entries(t, sorted);
    }
    lk_release(&ledger, LK_FOR_OTHER, sorted, sorted_size);
    if (!complete) {
        lk_token_bytes_free(t);
        return lk_fail(err, LK_E_NOMEM, "not enough memory for the texts of %u tokens", n_vocab);
    }
    *out = t;
    return LK_OK;
}

static void free_array(struct lk_token_bytes *t, void *array, size_t n, size_t size) {
    lk_release(&t->ledger, LK_FOR_OTHER, array, n ? n * size : 1);
}

void lk_token_bytes_free(struct lk_token_bytes *tokens) {
    if (!tokens) return;
    struct lk_token_bytes *t = tokens;
    free_array(t, t->bytes, t->start ? t->start[t->n] : 0, 1);
    free_array(t, t->tok, t->n, sizeof *t->tok);
    free_array(t, t->start, t->n + 1, sizeof *t->start);
    free_array(t, t->n_shared, t->n, sizeof *t->n_shared);
    free_array(t, t->entry, t->n_vocab, sizeof *t->entry);
    struct lk_ledger ledger = {0};
    lk_release(&ledger, LK_FOR_OTHER, t, sizeof *t);
}
