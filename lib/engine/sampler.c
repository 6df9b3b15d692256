/* Samplers: libllama's, applied to a session's logits. */
#include "engine/sampler.h"

#include "engine/session_state.h"
#include "lowkey_serve.h"

#include <stdlib.h>

lk_sampler_opts lk_sampler_chat(void) {
    return (lk_sampler_opts){.temperature = 0.8f,
                             .top_k = 40,
                             .top_p = 0.95f,
                             .min_p = 0.05f,
                             .repeat_penalty = 1,
                             .repeat_last_n = 64};
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
