/* The vocabulary of a model: texts and kinds of its tokens. libllama loads it from the same GGUF
 * file. token/tokenize.h makes tokens of text, token/chat_format.h text of a conversation. */
#ifndef LK_TOKEN_VOCAB_H
#define LK_TOKEN_VOCAB_H

#include "base/err.h"
#include "lowkey_serve.h"
#include "token/control_tokens.h"

struct lk_vocab;
struct lk_token_bytes;
struct lk_chat_template;

/* Load the vocabulary of a GGUF file that lk_net_open has checked. If the file has no tokenizer,
 * this succeeds and tokenizing fails with LK_E_UNSUPPORTED. *out is owned: lk_vocab_free. */
lk_status lk_vocab_open(struct lk_vocab **out, const char *path, lk_err *err);
void lk_vocab_free(struct lk_vocab *vocab);

/* libllama's handle, for samplers. Borrowed until lk_vocab_free; NULL without a tokenizer. */
const struct llama_vocab *lk_vocab_llama(const struct lk_vocab *vocab);

/* Like lk_token_text. */
const char *lk_vocab_token_text(const struct lk_vocab *vocab, int32_t tok, size_t *len);

/* Like lk_token_is_control. */
bool lk_vocab_is_control(const struct lk_vocab *vocab, int32_t tok);

/* The tokens that are found by their text. Borrowed until lk_vocab_free. */
const struct lk_control_tokens *lk_vocab_control_tokens(const struct lk_vocab *vocab);

/* The plain token whose text is this byte; -1 if there is none. */
int32_t lk_vocab_byte_token(const struct lk_vocab *vocab, unsigned char byte);

/* The bytes of all tokens, for grammars. They are collected on the first call, in any thread.
 * *tokens is borrowed until lk_vocab_free. LK_E_UNSUPPORTED without a tokenizer, LK_E_NOMEM. */
lk_status lk_vocab_token_bytes(const struct lk_vocab *vocab, const struct lk_token_bytes **tokens,
                               lk_err *err);

/* The BOS token if the model expects one at the start of a text, else -1. */
int32_t lk_vocab_bos(const struct lk_vocab *vocab);

/* Ids of the tokens that begin a text, end a text and end a turn; -1 if the model has none. */
struct lk_special_tokens {
    int32_t bos, eos, eot;
};
struct lk_special_tokens lk_vocab_special(const struct lk_vocab *vocab);

/* Like lk_model_get_fim_tokens. */
lk_fim_tokens lk_vocab_fim_tokens(const struct lk_vocab *vocab);

/* Does its tokenizer split digits into groups of three, counted from the right? */
bool lk_vocab_groups_digits(const struct lk_vocab *vocab);

/* True for tokens that end generation. */
bool lk_vocab_is_eog(const struct lk_vocab *vocab, int32_t tok);

/* Why texts may be split into other tokens than in the model's training; static; NULL: nothing is
 * known to be wrong. */
const char *lk_vocab_lack(const struct lk_vocab *vocab);

/* A number among the keys of the model file; `absent` if it is not there or not a number. */
double lk_vocab_number(const struct lk_vocab *vocab, const char *key, double absent);

/* Like lk_model_set_chat_template. */
lk_status lk_vocab_set_chat_template(struct lk_vocab *vocab, const char *text, lk_err *err);

/* The text of the model's chat template (Jinja), borrowed; NULL if it has none. */
const char *lk_vocab_chat_template_text(const struct lk_vocab *vocab);

/* The parsed chat template. It is parsed on the first call, in any thread. *out is borrowed until
 * lk_vocab_free. LK_E_UNSUPPORTED without a template; errors as of lk_chat_template_new. */
lk_status lk_vocab_chat_template(const struct lk_vocab *vocab, const struct lk_chat_template **out,
                                 lk_err *err);

#endif
