/* Tokenizes text with libllama's vocabulary. */
#ifndef LK_TOKEN_TOKENIZE_H
#define LK_TOKEN_TOKENIZE_H

#include "token/vocab.h"

#include <stdbool.h>
#include <stddef.h>

/* Like lk_tokenize. *tok is owned: free(). */
lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            unsigned flags, size_t n_max, int32_t **tok, size_t *n_tok,
                            lk_err *err);

#endif
