/* Questions with choices: read from data sets, and put to models as texts of which one part is scored.
 *
 *   multichoice/NAME.jsonl       {"q": text, "choices": [texts], "answer": index from 0} on each line
 *   hellaswag/hellaswag*.txt     six lines a question: context, index of the right ending, four endings;
 *                                the layout that llama-perplexity --hellaswag reads
 *
 * A choice is what a text ends with. Only what differs between the choices of a question is scored: for
 * most layouts the tokens after those that all choices begin with; for WinoGrande, where the choice
 * stands in the middle of a sentence, the tokens after it, which are the same for all. */
#ifndef LK_EVAL_CHOICE_H
#define LK_EVAL_CHOICE_H

#include "eval/arena.h"
#include "eval/task.h"

enum { LK_MAX_CHOICES = 8 };

enum lk_choice_layout { LK_CHOICE_QUESTION, LK_CHOICE_SENTENCE, LK_CHOICE_ENDING, LK_CHOICE_BLANK };

struct lk_choice {
    const char *text[LK_MAX_CHOICES]; /* the whole text with each choice */
    size_t n, answer;
};

struct lk_choices {
    struct lk_arena arena;
    struct lk_choice *item; /* [n] */
    size_t n, cap;
};

/* Texts of one question. LK_E_FORMAT, without the place, for a question that cannot be put so. */
lk_status lk_choice_make(struct lk_choices *out, enum lk_choice_layout layout, const char *question,
                         const char *const *choice, size_t n, size_t answer, lk_err *err);

/* Read a file of JSON lines, or of six lines a question. Errors name the file and the line. */
lk_status lk_choices_read_jsonl(struct lk_choices *out, enum lk_choice_layout layout,
                                const char *path, lk_err *err);
lk_status lk_choices_read_hellaswag(struct lk_choices *out, const char *path, lk_err *err);
void lk_choices_free(struct lk_choices *choices);

/* The part of the choices' tokens that is scored: from[i] to n_tok[i] of choice i. What comes before is
 * read as it is. False where nothing is left to score. */
bool lk_choice_scored(enum lk_choice_layout layout, int32_t *const *tok, const size_t *n_tok,
                      size_t n, size_t *from);

#endif
