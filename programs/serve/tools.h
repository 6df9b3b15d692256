/* Tools of a chat request in OpenAI's form: "tools" and "tool_choice", and the calls of its answer.
 * serve/tool_calls.h finds the calls, for any protocol. */
#ifndef LK_SERVE_TOOLS_H
#define LK_SERVE_TOOLS_H

#include "serve/api_error.h"
#include "serve/call_store.h"
#include "serve/request.h"

/* Parse "tools" and "tool_choice", and constrain the response with a grammar:
 *
 *     none               the schema of "response_format", if there is one
 *     auto               calls are free to begin; after the word that opens one, it is valid
 *     auto, with schema  the first token decides: a valid call, or an answer that matches
 *     required, a name   a valid call, in the words of the model's chat template
 *
 * Under "auto" a schema that cannot be expressed costs only the constraint of its tool. */
bool lk_tools_parse_request(struct lk_request *request, const struct lk_server_opts *opts,
                            struct lk_api_error *error);

/* The text of a response with calls: its first n_before bytes, and what follows `rest`. */
struct lk_tools_text {
    size_t n_before, rest;
};

/* The calls in a response in OpenAI's format, a new reference; NULL if there are none, and then
 * *shown is not set. Only the first call if only_first. `tools`: the request's. Calls without an id
 * get one that is made of `id`. They are kept in `store`, unless it is NULL. */
json_t *lk_tools_parse_calls(const char *text, const json_t *tools, const char *id, bool only_first,
                             struct lk_tools_text *shown, struct lk_call_store *store);

/* ---- calls in a stream ----
 *
 * If the grammar makes calls valid, their arguments are sent as they are written. */

struct lk_call_stream {
    size_t at;     /* bytes of text that are scanned */
    size_t n_call; /* calls that have begun */
    int depth;     /* of brackets in the arguments; 0: outside of a call */
    bool in_string, escaped;
    bool failed; /* the text is not a call */
};

/* What text[0..len), which has grown, adds to the calls: an array of deltas, a new reference; NULL:
 * nothing. `from`: where calls may begin. `id` as of lk_tools_parse_calls. */
json_t *lk_tools_stream_calls(struct lk_call_stream *stream, const char *text, size_t len,
                              size_t from, const struct lk_request *request, const char *id);

/* ---- JSON schemas of requests as grammars that constrain the response ---- */

struct lk_schema_use {
    const char *field; /* of the request, for error messages; static */
    const char *root;  /* GBNF of the whole text, in which @ stands for the JSON; NULL: the JSON */
};

/* A GBNF grammar for the texts that match the schema (lk_schema_to_grammar), owned: free(). NULL
 * after an error. */
char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_api_error *fault);

#endif
