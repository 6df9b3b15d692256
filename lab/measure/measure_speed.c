/* Speed of a recipe at chosen depths.
 *
 *   source   f16 cache of the text, read once: the rows that long depths repeat
 *   deep     stands at the depth; goes from one depth to the next
 *   work     a copy of deep for each measurement, which moves it */
#include "engine/engine.h"
#include "lowkey_lab.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum {
    READ_TOKENS = 512
}; /* of a depth, tokens that are computed: enough to equalise channels by */

struct bench {
    struct lk_ledger ledger;
    lk_model *model;
    const lk_bench_opts *opts;
    const int32_t *text; /* [n_text] */
    size_t n_text, n_ctx;
    lk_recipe *f16;
    lk_session *source, *deep, *work;
    int32_t *tok;    /* [n_ctx] the text over and over */
    double *seconds; /* [n_repeat] of what is measured */
    uint64_t done, total;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- progress: guesses in hundredths of the time of a token decoded at depth 0 ---- */

static uint64_t cost_decode(size_t depth, size_t n) { return n * (100 + depth / 100); }
static uint64_t cost_prefill(size_t depth, size_t n) { return n * (25 + depth / 400); }
static uint64_t cost_repeat(size_t n) { return n * 3; }

static bool step_on(struct bench *b, uint64_t cost) {
    b->done += cost;
    return !b->opts->progress || b->opts->progress(b->opts->user, b->done, b->total);
}

/* Of the sessions: only to be cancelled in the middle of something long. */
static bool still_wanted(void *user, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    return step_on(user, 0);
}

static lk_status cancelled(lk_err *err) {
    return lk_fail(err, LK_E_CANCELLED, "cancelled while measuring");
}

static size_t from_text(size_t depth) { return depth < READ_TOKENS ? depth : READ_TOKENS; }

static size_t deepest(const struct bench *b) { return b->opts->depth[b->opts->n_depth - 1]; }
static bool needs_source(const struct bench *b) { return deepest(b) > READ_TOKENS; }

static uint64_t whole_cost(const struct bench *b) {
    const lk_bench_opts *o = b->opts;
    uint64_t sum =
        cost_prefill(0, o->n_prefill) + (needs_source(b) ? cost_prefill(0, b->n_text) : 0);
    for (size_t i = 0; i < o->n_depth; i++) {
        size_t before = i ? o->depth[i - 1] : 0;
        sum += cost_repeat(o->depth[i] - before);
        sum += o->n_repeat * (cost_prefill(o->depth[i], o->n_prefill) +
                              cost_decode(o->depth[i], o->n_decode ? o->n_decode + 1 : 0));
    }
    return sum;
}

/* ---- reaching a depth ---- */

static lk_status read_source(struct bench *b, lk_err *err) {
    lk_status status = lk_session_sync(b->source, b->text, b->n_text, NULL, err);
    if (status == LK_OK && !step_on(b, cost_prefill(0, b->n_text))) return cancelled(err);
    return status;
}

/* Take `deep` on to `depth`. */
static lk_status deepen(struct bench *b, size_t depth, lk_err *err) {
    size_t before = lk_session_n_tok(b->deep), read = from_text(depth);
    lk_status status = LK_OK;
    if (before < read) status = lk_session_sync(b->deep, b->tok, read, NULL, err);
    if (status == LK_OK && lk_session_n_tok(b->deep) < depth)
        status = lk_session_repeat(b->deep, b->source, depth - lk_session_n_tok(b->deep), err);
    if (status == LK_OK && !step_on(b, cost_repeat(depth - before))) return cancelled(err);
    return status;
}

/* Put `work` where `deep` stands. */
static lk_status go_back(struct bench *b, lk_err *err) {
    size_t depth = lk_session_n_tok(b->deep);
    if (depth > 0 && lk_session_n_tok(b->work) > depth &&
        lk_cache_truncate(b->work->cache, depth)) {
        b->work->n_tok = depth;
        return LK_OK;
    }
    return lk_session_copy(b->work, b->deep, err);
}

/* ---- measuring ---- */

static int32_t most_probable(const struct lk_kernels *kernels, const float *logits, int32_t n) {
    float most = kernels->max(logits, n);
    for (int32_t i = 0; i < n; i++)
        if (logits[i] == most) return i;
    return 0;
}

static lk_status time_prefill(struct bench *b, double *seconds, lk_err *err) {
    size_t depth = lk_session_n_tok(b->work), n = b->opts->n_prefill;
    double start = now();
    lk_status status = lk_session_sync(b->work, b->tok, depth + n, NULL, err);
    *seconds = now() - start;
    if (status == LK_OK && !step_on(b, cost_prefill(depth, n))) return cancelled(err);
    return status;
}

static lk_status time_decode(struct bench *b, double *seconds, lk_err *err) {
    size_t depth = lk_session_n_tok(b->work), n = b->opts->n_decode;
    int32_t tok = b->tok[depth], n_vocab = b->model->net->hp.n_vocab;
    lk_status status = lk_session_reserve(b->work, n + 1, err);
    if (status == LK_OK) status = lk_session_eval(b->work, &tok, 1, false, err);
    double start = now();
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        tok = most_probable(b->model->kernels, lk_session_logits(b->work, -1), n_vocab);
        status = lk_session_eval(b->work, &tok, 1, false, err);
        if (status == LK_OK && !step_on(b, cost_decode(depth, 1))) return cancelled(err);
    }
    *seconds = now() - start;
    if (status == LK_OK) step_on(b, cost_decode(depth, 1));
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tokens per second of n tokens: by the median of the repeats' times, and by the shortest. */
static void summarise(struct bench *b, size_t n, double *median, double *best) {
    size_t m = b->opts->n_repeat;
    qsort(b->seconds, m, sizeof *b->seconds, by_value);
    *median = 2.0 * n / (b->seconds[(m - 1) / 2] + b->seconds[m / 2]);
    *best = n / b->seconds[0];
}

static lk_status measure(struct bench *b, size_t n,
                         lk_status (*timed)(struct bench *, double *, lk_err *), double *median,
                         double *best, lk_err *err) {
    lk_status status = LK_OK;
    if (n == 0) return LK_OK;
    for (int32_t i = 0; status == LK_OK && i < b->opts->n_repeat; i++) {
        status = go_back(b, err);
        if (status == LK_OK) status = timed(b, &b->seconds[i], err);
    }
    if (status == LK_OK) summarise(b, n, median, best);
    return status;
}

static lk_status at_depth(struct bench *b, size_t depth, lk_bench_result *out, lk_err *err) {
    *out = (lk_bench_result){.depth = depth, .n_repeated = depth - from_text(depth)};
    lk_session_clear(b->work);
    lk_status status = deepen(b, depth, err);
    if (status == LK_OK)
        status = measure(b, b->opts->n_prefill, time_prefill, &out->prefill_tps,
                         &out->prefill_tps_best, err);
    if (status == LK_OK)
        status = measure(b, b->opts->n_decode, time_decode, &out->decode_tps, &out->decode_tps_best,
                         err);
    /* Of the session that stands at the depth: one that goes on from a copy also holds copies of what it wrote to. */
    lk_session_stats stats = lk_session_get_stats(depth > 0 ? b->deep : b->work);
    out->n_tok = stats.n_tok;
    out->cache_bytes = stats.cache_bytes;
    out->bits_per_value = stats.bits_per_value;
    return status;
}

/* ---- the whole ---- */

static lk_status check(const lk_bench_opts *o, size_t n_tok, lk_err *err) {
    if (o->n_depth == 0) return lk_fail(err, LK_E_ARG, "there is no depth to measure at");
    for (size_t i = 1; i < o->n_depth; i++)
        if (o->depth[i] <= o->depth[i - 1])
            return lk_fail(err, LK_E_ARG, "depths must increase; %zu follows %zu", o->depth[i],
                           o->depth[i - 1]);
    if (o->n_prefill < 0 || o->n_decode < 0 || (o->n_prefill == 0 && o->n_decode == 0))
        return lk_fail(err, LK_E_ARG, "nothing to measure: %d tokens to read and %d to decode",
                       o->n_prefill, o->n_decode);
    if (o->n_repeat < 1)
        return lk_fail(err, LK_E_ARG, "%d repeats measure nothing; give at least 1", o->n_repeat);
    if (n_tok < READ_TOKENS)
        return lk_fail(err, LK_E_ARG, "the text has %zu tokens; give at least %d", n_tok,
                       READ_TOKENS);
    if (o->depth[o->n_depth - 1] > INT32_MAX / 4)
        return lk_fail(err, LK_E_ARG, "a depth of %zu is not possible", o->depth[o->n_depth - 1]);
    return LK_OK;
}

static lk_status take(struct bench *b, const lk_recipe *recipe, lk_err *err) {
    const lk_bench_opts *o = b->opts;
    b->tok = lk_alloc(&b->ledger, LK_FOR_OTHER, b->n_ctx * sizeof *b->tok);
    b->seconds = lk_alloc(&b->ledger, LK_FOR_OTHER, o->n_repeat * sizeof *b->seconds);
    if (!b->tok || !b->seconds) return lk_fail(err, LK_E_NOMEM, "no memory to measure");
    for (size_t i = 0; i < b->n_ctx; i++) b->tok[i] = b->text[i % b->n_text];
    lk_session_opts opts = {.n_ctx = (int32_t)b->n_ctx,
                            .max_bytes = o->max_bytes / 2,
                            .progress = still_wanted,
                            .user = b};
    lk_session_opts of_text = {.n_ctx = (int32_t)b->n_text, .progress = still_wanted, .user = b};
    lk_status status = lk_recipe_parse(&b->f16, "f16", err);
    if (status == LK_OK) status = lk_session_new(&b->source, b->model, b->f16, &of_text, err);
    if (status == LK_OK) status = lk_session_new(&b->deep, b->model, recipe, &opts, err);
    if (status == LK_OK) status = lk_session_new(&b->work, b->model, recipe, &opts, err);
    return status;
}

static void release(struct bench *b) {
    lk_session_free(b->work);
    lk_session_free(b->deep);
    lk_session_free(b->source);
    lk_recipe_free(b->f16);
    lk_release(&b->ledger, LK_FOR_OTHER, b->seconds, b->opts->n_repeat * sizeof *b->seconds);
    lk_release(&b->ledger, LK_FOR_OTHER, b->tok, b->n_ctx * sizeof *b->tok);
}

/* Something of the kind to be measured, untimed: threads and weights are awake afterwards. */
static lk_status warm_up(struct bench *b, lk_err *err) {
    size_t n = b->opts->n_prefill ? b->opts->n_prefill : 1;
    lk_status status = lk_session_sync(b->work, b->tok, n, NULL, err);
    if (status == LK_OK && !step_on(b, cost_prefill(0, b->opts->n_prefill))) return cancelled(err);
    return status;
}

lk_status lk_bench(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                   const lk_bench_opts *opts, lk_bench_result *results, lk_err *err) {
    lk_status status = check(opts, n_tok, err);
    if (status != LK_OK) return status;
    size_t most = opts->n_prefill > opts->n_decode ? opts->n_prefill : opts->n_decode;
    struct bench b = {.model = model, .opts = opts, .text = tok, .n_text = n_tok};
    if (b.n_text > deepest(&b) && needs_source(&b)) b.n_text = deepest(&b);
    b.n_ctx = deepest(&b) + most + 1;
    b.total = whole_cost(&b);
    status = take(&b, recipe, err);
    if (status == LK_OK) status = warm_up(&b, err);
    if (status == LK_OK && needs_source(&b)) status = read_source(&b, err);
    lk_bench_result *found =
        status == LK_OK ? lk_alloc(&b.ledger, LK_FOR_OTHER, opts->n_depth * sizeof *found) : NULL;
    if (status == LK_OK && !found) status = lk_fail(err, LK_E_NOMEM, "no memory to measure");
    for (size_t i = 0; status == LK_OK && i < opts->n_depth; i++)
        status = at_depth(&b, opts->depth[i], &found[i], err);
    for (size_t i = 0; status == LK_OK && i < opts->n_depth; i++) results[i] = found[i];
    lk_release(&b.ledger, LK_FOR_OTHER, found, opts->n_depth * sizeof *found);
    release(&b);
    return status;
}
