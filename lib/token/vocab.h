/* Text and tokens, by libllama's vocabulary-only load of the same file. */
#ifndef LK_TOKEN_VOCAB_H
#define LK_TOKEN_VOCAB_H

#include "base/err.h"

struct lk_vocab;
struct llama_vocab;

/* Load the vocabulary of a GGUF file already checked by lk_net_open. A file without a tokenizer
 * gives a vocabulary that cannot tokenize (LK_E_UNSUPPORTED then). *out is owned: lk_vocab_free. */
lk_status lk_vocab_open(struct lk_vocab **out, const char *path, lk_err *err);
void lk_vocab_free(struct lk_vocab *vocab);

/* libllama's handle, for samplers; borrowed until lk_vocab_free. NULL without a tokenizer. */
const struct llama_vocab *lk_vocab_llama(const struct lk_vocab *vocab);

/* As lk_tokenize. *tok is owned: free(). LK_E_FORMAT names the first byte that is not UTF-8;
 * LK_E_UNSUPPORTED for 4 MiB without a space, and without a tokenizer. */
lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            bool special, int32_t **tok, size_t *n_tok, lk_err *err);
/* As lk_token_text; control tokens give their name. 0 for ids out of range. */
size_t lk_vocab_text(const struct lk_vocab *vocab, int32_t tok, char *buf, size_t cap);
/* The begin token that the model wants before a text, or -1. */
int32_t lk_vocab_begin(const struct lk_vocab *vocab);
bool lk_vocab_ends(const struct lk_vocab *vocab, int32_t tok);
/* The model's chat template, borrowed; NULL where it has none. */
const char *lk_vocab_template(const struct lk_vocab *vocab);
/* As lk_chat_format. *text is owned: free(). */
lk_status lk_vocab_chat(const struct lk_vocab *vocab, const lk_message *msg, size_t n_msg,
                        bool reply, char **text, lk_err *err);

#endif
