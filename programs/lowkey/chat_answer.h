/* Questions and answers of a chat. Each of these functions prints the answer, or why there is none,
 * and saves the conversation if --session was given. */
#ifndef LK_LOWKEY_CHAT_ANSWER_H
#define LK_LOWKEY_CHAT_ANSWER_H

#include "chat.h"

/* Ask `question`, with the documents that wait for it. */
void chat_answer_question(struct chat *c, const char *question);

/* Answer the last question again, with another random seed. */
void chat_answer_again(struct chat *c);

/* Continue an answer that was cut. */
void chat_answer_continue(struct chat *c);

#endif
