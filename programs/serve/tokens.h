/* Token sequences: their texts, common prefixes and log probabilities. */
#ifndef LK_SERVE_TOKENS_H
#define LK_SERVE_TOKENS_H

#include "base/buf.h"
#include "lowkey_serve.h"

enum { LK_MAX_TOP_LOGPROBS = 20 };

/* Log probability of the sampled token, and the most probable tokens in its place, for the
 * "logprobs" of the API. Natural logarithms. */
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

/* Append the text of tok[0..n_tok) to `out`, without a leading BOS token. The bytes may not be
 * valid UTF-8. For people. */
void lk_tokens_to_text(const lk_model *model, const int32_t *tok, size_t n_tok, struct lk_buf *out);

/* The same as marked text (lk_chat_format), to be compared with formatted conversations. Bytes of
 * other tokens that would be marks are replaced by 0xFD, which matches no conversation. */
void lk_tokens_to_marked_text(const lk_model *model, const int32_t *tok, size_t n_tok,
                              struct lk_buf *out);
void lk_token_append_marked(const lk_model *model, int32_t tok, struct lk_buf *out);

/* Length of the longest common prefix of a[0..n_a) and b[0..n_b). */
size_t lk_tokens_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* The longest a[0..*at_a) and b[0..*at_b) with the same text, though perhaps cut into other tokens.
 * Control tokens must be the same tokens. */
void lk_tokens_common_text(const lk_model *model, const int32_t *a, size_t n_a, const int32_t *b,
                           size_t n_b, size_t *at_a, size_t *at_b);

/* Set the offsets of tokens lp[0..n_tok) in their text[0..len), in characters, and return the
 * number of characters. A token that is not in the text, such as one that begins every text, gets
 * the offset of the next one. */
size_t lk_tokens_set_offsets(struct lk_logprob *lp, size_t n_tok, const lk_model *model,
                             const char *text, size_t len);

#endif
