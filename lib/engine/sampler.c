/* Samplers: libllama's, fed with a session's logits. */
#include "engine/engine.h"
#include "token/sampling.h"

#include <stdlib.h>

lk_sampler_opts lk_sampler_defaults(void) {
    return (lk_sampler_opts){.temperature = 0.8f,
                             .top_k = 40,
                             .top_p = 0.95f,
                             .min_p = 0.05f,
                             .repeat_penalty = 1.0f,
                             .repeat_last_n = 64};
}

lk_status lk_sampler_new(lk_sampler **out, const lk_model *model, const lk_sampler_opts *opts,
                         lk_err *err) {
    lk_sampler_opts defaults = lk_sampler_defaults();
    struct lk_ledger first = {0};
    lk_sampler *sampler = lk_alloc(&first, LK_FOR_OTHER, sizeof *sampler);
    if (!sampler) return lk_fail(err, LK_E_NOMEM, "no memory for a sampler");
    lk_status status =
        lk_sampling_new(&sampler->sampling, model->vocab, opts ? opts : &defaults, err);
    if (status != LK_OK)
        lk_sampler_free(sampler);
    else
        *out = sampler;
    return status;
}

void lk_sampler_free(lk_sampler *sampler) {
    if (!sampler) return;
    lk_sampling_free(sampler->sampling);
    free(sampler);
}

lk_status lk_sampler_next(lk_sampler *sampler, const lk_session *session, int32_t *tok,
                          lk_err *err) {
    const float *logits = lk_session_logits(session, -1);
    if (!logits)
        return lk_fail(err, LK_E_ARG, "the session has no logits yet; evaluate a token first");
    return lk_sampling_next(sampler->sampling, logits, session->model->net->hp.n_vocab, tok, err);
}
