/* Helpers for token sequences: their text, common prefixes, and tokenization of a continuation. */
#ifndef LK_SERVE_TOKENS_H
#define LK_SERVE_TOKENS_H

#include "base/buf.h"
#include "lowkey.h"

/* Append the text of tok[0..n_tok) to `out`, without a leading BOS token. The bytes may not be
 * valid UTF-8. */
void lk_tokens_to_text(const lk_model *model, const int32_t *tok, size_t n_tok, struct lk_buf *out);

/* Length of the longest common prefix of a[0..n_a) and b[0..n_b). */
size_t lk_tokens_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

/* Tokenize text that continues another one: like lk_tokenize, but without the BOS token. Free the
 * result with lk_tokens_free. NULL on failure. */
int32_t *lk_tokenize_continuation(const lk_model *model, const char *text, size_t *n_tok);

#endif
