/* Calls of tools, for models whose chat template has them in the form that Hermes and Qwen use: the tools
 * stand in the system message, and a call is
 *
 *   <tool_call>
 *   {"name": "weather", "arguments": {"city": "Oslo"}}
 *   </tool_call>
 */
#ifndef LK_SERVE_TOOLS_H
#define LK_SERVE_TOOLS_H

#include "base/buf.h"
#include "serve/ask.h"

/* Read "tools" and "tool_choice". Where a call is demanded, the answer is held to it by a grammar. */
bool lk_tools_read(struct lk_ask *ask, struct lk_fault *fault);

/* Does the model's template know tools in this form? */
bool lk_tools_known(const lk_model *model);

/* What the system message says of the tools, and what a message with "tool_calls", or of the role "tool",
 * says to the model. */
void lk_tools_describe(const struct lk_ask *ask, struct lk_buf *out);
bool lk_tools_tell_calls(const json_t *calls, struct lk_buf *out, struct lk_fault *fault);
void lk_tools_tell_result(const char *content, struct lk_buf *out);

/* The calls in an answer in OpenAI's form, or the first of them if `one`, a new reference; NULL where there are none.
 * *shown: bytes of the text before them. `id` begins the calls' names. */
json_t *lk_tools_parse(const char *text, const char *id, bool one, size_t *shown);

/* Bytes at the beginning of a text not yet whole that are certainly before any call. */
size_t lk_tools_certain(const char *text, size_t len);

#endif
