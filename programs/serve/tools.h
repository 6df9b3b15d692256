/* Tools of a chat request in OpenAI's form: "tools" and "tool_choice", and the calls of its answer.
 * serve/tool_calls.h finds the calls, for any protocol. */
#ifndef LK_SERVE_TOOLS_H
#define LK_SERVE_TOOLS_H

#include "serve/api_error.h"
#include "serve/request.h"

/* Parse "tools" and "tool_choice". If a call is required, a grammar constrains the response to
 * one, in the words of the model's chat template. */
bool lk_tools_parse_request(struct lk_request *request, const struct lk_server_opts *opts,
                            struct lk_api_error *error);

/* The text of a response with calls: its first n_before bytes, and what follows `rest`. */
struct lk_tools_text {
    size_t n_before, rest;
};

/* The calls in a response in OpenAI's format, a new reference; NULL if there are none, and then
 * *shown is not set. Only the first call if only_first. `tools`: the request's. Calls without an id
 * get one that is made of `id`. */
json_t *lk_tools_parse_calls(const char *text, const json_t *tools, const char *id, bool only_first,
                             struct lk_tools_text *shown);

/* ---- JSON schemas of requests as grammars that constrain the response ---- */

struct lk_schema_use {
    const char *field; /* of the request, for error messages; static */
    /* Text around the JSON, escaped as in a GBNF literal; NULL: none. */
    const char *before, *after;
};

/* A GBNF grammar for the texts that match the schema (lk_schema_to_grammar), owned: free(). NULL
 * after an error. */
char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_api_error *fault);

/* Append text as the inside of a GBNF literal. */
void lk_gbnf_add_literal(struct lk_buf *out, const char *text);

#endif
