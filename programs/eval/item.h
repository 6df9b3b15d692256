/* Items: questions that a model answers in its own words, and how an answer is scored.
 *
 *   plain   shot 0's question \n opening answer \n\n ... context \n\n question \n opening | the model goes on here
 *   chat    the same turns in the model's chat template; answers are the assistant's, and the last one
 *           is begun with the opening
 *           |------------------ head ------------------|-------- tail --------|
 *
 * The head, all before the last question, is read as a prompt and compressed; the tail is read through
 * the cache. A session reads prompts exactly, so a question within the prompt would already have looked
 * up its answer in the full cache: what is measured here is a cache that does not know the question.
 *
 * The opening ("The pass key is") makes small models answer at all, and is what RULER calls an answer
 * prefix (Hsieh et al. 2024, arXiv:2404.06654). */
#ifndef LK_EVAL_ITEM_H
#define LK_EVAL_ITEM_H

#include "base/err.h"

/* When an answer is right. */
enum lk_match {
    LK_MATCH_ALL,    /* score: the share of the expected texts that it holds, letter case aside */
    LK_MATCH_ANY,    /* score: 1 where it holds any of them */
    LK_MATCH_NUMBER, /* exact_match: 1 where its number is the expected one */
    LK_MATCH_ROUGE,  /* rouge1, rouge2, rougeL: F against the first expected text */
};

struct lk_shot {
    const char *question, *answer; /* the answer is what follows the opening */
};

struct lk_item {
    const char *key;            /* names the item in the results, for example "single/4096/50/0" */
    const char *part;           /* kind of item within its task, or NULL */
    const struct lk_shot *shot; /* [n_shot] worked examples before the question */
    size_t n_shot;
    const char *context; /* a long text that the question is about; NULL: none */
    const char *question, *opening;
    const char *answer; /* the right continuation of the opening, for its likelihood; or NULL */
    const char *const *expect; /* [n_expect] */
    size_t n_expect;
    enum lk_match match;
    const char *stop;  /* an answer ends before this text; NULL: at the model's end */
    size_t n_generate; /* most tokens of an answer */
    double length;     /* tokens asked for, question and answer together; 0: as it comes */
    double depth;      /* of what is asked for, 0 (begin) to 1 (end); < 0: has none */
};

/* The model that reads items, and how they are put to it. */
struct lk_reader {
    const lk_model *model;
    bool chat; /* in its chat template */
};

/* Chat where the model has a template, plain otherwise. */
struct lk_reader lk_reader_of(const lk_model *model);

/* An item as tokens: head, tail, and the answer where the item has one. */
struct lk_item_tokens {
    int32_t *tok; /* [n] */
    size_t n_head, n_tail, n_answer;
};

/* Free with lk_item_tokens_free. Head and tail have a token each at least. */
lk_status lk_item_tokenize(const struct lk_reader *reader, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err);
void lk_item_tokens_free(struct lk_item_tokens *tokens);

/* Tokens of head and tail together. */
lk_status lk_item_length(const struct lk_reader *reader, const struct lk_item *item, size_t *n_tok,
                         lk_err *err);

enum { LK_MAX_SCORES = 3 };

struct lk_score {
    const char *name; /* of the metric; static */
    double value;
};

/* Score the text of an answer. *n: how many of scores were written. */
lk_status lk_item_score(const struct lk_item *item, const char *text,
                        struct lk_score scores[LK_MAX_SCORES], size_t *n, lk_err *err);

/* Does the answer need no more tokens: does it hold the item's stop text? */
bool lk_item_stops(const struct lk_item *item, const char *text);

/* The answer's number: the first after "####" (GSM8K's mark), or the last one of the text. Commas
 * between digits are passed over. False where there is none. */
bool lk_answer_number(const char *text, double *out);

#endif
