/* A conversation as messages, and as the tokens that a session evaluates for them. */
#ifndef LK_LOWKEY_CHAT_CONVERSATION_H
#define LK_LOWKEY_CHAT_CONVERSATION_H

#include "base/buf.h"
#include "generate.h"
#include "lowkey.h"

struct chat_conversation {
    const lk_model *model;
    lk_message *msg; /* [n_msg] contents owned; roles are static */
    size_t *end;     /* [n_msg] number of tokens up to the end of the message; for a question, up to
                        the start of its answer; 0: not known, or not tokenized yet */
    size_t n_msg;
    struct lk_buf formatted; /* marked text in the chat template that `tok` stands for */
    size_t n_question;       /* bytes of it up to the start of the last answer */
    int32_t *tok;            /* [n_tok] */
    size_t n_tok;
    size_t n_unknown; /* tokens at the start whose messages are not known: they come from
                         `run --session`. The messages continue them, without a system message */
    bool cut;         /* the last answer was stopped before its end */
};

void chat_conversation_free(struct chat_conversation *c);

/* Remove everything but a system message. */
void chat_conversation_clear(struct chat_conversation *c);

/* Append a message without tokens: the next question tokenizes the conversation. `role` must be
 * "system", "user" or "assistant"; it is not kept. */
void chat_conversation_add(struct chat_conversation *c, const char *role, const char *content);

/* The text of the system message, or NULL. */
const char *chat_conversation_system(const struct chat_conversation *c);

/* Set the system message, or remove it if `content` is empty. The next question tokenizes the
 * conversation again. */
void chat_conversation_set_system(struct chat_conversation *c, const char *content);

/* Add a question, and extend the tokens by it and by the start of the assistant's turn. Tokens of
 * earlier turns are kept: tokenizing the text of an answer again may split it differently, and then
 * the cache would have to be rebuilt. LK_E_FULL if there are more than n_max tokens then; *n_needed
 * is their number, or 0 if it was not counted. Nothing changes on failure. */
lk_status chat_conversation_ask(struct chat_conversation *c, const char *content, size_t n_max,
                                size_t *n_needed, lk_err *err);

/* The same for a conversation that did not fit: leave out its oldest turns (serve/turns.h) until it
 * does. n_ctx: tokens of the context. *n_left_out is the number of messages. LK_E_FULL: nothing
 * can leave; the conversation is unchanged. */
lk_status chat_conversation_ask_shorter(struct chat_conversation *c, const char *content,
                                        size_t n_ctx, size_t *n_left_out, lk_err *err);

/* How the model writes its thoughts. */
const struct lk_thought_form *chat_conversation_form(const struct chat_conversation *conversation);

/* Add an answer to the last question, or extend the last answer. */
void chat_conversation_answer(struct chat_conversation *c, const struct answer *answer);

/* Remove the last message and its tokens. */
void chat_conversation_drop_last(struct chat_conversation *c);

/* Format the conversation again up to the last message, whose tokens are known: after messages were
 * removed or loaded. If that is not possible, the next question tokenizes everything. */
void chat_conversation_format(struct chat_conversation *c);

/* The limit to give lk_tokenize for a text if n_free tokens fit, or 0. A limit bounds
 * the time for a text that is much too long, but then runs without white space must be short. */
size_t chat_token_limit(size_t len, size_t n_free);

/* True if the last message is of this role. */
bool chat_conversation_last_is(const struct chat_conversation *c, const char *role);

size_t chat_conversation_n_questions(const struct chat_conversation *c);

/* Format a user's turn that follows an answer in the model's chat template, up to the start of the
 * assistant's turn, as marked text. *text is owned: free. LK_E_ARG if the template does not write
 * turns one after another; otherwise as lk_chat_format. */
lk_status format_next_turn(const lk_model *model, const char *content, char **text, lk_err *err);

/* ---- text files that go with the next question ---- */

struct chat_documents {
    struct chat_document {
        char *name;
        struct lk_buf text;
    } * item; /* [n] */
    size_t n;
};

/* Read a text file of at most `max` bytes. Returns false after printing an error. */
bool chat_documents_add(struct chat_documents *documents, const char *path, size_t max);

/* The question with the documents before it, each with its name and in a fence: free it. */
char *chat_documents_message(const struct chat_documents *documents, const char *question);

void chat_documents_drop_last(struct chat_documents *documents);
void chat_documents_clear(struct chat_documents *documents);

#endif
