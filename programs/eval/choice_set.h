/* Multiple-choice questions: read from data sets, and formatted as texts with one scored part.
 *
 *   multichoice/NAME.jsonl     {"q": text, "choices": [texts], "answer": index from 0} on each line
 *   hellaswag/hellaswag*.txt   six lines per question: context, index of the right ending, four
 *                              endings; the layout that llama-perplexity --hellaswag reads
 *
 * A text ends with a choice. Only what differs between the choices of a question is scored. In most
 * layouts these are the tokens after the prefix that all texts share. In WinoGrande, whose choice
 * is in the middle of a sentence, they are the tokens after the choice, which all texts share. */
#ifndef LK_EVAL_CHOICE_SET_H
#define LK_EVAL_CHOICE_SET_H

#include "eval/arena.h"

#include <stdbool.h>

enum { LK_MAX_CHOICES = 8 };

enum lk_choice_layout {
    LK_CHOICE_QUESTION, /* "Question: QUESTION\nAnswer: CHOICE" */
    LK_CHOICE_SENTENCE, /* "QUESTION CHOICE" */
    LK_CHOICE_ENDING,   /* the same */
    LK_CHOICE_BLANK,    /* QUESTION with CHOICE in place of its first '_' */
};

struct lk_choice_question {
    const char *text[LK_MAX_CHOICES]; /* the whole text with each choice */
    size_t n, answer;
};

struct lk_choice_set {
    struct lk_arena arena;           /* its ledger is set by the caller */
    struct lk_choice_question *item; /* [n] */
    size_t n, cap;
};

/* Add a question with n choices. LK_E_FORMAT, without a file name, if it does not fit the layout.
 * LK_E_NOMEM. */
lk_status lk_choice_set_add(struct lk_choice_set *set, enum lk_choice_layout layout,
                            const char *question, const char *const *choice, size_t n,
                            size_t answer, lk_err *err);

/* Add the questions of a file of JSON lines, or of a file with six lines per question. Errors name
 * the file and the line. */
lk_status lk_choice_set_read_jsonl(struct lk_choice_set *set, enum lk_choice_layout layout,
                                   const char *path, lk_err *err);
lk_status lk_choice_set_read_hellaswag(struct lk_choice_set *set, const char *path, lk_err *err);
void lk_choice_set_free(struct lk_choice_set *set);

/* Find the scored tokens of a question: from[i] to n_tok[i] of the i-th text's tokens tok[i]. The
 * tokens before them are the prompt. False if a text has no tokens to score or no prompt. */
bool lk_choice_find_scored(enum lk_choice_layout layout, int32_t *const *tok, const size_t *n_tok,
                           size_t n, size_t *from);

#endif
