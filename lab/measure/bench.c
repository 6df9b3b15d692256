/* Speed of a recipe at chosen depths, with three sessions:
 *
 *   source   full cache of the text, computed once; long depths repeat its rows
 *   deep     stands at the depth; moves from one depth to the next
 *   work     a copy of `deep` for each measurement, which moves it */
#include "base/clock.h"
#include "cluster/cluster.h"
#include "engine/session.h"
#include "lowkey_lab.h"
#include "measure/repeat_rows.h"

#include <stdlib.h>

/* Tokens of a depth that are computed: enough to calibrate the channels. */
enum { COMPUTED_TOKENS = 512 };

struct bench {
    struct lk_ledger ledger;
    lk_model *model;
    const lk_bench_opts *opts;
    const int32_t *text; /* [n_text] */
    size_t n_text, n_ctx, max_depth;
    lk_recipe *f16;
    lk_session *source, *deep, *work;
    int32_t *tok;    /* [n_ctx] the text, repeated */
    double *seconds; /* [n_repeat] */
    lk_cluster_stats
        exchanged; /* while decoding at a depth; timed there in total: decode_seconds */
    double decode_seconds;
    double timed, cpu; /* seconds of all measurements at a depth; CPU time of the process in them */
    uint64_t done, total;
};

/* ---- progress: estimates in 1/100 of the time to decode a token at depth 0 ---- */

static uint64_t decode_cost(size_t depth, size_t n) { return n * (100 + depth / 100); }
static uint64_t prefill_cost(size_t depth, size_t n) { return n * (25 + depth / 400); }
static uint64_t repeat_cost(size_t n) { return n * 3; }

static bool needs_source(const struct bench *b) { return b->max_depth > COMPUTED_TOKENS; }

static uint64_t total_cost(const struct bench *b) {
    const lk_bench_opts *o = b->opts;
    uint64_t sum =
        prefill_cost(0, o->n_prefill) + (needs_source(b) ? prefill_cost(0, b->n_text) : 0);
    for (size_t i = 0; i < o->n_depth; i++) {
        size_t before = i ? o->depth[i - 1] : 0;
        sum += repeat_cost(o->depth[i] - before);
        sum += o->n_repeat * (prefill_cost(o->depth[i], o->n_prefill) +
                              decode_cost(o->depth[i], o->n_decode ? o->n_decode + 1 : 0));
    }
    return sum;
}

/* Report progress; false once the caller cancels. */
static bool add_progress(struct bench *b, uint64_t cost) {
    b->done += cost;
    return !b->opts->progress || b->opts->progress(b->opts->user, b->done, b->total);
}

/* Progress callback of the sessions. It reports nothing new; it lets the caller cancel. */
static bool session_progress(void *user, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    return add_progress(user, 0);
}

static lk_status fail_cancelled(lk_err *err) {
    return lk_fail(err, LK_E_CANCELLED, "cancelled while measuring");
}

/* ---- reaching a depth ---- */

static size_t computed_tokens(size_t depth) {
    return depth < COMPUTED_TOKENS ? depth : COMPUTED_TOKENS;
}

/* Move `deep` forward to `depth`. */
static lk_status move_to_depth(struct bench *b, size_t depth, lk_err *err) {
    size_t before = lk_session_n_tok(b->deep), n_computed = computed_tokens(depth);
    lk_status status = LK_OK;
    if (before < n_computed) status = lk_session_sync(b->deep, b->tok, n_computed, NULL, err);
    if (!status && lk_session_n_tok(b->deep) < depth)
        status = lk_repeat_rows(b->deep, b->source, depth - lk_session_n_tok(b->deep), err);
    if (!status && !add_progress(b, repeat_cost(depth - before))) return fail_cancelled(err);
    return status;
}

/* Put `work` where `deep` stands: by truncation if possible, else by a copy. */
static lk_status reset_work(struct bench *b, lk_err *err) {
    size_t depth = lk_session_n_tok(b->deep);
    if (depth > 0 && lk_session_n_tok(b->work) > depth &&
        !lk_session_truncate(b->work, depth, NULL))
        return LK_OK;
    return lk_session_copy(b->work, b->deep, err);
}

/* ---- measuring ---- */

static int32_t most_probable(const struct lk_kernels *kernels, const float *logits, int32_t n) {
    float max = kernels->max(logits, n);
    for (int32_t i = 0; i < n; i++)
        if (logits[i] == max) return i;
    return 0;
}

static lk_status time_prefill(struct bench *b, double *seconds, lk_err *err) {
    size_t depth = lk_session_n_tok(b->work), n = b->opts->n_prefill;
    double start = lk_now();
    lk_status status = lk_session_sync(b->work, b->tok, depth + n, NULL, err);
    *seconds = lk_now() - start;
    if (!status && !add_progress(b, prefill_cost(depth, n))) return fail_cancelled(err);
    return status;
}

/* What the ranks of a cluster have exchanged so far; zeros without one. */
static lk_cluster_stats count_exchanges(const struct bench *b) {
    const struct lk_cluster *c = lk_cluster_of(b->model->peers);
    return c ? lk_cluster_get_stats(c) : (lk_cluster_stats){0};
}

static lk_status time_decode(struct bench *b, double *seconds, lk_err *err) {
    size_t depth = lk_session_n_tok(b->work), n = b->opts->n_decode;
    int32_t tok = b->tok[depth], n_vocab = b->model->net->hp.n_vocab;
    lk_status status = lk_session_reserve(b->work, n + 1, err);
    if (!status) status = lk_session_eval(b->work, &tok, 1, false, err);
    lk_cluster_stats before = count_exchanges(b);
    double start = lk_now();
    for (size_t i = 0; !status && i < n; i++) {
        tok = most_probable(b->model->kernels, lk_session_logits(b->work, -1), n_vocab);
        status = lk_session_eval(b->work, &tok, 1, false, err);
        if (!status && !add_progress(b, decode_cost(depth, 1))) return fail_cancelled(err);
    }
    *seconds = lk_now() - start;
    lk_cluster_stats after = count_exchanges(b);
    b->exchanged.n_exchange += after.n_exchange - before.n_exchange;
    b->exchanged.bytes += after.bytes - before.bytes;
    b->exchanged.bytes_sent += after.bytes_sent - before.bytes_sent;
    b->exchanged.seconds += after.seconds - before.seconds;
    b->decode_seconds += *seconds;
    if (!status) add_progress(b, decode_cost(depth, 1));
    return status;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Time n tokens n_repeat times with time_prefill or time_decode. Tokens per second: *median by the
 * median time, *best by the shortest. */
static lk_status measure(struct bench *b, size_t n,
                         lk_status (*timed)(struct bench *, double *, lk_err *), double *median,
                         double *best, lk_err *err) {
    size_t m = b->opts->n_repeat;
    if (n == 0) return LK_OK;
    for (size_t i = 0; i < m; i++) {
        lk_status status = reset_work(b, err);
        double cpu = lk_process_cpu_seconds(), start = lk_now();
        if (!status) status = timed(b, &b->seconds[i], err);
        if (status) return status;
        b->cpu += lk_process_cpu_seconds() - cpu;
        b->timed += lk_now() - start;
    }
    qsort(b->seconds, m, sizeof *b->seconds, by_value);
    *median = 2.0 * n / (b->seconds[(m - 1) / 2] + b->seconds[m / 2]);
    *best = n / b->seconds[0];
    return LK_OK;
}

static lk_status measure_depth(struct bench *b, size_t depth, lk_bench_result *out, lk_err *err) {
    *out = (lk_bench_result){.depth = depth, .n_repeated = depth - computed_tokens(depth)};
    b->timed = b->cpu = b->decode_seconds = 0;
    b->exchanged = (lk_cluster_stats){0};
    lk_session_clear(b->work);
    lk_status status = move_to_depth(b, depth, err);
    if (!status)
        status = measure(b, b->opts->n_prefill, time_prefill, &out->prefill_tps,
                         &out->prefill_tps_best, err);
    if (!status)
        status = measure(b, b->opts->n_decode, time_decode, &out->decode_tps, &out->decode_tps_best,
                         err);
    /* Bytes of `deep`: `work` also holds its own copies of the shared blocks it wrote to. */
    lk_session_stats stats = lk_session_get_stats(depth > 0 ? b->deep : b->work);
    out->n_tok = stats.n_tok;
    out->cache_bytes = stats.cache_bytes;
    out->bits_per_value = stats.bits_per_value;
    out->bits_with_sidecar = stats.bits_with_sidecar;
    const struct lk_cluster *c = lk_cluster_of(b->model->peers);
    out->n_peer = c ? c->transport.n_peer : 1;
    out->max_peer_bytes =
        c ? lk_session_max_peer_bytes(depth > 0 ? b->deep : b->work) : stats.cache_bytes;
    if (b->decode_seconds > 0) {
        double n = (double)b->opts->n_decode * b->opts->n_repeat;
        out->exchanges_per_token = (double)b->exchanged.n_exchange / n;
        out->received_per_token = (double)b->exchanged.bytes / n;
        out->sent_per_token = (double)b->exchanged.bytes_sent / n;
        out->exchange_seconds = b->exchanged.seconds / n;
        out->exchange_share = b->exchanged.seconds / b->decode_seconds;
    }
    if (b->timed > 0) out->cpu_share = b->cpu / (b->timed * b->model->n_thread);
    return status;
}

/* ---- the whole benchmark ---- */

static lk_status check_bench_opts(const lk_bench_opts *o, size_t n_tok, lk_err *err) {
    if (o->n_depth == 0) return lk_fail(err, LK_E_ARG, "no depth to measure at");
    for (size_t i = 1; i < o->n_depth; i++)
        if (o->depth[i] <= o->depth[i - 1])
            return lk_fail(err, LK_E_ARG, "depths must increase; %zu follows %zu", o->depth[i],
                           o->depth[i - 1]);
    if (o->n_prefill < 0 || o->n_decode < 0 || (o->n_prefill == 0 && o->n_decode == 0))
        return lk_fail(err, LK_E_ARG, "nothing to measure: %d tokens to prefill and %d to decode",
                       o->n_prefill, o->n_decode);
    if (o->n_repeat < 1)
        return lk_fail(err, LK_E_ARG, "%d repeats measure nothing; give at least 1", o->n_repeat);
    if (n_tok < COMPUTED_TOKENS)
        return lk_fail(err, LK_E_ARG, "the text has %zu tokens; give at least %d", n_tok,
                       COMPUTED_TOKENS);
    if (o->depth[o->n_depth - 1] > INT32_MAX / 4)
        return lk_fail(err, LK_E_ARG, "a depth of %zu is too large; at most %d are possible",
                       o->depth[o->n_depth - 1], INT32_MAX / 4);
    return LK_OK;
}

static lk_status bench_open(struct bench *b, const lk_recipe *recipe, lk_err *err) {
    const lk_bench_opts *o = b->opts;
    b->tok = lk_alloc(&b->ledger, LK_FOR_OTHER, b->n_ctx * sizeof *b->tok);
    b->seconds = lk_alloc(&b->ledger, LK_FOR_OTHER, o->n_repeat * sizeof *b->seconds);
    if (!b->tok || !b->seconds) return lk_fail(err, LK_E_NOMEM, "no memory to measure");
    for (size_t i = 0; i < b->n_ctx; i++) b->tok[i] = b->text[i % b->n_text];
    lk_session_opts opts = {.n_ctx = (int32_t)b->n_ctx,
                            .max_bytes = o->max_bytes / 2,
                            .progress = session_progress,
                            .user = b};
    lk_session_opts source_opts = {
        .n_ctx = (int32_t)b->n_text, .progress = session_progress, .user = b};
    lk_status status = lk_recipe_parse(&b->f16, "f16", err);
    if (!status) /* every rank repeats its rows */
        status = lk_session_new_held(&b->source, b->model, b->f16, &source_opts, true, err);
    if (!status) status = lk_session_new(&b->deep, b->model, recipe, &opts, err);
    if (!status) status = lk_session_new(&b->work, b->model, recipe, &opts, err);
    return status;
}

static void bench_close(struct bench *b) {
    lk_session_free(b->work);
    lk_session_free(b->deep);
    lk_session_free(b->source);
    lk_recipe_free(b->f16);
    lk_release(&b->ledger, LK_FOR_OTHER, b->seconds, b->opts->n_repeat * sizeof *b->seconds);
    lk_release(&b->ledger, LK_FOR_OTHER, b->tok, b->n_ctx * sizeof *b->tok);
}

/* Compute something untimed, so that threads run and weights are in memory; then the source. */
static lk_status warm_up(struct bench *b, lk_err *err) {
    size_t n = b->opts->n_prefill ? b->opts->n_prefill : 1;
    lk_status status = lk_session_sync(b->work, b->tok, n, NULL, err);
    if (!status && !add_progress(b, prefill_cost(0, b->opts->n_prefill)))
        return fail_cancelled(err);
    if (status || !needs_source(b)) return status;
    status = lk_session_sync(b->source, b->text, b->n_text, NULL, err);
    if (!status && !add_progress(b, prefill_cost(0, b->n_text))) return fail_cancelled(err);
    return status;
}

lk_status lk_bench(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                   const lk_bench_opts *opts, lk_bench_result *results, lk_err *err) {
    lk_status status = check_bench_opts(opts, n_tok, err);
    if (status) return status;
    size_t n_measured = opts->n_prefill > opts->n_decode ? opts->n_prefill : opts->n_decode;
    struct bench b = {.model = model,
                      .opts = opts,
                      .text = tok,
                      .n_text = n_tok,
                      .max_depth = opts->depth[opts->n_depth - 1]};
    if (b.n_text > b.max_depth && needs_source(&b)) b.n_text = b.max_depth;
    b.n_ctx = b.max_depth + n_measured + 1;
    b.total = total_cost(&b);
    status = bench_open(&b, recipe, err);
    if (!status) status = warm_up(&b, err);
    lk_bench_result *found =
        !status ? lk_alloc(&b.ledger, LK_FOR_OTHER, opts->n_depth * sizeof *found) : NULL;
    if (!status && !found) status = lk_fail(err, LK_E_NOMEM, "no memory to measure");
    for (size_t i = 0; !status && i < opts->n_depth; i++)
        status = measure_depth(&b, opts->depth[i], &found[i], err);
    for (size_t i = 0; !status && i < opts->n_depth; i++) results[i] = found[i];
    lk_release(&b.ledger, LK_FOR_OTHER, found, opts->n_depth * sizeof *found);
    bench_close(&b);
    return status;
}
