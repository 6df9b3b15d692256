/* A conversation as messages, and as the tokens that a session has evaluated for them. */
#ifndef LK_LOWKEY_CHAT_HISTORY_H
#define LK_LOWKEY_CHAT_HISTORY_H

#include "generate.h"
#include "lowkey.h"

struct chat_history {
    const lk_model *model;
    lk_message *msg; /* [n_msg] contents owned */
    size_t n_msg;
    struct lk_buf formatted; /* marked text in the chat template that `tok` stands for */
    int32_t *tok;            /* [n_tok] */
    size_t n_tok;
};

void chat_history_add(struct chat_history *h, const char *role, const char *content);

/* Remove all messages but a system message. */
void chat_history_reset(struct chat_history *h);
void chat_history_free(struct chat_history *h);

/* Add a user message, and extend the tokens by it and by the start of the assistant's turn. Tokens
 * of earlier turns are kept: tokenizing the text of an answer again may split it differently, and
 * then the cache would have to be rebuilt. Nothing changes on failure. */
lk_status chat_history_add_question(struct chat_history *h, const char *content, lk_err *err);

/* Remove the last message, which is a question without an answer. */
void chat_history_drop_question(struct chat_history *h);

void chat_history_add_answer(struct chat_history *h, const struct answer *answer);

#endif
