/* Log probabilities of tokens, for the "logprobs" of the API. Natural logarithms. */
#ifndef LK_SERVE_LOGPROB_H
#define LK_SERVE_LOGPROB_H

#include "lowkey.h"

enum { LK_MAX_TOP_LOGPROBS = 20 };

/* Log probability of the sampled token, and the most probable tokens in its place. */
struct lk_logprob {
    int32_t tok;
    float logprob;
    size_t offset; /* characters of text before the token; set by the detokenizer */
    int n_top;
    lk_token_logprob top[LK_MAX_TOP_LOGPROBS]; /* [n_top], most probable first */
};

#endif
