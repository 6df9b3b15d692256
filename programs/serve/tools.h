/* Tool calls in the format of Hermes and Qwen, for models whose chat template uses it. The system
 * message lists the tools, and a call is
 *
 *   <tool_call>
 *   {"name": "weather", "arguments": {"city": "Oslo"}}
 *   </tool_call>
 *  */
#ifndef LK_SERVE_TOOLS_H
#define LK_SERVE_TOOLS_H

#include "base/buf.h"
#include "serve/request.h"

/* Parse "tools" and "tool_choice". If a call is required, a grammar constrains the response to
 * one. */
bool lk_tools_parse_request(struct lk_request *ask, struct lk_api_error *fault);

/* True if the model's chat template uses this format. */
bool lk_tools_are_supported(const lk_model *model);

/* The part of the system message that lists the tools. */
void lk_tools_describe(const struct lk_request *ask, struct lk_buf *out);

/* The text of an assistant message with "tool_calls". */
bool lk_tools_format_calls(const json_t *calls, struct lk_buf *out, struct lk_api_error *fault);

/* The text of a message of the role "tool". */
void lk_tools_format_result(const char *content, struct lk_buf *out);

/* The calls in a response in OpenAI's format, a new reference; NULL if there are none. Only the
 * first call if only_first. *n_before: bytes of text before the calls. Their ids start with
 * `id`. */
json_t *lk_tools_parse_calls(const char *text, const char *id, bool only_first, size_t *n_before);

/* How many bytes at the start of an incomplete response cannot be part of a call. */
size_t lk_tools_text_before_call(const char *text, size_t len);

#endif
