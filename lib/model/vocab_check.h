/* Checks of a file's vocabulary. libllama throws or aborts on some vocabularies, which C cannot
 * catch, so they are rejected before libllama loads them. */
#ifndef LK_MODEL_VOCAB_CHECK_H
#define LK_MODEL_VOCAB_CHECK_H

#include "base/ledger.h"
#include "model/gguf_read.h"

/* LK_OK if libllama can load this file's vocabulary and tokenize any UTF-8 text with it.
 * *n_vocab: number of tokens, 0 if the file has no vocabulary.
 * Errors: LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_vocab_check(const struct lk_gguf_reader *r, struct lk_ledger *ledger, int32_t *n_vocab,
                         lk_err *err);

#endif
