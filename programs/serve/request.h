/* A parsed completion request: the JSON body, validated and converted to what the engine takes.
 *
 * Parsing (lk_openai_chat_parse and others) computes nothing with the model. lk_request_prepare
 * then tokenizes the prompts and estimates their memory. */
#ifndef LK_SERVE_REQUEST_H
#define LK_SERVE_REQUEST_H

#include "lowkey_serve.h"
#include "serve/api_error.h"
#include "serve/server.h"
#include "serve/tokens.h"

enum {
    LK_MAX_STOP = 16, /* stop strings, and stop tokens */
    LK_MAX_N = 16,
    LK_MAX_PROMPT = 64,
    LK_MAX_MESSAGE = 4096,
    LK_MAX_BIAS = 4096,
    LK_MAX_STOP_BYTES = 512,         /* of a stop string; searched again for every token */
    LK_MAX_LOGPROB_BYTES = 12 << 20, /* of a response that is not streamed */
    LK_PROMPT_MARKS = 2,
    LK_MAX_THOUGHT_END = 64, /* tokens that end thoughts */
    LK_SERVE_PASS = 16,      /* maximum number of tokens of an answer in a step: each has logits */
    LK_SCORE_STEP = 32, /* tokens of a scored prompt that are evaluated at once, as by lk_compare */
    LK_FIRST_PART = 1024, /* tokens that are prefilled exactly of a prompt that is read in parts */
};

#define LK_NO_LIMIT SIZE_MAX

struct lk_prompt {
    char *text;   /* of a chat: marked text (lk_chat_format); NULL if the client sent tokens */
    int32_t *tok; /* [n_tok] */
    size_t n_tok;
    size_t max_tokens;     /* of its answer */
    uint64_t n_bytes;      /* cache and scratch memory for prompt and answer */
    uint64_t n_bytes_rest; /* the same if a session holds a part of the prompt, or all */
    bool in_parts; /* an exact prefill exceeds the cache limit: all but its first LK_FIRST_PART
                      tokens go through the cache */
    size_t mark[LK_PROMPT_MARKS]; /* [n_mark] positions for checkpoints: find_prompt_marks */
    size_t n_mark;
    /* [n_tok] of its tokens, except for the first; NULL if request->score is false. Written by the
     * scheduler until `scored` is set, before the prompt's first answer has events. */
    struct lk_logprob *lp;
    bool scored;
};

/* A field of calls in lk_request.messages: the text of the arguments, which the model wrote. */
#define LK_WRITTEN "written"

struct lk_request {
    json_t *body;        /* in OpenAI's form */
    json_t *original;    /* the body as it was sent, if the reply needs it; otherwise NULL */
    uint64_t more_bytes; /* of `original`, beyond the body that was sent */
    bool chat;
    json_t *messages;          /* of a chat, as lk_chat takes them; owned */
    const json_t *tools;       /* the answer may contain calls of these; borrowed from body */
    const json_t *variables;   /* of the chat template; borrowed from body; NULL: none */
    bool reply, continue_last; /* as in lk_chat */
    const json_t *allowed;     /* names of the tools that may be called, owned; NULL: all */
    const char *call_word;     /* opens a call that the grammar makes valid; static; NULL: none */
    char *trigger;             /* owned; sampling.trigger points here, or to call_word */
    bool valid_calls;          /* calls are JSON that the grammar makes valid */
    bool single_tool_call;     /* only the first of them is returned */
    bool keep_thoughts;        /* as a part of the content ("reasoning_format": "none") */
    size_t max_thoughts;       /* tokens of thoughts; LK_NO_LIMIT: none */
    bool may_lack_thoughts;    /* a template without thoughts is accepted with a limit */
    int32_t thought_end[LK_MAX_THOUGHT_END]; /* [n_thought_end] ends thoughts */
    size_t n_thought_end;
    bool all_turns;           /* no turn may be left out: the prompt fits, or is refused */
    size_t n_left_out;        /* oldest messages that did not fit (serve/turns.h) */
    struct lk_prompt *prompt; /* [n_prompt]; for a chat 1 after lk_request_prepare */
    size_t n_prompt;
    size_t n;          /* choices per prompt */
    size_t max_tokens; /* requested by the client; LK_NO_LIMIT: none */
    bool score;        /* log-probabilities of the prompts' tokens are returned */
    lk_sampler_opts sampling;
    char *grammar;                 /* owned; sampling.grammar points here */
    lk_logit_bias *bias;           /* owned; sampling.bias points here */
    const char *grammar_field;     /* field of the body that the grammar comes from; static */
    const char *stop[LK_MAX_STOP]; /* [n_stop] borrowed from body */
    size_t n_stop;
    int32_t
        stop_tok[LK_MAX_STOP]; /* [n_stop_tok] tokens that end the answer, and are not part of it */
    size_t n_stop_tok;
    int n_top_logprobs; /* -1: no logprobs */
    bool stream, include_usage, progress, echo;
    bool marked;        /* the prompts' texts are marked text (lk_chat_format), as in a chat */
    bool embed;         /* the prompts are embedded by one job, and there is no answer */
    lk_pooling pooling; /* of embeddings */
    bool base64;        /* embeddings are returned as base64 */
    size_t n_dim;       /* numbers of an embedding that are returned */
    float *embedding;   /* [n_prompt][n_embd], owned; written by the scheduler */
    bool may_be_empty;  /* max_tokens may be 0 without echo: the prompt is only prefilled */
    bool parse_special; /* text prompts may spell control tokens; never in a chat */
    bool reuse;         /* may reuse a session that holds a prefix of the prompt ("cache_prompt") */
    bool is_empty;      /* no messages or prompt: asks ollama to load the model */
    size_t text_copies; /* of the answer's text that its API holds, even in a stream */
    size_t recipe;      /* index into lk_server_opts.recipe */
};

/* The name of recipe i in replies: its other name, or its text. Borrowed. */
const char *lk_server_recipe_name(const struct lk_server_opts *opts, size_t i);

/* Is this the model's id or one of its aliases? */
bool lk_server_has_model(const struct lk_server_opts *opts, const char *name);

/* Parse the fields that all endpoints share, of a body whose fields were checked (serve/fields.h).
 * The body is taken over; NULL: parsing it failed, and `error` is set. *request must be freed with
 * lk_request_free in any case. False: see `error`. */
bool lk_request_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                           json_t *body, struct lk_api_error *error);

/* Reject the field if it is set to anything that changes the result. `neutral` is the number that
 * does not. */
bool lk_request_reject(const struct lk_request *request, const char *name, double neutral,
                       struct lk_api_error *error);

/* Apply the chat template to the messages: the request's only prompt. Part of
 * lk_request_prepare. */
bool lk_request_apply_template(struct lk_request *request, const struct lk_server_opts *opts,
                               struct lk_api_error *error);

/* Number of answers: prompts times choices; 1 for embeddings. */
size_t lk_request_n_answer(const struct lk_request *request);

/* Upper bounds of memory: of the texts and tokens that lk_request_prepare makes, and afterwards of
 * the answers until the response is sent. */
uint64_t lk_request_bytes(const struct lk_request *request);
uint64_t lk_request_answer_bytes(const struct lk_request *request);

/* Apply the chat template, tokenize, and compute the memory of each prompt and answer. A chat that
 * does not fit the context loses its oldest turns. False: see `error`. */
bool lk_request_prepare(struct lk_request *request, const struct lk_server_opts *opts,
                        struct lk_api_error *error);

/* Does a grammar decide about the answer from its start? */
bool lk_request_is_constrained(const struct lk_request *request);

void lk_request_free(struct lk_request *request);

/* Where later prompts will probably differ from a chat's: after its system prompt, and before its
 * last question. Sessions keep checkpoints there (lk_session_sync_marked). */

#endif
