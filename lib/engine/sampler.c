/* A session's logits, and libllama's samplers applied to them. */
#include "engine/sampler.h"

#include "engine/session_state.h"
#include "lowkey_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- logits of the last evaluation ---- */

const float *lk_session_logits(const lk_session *s, int32_t i) {
    if (i < 0) i += s->n_logits;
    return i >= 0 && i < s->n_logits ? s->logits + (size_t)i * s->model->net->hp.n_vocab : NULL;
}

/* Insert a token into the n entries of top, sorted by falling logprob; at most n_max are
 * kept. Among equals the first one inserted stays first. Returns the new n. */
static size_t insert_top(lk_token_logprob *top, size_t n, size_t n_max, int32_t tok,
                         float logprob) {
    if (n == n_max && logprob <= top[n - 1].logprob) return n;
    size_t at = n < n_max ? n : n_max - 1;
    for (; at > 0 && top[at - 1].logprob < logprob; at--) top[at] = top[at - 1];
    top[at] = (lk_token_logprob){tok, logprob};
    return n < n_max ? n + 1 : n;
}

lk_status lk_session_logprobs(const lk_session *s, int32_t i, int32_t tok, float *logprob,
                              lk_token_logprob *top, size_t n_top, lk_err *err) {
    const float *logits = lk_session_logits(s, i);
    int32_t n_vocab = s->model->net->hp.n_vocab;
    if (!logits) return lk_fail(err, LK_E_ARG, "the session has no logits at index %d", i);
    if (logprob && (tok < 0 || tok >= n_vocab))
        return lk_fail(err, LK_E_ARG, "token %d is not in the vocabulary of %d", tok, n_vocab);
    if (n_top > (size_t)n_vocab)
        return lk_fail(err, LK_E_ARG, "cannot list %zu tokens; the vocabulary has %d", n_top,
                       n_vocab);
    float max = -INFINITY;
    double sum = 0;
    for (int32_t t = 0; t < n_vocab; t++)
        if (logits[t] > max) max = logits[t];
    for (int32_t t = 0; t < n_vocab; t++) sum += exp((double)(logits[t] - max));
    float log_sum = max + (float)log(sum);
    if (logprob) *logprob = logits[tok] - log_sum;
    size_t n = 0;
    for (int32_t t = 0; n_top > 0 && t < n_vocab; t++)
        n = insert_top(top, n, n_top, t, logits[t] - log_sum);
    return LK_OK;
}

/* ---- samplers ---- */

lk_sampler_opts lk_sampler_chat(void) {
    return (lk_sampler_opts){.temperature = 0.8f,
                             .top_k = 40,
                             .top_p = 0.95f,
                             .min_p = 0.05f,
                             .repeat_penalty = 1,
                             .repeat_last_n = 64};
}

lk_sampler_opts lk_model_sampling(const lk_model *model) {
    lk_sampler_opts o = lk_sampler_chat();
    float whole[2] = {(float)o.top_k, (float)o.repeat_last_n};
    const struct {
        const char *name;
        float *out;
        double min, max;
    } keys[] = {{"temp", &o.temperature, 0, 2}, {"top_p", &o.top_p, 1e-3, 1},
                {"min_p", &o.min_p, 0, 1},      {"penalty_repeat", &o.repeat_penalty, 0.01, 100},
                {"top_k", &whole[0], 0, 1e6},   {"penalty_last_n", &whole[1], 1, 1 << 20}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char key[60];
        snprintf(key, sizeof key, "general.sampling.%s", keys[i].name);
        double value = lk_vocab_number(model->vocab, key, (double)*keys[i].out);
        if (value >= keys[i].min && value <= keys[i].max) *keys[i].out = (float)value;
    }
    o.top_k = (int32_t)whole[0];
    o.repeat_last_n = (int32_t)whole[1];
    return o;
}

lk_status lk_sampler_new(lk_sampler **out, const lk_model *model, const lk_sampler_opts *opts,
                         lk_err *err) {
    lk_sampler_opts full = opts ? *opts : (lk_sampler_opts){0};
    /* Logits divided by a smaller temperature overflow, and only the first choice is left. */
    const float min_temperature = 1e-6f;
    if (full.temperature < min_temperature) full.temperature = 0;
    if (full.top_p == 0) full.top_p = 1;
    if (full.repeat_penalty == 0) full.repeat_penalty = 1;
    int32_t last_n = full.repeat_last_n;
    full.repeat_last_n = last_n == 0 ? 64 : last_n == -1 ? 0 : last_n;
    struct lk_ledger ledger = {0};
    lk_sampler *sampler = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *sampler);
    if (!sampler) return lk_fail(err, LK_E_NOMEM, "out of memory for a sampler");
    sampler->n_vocab = model->net->hp.n_vocab;
    lk_status status = lk_sampling_new(&sampler->sampling, model->vocab, &full, err);
    if (status)
        lk_sampler_free(sampler);
    else
        *out = sampler;
    return status;
}

lk_status lk_sampler_copy(lk_sampler **out, const lk_sampler *from, uint32_t seed, lk_err *err) {
    struct lk_ledger ledger = {0};
    lk_sampler *sampler = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *sampler);
    if (!sampler) return lk_fail(err, LK_E_NOMEM, "out of memory for a sampler");
    sampler->n_vocab = from->n_vocab;
    lk_status status = lk_sampling_copy(&sampler->sampling, from->sampling, seed, err);
    if (status)
        lk_sampler_free(sampler);
    else
        *out = sampler;
    return status;
}

lk_status lk_sampler_accept(lk_sampler *sampler, int32_t tok, lk_err *err) {
    return lk_sampling_accept(sampler->sampling, sampler->n_vocab, tok, err);
}

void lk_sampler_set_thoughts(lk_sampler *sampler, bool are_thoughts) {
    lk_sampling_set_thoughts(sampler->sampling, are_thoughts);
}

uint64_t lk_sampler_bytes(const lk_sampler *sampler) {
    return sizeof *sampler + lk_sampling_bytes(sampler->sampling, sampler->n_vocab);
}

uint64_t lk_sampler_grammar_bytes(const lk_sampler *sampler) {
    return lk_sampling_grammar_bytes(sampler->sampling);
}

void lk_sampler_free(lk_sampler *sampler) {
    if (!sampler) return;
    lk_sampling_free(sampler->sampling);
    free(sampler);
}

lk_status lk_sampler_next(lk_sampler *sampler, const lk_session *session, int32_t i, int32_t *tok,
                          lk_err *err) {
    const float *logits = lk_session_logits(session, i);
    if (!logits)
        return lk_fail(err, LK_E_ARG, "the session has no logits there; evaluate a token first");
    return lk_sampling_next(sampler->sampling, logits, session->model->net->hp.n_vocab, tok, err);
}
