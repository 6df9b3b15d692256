/* A conversation as messages and, in step with them, as the tokens a session stands after. */
#ifndef LK_LOWKEY_CONVERSATION_H
#define LK_LOWKEY_CONVERSATION_H

#include "generate.h"
#include "lowkey.h"

struct conversation {
    const lk_model *model;
    lk_message *msg; /* contents owned */
    size_t n_msg;
    struct text done; /* formatted text that `tok` stands for */
    int32_t *tok;
    size_t n_tok;
};

void conversation_add(struct conversation *c, const char *role, const char *content);

/* Forget everything but a system message. */
void conversation_reset(struct conversation *c);
void conversation_free(struct conversation *c);

/* Add a user's message and extend the tokens so that the assistant's turn is open. Tokens once made
 * are kept as they are: writing an answer out and reading it again may split it differently, and then
 * the cache would have to be built anew. Nothing changes on failure. */
lk_status conversation_ask(struct conversation *c, const char *content, lk_err *err);

/* Add the answer, or (answer NULL) take the question back. */
void conversation_answer(struct conversation *c, const struct answer *answer);

#endif
