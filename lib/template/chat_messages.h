/* Renders a conversation with a template that does not take all of it: calls, results and thoughts
 * that the template has no place for are written in the model's own form if it is known, and
 * otherwise as text of system and user messages. */
#ifndef LK_TOKEN_CHAT_MESSAGES_H
#define LK_TOKEN_CHAT_MESSAGES_H

#include "template/chat_template.h"

/* Check the messages of `input` (an array), rewrite them in place for the template, and render.
 * What a strict template refuses is rewritten further, step by step: several calls of a message,
 * ids, roles that do not alternate, at last all calls and results as text. So a template refuses no
 * conversation for its history. *out is owned: free(). LK_E_ARG: a message is not one. LK_E_NOMEM.
 * Otherwise the errors of lk_chat_template_render. */
lk_status lk_chat_messages_render(const struct lk_chat_template *t, struct lk_chat_input *input,
                                  lk_jinja_char **out, size_t *n_out, lk_err *err);

#endif
