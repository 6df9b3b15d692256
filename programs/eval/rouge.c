/* ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of two texts. */
#include "eval/rouge.h"

#include "base/ledger.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* An occurrence of a word. */
struct rouge_word {
    const char *at;
    int32_t len;
    int32_t place; /* index among the tokens of both texts, the reference's first */
};

struct rouge_tokens {
    const int32_t *id;   /* [n] equal words have equal ids */
    const int32_t *line; /* [n] sentence of the token */
    int32_t n;
};

struct rouge {
    struct lk_ledger ledger;
    size_t cap;              /* more than the number of tokens of both texts */
    char *lower;             /* both texts in lower case */
    struct rouge_word *word; /* [cap] */
    int32_t *id, *line;      /* [cap] */
    uint64_t *gram;          /* [cap] n-grams of both texts */
    int32_t *row;            /* [cap] row of the LCS table */
    int32_t *count[2];       /* [cap] occurrences of each word in each text */
    uint8_t *common;         /* [cap] 1 if a token of the sentence is in its union of LCSs */
    uint64_t *left;          /* bits [m][n]: where backtracking in the LCS table goes left */
    size_t left_size;
    struct rouge_tokens text[2]; /* reference, candidate */
};

static struct lk_rouge_score score_of_counts(double matches, double n_reference,
                                             double n_candidate) {
    struct lk_rouge_score s = {.precision = n_candidate > 0 ? matches / n_candidate : 0,
                               .recall = n_reference > 0 ? matches / n_reference : 0};
    if (s.precision + s.recall > 0) s.f = 2 * s.precision * s.recall / (s.precision + s.recall);
    return s;
}

/* ---- tokens ---- */

/* The character at s in lower case, or 0 if it separates words; *n: its bytes. Two letters outside
 * ASCII have lower-case letters in ASCII: the Kelvin sign, and I with a dot (see split_words),
 * whose dot then separates. */
static char lower_letter(const char *s, int *n) {
    *n = 1;
    if ((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9')) return *s;
    if (*s >= 'A' && *s <= 'Z') return (char)(*s - 'A' + 'a');
    if (strncmp(s, "\xe2\x84\xaa", 3) == 0) return *n = 3, 'k';
    return 0;
}

static int compare_words(const void *a, const void *b) {
    const struct rouge_word *x = a, *y = b;
    int order = memcmp(x->at, y->at, x->len < y->len ? x->len : y->len);
    return order ? order : x->len - y->len;
}

/* Split a text into words, starting at r->word[*n_word]. Their lower case is written to `lower`. */
static void split_words(struct rouge *r, const char *text, char *lower, int32_t *n_word) {
    int32_t line = 0;
    bool inside = false;
    for (int n; *text; text += n) {
        char c = lower_letter(text, &n);
        bool dotted = strncmp(text, "\xc4\xb0", 2) == 0;
        if (dotted) c = 'i';
        line += *text == '\n';
        if (c && !inside) {
            r->line[*n_word] = line;
            r->word[*n_word] = (struct rouge_word){lower, 0, *n_word};
            ++*n_word;
        }
        if (c) {
            r->word[*n_word - 1].len++;
            *lower++ = c;
        }
        inside = c && !dotted;
    }
}

/* Assign ids below the number of tokens to the words. Equal words have equal ids. */
static void number_words(struct rouge *r, int32_t n_word) {
    qsort(r->word, n_word, sizeof *r->word, compare_words);
    int32_t id = 0;
    for (int32_t i = 0; i < n_word; i++) {
        if (i > 0 && compare_words(&r->word[i - 1], &r->word[i]) != 0) id++;
        r->id[r->word[i].place] = id;
    }
}

/* ---- ROUGE-N ---- */

static int compare_ngrams(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Write the sorted n-grams of a text, n = 1 or 2. Returns their number. */
static int32_t sorted_ngrams(const struct rouge_tokens *text, int n, uint64_t *out) {
    int32_t n_gram = text->n - n + 1;
    if (n_gram < 0) n_gram = 0;
    for (int32_t i = 0; i < n_gram; i++)
        out[i] = (uint64_t)text->id[i] << 32 | (uint64_t)(n == 2 ? text->id[i + 1] : 0);
    qsort(out, n_gram, sizeof *out, compare_ngrams);
    return n_gram;
}

static struct lk_rouge_score rouge_n(struct rouge *r, int n) {
    int32_t n_reference = sorted_ngrams(&r->text[0], n, r->gram), matches = 0;
    const uint64_t *reference = r->gram, *candidate = r->gram + n_reference;
    int32_t n_candidate = sorted_ngrams(&r->text[1], n, r->gram + n_reference);
    for (int32_t i = 0, j = 0; i < n_reference && j < n_candidate;) {
        matches += reference[i] == candidate[j];
        bool first = reference[i] <= candidate[j], second = candidate[j] <= reference[i];
        i += first;
        j += second;
    }
    return score_of_counts(matches, n_reference, n_candidate);
}

/* ---- ROUGE-L ---- */

/* Length of the LCS of a [m] and b [n]. row: [n + 1]. left: NULL, or bits [m][n], set if the
 * table's entry to the left is larger than the one above. */
static int32_t lcs_length(const int32_t *a, int32_t m, const int32_t *b, int32_t n, int32_t *row,
                          uint64_t *left) {
    memset(row, 0, ((size_t)n + 1) * sizeof *row);
    for (int32_t i = 0; i < m; i++) {
        int32_t diagonal = 0;
        for (int32_t j = 0; j < n; j++) {
            int32_t above = row[j + 1], before = row[j];
            size_t bit = (size_t)i * n + j;
            if (left && before > above) left[bit / 64] |= 1ull << bit % 64;
            row[j + 1] = a[i] == b[j] ? diagonal + 1 : before > above ? before : above;
            diagonal = above;
        }
    }
    return row[n];
}

static struct lk_rouge_score rouge_l(struct rouge *r) {
    const struct rouge_tokens *a = &r->text[0], *b = &r->text[1];
    return score_of_counts(lcs_length(a->id, a->n, b->id, b->n, r->row, NULL), a->n, b->n);
}

/* Tokens of the sentence that starts at token `at`. */
static int32_t sentence_length(const struct rouge_tokens *text, int32_t at) {
    int32_t end = at;
    while (end < text->n && text->line[end] == text->line[at]) end++;
    return end - at;
}

static size_t longest_sentence(const struct rouge_tokens *text) {
    int32_t longest = 0, n;
    for (int32_t at = 0; at < text->n; at += n) {
        n = sentence_length(text, at);
        if (n > longest) longest = n;
    }
    return (size_t)longest;
}

/* Mark in r->common the tokens of a [m] that are in one LCS with b [n]. */
static void mark_common(struct rouge *r, const int32_t *a, int32_t m, const int32_t *b, int32_t n) {
    memset(r->left, 0, ((size_t)m * n + 63) / 64 * sizeof *r->left);
    lcs_length(a, m, b, n, r->row, r->left);
    for (int32_t i = m - 1, j = n - 1; i >= 0 && j >= 0;) {
        size_t bit = (size_t)i * n + j;
        if (a[i] == b[j]) {
            r->common[i] = 1;
            i--;
            j--;
        } else if (r->left[bit / 64] >> bit % 64 & 1) {
            j--;
        } else {
            i--;
        }
    }
}

static struct lk_rouge_score rouge_lsum(struct rouge *r) {
    const struct rouge_tokens *a = &r->text[0], *b = &r->text[1];
    int32_t matches = 0, m, n;
    for (int side = 0; side < 2; side++)
        for (int32_t i = 0; i < r->text[side].n; i++) r->count[side][r->text[side].id[i]]++;
    for (int32_t i = 0; i < a->n; i += m) {
        m = sentence_length(a, i);
        memset(r->common, 0, m);
        for (int32_t j = 0; j < b->n; j += n) {
            n = sentence_length(b, j);
            mark_common(r, a->id + i, m, b->id + j, n);
        }
        for (int32_t t = 0; t < m; t++) {
            int32_t id = a->id[i + t];
            if (!r->common[t] || r->count[0][id] == 0 || r->count[1][id] == 0) continue;
            r->count[0][id]--;
            r->count[1][id]--;
            matches++;
        }
    }
    return score_of_counts(matches, a->n, b->n);
}

/* ---- both texts ---- */

static bool alloc_buffers(struct rouge *r, size_t len) {
    r->cap = len / 2 + 4; /* a token and its separator have at least two bytes */
    r->lower = lk_alloc(&r->ledger, LK_FOR_OTHER, len + 1);
    r->word = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->word);
    r->id = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->id);
    r->line = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->line);
    r->gram = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->gram);
    r->row = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->row);
    r->common = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap);
    for (int side = 0; side < 2; side++)
        r->count[side] = lk_alloc(&r->ledger, LK_FOR_OTHER, r->cap * sizeof *r->count[side]);
    return r->lower && r->word && r->id && r->line && r->gram && r->row && r->common &&
           r->count[0] && r->count[1];
}

static void free_buffers(struct rouge *r, size_t len) {
    lk_release(&r->ledger, LK_FOR_OTHER, r->left, r->left_size);
    for (int side = 0; side < 2; side++)
        lk_release(&r->ledger, LK_FOR_OTHER, r->count[side], r->cap * sizeof *r->count[side]);
    lk_release(&r->ledger, LK_FOR_OTHER, r->common, r->cap);
    lk_release(&r->ledger, LK_FOR_OTHER, r->row, r->cap * sizeof *r->row);
    lk_release(&r->ledger, LK_FOR_OTHER, r->gram, r->cap * sizeof *r->gram);
    lk_release(&r->ledger, LK_FOR_OTHER, r->line, r->cap * sizeof *r->line);
    lk_release(&r->ledger, LK_FOR_OTHER, r->id, r->cap * sizeof *r->id);
    lk_release(&r->ledger, LK_FOR_OTHER, r->word, r->cap * sizeof *r->word);
    lk_release(&r->ledger, LK_FOR_OTHER, r->lower, len + 1);
}

lk_status lk_rouge(const char *reference, const char *candidate, struct lk_rouge *out,
                   lk_err *err) {
    size_t n_reference = strlen(reference), len = n_reference + strlen(candidate);
    if (len > INT32_MAX)
        return lk_fail(err, LK_E_ARG, "texts of %zu bytes are too long for ROUGE", len);
    struct rouge r = {0};
    bool ok = alloc_buffers(&r, len);
    if (ok) {
        int32_t n = 0;
        split_words(&r, reference, r.lower, &n);
        r.text[0] = (struct rouge_tokens){r.id, r.line, n};
        split_words(&r, candidate, r.lower + n_reference, &n);
        r.text[1] =
            (struct rouge_tokens){r.id + r.text[0].n, r.line + r.text[0].n, n - r.text[0].n};
        number_words(&r, n);
        r.left_size = (longest_sentence(&r.text[0]) * longest_sentence(&r.text[1]) + 64) / 64 *
                      sizeof *r.left;
        r.left = lk_alloc(&r.ledger, LK_FOR_OTHER, r.left_size);
        ok = r.left != NULL;
    }
    if (ok) *out = (struct lk_rouge){rouge_n(&r, 1), rouge_n(&r, 2), rouge_l(&r), rouge_lsum(&r)};
    free_buffers(&r, len);
    return ok ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory to compare texts of %zu bytes", len);
}
