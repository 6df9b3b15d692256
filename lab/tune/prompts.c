/* Computes prompts once, and scores what other caches predict after them. */
#include "tune/prompts.h"

#include "base/err.h"
#include "engine/prefill.h"

#include <math.h>
#include <string.h>

enum { MIN_STEP = 8, MAX_STEP = 32 }; /* tokens of an evaluation, lk_compare has the maximum */

/* Less probable tokens than this part of the most probable one are left out of a KL. */
static const float min_probability = 1e-6f;

const int32_t *lk_prompts_tok(const struct lk_prompts *h, size_t chunk) {
    return h->tok + chunk * (h->n_prompt + h->n_query + 1);
}

bool lk_prompts_report(const struct lk_prompts *h, uint64_t more) {
    uint64_t done = h->done + more;
    return !h->progress || h->progress(h->user, done < h->total ? done : h->total, h->total);
}

/* lk_progress of a prompt. */
static bool prompt_progress(void *user, uint64_t done, uint64_t total) {
    const struct lk_prompts *h = user;
    return lk_prompts_report(h, total ? h->n_prompt * done / total : 0);
}

static lk_status add_tokens(struct lk_prompts *h, uint64_t n, lk_err *err) {
    h->done += n;
    return lk_prompts_report(h, 0) ? LK_OK : lk_fail(err, LK_E_CANCELLED, "cancelled");
}

/* ---- memory ---- */

static lk_status parse_recipes(struct lk_prompts *h, int bits, lk_err *err) {
    struct lk_buf text = {0};
    lk_buf_append_str(&text, "sink 4: f16; body: ");
    lk_tune_print_codec(&text, bits, LK_TUNE_TRELLIS);
    lk_buf_append_str(&text, "; window 32: f16");
    lk_status status = text.failed ? lk_fail(err, LK_E_NOMEM, "no memory for a recipe")
                                   : lk_recipe_parse(&h->recipe[1], text.at, err);
    lk_buf_free(&text);
    return status ? status : lk_recipe_parse(&h->recipe[0], "f16", err);
}

static lk_status open_session(struct lk_prompts *h, lk_session **s, const lk_recipe *recipe,
                              lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)(h->n_prompt + h->n_query)};
    return lk_session_new(s, h->model, recipe, &opts, err);
}

/* The tokens of an evaluation: their logits take 8 MB, or 3 % of the weights. */
static size_t bound_logits(const struct lk_prompts *h) {
    const size_t least = 8 << 20, share = (size_t)lk_model_get_info(h->model).file_bytes / 32;
    size_t n = (share > least ? share : least) / (h->n_vocab * sizeof(float));
    n = n < MIN_STEP ? MIN_STEP : n > MAX_STEP ? MAX_STEP : n;
    return n < h->n_query ? n : h->n_query;
}

lk_status lk_prompts_new(struct lk_prompts **out, const struct lk_measure *m,
                         const struct lk_measure_text *text, int bits, lk_err *err) {
    size_t n_tok = (size_t)text->chunk, n_chunk = text->n_tok / n_tok;
    struct lk_prompts *h = lk_alloc(&m->model->ledger, LK_FOR_OTHER, sizeof *h);
    if (!h) return lk_fail(err, LK_E_NOMEM, "no memory to hold prompts");
    h->model = m->model;
    h->progress = m->progress;
    h->user = m->user;
    h->id = text->id;
    h->n_chunk = n_chunk;
    h->n_query = (size_t)text->n_scored;
    h->n_prompt = n_tok - 1 - h->n_query;
    h->n_vocab = (size_t)m->model->net->hp.n_vocab;
    h->tok = lk_alloc(&h->ledger, LK_FOR_OTHER, n_chunk * n_tok * sizeof *h->tok);
    h->chunk = lk_alloc(&h->ledger, LK_FOR_OTHER, n_chunk * sizeof *h->chunk);
    lk_status status = h->tok && h->chunk
                           ? parse_recipes(h, bits, err)
                           : lk_fail(err, LK_E_NOMEM, "no memory for %zu prompts", n_chunk);
    h->n_step = bound_logits(h);
    if (!status) status = open_session(h, &h->run, h->recipe[0], err);
    if (status) {
        lk_prompts_free(h);
        return status;
    }
    memcpy(h->tok, text->tok, n_chunk * n_tok * sizeof *h->tok);
    for (size_t i = 0; i < n_chunk; i++) lk_compare_set_bos(m->model, h->tok + i * n_tok);
    *out = h;
    return LK_OK;
}

static void free_chunk(struct lk_prompts *h, struct lk_prompt *c) {
    lk_release(&h->ledger, LK_FOR_SCRATCH, c->likely, c->likely_cap * sizeof *c->likely);
    lk_release(&h->ledger, LK_FOR_SCRATCH, c->prediction, h->n_query * sizeof *c->prediction);
    lk_session_free(c->coded);
    lk_session_free(c->full);
    *c = (struct lk_prompt){0};
}

void lk_prompts_free(struct lk_prompts *h) {
    if (!h) return;
    lk_session_free(h->run);
    for (size_t i = 0; h->chunk && i < h->n_chunk; i++) free_chunk(h, &h->chunk[i]);
    for (int i = 0; i < 2; i++) lk_recipe_free(h->recipe[i]);
    size_t n_tok = h->n_chunk * (h->n_prompt + h->n_query + 1);
    lk_release(&h->ledger, LK_FOR_OTHER, h->chunk, h->n_chunk * sizeof *h->chunk);
    lk_release(&h->ledger, LK_FOR_OTHER, h->tok, n_tok * sizeof *h->tok);
    lk_release(&h->model->ledger, LK_FOR_OTHER, h, sizeof *h);
}

lk_status lk_prompts_compute_prompt(struct lk_prompts *h, size_t chunk, lk_err *err) {
    struct lk_prompt *c = &h->chunk[chunk];
    if (c->full) return LK_OK;
    lk_status status = open_session(h, &c->full, h->recipe[0], err);
    if (!status) status = open_session(h, &c->coded, h->recipe[1], err);
    lk_session *const both[] = {c->full, c->coded};
    if (!status) c->full->opts.progress = prompt_progress;
    if (!status) c->full->opts.user = h;
    if (!status) status = lk_prefill_all(both, 2, lk_prompts_tok(h, chunk), h->n_prompt, err);
    if (status)
        free_chunk(h, c);
    else
        h->done += h->n_prompt;
    return status;
}

/* ---- predictions ---- */

/* Evaluate n tokens of a chunk after its prompt, from token `at` on. */
static lk_status evaluate(struct lk_prompts *h, size_t chunk, lk_session *s, size_t at, size_t n,
                          lk_err *err) {
    const int32_t *tok = lk_prompts_tok(h, chunk) + h->n_prompt + at;
    lk_status status = lk_session_eval(s, tok, n, true, err);
    return status ? status : add_tokens(h, n, err);
}

/* Keep what the full cache predicts after one token. */
static bool keep_prediction(struct lk_prompts *h, struct lk_prompt *c, size_t i,
                            const float *logits) {
    struct lk_prompt_prediction *p = &c->prediction[i];
    float max = logits[0];
    size_t n = 0;
    *p = (struct lk_prompt_prediction){.first = c->n_likely};
    for (size_t t = 1; t < h->n_vocab; t++) {
        if (logits[t] <= max) continue;
        max = logits[t];
        p->best = (int32_t)t;
    }
    float least = max + logf(min_probability);
    for (size_t t = 0; t < h->n_vocab; t++) n += logits[t] >= least;
    if (c->n_likely + n > c->likely_cap) {
        size_t cap = 2 * c->likely_cap + n;
        if (!lk_grow(&h->ledger, LK_FOR_SCRATCH, (void **)&c->likely,
                     c->likely_cap * sizeof *c->likely, cap * sizeof *c->likely))
            return false;
        c->likely_cap = cap;
    }
    double sum = 0;
    for (size_t t = 0; t < h->n_vocab; t++) {
        if (logits[t] < least) continue;
        c->likely[c->n_likely++] = (struct lk_likely){(int32_t)t, logits[t]};
        sum += exp((double)logits[t] - max);
    }
    p->n = n;
    p->log_total = max + log(sum);
    return true;
}

lk_status lk_prompts_predict(struct lk_prompts *h, size_t chunk, lk_err *err) {
    struct lk_prompt *c = &h->chunk[chunk];
    if (c->prediction) return LK_OK;
    lk_status status = lk_session_copy(h->run, c->full, err);
    c->n_likely = 0;
    c->prediction = lk_alloc(&h->ledger, LK_FOR_SCRATCH, h->n_query * sizeof *c->prediction);
    bool ok = c->prediction != NULL;
    for (size_t at = 0, n; !status && ok && at < h->n_query; at += n) {
        n = h->n_query - at < h->n_step ? h->n_query - at : h->n_step;
        status = evaluate(h, chunk, h->run, at, n, err);
        for (size_t i = 0; !status && ok && i < n; i++)
            ok = keep_prediction(h, c, at + i, lk_session_logits(h->run, (int32_t)i));
    }
    if (!status && !ok)
        status = lk_fail(err, LK_E_NOMEM, "no memory for %zu predictions", h->n_query);
    if (status) {
        lk_release(&h->ledger, LK_FOR_SCRATCH, c->prediction, h->n_query * sizeof *c->prediction);
        c->prediction = NULL;
    }
    return status;
}

/* KL(full || other) over the likely tokens. */
static double kl_of(const struct lk_prompt *c, size_t i, const float *logits) {
    const struct lk_prompt_prediction *p = &c->prediction[i];
    const struct lk_likely *likely = c->likely + p->first;
    double max = -INFINITY, total = 0, mean = 0;
    for (size_t k = 0; k < p->n; k++) max = fmax(max, logits[likely[k].token]);
    for (size_t k = 0; k < p->n; k++) {
        double logit = logits[likely[k].token];
        total += exp(logit - max);
        mean += exp(likely[k].logit - p->log_total) * (likely[k].logit - logit);
    }
    return fmax(mean - p->log_total + max + log(total), 0);
}

/* -log of a token's probability, and whether it has the most probable one in common with `best`. */
static double nll_of(const float *logits, size_t n, int32_t token, int32_t best, bool *same) {
    float max = logits[0];
    int32_t at = 0;
    double sum = 0;
    for (size_t t = 1; t < n; t++)
        if (logits[t] > max) max = logits[at = (int32_t)t];
    for (size_t t = 0; t < n; t++) sum += expf(logits[t] - max);
    *same = at == best;
    return max + log(sum) - logits[token];
}

/* Score tokens [at, at + n) of a chunk, which were evaluated last. */
static void score_tokens(const struct lk_prompts *h, size_t chunk, const lk_session *s, size_t at,
                         size_t n, bool nll, lk_prediction *score) {
    const struct lk_prompt *c = &h->chunk[chunk];
    const int32_t *next = lk_prompts_tok(h, chunk) + h->n_prompt + 1;
    for (size_t i = at; i < at + n; i++) {
        const float *logits = lk_session_logits(s, (int32_t)(i - at));
        score[i] = (lk_prediction){.kl = (float)kl_of(c, i, logits)};
        if (nll)
            score[i].nll =
                (float)nll_of(logits, h->n_vocab, next[i], c->prediction[i].best, &score[i].same);
    }
}

lk_status lk_prompts_score(struct lk_prompts *h, size_t chunk, lk_session *s, bool nll,
                           lk_prediction *score, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t at = 0, n; !status && at < h->n_query; at += n) {
        n = h->n_query - at < h->n_step ? h->n_query - at : h->n_step;
        status = evaluate(h, chunk, s, at, n, err);
        if (!status) score_tokens(h, chunk, s, at, n, nll, score);
    }
    return status;
}

/* ---- recipes ---- */

/* Measure a chunk with a session of the recipe. score: [n_query] */
static lk_status measure_chunk(struct lk_prompts *h, size_t chunk, lk_session *s,
                               lk_prediction *score, lk_compare_result *sum, lk_err *err) {
    const struct lk_prompt *c = &h->chunk[chunk];
    lk_status status = lk_prompts_compute_prompt(h, chunk, err);
    if (!status) status = lk_prompts_predict(h, chunk, err);
    if (!status) status = lk_prefill_recode(s, c->full, c->coded, err);
    if (!status) status = lk_prompts_score(h, chunk, s, true, score, err);
    if (status) return status;
    lk_session_stats stats = lk_session_get_stats(s);
    sum->bytes_per_token += stats.bytes_per_token / (double)h->n_chunk;
    sum->bits_per_value += stats.bits_per_value / (double)h->n_chunk;
    sum->bits_with_sidecar += stats.bits_with_sidecar / (double)h->n_chunk;
    return LK_OK;
}

lk_status lk_prompts_measure(struct lk_prompts *h, const lk_recipe *recipe,
                             lk_compare_result *result, lk_err *err) {
    size_t n_score = h->n_chunk * h->n_query;
    lk_prediction *score = lk_alloc(&h->ledger, LK_FOR_SCRATCH, n_score * sizeof *score);
    lk_session *s = NULL;
    lk_compare_result sum = {0};
    lk_status status = score ? open_session(h, &s, recipe, err)
                             : lk_fail(err, LK_E_NOMEM, "no memory for %zu predictions", n_score);
    for (size_t i = 0; !status && i < h->n_chunk; i++)
        status = measure_chunk(h, i, s, score + i * h->n_query, &sum, err);
    if (!status) {
        *result = lk_compare_summarize(score, n_score, h->n_chunk);
        result->bytes_per_token = sum.bytes_per_token;
        result->bits_per_value = sum.bits_per_value;
        result->bits_with_sidecar = sum.bits_with_sidecar;
    }
    lk_session_free(s);
    lk_release(&h->ledger, LK_FOR_SCRATCH, score, score ? n_score * sizeof *score : 0);
    return status;
}
