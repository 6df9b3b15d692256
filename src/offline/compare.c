/* Recipes against the full cache on a text, position by position.
 *
 * Every chunk of n_ctx tokens starts from an empty cache and is read in small steps through the
 * cache itself, so that a prediction sees what a decoder would have kept by then. The second half
 * of a chunk is scored, as llama-perplexity does. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tally {
    double   nll, nll2, kl, kl2, same;
    double   bytes_per_token, bits_per_value, seconds;
    uint64_t n_tok, n_scored;
};

struct comparison {
    struct lk_ledger  ledger;
    lk_model         *model;
    size_t            n_vocab, n_recipe, n_ctx, n_chunk, n_step;
    lk_recipe        *f16;
    lk_session      **session;   /* [1 + n_recipe]; the full cache first                      */
    struct tally     *tally;     /* [1 + n_recipe]                                             */
    float            *kl;        /* [n_recipe][n_chunk * scored(n_ctx)]                        */
    float            *full, *log_p; /* [n_step][n_vocab] of the full cache, [n_vocab] of a recipe */
    int32_t          *tok;       /* [n_ctx] the chunk at hand                                  */
    uint64_t          done, total;
};

/* Predictions of a chunk that are scored: those made from positions n_ctx / 2 to n_ctx - 2. */
static size_t scored(size_t n_ctx) { return n_ctx - n_ctx / 2 - 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* log softmax of logits [n] into out [n]. */
static void log_softmax(const float *logits, size_t n, float *out) {
    float max = logits[0];
    for (size_t i = 1; i < n; i++) max = fmaxf(max, logits[i]);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += expf(logits[i] - max);
    float log_sum = max + (float)log(sum);
    for (size_t i = 0; i < n; i++) out[i] = logits[i] - log_sum;
}

static size_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* KL(p || q) in nats for log-probabilities p, q [n]. */
static double divergence(const float *p, const float *q, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (p[i] > -80.0f) sum += expf(p[i]) * (p[i] - q[i]);
    return sum > 0 ? sum : 0;
}

static lk_status take(struct comparison *c, const lk_recipe *const *recipe, lk_err *err) {
    size_t n = 1 + c->n_recipe;
    c->session = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->session);
    c->tally = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->tally);
    c->kl = lk_alloc(&c->ledger, LK_FOR_OTHER, n * c->n_chunk * scored(c->n_ctx) * sizeof *c->kl);
    c->full = lk_alloc(&c->ledger, LK_FOR_OTHER, c->n_step * c->n_vocab * sizeof *c->full);
    c->log_p = lk_alloc(&c->ledger, LK_FOR_OTHER, c->n_vocab * sizeof *c->log_p);
    c->tok = lk_alloc(&c->ledger, LK_FOR_OTHER, c->n_ctx * sizeof *c->tok);
    if (!c->session || !c->tally || !c->kl || !c->full || !c->log_p || !c->tok)
        return lk_fail(err, LK_E_NOMEM, "no memory to compare %zu recipes", c->n_recipe);
    lk_status status = lk_recipe_parse(&c->f16, "f16", err);
    lk_session_opts opts = {.n_ctx = (int32_t)c->n_ctx};
    for (size_t i = 0; status == LK_OK && i < n; i++)
        status = lk_session_new(&c->session[i], c->model, i ? recipe[i - 1] : c->f16, &opts, err);
    return status;
}

static void release(struct comparison *c) {
    size_t n = 1 + c->n_recipe;
    for (size_t i = 0; c->session && i < n; i++) lk_session_free(c->session[i]);
    lk_recipe_free(c->f16);
    lk_release(&c->ledger, LK_FOR_OTHER, c->tok, c->n_ctx * sizeof *c->tok);
    lk_release(&c->ledger, LK_FOR_OTHER, c->log_p, c->n_vocab * sizeof *c->log_p);
    lk_release(&c->ledger, LK_FOR_OTHER, c->full, c->n_step * c->n_vocab * sizeof *c->full);
    lk_release(&c->ledger, LK_FOR_OTHER, c->kl, n * c->n_chunk * scored(c->n_ctx) * sizeof *c->kl);
    lk_release(&c->ledger, LK_FOR_OTHER, c->tally, n * sizeof *c->tally);
    lk_release(&c->ledger, LK_FOR_OTHER, c->session, n * sizeof *c->session);
}

/* Score the prediction that session i made after position `pos` of the chunk; row: its index in the step. */
static void score(struct comparison *c, size_t i, size_t pos, int row) {
    struct tally *t = &c->tally[i];
    float *full = c->full + (size_t)row * c->n_vocab, *log_p = i ? c->log_p : full;
    log_softmax(lk_session_logits(c->session[i], row), c->n_vocab, log_p);
    double nll = -log_p[c->tok[pos + 1]];
    t->nll += nll;
    t->nll2 += nll * nll;
    if (i) {
        double kl = divergence(full, log_p, c->n_vocab);
        c->kl[(i - 1) * c->n_chunk * scored(c->n_ctx) + t->n_scored] = (float)kl;
        t->kl += kl;
        t->kl2 += kl * kl;
        t->same += argmax(full, c->n_vocab) == argmax(log_p, c->n_vocab);
    }
    t->n_scored++;
}

static lk_status read_step(struct comparison *c, size_t at, const lk_compare_opts *opts, lk_err *err) {
    size_t n = c->n_ctx - at < c->n_step ? c->n_ctx - at : c->n_step;
    for (size_t i = 0; i <= c->n_recipe; i++) {
        double start = now();
        lk_status status = lk_session_eval(c->session[i], c->tok + at, n, true, err);
        if (status != LK_OK) return status;
        c->tally[i].seconds += now() - start;
        c->tally[i].n_tok += n;
        for (size_t row = 0; row < n; row++)
            if (at + row >= c->n_ctx / 2 && at + row + 1 < c->n_ctx) score(c, i, at + row, (int)row);
        c->done += n;
        if (opts->progress && !opts->progress(opts->user, c->done, c->total))
            return lk_fail(err, LK_E_CANCELLED, "cancelled after %llu of %llu tokens", (unsigned long long)c->done, (unsigned long long)c->total);
    }
    return LK_OK;
}

static lk_status read_chunk(struct comparison *c, const int32_t *tok, const lk_compare_opts *opts, lk_err *err) {
    memcpy(c->tok, tok, c->n_ctx * sizeof *tok);
    int32_t begin = lk_vocab_begin(c->model->vocab);
    if (begin >= 0) c->tok[0] = begin; /* as llama-perplexity does where the model wants a begin token */
    for (size_t i = 0; i <= c->n_recipe; i++) lk_session_clear(c->session[i]);
    for (size_t at = 0; at < c->n_ctx; at += c->n_step) {
        lk_status status = read_step(c, at, opts, err);
        if (status != LK_OK) return status;
    }
    for (size_t i = 0; i <= c->n_recipe; i++) {
        lk_session_stats stats = lk_session_get_stats(c->session[i]);
        c->tally[i].bytes_per_token += stats.bytes_per_token / c->n_chunk;
        c->tally[i].bits_per_value += stats.bits_per_value / c->n_chunk;
    }
    return LK_OK;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double stderr_of(double sum, double sum2, double n) {
    double mean = sum / n, variance = sum2 / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

static lk_compare_result summarise(struct comparison *c, size_t i) {
    const struct tally *t = &c->tally[i + 1];
    float *kl = c->kl + i * c->n_chunk * scored(c->n_ctx);
    double n = (double)t->n_scored;
    qsort(kl, t->n_scored, sizeof *kl, by_value);
    double ppl = exp(t->nll / n);
    return (lk_compare_result){
        .ppl = ppl, .ppl_stderr = ppl * stderr_of(t->nll, t->nll2, n), .kl_mean = t->kl / n, .kl_stderr = stderr_of(t->kl, t->kl2, n),
        .kl_p99 = kl[(size_t)(0.99 * (n - 1))], .kl_p999 = kl[(size_t)(0.999 * (n - 1))], .top1 = t->same / n,
        .bytes_per_token = t->bytes_per_token, .bits_per_value = t->bits_per_value,
        .tokens_per_second = t->n_tok / t->seconds, .n_scored = t->n_scored};
}

lk_status lk_compare(lk_model *model, const lk_recipe *const *recipe, size_t n_recipe, const int32_t *tok, size_t n_tok,
                     const lk_compare_opts *opts, lk_compare_result *results, lk_err *err) {
    if (n_recipe == 0) return lk_fail(err, LK_E_ARG, "there is no recipe to compare");
    if (opts->n_ctx < 4) return lk_fail(err, LK_E_ARG, "chunks of %d tokens cannot be scored; give at least 4", opts->n_ctx);
    if (opts->n_step < 0 || opts->n_step > LK_EVAL_MAX)
        return lk_fail(err, LK_E_ARG, "steps of %d tokens are not possible; give 1 to %d", opts->n_step, LK_EVAL_MAX);
    size_t n_ctx = opts->n_ctx, n_chunk = n_tok / n_ctx;
    if (n_chunk == 0) return lk_fail(err, LK_E_ARG, "the text has %zu tokens, less than one chunk of %zu; use a smaller context", n_tok, n_ctx);
    if (opts->n_chunk > 0 && (size_t)opts->n_chunk < n_chunk) n_chunk = opts->n_chunk;
    struct comparison c = {.model = model, .n_vocab = model->net->hp.n_vocab, .n_recipe = n_recipe, .n_ctx = n_ctx,
                           .n_chunk = n_chunk, .n_step = opts->n_step ? opts->n_step : LK_TILE, .total = (uint64_t)n_chunk * n_ctx * (1 + n_recipe)};
    lk_status status = take(&c, recipe, err);
    for (size_t chunk = 0; status == LK_OK && chunk < n_chunk; chunk++) status = read_chunk(&c, tok + chunk * n_ctx, opts, err);
    for (size_t i = 0; status == LK_OK && i < n_recipe; i++) results[i] = summarise(&c, i);
    release(&c);
    return status;
}
