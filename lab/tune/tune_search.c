/* The search for a recipe of a given size: candidates, and variants that are measured. */
#include "tune/tune_search.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

enum {
    MAX_ADJUST = 8,  /* attempts to meet a size */
    TOLERANCE = 2000 /* a size is met if less than this part of it is unused */
};

/* ---- one recipe ---- */

/* The untilted estimate of a recipe's loss. */
static double estimate_loss(const struct lk_tune *t, const struct lk_tune_bits *bits, int recent) {
    double sum = 0;
    for (int group = 0; group < t->loss.n_group; group++)
        for (int side = 0; side < 2; side++) {
            const struct lk_tune_bits *b = &bits[group];
            double share = recent ? t->loss.share[group][side][recent] : 0;
            sum += (1 - share) * lk_tune_loss_at(&t->loss, group, side, b->of[LK_TUNE_BODY][side]) +
                   share * lk_tune_loss_at(&t->loss, group, side, b->of[LK_TUNE_RECENT][side]);
        }
    return sum;
}

/* Choose the bits for c->form, in at most max_bytes as the planner counts them. Sizes
 * of blocks make the cost of one layer depend a little on the others, so the budget is adjusted
 * until the plan fits closely. */
static lk_status choose_bits(struct lk_tune *t, uint64_t max_bytes, struct lk_tune_bits *bits,
                             struct lk_tune_candidate *c, lk_err *err) {
    uint64_t budget = max_bytes;
    lk_status status = LK_OK;
    bool found = false;
    for (int i = 0; i < MAX_ADJUST; i++) {
        double chosen;
        lk_plan plan;
        struct lk_buf text = {0};
        status = lk_tune_choose(&t->loss, &t->cost[c->form.recent], &c->form, budget, &t->ledger,
                                bits, &chosen, err);
        if (status) break;
        lk_tune_print(&text, t->loss.group, bits, t->loss.n_group,
                      lk_tune_recent_at[c->form.recent], t->loss.trellis);
        status = text.failed ? lk_fail(err, LK_E_NOMEM, "no memory for a recipe")
                             : lk_tune_plan(t->model, text.at, t->opts.n_ctx, &plan, err);
        bool better = !status && plan.cache_bytes <= max_bytes && (!found || chosen < c->chosen);
        if (better) {
            struct lk_buf old = c->text;
            c->text = text;
            text = old;
            c->chosen = chosen;
            c->bytes = plan.cache_bytes;
            c->estimate = estimate_loss(t, bits, c->form.recent);
            found = true;
        }
        lk_buf_free(&text);
        if (status || (better && max_bytes - plan.cache_bytes <= max_bytes / TOLERANCE)) break;
        if (plan.cache_bytes > max_bytes && plan.cache_bytes - max_bytes > budget) break;
        budget = budget + max_bytes - plan.cache_bytes;
    }
    if (found) return LK_OK;
    return status ? status
                  : lk_fail(err, LK_E_ARG, "no recipe has at most %llu bytes",
                            (unsigned long long)max_bytes);
}

/* Add a candidate if a recipe of its form is small enough; otherwise there are other candidates. */
static lk_status add_candidate(struct lk_tune_search *s, const struct lk_tune_form *form,
                               lk_err *err) {
    struct lk_tune_candidate *c = &s->at[s->n];
    if (s->n == LK_TUNE_MAX_CANDIDATE) return LK_OK;
    *c = (struct lk_tune_candidate){.form = *form};
    lk_err failure = {0};
    lk_status status = choose_bits(s->t, s->max_bytes, s->bits, c, &failure);
    s->n += !status;
    if (!status || status == LK_E_ARG) return LK_OK;
    return lk_fail(err, status, "%s", failure.msg);
}

lk_status lk_tune_search_open(struct lk_tune_search *s, struct lk_tune *t, uint64_t max_bytes,
                              lk_err *err) {
    *s = (struct lk_tune_search){.t = t, .max_bytes = max_bytes};
    if (!t->measured) return lk_fail(err, LK_E_ARG, "lk_tune_measure has to come first");
    s->bits = lk_alloc(&t->ledger, LK_FOR_OTHER, (size_t)t->loss.n_group * sizeof *s->bits);
    if (!s->bits) return lk_fail(err, LK_E_NOMEM, "no memory for %d head groups", t->loss.n_group);
    for (int i = 0; i < LK_TUNE_N_RECENT; i++) {
        struct lk_tune_form form = {.recent = i, .min_k_bits = t->opts.min_k_bits};
        lk_status status = add_candidate(s, &form, err);
        if (status) return status;
    }
    return s->n ? LK_OK
                : lk_fail(err, LK_E_ARG,
                          "%.1f MiB are too few for a recipe of this form at %d tokens",
                          (double)max_bytes / (1 << 20), t->opts.n_ctx);
}

void lk_tune_search_close(struct lk_tune_search *s) {
    for (size_t i = 0; i < s->n; i++) lk_buf_free(&s->at[i].text);
    lk_release(&s->t->ledger, LK_FOR_OTHER, s->bits, (size_t)s->t->loss.n_group * sizeof *s->bits);
}

/* Index of the smallest estimate. */
size_t lk_tune_search_best_estimate(const struct lk_tune_search *s) {
    size_t best = 0;
    for (size_t i = 1; i < s->n; i++)
        if (s->at[i].estimate < s->at[best].estimate) best = i;
    return best;
}

/* Is there a candidate with the same fewest bits of keys and a smaller estimate? */
static bool has_better(const struct lk_tune_search *s, size_t i) {
    for (size_t k = 0; k < s->n; k++)
        if (s->at[k].form.min_k_bits == s->at[i].form.min_k_bits &&
            s->at[k].estimate < s->at[i].estimate)
            return true;
    return false;
}

/* Drop all candidates but the best estimate for each fewest bits of keys. */
static void keep_estimates(struct lk_tune_search *s) {
    bool drop[LK_TUNE_MAX_CANDIDATE];
    size_t n = 0, n_all = s->n;
    for (size_t i = 0; i < n_all; i++) drop[i] = has_better(s, i);
    for (size_t i = 0; i < n_all; i++) {
        if (drop[i])
            lk_buf_free(&s->at[i].text);
        else
            s->at[n++] = s->at[i];
    }
    s->n = n;
}

/* Drop all candidates but one, which becomes the first. */
static void keep_only(struct lk_tune_search *s, size_t kept) {
    struct lk_tune_candidate c = s->at[kept];
    for (size_t i = 0; i < s->n; i++)
        if (i != kept) lk_buf_free(&s->at[i].text);
    s->at[0] = c;
    s->n = 1;
}

/* ---- improving by measuring ---- */

/* All candidates again, with more bits for keys at least. Errors of keys stand in the exponents of
 * attention, so those of many layers and rows lose more than the estimate, which is a sum over
 * single groups. */
static lk_status add_finer_keys(struct lk_tune_search *s, lk_err *err) {
    enum { MORE = 2 };
    lk_status status = LK_OK;
    size_t n = s->n;
    for (size_t i = 0; i < n; i++) {
        struct lk_tune_form form = s->at[i].form;
        for (int more = 0; !status && more < MORE && form.min_k_bits < 8; more++) {
            form.min_k_bits += form.min_k_bits == 6 ? 2 : 1;
            status = add_candidate(s, &form, err);
        }
    }
    return status;
}

lk_status lk_tune_search_extend(struct lk_tune_search *s, lk_err *err) {
    lk_status status = add_finer_keys(s, err);
    if (s->t->opts.n_round < 0) keep_estimates(s);
    return status;
}

static lk_status measure_candidates(struct lk_tune_search *s, lk_err *err) {
    struct lk_measure measure = lk_tune_measure_of(s->t);
    struct lk_buf text[LK_TUNE_MAX_CANDIDATE]; /* borrowed */
    for (size_t i = 0; i < s->n; i++) text[i] = s->at[i].text;
    return lk_measure_set(&measure, &s->t->recipes, text, s->n, err);
}

/* INFINITY if the candidate is too large. */
static double candidate_kl(const struct lk_tune_search *s, size_t i) {
    const lk_compare_result *r =
        lk_tune_log_find(&s->t->log, s->t->recipes.id, lk_buf_cstr(&s->at[i].text));
    bool fits = s->max_per_token <= 0 || r->bytes_per_token <= s->max_per_token;
    return fits ? r->kl_mean : INFINITY;
}

static size_t best_measured(const struct lk_tune_search *s) {
    size_t best = 0;
    for (size_t i = 1; i < s->n; i++)
        if (candidate_kl(s, i) < candidate_kl(s, best)) best = i;
    return best;
}

/* The values of a tilt as an array. */
enum { N_TILT = 4 };
static double *tilt_value(struct lk_tune_tilt *tilt, int i) {
    double *const value[N_TILT] = {&tilt->v, &tilt->recent, &tilt->depth, &tilt->contrast};
    return value[i];
}

/* Variants of the best candidate `from`: each tilt changed by a step up and down. */
static lk_status add_variants(struct lk_tune_search *s, size_t from, double scale, lk_err *err) {
    static const double step[N_TILT] = {0.7, 0.7, 1.0, 0.2};
    lk_status status = LK_OK;
    for (int i = 0; i < N_TILT; i++)
        for (int sign = -1; !status && sign <= 1; sign += 2) {
            struct lk_tune_form form = s->at[from].form;
            *tilt_value(&form.tilt, i) += sign * scale * step[i];
            status = add_candidate(s, &form, err);
        }
    return status;
}

/* The sum of all single changes since `first` that made `from` better, in full and in half. */
static lk_status add_sums(struct lk_tune_search *s, size_t from, size_t first, lk_err *err) {
    struct lk_tune_form sum = s->at[from].form, half = sum;
    double kl = candidate_kl(s, from);
    int n = 0;
    for (size_t k = first; k < s->n; k++)
        for (int i = 0; i < N_TILT; i++) {
            double change =
                *tilt_value(&s->at[k].form.tilt, i) - *tilt_value(&s->at[from].form.tilt, i);
            if (change == 0 || candidate_kl(s, k) >= kl) continue;
            *tilt_value(&sum.tilt, i) += change;
            *tilt_value(&half.tilt, i) += change / 2;
            n++;
        }
    if (n == 0) return LK_OK;
    lk_status status = add_candidate(s, &sum, err);
    return status ? status : add_candidate(s, &half, err);
}

/* Measure the forms, then in each round variants of the best recipe and their sums. The candidate
 * with the smallest measured KL is at s->at[*best]. */
lk_status lk_tune_search_improve(struct lk_tune_search *s, size_t *best, lk_err *err) {
    double scale = 1;
    lk_status status = lk_tune_search_extend(s, err);
    if (!status) status = measure_candidates(s, err);
    for (int round = 0; !status && round < s->t->opts.n_round; round++) {
        keep_only(s, best_measured(s));
        status = add_variants(s, 0, scale, err);
        if (!status) status = measure_candidates(s, err);
        if (!status) status = add_sums(s, 0, 1, err);
        if (!status) status = measure_candidates(s, err);
        scale /= 2;
    }
    if (!status) *best = best_measured(s);
    return status;
}
