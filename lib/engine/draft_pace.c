/* Evidence about drafts and passes, and what follows from it. */
#include "engine/draft_pace.h"

#include <math.h>
#include <stdbool.h>

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

double lk_draft_pace_seconds(const struct lk_draft_pace *pace, size_t n_row) {
    int i = find_size(n_row);
    double low = seconds_of(pace, i),
           share = (double)(n_row - ((size_t)1 << i)) / (double)(1u << i);
    return share > 0 && i + 1 < LK_PACE_SIZES ? low + share * (seconds_of(pace, i + 1) - low) : low;
}

size_t lk_draft_pace_choose(struct lk_draft_pace *pace, int kind, size_t max, size_t n_other) {
    const double max_delay = 1.5, min_gain = 1.02;
    struct lk_draft_evidence *e = &pace->kind[kind];
    double p = (e->n_right + prior_right) / (e->n + prior_n), right = 1, kept = 1;
    double plain = lk_draft_pace_seconds(pace, n_other + 1);
    double best = min_gain * (double)(n_other + 1) / plain;
    size_t chosen = 0;
    if (!is_fresh(pace, find_nearest(n_other + 1))) return 0; /* nothing to compare with */
    for (size_t n = 1; n <= max && n_other + 1 + n <= max_rows(pace); n++) {
        double seconds = lk_draft_pace_seconds(pace, n_other + 1 + n);
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
    seconds *= seconds_of(pace, near) / lk_draft_pace_seconds(pace, n_row);
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
