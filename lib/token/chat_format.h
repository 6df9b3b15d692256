/* Formats conversations with the model's chat template, as marked text. */
#ifndef LK_TOKEN_CHAT_FORMAT_H
#define LK_TOKEN_CHAT_FORMAT_H

#include "lowkey_serve.h"
#include "token/vocab.h"

/* Like lk_chat_format. *text is owned: free(). */
lk_status lk_vocab_chat_format(const struct lk_vocab *vocab, const lk_message *msg, size_t n_msg,
                               bool reply, char **text, lk_err *err);

/* Like lk_chat_format_json. *text is owned: free(). */
lk_status lk_vocab_chat_format_json(const struct lk_vocab *vocab, const lk_chat *chat, char **text,
                                    lk_err *err);

/* Like lk_chat_call_words. */
lk_status lk_vocab_call_words(const struct lk_vocab *vocab, lk_call_words *words, lk_err *err);

#endif
