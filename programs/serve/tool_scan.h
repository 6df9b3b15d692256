/* Scans tool calls in text that may be incomplete. Each scanner moves s->at past what it knows. */
#ifndef LK_SERVE_TOOL_SCAN_H
#define LK_SERVE_TOOL_SCAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum lk_scan {
    LK_SCAN_NO,   /* this is not a call, whatever follows */
    LK_SCAN_MORE, /* the text ends before it is known */
    LK_SCAN_YES,
};

/* How arguments are written; see serve/tool_calls.h. */
enum lk_arguments {
    LK_ARGUMENTS_JSON,       /* {"a": 1} */
    LK_ARGUMENTS_PYTHON,     /* (a=1) */
    LK_ARGUMENTS_PARAMETERS, /* <parameter=a>1</parameter> */
    LK_ARGUMENTS_GEMMA,      /* {a:1} */
};

struct lk_scan_call {
    const char *name; /* [n_name]; NULL if `text` is the whole call, in JSON */
    size_t n_name;
    const char *id; /* [n_id]; NULL: none, or in `text` */
    size_t n_id;
    const char *text; /* [n_text] the arguments */
    size_t n_text;
    enum lk_arguments kind;
};

struct lk_scanner {
    const char *at, *end;
    const json_t *tools; /* calls must be of these; NULL: any name */
    void (*found)(void *user, const struct lk_scan_call *call); /* for each call; NULL: none */
    void *user;
};

/* Skip white space. */
void lk_tool_scan_space(struct lk_scanner *s);

/* The word is here, and skip it. */
enum lk_scan lk_tool_scan_word(struct lk_scanner *s, const char *word);

/* Is this a character of a function's name? */
bool lk_tool_scan_is_name(char c);

/* One or several calls in JSON, or calls that start with a name, and the white space after them. */
enum lk_scan lk_tool_scan_calls(struct lk_scanner *s);

/* The same, and each may start with a name, as in f(a=1) g(b=2). */
enum lk_scan lk_tool_scan_lines(struct lk_scanner *s);

/* ---- forms with words of their own around arguments or names ----
 *
 * All scan one or several calls, and the white space around them. */

/* <function=f> <parameter=a> 1 </parameter> </function>, or with a JSON object in the function. */
enum lk_scan lk_tool_scan_functions(struct lk_scanner *s);

/* The same in other words: <invoke name="f"> <parameter name="a">1</parameter> </invoke>, or
 * <function name="f"> <param name="a">1</param> </function>, or DeepSeek's with a prefix. */
enum lk_scan lk_tool_scan_invokes(struct lk_scanner *s);

/* GLM's f <arg_key>a</arg_key> <arg_value>1</arg_value>, which is one call. */
enum lk_scan lk_tool_scan_keys(struct lk_scanner *s);

/* Kimi's <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>; the
 * name with its number is the id. */
enum lk_scan lk_tool_scan_kimi(struct lk_scanner *s);

struct lk_parameter {
    const char *name; /* [n_name] */
    size_t n_name;
    const char *value; /* [n_value], without one line end at each end */
    size_t n_value;
};

/* One parameter of any of these, and the white space around it. Its value ends at the first
 * </parameter>; after <parameter=a> at the first that another parameter or the end of the function
 * follows. */
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
