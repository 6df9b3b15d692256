/* What a client asks for: the body of a request, checked and made into what the engine wants.
 *
 * First the JSON is read (lk_ask_chat, lk_ask_completion), which needs no model; then its texts become
 * tokens (lk_ask_prepare). */
#ifndef LK_SERVE_ASK_H
#define LK_SERVE_ASK_H

#include "serve/fault.h"
#include "serve/serve.h"

enum {
    LK_MAX_STOP = 16,
    LK_MAX_N = 16,
    LK_MAX_PROMPT = 64,
    LK_MAX_MESSAGE = 4096,
    LK_MAX_BIAS = 4096
};

struct lk_prompt {
    char *text;   /* as the model reads it; NULL where tokens were given */
    int32_t *tok; /* [n_tok] */
    size_t n_tok;
    size_t n_most;    /* tokens its answer may have */
    uint64_t n_bytes; /* cache and scratch that prompt and answer need */
};

struct lk_ask {
    json_t *body;
    bool chat;
    lk_message *msg; /* [n_msg] of a chat; contents owned */
    size_t n_msg;
    bool tools;               /* the answer may be calls of tools */
    bool one_call;            /* of which the first alone counts */
    struct lk_prompt *prompt; /* [n_prompt]; of a chat one, once prepared */
    size_t n_prompt;
    size_t n;      /* answers to each prompt */
    size_t n_most; /* tokens asked for; 0: as many as may be */
    lk_sampler_opts sampling;
    char *grammar;                 /* owned; sampling.grammar is this */
    lk_logit_bias *bias;           /* owned; sampling.bias is this */
    const char *held_by;           /* the field that it comes from; static */
    const char *stop[LK_MAX_STOP]; /* borrowed from body */
    size_t n_stop;
    int n_top; /* rivals whose logarithms are wanted; -1: none at all */
    bool stream, usage, progress, echo;
    bool reuse;    /* go on with a session that holds the beginning */
    size_t recipe; /* of the server's */
};

/* Read the body of /v1/chat/completions and of /v1/completions. *ask is to be freed in any case. */
bool lk_ask_chat(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body, size_t len,
                 struct lk_fault *fault);
bool lk_ask_completion(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body,
                       size_t len, struct lk_fault *fault);

/* What both have in common: everything but messages and prompts. */
bool lk_ask_common(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body,
                   size_t len, struct lk_fault *fault);

/* Of that: how tokens are chosen. */
bool lk_ask_sampling(struct lk_ask *ask, struct lk_fault *fault);

/* Tokenize, and find out what the answers will need. */
bool lk_ask_prepare(struct lk_ask *ask, const struct lk_serve_opts *opts, struct lk_fault *fault);

void lk_ask_free(struct lk_ask *ask);

/* Parse a body that must be one JSON object. */
json_t *lk_body_parse(const char *body, size_t len, struct lk_fault *fault);

#endif
