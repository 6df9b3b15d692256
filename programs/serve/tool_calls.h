/* Tool calls in the text of an answer, in the forms that models write. A call may stand
 *
 *     between tags        <tool_call> CALLS </tool_call>          Qwen, Hermes, SmolLM, Granite 4
 *                         <tool_call> FUNCTIONS </tool_call>      Qwen3-Coder, Qwen3.5
 *                         <|tool_call|> CALLS <|/tool_call|>      Phi 4, Granite 3
 *                         <|tool_call_start|> CALLS <|tool_call_end|>             LFM 2
 *                         <|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>       Gemma 4
 *                         <function_calls> CALLS </function_calls>                OLMo 3
 *                         <｜tool▁calls▁begin｜> ... <｜tool▁calls▁end｜>         DeepSeek
 *     in a message        <|channel|>commentary to=functions.f<|message|>{...}    gpt-oss
 *     after a word        [TOOL_CALLS] CALLS                      Mistral
 *                         <|python_tag|> CALLS                    Llama 3
 *     alone               CALLS, FUNCTIONS                        all of them
 *                         functools[{"name": ...}]                Phi 4
 *     alone in a fence    ```json CALLS ```                       Gemma: ```tool_code
 *
 * CALLS are one or several of these:
 *
 *     {"name": "f", "arguments": {...}}                   or "parameters"
 *     {"type": "function", "function": {...}}
 *     [{"name": ...}, ...]
 *     [f(a=1, b="x"), g()]                                Python
 *     f[ARGS]{...}                                        Mistral, maybe with [CALL_ID] and an id
 *
 * and FUNCTIONS are
 *
 *     <function=f> <parameter=a> 1 </parameter> </function>
 *
 * Without tags or a word, the whole answer must be calls of tools that were given, after at most
 * a <think> block. Everything else is text.
 *
 * One scanner decides on whole answers and on their beginnings, so a stream holds text back
 * exactly as long as it can still become a call. */
#ifndef LK_SERVE_TOOL_CALLS_H
#define LK_SERVE_TOOL_CALLS_H

#include "serve/tool_scan.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct lk_tool_call {
    char *id;        /* what the model wrote as "id"; NULL: nothing */
    char *name;      /* of the function */
    char *arguments; /* JSON text of an object */
    char *written; /* the arguments as the model wrote them, if that is the same in JSON; or NULL */
};

struct lk_tool_calls {
    struct lk_tool_call *at; /* [n] */
    size_t n, cap;
    size_t n_before; /* bytes of text before the calls, without white space at the end */
    size_t rest;     /* offset of a malformed call after them; the text's length if there is none */
};

/* Find the calls of an answer. `tools`: what the request gave, in OpenAI's form. False: there are
 * none, or no memory. *out must be freed with lk_tool_calls_free in any case. */
bool lk_tool_calls_parse(const char *text, const json_t *tools, struct lk_tool_calls *out);
void lk_tool_calls_free(struct lk_tool_calls *calls);

/* How many bytes at the start of an incomplete answer cannot be part of a call. `n_known`: what the
 * last call for a beginning of this answer returned, or 0. */
size_t lk_tool_calls_n_text(const char *text, size_t len, const json_t *tools, size_t n_known);

/* The last word in a text that opens calls; *rest: what follows it. NULL: there is none. */
const char *lk_tool_calls_word(const char *text, const char **rest);

/* The word that closes calls after this one; "": none. */
const char *lk_tool_calls_close(const char *word);

#endif
