/* Predictors, and recipes, against the full cache on a text. */
#include "measure/compare.h"

#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t lk_compare_scored(size_t n_ctx) { return n_ctx < 4 ? 0 : n_ctx - n_ctx / 2 - 1; }

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

struct lk_prediction lk_compare_score(const float *logits, size_t n_vocab, int32_t next,
                                      const float *first, float *mine) {
    log_softmax(logits, n_vocab, mine);
    return (struct lk_prediction){.nll = -mine[next],
                                  .kl = mine == first ? 0 : (float)divergence(first, mine, n_vocab),
                                  .same = mine == first ||
                                          argmax(first, n_vocab) == argmax(mine, n_vocab)};
}

lk_status lk_compare_chunk(struct lk_predictor *predictor, size_t n, size_t n_vocab,
                           const int32_t *tok, size_t n_ctx, size_t n_step, float *work,
                           struct lk_prediction *const *score, lk_progress progress, void *user,
                           lk_err *err) {
    float *log_p =
        work + n_step * n_vocab; /* of the predictor at hand; the first one's are kept before it */
    uint64_t done = 0, total = (uint64_t)n_ctx * n;
    for (size_t i = 0; i < n; i++) predictor[i].clear(predictor[i].self);
    for (size_t at = 0; at < n_ctx; at += n_step) {
        size_t n_tok = n_ctx - at < n_step ? n_ctx - at : n_step;
        bool scored =
            at + n_tok >
            n_ctx / 2; /* where the vocabulary is large, logits cost a quarter of the time */
        for (size_t i = 0; i < n; i++) {
            double start = now();
            lk_status status = predictor[i].read(predictor[i].self, tok + at, n_tok, scored, err);
            if (status != LK_OK) return status;
            predictor[i].seconds += now() - start;
            for (size_t row = 0; row < n_tok; row++) {
                size_t pos = at + row;
                if (pos < n_ctx / 2 || pos + 1 >= n_ctx) continue;
                float *first = work + row * n_vocab, *mine = i ? log_p : first;
                score[i][pos - n_ctx / 2] =
                    lk_compare_score(predictor[i].logits(predictor[i].self, (int32_t)row), n_vocab,
                                     tok[pos + 1], first, mine);
            }
            done += n_tok;
            if (progress && !progress(user, done, total))
                return lk_fail(err, LK_E_CANCELLED, "cancelled after %llu of %llu tokens",
                               (unsigned long long)done, (unsigned long long)total);
        }
    }
    return LK_OK;
}

static int by_kl(const void *a, const void *b) {
    float x = ((const struct lk_prediction *)a)->kl, y = ((const struct lk_prediction *)b)->kl;
    return (x > y) - (x < y);
}

static double stderr_of(double sum, double sum2, double n) {
    double mean = sum / n, variance = sum2 / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

lk_compare_result lk_compare_summarise(struct lk_prediction *score, size_t n_score) {
    double nll = 0, nll2 = 0, kl = 0, kl2 = 0, same = 0, n = (double)n_score;
    if (n_score == 0) return (lk_compare_result){0};
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
                               .ppl_stderr = ppl * stderr_of(nll, nll2, n),
                               .kl_mean = kl / n,
                               .kl_stderr = stderr_of(kl, kl2, n),
                               .kl_p99 = score[(size_t)(0.99 * (n - 1))].kl,
                               .kl_p999 = score[(size_t)(0.999 * (n - 1))].kl,
                               .top1 = same / n,
                               .n_scored = n_score};
}

void lk_compare_begin(const lk_model *model, int32_t *tok) {
    int32_t begin = lk_vocab_begin(model->vocab);
    if (begin >= 0) tok[0] = begin;
}

static void clear_session(void *session) { lk_session_clear(session); }

static lk_status read_session(void *session, const int32_t *tok, size_t n, bool all, lk_err *err) {
    return lk_session_eval(session, tok, n, all, err);
}

static const float *session_logits(void *session, int32_t row) {
    return lk_session_logits(session, row);
}

struct lk_predictor lk_session_predictor(lk_session *session) {
    return (struct lk_predictor){
        .self = session, .clear = clear_session, .read = read_session, .logits = session_logits};
}

/* ---- recipes ---- */

struct comparison {
    struct lk_ledger ledger;
    lk_model *model;
    size_t n_vocab, n_recipe, n_ctx, n_chunk, n_step;
    lk_recipe *f16;
    lk_session **session;           /* [1 + n_recipe]; the full cache first */
    struct lk_predictor *predictor; /* [1 + n_recipe] */
    struct lk_prediction *score;    /* [1 + n_recipe][n_chunk * lk_compare_scored(n_ctx)] */
    struct lk_prediction **at;      /* [1 + n_recipe] where the chunk at hand is scored */
    lk_session_stats *stats;        /* [1 + n_recipe] means over chunks */
    float *work;
    int32_t *tok; /* [n_ctx] the chunk at hand */
    const lk_compare_opts *opts;
    size_t chunk;
};

static size_t scores_of_one(const struct comparison *c) {
    return c->n_chunk * lk_compare_scored(c->n_ctx);
}

static lk_status take(struct comparison *c, const lk_recipe *const *recipe, lk_err *err) {
    size_t n = 1 + c->n_recipe;
    c->session = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->session);
    c->predictor = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->predictor);
    c->score = lk_alloc(&c->ledger, LK_FOR_OTHER, n * scores_of_one(c) * sizeof *c->score);
    c->at = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->at);
    c->stats = lk_alloc(&c->ledger, LK_FOR_OTHER, n * sizeof *c->stats);
    c->work = lk_alloc(&c->ledger, LK_FOR_OTHER, (c->n_step + 1) * c->n_vocab * sizeof *c->work);
    c->tok = lk_alloc(&c->ledger, LK_FOR_OTHER, c->n_ctx * sizeof *c->tok);
    if (!c->session || !c->predictor || !c->score || !c->at || !c->stats || !c->work || !c->tok)
        return lk_fail(err, LK_E_NOMEM, "no memory to compare %zu recipes", c->n_recipe);
    lk_status status = lk_recipe_parse(&c->f16, "f16", err);
    lk_session_opts opts = {.n_ctx = (int32_t)c->n_ctx};
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        status = lk_session_new(&c->session[i], c->model, i ? recipe[i - 1] : c->f16, &opts, err);
        if (status == LK_OK) c->predictor[i] = lk_session_predictor(c->session[i]);
    }
    return status;
}

static void release(struct comparison *c) {
    size_t n = 1 + c->n_recipe;
    for (size_t i = 0; c->session && i < n; i++) lk_session_free(c->session[i]);
    lk_recipe_free(c->f16);
    lk_release(&c->ledger, LK_FOR_OTHER, c->tok, c->n_ctx * sizeof *c->tok);
    lk_release(&c->ledger, LK_FOR_OTHER, c->work, (c->n_step + 1) * c->n_vocab * sizeof *c->work);
    lk_release(&c->ledger, LK_FOR_OTHER, c->stats, n * sizeof *c->stats);
    lk_release(&c->ledger, LK_FOR_OTHER, c->at, n * sizeof *c->at);
    lk_release(&c->ledger, LK_FOR_OTHER, c->score, n * scores_of_one(c) * sizeof *c->score);
    lk_release(&c->ledger, LK_FOR_OTHER, c->predictor, n * sizeof *c->predictor);
    lk_release(&c->ledger, LK_FOR_OTHER, c->session, n * sizeof *c->session);
}

static bool report(void *user, uint64_t done, uint64_t total) {
    const struct comparison *c = user;
    return !c->opts->progress ||
           c->opts->progress(c->opts->user, c->chunk * total + done, c->n_chunk * total);
}

static lk_status read_chunk(struct comparison *c, const int32_t *tok, lk_err *err) {
    size_t n = 1 + c->n_recipe;
    memcpy(c->tok, tok, c->n_ctx * sizeof *tok);
    lk_compare_begin(c->model, c->tok);
    for (size_t i = 0; i < n; i++)
        c->at[i] = c->score + i * scores_of_one(c) + c->chunk * lk_compare_scored(c->n_ctx);
    lk_status status = lk_compare_chunk(c->predictor, n, c->n_vocab, c->tok, c->n_ctx, c->n_step,
                                        c->work, c->at, report, c, err);
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        lk_session_stats stats = lk_session_get_stats(c->session[i]);
        c->stats[i].bytes_per_token += stats.bytes_per_token / c->n_chunk;
        c->stats[i].bits_per_value += stats.bits_per_value / c->n_chunk;
    }
    return status;
}

lk_status lk_compare(lk_model *model, const lk_recipe *const *recipe, size_t n_recipe,
                     const int32_t *tok, size_t n_tok, const lk_compare_opts *opts,
                     lk_compare_result *results, lk_err *err) {
    if (n_recipe == 0) return lk_fail(err, LK_E_ARG, "there is no recipe to compare");
    if (opts->n_ctx < 4)
        return lk_fail(err, LK_E_ARG, "chunks of %d tokens cannot be scored; give at least 4",
                       opts->n_ctx);
    if (opts->n_step < 0 || opts->n_step > LK_EVAL_MAX)
        return lk_fail(err, LK_E_ARG, "steps of %d tokens are not possible; give 1 to %d",
                       opts->n_step, LK_EVAL_MAX);
    size_t n_ctx = opts->n_ctx, n_chunk = n_tok / n_ctx;
    if (n_chunk == 0)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu tokens, less than one chunk of %zu; use a smaller context",
                       n_tok, n_ctx);
    if (opts->n_chunk > 0 && (size_t)opts->n_chunk < n_chunk) n_chunk = opts->n_chunk;
    struct comparison c = {.model = model,
                           .n_vocab = model->net->hp.n_vocab,
                           .n_recipe = n_recipe,
                           .n_ctx = n_ctx,
                           .n_chunk = n_chunk,
                           .n_step = opts->n_step ? opts->n_step : LK_TILE,
                           .opts = opts};
    lk_status status = take(&c, recipe, err);
    for (; status == LK_OK && c.chunk < n_chunk; c.chunk++)
        status = read_chunk(&c, tok + c.chunk * n_ctx, err);
    for (size_t i = 0; status == LK_OK && i < n_recipe; i++) {
        results[i] = lk_compare_summarise(c.score + (i + 1) * scores_of_one(&c), scores_of_one(&c));
        results[i].bytes_per_token = c.stats[i + 1].bytes_per_token;
        results[i].bits_per_value = c.stats[i + 1].bits_per_value;
        results[i].tokens_per_second = (double)n_chunk * n_ctx / c.predictor[i + 1].seconds;
    }
    release(&c);
    return status;
}
