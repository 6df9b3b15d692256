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

/* Upper bound of the memory that a token with n_top alternatives takes in a response that is not
 * streamed: the struct, and its JSON text in a buffer that grows by half, and in the reply. */
static inline size_t lk_logprob_bytes(int n_top) {
    enum { TEXT_BYTES = 110, COPIES = 3 };
    return sizeof(struct lk_logprob) + (size_t)(n_top + 1) * TEXT_BYTES * COPIES;
}

#endif
