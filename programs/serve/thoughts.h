/* Separates the thoughts of a model from its answer, while the text arrives.
 *
 *     <think> THOUGHTS </think> ANSWER                            most models
 *     [THINK] THOUGHTS [/THINK] ANSWER                            Mistral
 *     <|channel>thought THOUGHTS <channel|> ANSWER                Gemma 4
 *     <think> THOUGHTS </think> <response> ANSWER </response>     Granite
 *     <|channel|>analysis<|message|> THOUGHTS <|end|>             gpt-oss: messages, each with a
 *     <|start|>assistant<|channel|>final<|message|> ANSWER        channel
 *
 * The prompt may end with the word that opens the thoughts. Then the answer starts within them. A
 * message of gpt-oss with a recipient is a call: it stays in the answer as it is, for
 * serve/tool_calls.h.
 *
 *     text -> [part of a word, white space at an end: held back] -> thoughts, answer
 */
#ifndef LK_SERVE_THOUGHTS_H
#define LK_SERVE_THOUGHTS_H

#include "base/buf.h"

#include <stdint.h>

struct lk_thought_form {
    const char *marker;       /* is in the chat template; NULL: the form of all other templates */
    const char *open, *close; /* words around thoughts */
    const char *answer_open, *answer_close; /* around the answer after thoughts; NULL: none */
    bool anywhere;                          /* thoughts may also follow a part of the answer */
    bool has_messages;                      /* gpt-oss; the words above are not used */
};

/* The form of a model. `template`: its chat template; NULL: it has none. */
const struct lk_thought_form *lk_thought_form_of(const char *template);

struct lk_thoughts {
    const struct lk_thought_form *form; /* NULL: everything is the answer */
    enum {
        LK_THOUGHTS_START,   /* white space, and maybe the open word, or a message's header */
        LK_THOUGHTS_INSIDE,  /* of thoughts */
        LK_THOUGHTS_AFTER,   /* white space between thoughts and answer */
        LK_THOUGHTS_ANSWER,  /* the rest, or a message for the user */
        LK_THOUGHTS_MESSAGE, /* a call */
    } state;
    bool was_opened;      /* the prompt ends within thoughts, but the answer starts outside */
    bool in_answer_words; /* answer_open was dropped, so drop answer_close */
    bool after_call;      /* the message before was a call */
    bool has_piece;       /* text of the current thoughts or message was returned */
    bool has_thoughts, has_answer; /* text of any was returned */
    struct lk_buf held;
    size_t n_space; /* bytes at the start of `held` that are known to be white space */
};

/* What a model writes to end its thoughts and start the answer. */
const char *lk_thought_form_end(const struct lk_thought_form *form);

/* Does the template have thoughts of this form? */
bool lk_thought_form_is_in(const struct lk_thought_form *form, const char *template);

/* Start an answer to a prompt, which may be marked text (lk_chat_format). `constrained`: a grammar
 * decides what the answer is, so it does not start within thoughts. */
void lk_thoughts_init(struct lk_thoughts *t, const struct lk_thought_form *form, const char *prompt,
                      bool constrained);

/* Append what a piece of the text adds to the thoughts and to the answer. */
void lk_thoughts_push(struct lk_thoughts *t, const char *text, size_t len, struct lk_buf *thoughts,
                      struct lk_buf *answer);

/* The text is complete: append what was held back. */
void lk_thoughts_finish(struct lk_thoughts *t, struct lk_buf *thoughts, struct lk_buf *answer);

void lk_thoughts_free(struct lk_thoughts *t);

/* ---- budgets ---- */

/* Ends the thoughts of an answer after a number of tokens, with tokens of the model's form. */
struct lk_thought_budget {
    bool is_on;
    struct lk_thoughts split;
    size_t n_left;      /* tokens of thoughts that may follow */
    const int32_t *end; /* [n_end] borrowed */
    size_t n_end, n_forced;
};

/* The next token, which must be chosen; -1: any. */
int32_t lk_thought_budget_next(struct lk_thought_budget *b);

/* Is the next token one of thoughts? */
bool lk_thought_budget_is_inside(const struct lk_thought_budget *b);

/* Go on after a token with this text. */
void lk_thought_budget_push(struct lk_thought_budget *b, const char *text, size_t len);

#endif
