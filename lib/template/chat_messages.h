/* Rewrites a conversation for a template that does not take all of it: what the template has no
 * place for becomes text of system and user messages. */
#ifndef LK_TOKEN_CHAT_MESSAGES_H
#define LK_TOKEN_CHAT_MESSAGES_H

#include "template/chat_template.h"

/* Check messages (an array) and rewrite them in place. `tools`: definitions, or NULL. LK_E_ARG: a
 * message is not one. LK_E_NOMEM. */
lk_status lk_chat_messages_fit(json_t *messages, const json_t *tools,
                               const struct lk_chat_support *support, lk_err *err);

/* A second try for templates that are strict: roles alternate, only the first message is the
 * system's, and ids of calls have 9 letters and digits. False if this changes nothing. */
bool lk_chat_messages_simplify(json_t *messages);

#endif
