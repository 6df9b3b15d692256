/* Log probabilities of tokens from logits. */
#include "serve/logprob.h"

#include <math.h>

struct lk_logprob lk_logprob_compute(const float *logits, int32_t n_vocab, int32_t tok, int n_top) {
    struct lk_logprob out = {.tok = tok};
    float max = -INFINITY;
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] > max) max = logits[i];
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)(logits[i] - max));
    float log_sum = max + (float)log(sum);
    out.logprob = logits[tok] - log_sum;
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        float logprob = logits[i] - log_sum;
        if (out.n_top == n_top && logprob <= out.top[n_top - 1].logprob) continue;
        int at = out.n_top < n_top ? out.n_top++ : n_top - 1;
        for (; at > 0 && out.top[at - 1].logprob < logprob; at--) out.top[at] = out.top[at - 1];
        out.top[at].tok = i;
        out.top[at].logprob = logprob;
    }
    return out;
}
