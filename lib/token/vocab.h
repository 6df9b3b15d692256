/* Tokenizer and chat template of a model. libllama loads the vocabulary from the same GGUF file. */
#ifndef LK_TOKEN_VOCAB_H
#define LK_TOKEN_VOCAB_H

#include "base/err.h"

struct lk_vocab;
struct lk_token_bytes;
struct llama_vocab;

/* Load the vocabulary of a GGUF file that lk_net_open has checked. If the file has no tokenizer,
 * this succeeds and tokenizing fails with LK_E_UNSUPPORTED. *out is owned: lk_vocab_free. */
lk_status lk_vocab_open(struct lk_vocab **out, const char *path, lk_err *err);
void lk_vocab_free(struct lk_vocab *vocab);

/* libllama's handle, for samplers. Borrowed until lk_vocab_free; NULL without a tokenizer. */
const struct llama_vocab *lk_vocab_llama(const struct lk_vocab *vocab);

/* The bytes of all tokens, for grammars. They are collected on the first call, in any thread.
 * *tokens is borrowed until lk_vocab_free. LK_E_UNSUPPORTED without a tokenizer, LK_E_NOMEM. */
lk_status lk_vocab_token_bytes(const struct lk_vocab *vocab, const struct lk_token_bytes **tokens,
                               lk_err *err);

/* Like lk_tokenize. *tok is owned: free(). LK_E_FORMAT if the text is not UTF-8; the message names
 * the first bad byte. LK_E_UNSUPPORTED for more than 4 MiB without a space, and without a
 * tokenizer. */
lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            bool special, int32_t **tok, size_t *n_tok, lk_err *err);
/* Like lk_token_text, but returns the length of the whole text, even if it was truncated. Control
 * tokens give their name. 0 for ids out of range. */
size_t lk_vocab_token_text(const struct lk_vocab *vocab, int32_t tok, char *buf, size_t cap);

/* The BOS token if the model expects one at the start of a text, else -1. */
int32_t lk_vocab_bos(const struct lk_vocab *vocab);

/* True for tokens that end generation. */

/* Ids of the tokens that begin a text, end a text and end a turn; -1 if the model has none. */
struct lk_special_tokens {
    int32_t bos, eos, eot;
};
struct lk_special_tokens lk_vocab_special(const struct lk_vocab *vocab);
bool lk_vocab_is_eog(const struct lk_vocab *vocab, int32_t tok);

/* The model's chat template (Jinja text), borrowed; NULL if it has none. */
const char *lk_vocab_chat_template(const struct lk_vocab *vocab);

/* Like lk_chat_format. *text is owned: free(). */
lk_status lk_vocab_apply_chat_template(const struct lk_vocab *vocab, const lk_message *msg,
                                       size_t n_msg, bool reply, char **text, lk_err *err);

#endif
