/* Logits of the last evaluation, and log-probabilities computed from them. */
#include "engine/session_state.h"
#include "lowkey_serve.h"

#include <math.h>

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
