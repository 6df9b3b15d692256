/* Scans tool calls whose arguments or names stand between words of their own. All scan one or
 * several calls, and the white space around them. */
#ifndef LK_SERVE_TOOL_MARKUP_H
#define LK_SERVE_TOOL_MARKUP_H

#include "serve/tool_scan.h"

/* <function=f> <parameter=a> 1 </parameter> </function>, or with a JSON object in the function. */
enum lk_scan lk_tool_scan_functions(struct lk_scanner *s);

struct lk_parameter {
    const char *name; /* [n_name] */
    size_t n_name;
    const char *value; /* [n_value], without one line end at each end */
    size_t n_value;
};

/* One parameter of such a function, and the white space around it. Its value ends at the first
 * </parameter> that another parameter or the end of the function follows. */
enum lk_scan lk_tool_scan_parameter(struct lk_scanner *s, struct lk_parameter *out);

/* call:f{a:1,b:<|"|>x<|"|>} */
enum lk_scan lk_tool_scan_gemma(struct lk_scanner *s);

/* The bytes of a string of Gemma with its words at both ends, if text[0..len) starts with one that
 * is complete; 0: it does not. */
size_t lk_tool_gemma_string(const char *text, size_t len);
enum { LK_GEMMA_QUOTE = 5 }; /* bytes of <|"|> */

/* DeepSeek's calls, with the name before the arguments, or a type, the name, and a fence. */
enum lk_scan lk_tool_scan_deepseek(struct lk_scanner *s);

/* A message of gpt-oss to a function: a header with to=f, <|message|>, a JSON object. */
enum lk_scan lk_tool_scan_message(struct lk_scanner *s);

#endif
