/* Log probabilities of tokens, for the "logprobs" of the API. Natural logarithms. */
#ifndef LK_SERVE_LOGPROB_H
#define LK_SERVE_LOGPROB_H

#include <stddef.h>
#include <stdint.h>

enum { LK_MAX_TOP_LOGPROBS = 20 };

/* Log probability of the sampled token, and the most probable tokens in its place. */
struct lk_logprob {
    int32_t tok;
    float logprob;
    size_t offset; /* characters of text before the token; set by the detokenizer */
    int n_top;
    struct {
        int32_t tok;
        float logprob;
    } top[LK_MAX_TOP_LOGPROBS]; /* [n_top], most probable first */
};

/* Log softmax of logits[n_vocab] at `tok`, and its n_top largest values. */
struct lk_logprob lk_logprob_compute(const float *logits, int32_t n_vocab, int32_t tok, int n_top);

#endif
