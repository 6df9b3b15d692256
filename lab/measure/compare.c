/* Perplexity, KL divergence and agreement on a text: of any predictors, and of recipes. */
#include "base/clock.h"
#include "base/err.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- scoring one prediction ---- */

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
static double kl_divergence(const float *p, const float *q, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (p[i] > -80.0f) sum += expf(p[i]) * (p[i] - q[i]);
    return sum > 0 ? sum : 0;
}

lk_prediction lk_compare_score(const float *logits, size_t n_vocab, int32_t next,
                               const float *reference, float *log_p) {
    bool is_reference = log_p == reference;
    log_softmax(logits, n_vocab, log_p);
    return (lk_prediction){.nll = -log_p[next],
                           .kl = is_reference ? 0 : (float)kl_divergence(reference, log_p, n_vocab),
                           .same = is_reference ||
                                   argmax(reference, n_vocab) == argmax(log_p, n_vocab)};
}

/* ---- a chunk ---- */

size_t lk_compare_n_scored(size_t n_ctx) { return n_ctx < 4 ? 0 : n_ctx - n_ctx / 2 - 1; }

void lk_compare_set_bos(const lk_model *model, int32_t *tok) {
    int32_t bos = lk_vocab_bos(model->vocab);
    if (bos >= 0) tok[0] = bos;
}

/* lk_compare_chunk with scratch log_p [n_step + 1][n_vocab]: the reference's log-probabilities of
 * one step, then one row for the predictor being scored. */
static lk_status score_chunk(lk_predictor *predictor, size_t n, const lk_compare_text *chunk,
                             float *log_p, lk_prediction *const *score, lk_err *err) {
    size_t n_ctx = chunk->n_ctx, n_vocab = chunk->n_vocab;
    size_t n_scored = chunk->n_scored ? chunk->n_scored : lk_compare_n_scored(n_ctx);
    size_t first = n_ctx - 1 - n_scored;
    uint64_t done = 0, total = (uint64_t)(n_ctx - chunk->n_held) * n;
    for (size_t i = 0; i < n && !chunk->n_held; i++) predictor[i].clear(predictor[i].self);
    for (size_t at = chunk->n_held; at < n_ctx; at += chunk->n_step) {
        const int32_t *tok = chunk->tok + at;
        size_t n_tok = n_ctx - at < chunk->n_step ? n_ctx - at : chunk->n_step;
        /* Logits are computed only if needed: with a large vocabulary they cost a quarter of the
         * time. */
        bool scored = at + n_tok > first;
        for (size_t i = 0; i < n; i++) {
            lk_predictor *p = &predictor[i];
            double start = lk_now();
            lk_status status = p->eval(p->self, tok, n_tok, scored, err);
            if (status) return status;
            p->seconds += lk_now() - start;
            for (size_t row = 0; row < n_tok; row++) {
                size_t pos = at + row;
                if (pos < first || pos + 1 >= n_ctx) continue;
                float *reference = log_p + row * n_vocab;
                score[i][pos - first] =
                    lk_compare_score(p->logits(p->self, (int32_t)row), n_vocab, chunk->tok[pos + 1],
                                     reference, i ? log_p + chunk->n_step * n_vocab : reference);
            }
            done += n_tok;
            if (chunk->progress && !chunk->progress(chunk->user, done, total))
                return lk_fail(err, LK_E_CANCELLED, "cancelled after %llu of %llu tokens",
                               (unsigned long long)done, (unsigned long long)total);
        }
    }
    return LK_OK;
}

lk_status lk_compare_chunk(lk_predictor *predictor, size_t n, const lk_compare_text *chunk,
                           lk_prediction *const *score, lk_err *err) {
    struct lk_ledger ledger = {0};
    size_t bytes = (chunk->n_step + 1) * chunk->n_vocab * sizeof(float);
    float *log_p = lk_alloc(&ledger, LK_FOR_SCRATCH, bytes);
    if (!log_p)
        return lk_fail(err, LK_E_NOMEM, "no memory for the logits of %zu tokens", chunk->n_step);
    lk_status status = score_chunk(predictor, n, chunk, log_p, score, err);
    lk_release(&ledger, LK_FOR_SCRATCH, log_p, bytes);
    return status;
}

/* ---- summary ---- */

static int by_kl(const void *a, const void *b) {
    float x = ((const lk_prediction *)a)->kl, y = ((const lk_prediction *)b)->kl;
    return (x > y) - (x < y);
}

/* Standard error of the mean of n values with this sum and sum of squares. */
static double stderr_of_mean(double sum, double sum2, double n) {
    double mean = sum / n, variance = sum2 / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

/* Standard errors of the means of NLL and KL between chunks of n predictions; 0 for one chunk. */
static void chunk_errors(const lk_prediction *score, size_t n, size_t n_chunk, double *nll_error,
                         double *kl_error) {
    double nll = 0, nll2 = 0, kl = 0, kl2 = 0;
    for (size_t c = 0; c < n_chunk; c++, score += n) {
        double sum_nll = 0, sum_kl = 0;
        for (size_t i = 0; i < n; i++) sum_nll += score[i].nll, sum_kl += score[i].kl;
        nll += sum_nll / (double)n, kl += sum_kl / (double)n;
        nll2 += sum_nll / (double)n * sum_nll / (double)n;
        kl2 += sum_kl / (double)n * sum_kl / (double)n;
    }
    *nll_error = stderr_of_mean(nll, nll2, (double)n_chunk);
    *kl_error = stderr_of_mean(kl, kl2, (double)n_chunk);
}

lk_compare_result lk_compare_summarize(lk_prediction *score, size_t n_score, size_t n_chunk) {
    double nll = 0, nll2 = 0, kl = 0, kl2 = 0, same = 0, n = (double)n_score, of_nll, of_kl;
    if (n_score == 0) return (lk_compare_result){0};
    chunk_errors(score, n_score / n_chunk, n_chunk, &of_nll, &of_kl);
    for (size_t i = 0; i < n_score; i++) {
        nll += score[i].nll;
        nll2 += (double)score[i].nll * score[i].nll;
        kl += score[i].kl;
        kl2 += (double)score[i].kl * score[i].kl;
        same += score[i].same;
    }
    qsort(score, n_score, sizeof *score, by_kl);
    double ppl = exp(nll / n);
    return (lk_compare_result){.ppl = ppl,
                               .ppl_stderr = ppl * stderr_of_mean(nll, nll2, n),
                               .ppl_chunk_stderr = ppl * of_nll,
                               .kl_mean = kl / n,
                               .kl_stderr = stderr_of_mean(kl, kl2, n),
                               .kl_chunk_stderr = of_kl,
                               .kl_median = score[(size_t)(0.5 * (n - 1))].kl,
                               .kl_p99 = score[(size_t)(0.99 * (n - 1))].kl,
                               .kl_p999 = score[(size_t)(0.999 * (n - 1))].kl,
                               .top1 = same / n,
                               .n_scored = n_score};
}

/* ---- recipes ---- */

static void session_clear(void *session) { lk_session_clear(session); }

static lk_status session_eval(void *session, const int32_t *tok, size_t n, bool all, lk_err *err) {
    return lk_session_eval(session, tok, n, all, err);
}

static const float *session_logits(void *session, int32_t i) {
    return lk_session_logits(session, i);
}

/* One lk_compare. Predictor 0 is the full cache, predictor 1 + i is recipe i. */
struct comparison {
    struct lk_ledger ledger;
    lk_model *model;
    size_t n_vocab, n_predictor, n_ctx, n_chunk, n_step;
    size_t n_scored; /* predictions of one predictor in a chunk */
    size_t n_prompt; /* tokens of a chunk's prompt */
    size_t n_score;  /* predictions of one predictor, all chunks */
    lk_recipe *f16;
    lk_session **session;        /* [n_predictor] */
    lk_predictor *predictor;     /* [n_predictor] */
    lk_prediction *score;        /* [n_predictor][n_score] */
    lk_prediction **chunk_score; /* [n_predictor] into `score`: the current chunk */
    lk_session_stats *stats;     /* [n_predictor] means over chunks */
    int32_t *tok;                /* [n_ctx] the current chunk */
    const lk_compare_opts *opts;
    size_t chunk;
    uint64_t done, total; /* tokens x predictors; a prompt's count once */
};

static bool report(const struct comparison *c, uint64_t done) {
    return !c->opts->progress || c->opts->progress(c->opts->user, c->done + done, c->total);
}

/* lk_progress of a session: a prompt. */
static bool prompt_progress(void *user, uint64_t done, uint64_t total) {
    const struct comparison *c = user;
    return report(c, total ? c->n_prompt * done / total : 0);
}

/* lk_progress of a chunk after its prompt. */
static bool chunk_progress(void *user, uint64_t done, uint64_t total) {
    (void)total;
    return report(user, done);
}

static lk_status comparison_open(struct comparison *c, const lk_recipe *const *recipe,
                                 lk_err *err) {
    size_t n = c->n_predictor;
    c->session = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->session);
    c->predictor = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->predictor);
    c->score = lk_alloc(&c->ledger, LK_FOR_OTHER, n * c->n_score * sizeof *c->score);
    c->chunk_score = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->chunk_score);
    c->stats = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->stats);
    c->tok = lk_alloc(&c->ledger, LK_FOR_OTHER, c->n_ctx * sizeof *c->tok);
    if (!c->session || !c->predictor || !c->score || !c->chunk_score || !c->stats || !c->tok)
        return lk_fail(err, LK_E_NOMEM, "no memory to compare %zu recipes", n - 1);
    lk_status status = lk_recipe_parse(&c->f16, "f16", err);
    lk_session_opts opts = {.n_ctx = (int32_t)c->n_ctx, .progress = prompt_progress, .user = c};
    for (size_t i = 0; !status && i < n; i++) {
        lk_model *of = i == 0 && c->opts->reference ? c->opts->reference : c->model;
        status = lk_session_new(&c->session[i], of, i ? recipe[i - 1] : c->f16, &opts, err);
        c->predictor[i] = (lk_predictor){.self = c->session[i],
                                         .clear = session_clear,
                                         .eval = session_eval,
                                         .logits = session_logits};
    }
    return status;
}

static void comparison_close(struct comparison *c) {
    size_t n = c->n_predictor;
    for (size_t i = 0; c->session && i < n; i++) lk_session_free(c->session[i]);
    lk_recipe_free(c->f16);
    lk_release(&c->ledger, LK_FOR_OTHER, c->tok, c->n_ctx * sizeof *c->tok);
    lk_release(&c->ledger, LK_FOR_OTHER, c->stats, n * sizeof *c->stats);
    lk_release(&c->ledger, LK_FOR_OTHER, c->chunk_score, n * sizeof *c->chunk_score);
    lk_release(&c->ledger, LK_FOR_OTHER, c->score, n * c->n_score * sizeof *c->score);
    lk_release(&c->ledger, LK_FOR_OTHER, c->predictor, n * sizeof *c->predictor);
    lk_release(&c->ledger, LK_FOR_OTHER, c->session, n * sizeof *c->session);
}

/* Prefill the prompt of a chunk into n sessions of one model. */
static lk_status prefill_prompt(struct comparison *c, lk_session *const *session, size_t n,
                                lk_err *err) {
    lk_status status = lk_prefill_all(session, n, c->tok, c->n_prompt, err);
    c->done += c->n_prompt;
    return status;
}

/* The prompt of a chunk into all sessions. Sessions of one model share the work. */
static lk_status prefill_prompts(struct comparison *c, lk_err *err) {
    size_t first = c->opts->reference != NULL;
    lk_status status = first ? prefill_prompt(c, c->session, 1, err) : LK_OK;
    if (status) return status;
    return prefill_prompt(c, c->session + first, c->n_predictor - first, err);
}

static lk_status compare_chunk(struct comparison *c, const int32_t *tok, lk_err *err) {
    lk_compare_text chunk = {.tok = c->tok,
                             .n_ctx = c->n_ctx,
                             .n_step = c->n_step,
                             .n_vocab = c->n_vocab,
                             .progress = chunk_progress,
                             .user = c,
                             .n_scored = c->n_scored,
                             .n_held = c->n_prompt};
    memcpy(c->tok, tok, c->n_ctx * sizeof *tok);
    lk_compare_set_bos(c->model, c->tok);
    lk_status status = c->n_prompt ? prefill_prompts(c, err) : LK_OK;
    if (status) return status;
    for (size_t i = 0; i < c->n_predictor; i++)
        c->chunk_score[i] = c->score + i * c->n_score + c->chunk * c->n_scored;
    status = lk_compare_chunk(c->predictor, c->n_predictor, &chunk, c->chunk_score, err);
    c->done += (c->n_ctx - c->n_prompt) * c->n_predictor;
    for (size_t i = 0; !status && i < c->n_predictor; i++) {
        lk_session_stats stats = lk_session_get_stats(c->session[i]);
        c->stats[i].bytes_per_token += stats.bytes_per_token / c->n_chunk;
        c->stats[i].bits_per_value += stats.bits_per_value / c->n_chunk;
        c->stats[i].bits_with_sidecar += stats.bits_with_sidecar / c->n_chunk;
    }
    return status;
}

lk_status lk_compare(lk_model *model, const lk_recipe *const *recipe, size_t n_recipe,
                     const int32_t *tok, size_t n_tok, const lk_compare_opts *opts,
                     lk_compare_result *results, lk_err *err) {
    enum { DEFAULT_STEP = 32 };
    if (n_recipe == 0) return lk_fail(err, LK_E_ARG, "no recipe to compare; give at least one");
    if (opts->n_ctx < 4)
        return lk_fail(err, LK_E_ARG, "chunks of %d tokens cannot be scored; give at least 4",
                       opts->n_ctx);
    if (opts->n_step < 0 || opts->n_step > LK_EVAL_MAX)
        return lk_fail(err, LK_E_ARG, "the step must be between 1 and %d tokens, not %d",
                       LK_EVAL_MAX, opts->n_step);
    size_t n_ctx = opts->n_ctx, n_chunk = n_tok / n_ctx;
    if (n_chunk == 0)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu tokens, less than one chunk of %zu; use a smaller context",
                       n_tok, n_ctx);
    if (opts->reference && opts->reference->net->hp.n_vocab != model->net->hp.n_vocab)
        return lk_fail(err, LK_E_ARG, "the reference has another vocabulary than the model");
    if (opts->n_scored < 0 || opts->n_scored >= opts->n_ctx)
        return lk_fail(err, LK_E_ARG, "%d predictions of a chunk cannot be scored; give 1 to %d",
                       opts->n_scored, opts->n_ctx - 1);
    if (opts->n_chunk > 0 && (size_t)opts->n_chunk < n_chunk) n_chunk = opts->n_chunk;
    size_t n_scored = opts->n_scored ? (size_t)opts->n_scored : lk_compare_n_scored(n_ctx);
    size_t n_prompt = opts->prompt ? n_ctx - 1 - n_scored : 0;
    struct comparison c = {.model = model,
                           .n_vocab = model->net->hp.n_vocab,
                           .n_predictor = 1 + n_recipe,
                           .n_ctx = n_ctx,
                           .n_chunk = n_chunk,
                           .n_step = opts->n_step ? opts->n_step : DEFAULT_STEP,
                           .n_scored = n_scored,
                           .n_prompt = n_prompt,
                           .n_score = n_chunk * n_scored,
                           .opts = opts};
    c.total = n_chunk * ((n_ctx - n_prompt) * c.n_predictor + n_prompt * (opts->reference ? 2 : 1));
    lk_status status = comparison_open(&c, recipe, err);
    for (; !status && c.chunk < n_chunk; c.chunk++)
        status = compare_chunk(&c, tok + c.chunk * n_ctx, err);
    for (size_t i = 0; !status && i < n_recipe; i++) {
        results[i] = lk_compare_summarize(c.score + (i + 1) * c.n_score, c.n_score, n_chunk);
        results[i].bytes_per_token = c.stats[i + 1].bytes_per_token;
        results[i].bits_per_value = c.stats[i + 1].bits_per_value;
        results[i].bits_with_sidecar = c.stats[i + 1].bits_with_sidecar;
        results[i].tokens_per_second =
            (double)n_chunk * (n_ctx - n_prompt) / c.predictor[i + 1].seconds;
    }
    comparison_close(&c);
    return status;
}
