/* Items: questions that the model answers in its own words, how they become prompts, and how
 * answers are scored.
 *
 *   plain  shot 0's question \n opening answer \n\n ... context \n\n question \n opening
 *   chat   the same turns in the model's chat template. Answers are turns of the assistant. The
 *          last answer starts with the opening
 *
 *          |--- shots, context: the head ---|--- last question, opening: the tail ---| answer
 *
 * The head is prefilled as a prompt and compressed. The tail is evaluated through the cache. A
 * session attends to a prompt exactly, so with the question in the prompt the answer would be
 * looked up in the full cache. Items measure a cache that does not know the question in advance.
 *
 * The opening ("The pass key is") makes small models answer at all. RULER calls it an answer prefix
 * (Hsieh et al. 2024, arXiv:2404.06654). */
#ifndef LK_EVAL_ITEM_H
#define LK_EVAL_ITEM_H

#include "base/err.h"

#include <stdbool.h>

/* How an answer is compared with the expected texts. */
enum lk_match {
    LK_MATCH_ALL, /* the share of the expected texts in the answer, ignoring case */
    LK_MATCH_ANY, /* 1 if the answer contains any expected text */
};

/* A solved example. Its answer is the text after the opening. */
struct lk_shot {
    const char *question, *answer;
};

struct lk_item {
    const char *key;            /* identifies the item in the results: "single/4096/50/0" */
    const char *part;           /* kind of item within its task, or NULL */
    const struct lk_shot *shot; /* [n_shot] solved examples before the question */
    size_t n_shot;
    const char *context; /* the long text that the question is about, or NULL */
    const char *question, *opening;
    const char *answer;        /* the right text after the opening, for its likelihood, or NULL */
    const char *const *expect; /* [n_expect] */
    size_t n_expect;
    enum lk_match match;
    const char *stop;  /* the answer ends before this text; NULL: where the model ends it */
    size_t n_generate; /* maximum number of tokens of an answer */
    double length;     /* requested tokens, question and answer together; 0: not requested */
    double depth;      /* of the needle, 0 (start) to 1 (end); < 0: none */
};

/* How items become prompts for a model. */
struct lk_prompt_format {
    const lk_model *model;
    bool chat; /* use the model's chat template */
};

/* The chat format if the model has a template, else the plain format. */
struct lk_prompt_format lk_prompt_format_of(const lk_model *model);

/* The tokens of an item: head, tail and, if the item has one, the right answer. */
struct lk_item_tokens {
    int32_t *tok; /* [n_head + n_tail + n_answer] */
    size_t n_head, n_tail, n_answer;
};

/* Tokenize an item. Head and tail have at least one token each. Free with lk_item_tokens_free. */
lk_status lk_item_tokenize(const struct lk_prompt_format *format, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err);
void lk_item_tokens_free(struct lk_item_tokens *tokens);

/* Count the tokens of head and tail. */
lk_status lk_item_length(const struct lk_prompt_format *format, const struct lk_item *item,
                         size_t *n_tok, lk_err *err);

/* Score the text of an answer, 0 to 1. */
double lk_item_score(const struct lk_item *item, const char *text);

#endif
