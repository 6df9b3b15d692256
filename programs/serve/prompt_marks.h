/* Where later prompts will probably differ from a chat's: after its system prompt, and before its
 * last question. Sessions keep checkpoints there (lk_session_sync_marked). */
#ifndef LK_SERVE_PROMPT_MARKS_H
#define LK_SERVE_PROMPT_MARKS_H

#include "serve/request.h"

/* Set the marks and n_system of the prompt of a chat, whose text and tokens are there. Each is the
 * position of a control token, because text before a control token is tokenized alike, whatever
 * follows. If the template has the system prompt and a question in one message, as Gemma's, the
 * mark between them is after the tokens that do not depend on the question. A template without
 * control tokens has only this one. */
void lk_prompt_marks_find(struct lk_prompt *prompt, const json_t *messages, const lk_model *model);

#endif
