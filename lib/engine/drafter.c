/* Drafters: when to draft, how much, and what became of it. */
#include "engine/drafter.h"

#include "base/hash.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- n-grams: tables with open addressing ---- */

/* No text, however it was made, costs more probes per token. */
enum { MAX_PROBES = 64 };

static size_t count_slots(size_t n_ctx) {
    size_t n = MAX_PROBES;
    while (n < 2 * n_ctx) n *= 2;
    return n;
}

uint64_t lk_ngram_index_bytes(size_t n_ctx) {
    return (uint64_t)LK_N_NGRAM * count_slots(n_ctx) * sizeof(uint32_t);
}

bool lk_ngram_index_init(struct lk_ngram_index *index, size_t n_ctx, struct lk_ledger *ledger) {
    *index = (struct lk_ngram_index){.n_slot = count_slots(n_ctx)};
    for (int i = 0; i < LK_N_NGRAM; i++) {
        index->table[i] = lk_alloc(ledger, LK_FOR_OTHER, index->n_slot * sizeof(uint32_t));
        if (index->table[i]) continue;
        lk_ngram_index_free(index, ledger);
        return false;
    }
    return true;
}

void lk_ngram_index_free(struct lk_ngram_index *index, struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_NGRAM; i++)
        lk_release(ledger, LK_FOR_OTHER, index->table[i], index->n_slot * sizeof(uint32_t));
    *index = (struct lk_ngram_index){0};
}

void lk_ngram_index_clear(struct lk_ngram_index *index) {
    for (int i = 0; i < LK_N_NGRAM; i++)
        memset(index->table[i], 0, index->n_slot * sizeof(uint32_t));
    index->n_tok = 0;
}

/* The slot of an n-gram in a table: the one that has it, or an empty one. If the search takes too
 * long, *found is false and the slot is the first one. */
static size_t find_slot(const struct lk_ngram_index *index, const int32_t *tok,
                        const int32_t *ngram, int n, bool *found) {
    const uint32_t *table = index->table[n - LK_NGRAM_MIN];
    size_t mask = index->n_slot - 1;
    uint64_t hash = 0;
    for (int i = 0; i < n; i++)
        hash = lk_splitmix64((hash ^ (uint32_t)ngram[i]) + lk_splitmix64_step);
    size_t first = (size_t)hash & mask;
    *found = false;
    for (size_t i = 0; i < MAX_PROBES; i++) {
        size_t slot = (first + i) & mask;
        if (table[slot] == 0) return slot;
        *found = memcmp(tok + table[slot] - n, ngram, n * sizeof *ngram) == 0;
        if (*found) return slot;
    }
    return first;
}

void lk_ngram_index_extend(struct lk_ngram_index *index, const int32_t *tok, size_t n_tok) {
    bool found;
    for (size_t pos = index->n_tok; pos < n_tok; pos++)
        for (int n = LK_NGRAM_MIN; n <= LK_NGRAM_MAX && (size_t)n <= pos; n++)
            index->table[n - LK_NGRAM_MIN][find_slot(index, tok, tok + pos - n, n, &found)] =
                (uint32_t)pos;
    index->n_tok = n_tok;
}

int lk_ngram_index_find(const struct lk_ngram_index *index, const int32_t *tok, int32_t next,
                        int32_t *out, size_t max) {
    size_t n_tok = index->n_tok;
    for (int n = LK_NGRAM_MAX; n >= LK_NGRAM_MIN; n--) {
        int32_t ngram[LK_NGRAM_MAX];
        bool found;
        if ((size_t)n > n_tok + 1) continue;
        memcpy(ngram, tok + n_tok + 1 - n, (n - 1) * sizeof *ngram);
        ngram[n - 1] = next;
        size_t pos = index->table[n - LK_NGRAM_MIN][find_slot(index, tok, ngram, n, &found)];
        if (!found) continue;
        const size_t end = pos; /* of the earlier occurrence */
        for (size_t i = 0; i < max; i++, pos++)
            out[i] = pos < n_tok ? tok[pos] : pos == n_tok ? next : out[pos - n_tok - 1];
        size_t same = (size_t)n;
        while (same < LK_NGRAM_MATCH && same < end && tok[end - 1 - same] == tok[n_tok - same])
            same++;
        return (int)same;
    }
    return 0;
}

/* ---- evidence about drafts and passes, and what follows from it ---- */

/* Before anything is known: a pass of twice as many rows takes 1.3 times as long, and 7 of 10
 * drafts are right. Both are optimistic, so that drafts are tried. */
static const double prior_growth = 1.3, prior_right = 0.7, prior_n = 1;

/* After so many passes a measurement is old: it may have been shorter by a fifth since then. */
enum { MAX_AGE = 512 };
static const double optimism = 0.8;

static bool is_known(const struct lk_draft_pace *pace, int i) {
    return i >= 0 && i < LK_PACE_SIZES && pace->seconds[i] > 0;
}

static bool is_fresh(const struct lk_draft_pace *pace, int i) {
    return is_known(pace, i) && pace->n_pass - pace->measured[i] <= MAX_AGE;
}

/* Seconds of 2^i rows: measured, or derived from the next smaller sizes, or the next larger one. */
static double seconds_of(const struct lk_draft_pace *pace, int i) {
    const double *t = pace->seconds;
    int low = i, high = i;
    while (low >= 0 && !is_known(pace, low)) low--;
    while (high < LK_PACE_SIZES && !is_known(pace, high)) high++;
    if (low == i) return is_fresh(pace, i) ? t[i] : optimism * t[i];
    if (is_known(pace, low - 1)) { /* more rows cost what the last ones did */
        double row = fmax(t[low] - t[low - 1], 0) / (double)(1u << (low - 1));
        return t[low] + optimism * row * (double)((1u << i) - (1u << low));
    }
    bool smaller = low >= 0, larger = high < LK_PACE_SIZES;
    return pow(prior_growth, smaller  ? i - low
                             : larger ? i - high
                                      : i) *
           (smaller  ? t[low]
            : larger ? t[high]
                     : 1);
}

/* The largest size that may be tried: four times what was measured. */
static size_t max_rows(const struct lk_draft_pace *pace) {
    int i = LK_PACE_SIZES - 1;
    while (i > 0 && !is_known(pace, i)) i--;
    return (size_t)4 << i;
}

/* The largest i with 2^i <= n. */
static int find_size(size_t n) {
    int i = 0;
    while (i + 1 < LK_PACE_SIZES && (size_t)2 << i <= n) i++;
    return i;
}

/* The i with 2^i closest to n. */
static int find_nearest(size_t n) {
    int i = find_size(n);
    return i + 1 < LK_PACE_SIZES && 2 * n >= (size_t)3 << i ? i + 1 : i;
}

/* Seconds of a pass of n_row rows, as far as it is known; in some unit before the first
 * measurement. */
static double draft_pace_seconds(const struct lk_draft_pace *pace, size_t n_row) {
    int i = find_size(n_row);
    double low = seconds_of(pace, i), share = ldexp((double)n_row, -i) - 1;
    return share > 0 && i + 1 < LK_PACE_SIZES ? low + share * (seconds_of(pace, i + 1) - low) : low;
}

size_t lk_draft_pace_choose(struct lk_draft_pace *pace, int kind, size_t max, size_t n_other) {
    const double max_delay = 1.5, min_gain = 1.02;
    struct lk_draft_evidence *e = &pace->kind[kind];
    double p = (e->n_right + prior_right) / (e->n + prior_n), right = 1, kept = 1;
    double plain = draft_pace_seconds(pace, n_other + 1);
    double best = min_gain * (double)(n_other + 1) / plain;
    size_t chosen = 0;
    if (!is_fresh(pace, find_nearest(n_other + 1))) return 0; /* nothing to compare with */
    for (size_t n = 1; n <= max && n_other + 1 + n <= max_rows(pace); n++) {
        double seconds = draft_pace_seconds(pace, n_other + 1 + n);
        right *= p;
        kept += right;
        if ((n & (n + 1)) != 0 && n < max) continue; /* 2, 4, 8, ... tokens, or all that fit */
        if (n_other > 0 && seconds > max_delay * plain) break;
        if (((double)n_other + kept) / seconds <= best) continue;
        best = ((double)n_other + kept) / seconds;
        chosen = n;
    }
    const double fade = 0.98; /* while drafts do not pay */
    if (chosen == 0 && max > 0) e->n_right *= fade, e->n *= fade;
    return chosen;
}

void lk_draft_pace_measure(struct lk_draft_pace *pace, size_t n_row, double seconds) {
    const double weight = 0.2; /* of a new measurement */
    int near = find_nearest(n_row);
    /* Another size, scaled by what is known about both. */
    seconds *= seconds_of(pace, near) / draft_pace_seconds(pace, n_row);
    pace->n_pass++;
    pace->seconds[near] = is_fresh(pace, near)
                              ? pace->seconds[near] + weight * (seconds - pace->seconds[near])
                              : seconds;
    pace->measured[near] = pace->n_pass;
}

void lk_draft_pace_judge(struct lk_draft_pace *pace, int kind, size_t n, size_t n_right) {
    const double fade = 0.95;
    struct lk_draft_evidence *e = &pace->kind[kind];
    e->n_right = fade * e->n_right + (double)n_right;
    e->n = fade * e->n + (double)(n_right < n ? n_right + 1 : n);
}

/* ---- drafts from the text itself ---- */

static void update_index(struct lk_draft_lookup *d, const struct lk_session *s) {
    if (d->n_cut != s->n_cut || d->index.n_tok > s->n_tok) lk_ngram_index_clear(&d->index);
    d->n_cut = s->n_cut;
    lk_ngram_index_extend(&d->index, s->tok, s->n_tok);
}

/* The kind of drafts after the session's tokens and `next`, for struct lk_draft_pace: 0 to 4 if 2,
 * 3, 4, 8 or 16 tokens, or more, are the same as before; -1: none. Then the n drafts; returns their
 * number. */
static int draft_lookup_kind(struct lk_draft_lookup *d, const struct lk_session *s, int32_t next) {
    update_index(d, s);
    int n = lk_ngram_index_find(&d->index, s->tok, next, NULL, 0);
    return n == 0 ? -1 : n < 4 ? n - LK_NGRAM_MIN : n < 8 ? 2 : n < LK_NGRAM_MATCH ? 3 : 4;
}

/* The kind of drafts after the session's tokens and `next`, for struct lk_draft_pace: 0 to 4 if 2,
 * 3, 4, 8 or 16 tokens, or more, are the same as before; -1: none. Then the n drafts; returns their
 * number. */
static size_t draft_lookup_find(const struct lk_draft_lookup *d, const struct lk_session *s,
                                int32_t next, int32_t *out, size_t n) {
    return lk_ngram_index_find(&d->index, s->tok, next, out, n) ? n : 0;
}

/* Memory is counted by the session's model. LK_E_NOMEM. */
static lk_status draft_lookup_init(struct lk_draft_lookup *d, const struct lk_session *s,
                                   lk_err *err) {
    if (!lk_ngram_index_init(&d->index, (size_t)s->opts.n_ctx, &s->model->ledger))
        return lk_fail(err, LK_E_NOMEM, "out of memory for drafts from %d tokens", s->opts.n_ctx);
    d->n_cut = s->n_cut;
    return LK_OK;
}

/* Memory is counted by the session's model. LK_E_NOMEM. */
static void draft_lookup_free(struct lk_draft_lookup *d, struct lk_ledger *ledger) {
    lk_ngram_index_free(&d->index, ledger);
}

/* ---- drafters ---- */

_Static_assert((int)LK_DRAFT_MAX == (int)LK_DRAFT_TOKENS, "passes of drafts have one limit");

struct lk_drafter {
    struct lk_ledger *ledger; /* of the model: the session may be freed first */
    struct lk_session *session;
    struct lk_draft_lookup lookup;
    struct lk_draft_pace pace;
    int kind;         /* of the last drafts */
    int32_t expected; /* the token after pass[0], if it was looked up but not drafted; else -1 */
    lk_draft_stats stats;
};

uint64_t lk_drafter_bytes(const lk_model *model, int32_t n_ctx, size_t n_tok) {
    const struct lk_hparams *hp = &model->net->hp;
    return sizeof(struct lk_drafter) + lk_ngram_index_bytes((size_t)n_ctx) +
           n_tok * hp->n_vocab * sizeof(float) + lk_recurrent_drafts_bytes(model->net, (int)n_tok);
}

lk_status lk_drafter_new(lk_drafter **out, lk_session *session, lk_err *err) {
    const char *why;
    lk_session_draftable(session, 1, &why);
    if (why) return lk_fail(err, LK_E_UNSUPPORTED, "no drafts: %s", why);
    struct lk_ledger *ledger = &session->model->ledger;
    struct lk_drafter *d = lk_alloc(ledger, LK_FOR_OTHER, sizeof *d);
    if (!d) return lk_fail(err, LK_E_NOMEM, "out of memory for drafts");
    d->ledger = ledger;
    d->session = session;
    d->expected = -1;
    lk_status status = draft_lookup_init(&d->lookup, session, err);
    if (!status)
        *out = d;
    else
        lk_release(ledger, LK_FOR_OTHER, d, sizeof *d);
    return status;
}

void lk_drafter_free(lk_drafter *d) {
    if (!d) return;
    draft_lookup_free(&d->lookup, d->ledger);
    lk_release(d->ledger, LK_FOR_OTHER, d, sizeof *d);
}

size_t lk_drafter_next(lk_drafter *d, int32_t *pass, size_t n_max, size_t n_other) {
    if (d->expected >= 0) lk_draft_pace_judge(&d->pace, d->kind, 1, pass[0] == d->expected);
    d->expected = -1;
    if (n_max > LK_DRAFT_MAX) n_max = LK_DRAFT_MAX;
    if (n_max > 1) n_max = lk_session_draftable(d->session, n_max, NULL);
    if (n_max < 2) return 1;
    d->kind = draft_lookup_kind(&d->lookup, d->session, pass[0]);
    if (d->kind < 0) return 1;
    size_t n = lk_draft_pace_choose(&d->pace, d->kind, n_max - 1, n_other);
    if (n == 0) { /* learn how often it would have been right */
        draft_lookup_find(&d->lookup, d->session, pass[0], &d->expected, 1);
        return 1;
    }
    return 1 + draft_lookup_find(&d->lookup, d->session, pass[0], pass + 1, n);
}

void lk_drafter_report(lk_drafter *d, size_t n_tok, size_t n_kept, size_t n_other, double seconds) {
    if (n_tok < 1 || n_kept < 1 || n_kept > n_tok) return;
    lk_draft_pace_measure(&d->pace, n_tok + n_other, seconds);
    if (n_tok > 1) lk_draft_pace_judge(&d->pace, d->kind, n_tok - 1, n_kept - 1);
    d->stats.n_pass++;
    d->stats.n_drafted += n_tok - 1;
    d->stats.n_accepted += n_kept - 1;
}

lk_draft_stats lk_drafter_get_stats(const lk_drafter *d) { return d->stats; }
