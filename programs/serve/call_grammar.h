/* Grammars of calls in the forms of models that write them in other words than a JSON object with a
 * name. The form is found in a call that the model's chat template writes (lk_call_words.sample):
 *
 *     <function=f> <parameter=a> 1 </parameter> </function>     Qwen3-Coder
 *     <|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>         Gemma 4
 *     <|tool_call_start|>[f(a=1, b="x")]<|tool_call_end|>       LFM 2
 *     words f words {"a": 1} words                              DeepSeek, Mistral, gpt-oss, Llama 3
 *
 * serve/tool_calls.h finds the calls that these grammars accept. */
#ifndef LK_SERVE_CALL_GRAMMAR_H
#define LK_SERVE_CALL_GRAMMAR_H

#include "base/buf.h"
#include "lowkey_serve.h"

#include <jansson.h>
#include <stdbool.h>

struct lk_call_grammar {
    /* GBNF of what follows the trigger, or of all; owned. NULL: calls are not constrained */
    char *text;
    char trigger[64];   /* what a call begins with */
    bool trigger_first; /* only at the start of an answer */
};

/* A grammar for calls of the tools, or only those that are keys of `allowed` (may be NULL). A tool
 * whose parameters cannot be expressed takes any. `is_whole`: of an answer that is one call, with
 * the words before the trigger. */
struct lk_call_grammar lk_call_grammar_make(const lk_call_words *words, const json_t *tools,
                                            const json_t *allowed, bool is_whole);

/* Append text as the inside of a GBNF literal. */
void lk_gbnf_add_literal(struct lk_buf *out, const char *text);

#endif
