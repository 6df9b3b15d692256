/* A model's chat template: parsed once, tried once, and then rendered by any number of threads. */
#ifndef LK_TOKEN_CHAT_TEMPLATE_H
#define LK_TOKEN_CHAT_TEMPLATE_H

#include "template/jinja.h"

/* Where a character of a formatted conversation comes from. The template's own have the origin 0;
 * all others can never become control tokens. */
enum lk_chat_origin {
    LK_FROM_LAST = 2, /* content of the last message */
    LK_FROM_SYSTEM,   /* content of a system message */
    LK_FROM_TOOLS,    /* definitions of tools */
    LK_FROM_CALLS,    /* tool calls of the assistant */
    LK_FROM_RESULT,   /* results of tools */
};

/* What a template takes, found by rendering small conversations. */
struct lk_chat_support {
    bool system;           /* writes system messages */
    bool late_system;      /* also a second one later, next to the first, or refuses it */
    bool tools;            /* writes definitions of tools */
    bool calls;            /* writes tool calls and their results */
    bool single_calls;     /* writes only the first call of a message */
    bool string_arguments; /* the arguments of calls must be JSON in a string */
    bool joined_thoughts;  /* refuses thoughts next to a content in a message with calls */
    bool inline_thoughts;  /* knows thoughts only as <think> ... </think> in a content */
    /* If it does not write calls: the form in which its model has them in a content. */
    enum lk_calls_text {
        LK_CALLS_TAGGED, /* of any model: <tool_call> JSON </tool_call>, results of the user */
        LK_CALLS_LFM,    /* <|tool_call_start|>[f(a=1)]<|tool_call_end|>, results of "tool" */
        LK_CALLS_GRANITE /* <|tool_call|>[JSON], results of "tool" */
    } calls_text;
};

/* Words in a content that count as the template's, so that they may be control tokens: they stand
 * between these bytes, which no text of a client has (they are not UTF-8). */
enum { LK_OWN_WORD = 0xFF, LK_OWN_WORD_END = 0xFE };

struct lk_chat_template;

/* Texts of the model; `tool_template` may be NULL. */
struct lk_chat_texts {
    const char *template, *tool_template, *bos, *eos;
};

/* Parse and try the templates. *out is owned: lk_chat_template_free. Errors of lk_jinja_parse. */
lk_status lk_chat_template_new(struct lk_chat_template **out, const struct lk_chat_texts *texts,
                               lk_err *err);
void lk_chat_template_free(struct lk_chat_template *t);

struct lk_chat_support lk_chat_template_support(const struct lk_chat_template *t);

/* A conversation as JSON values; borrowed. Roles that are plain words count as the template's. */
struct lk_chat_input {
    const json_t *messages;
    const json_t *tools, *variables; /* NULL: none */
    bool reply;
};

/* Render a conversation: characters with their origins. *out is owned: free(). Errors as of
 * lk_jinja_render. */
lk_status lk_chat_template_render(const struct lk_chat_template *t,
                                  const struct lk_chat_input *input, lk_jinja_char **out,
                                  size_t *n_out, lk_err *err);

/* Bytes of the texts in a JSON value. */
uint64_t lk_chat_text_bytes(const json_t *json);

#endif
