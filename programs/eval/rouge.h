/* ROUGE: how much of a reference text a candidate text repeats.
 *
 * Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), sections 2 and 3, with the
 * results of the Python package rouge-score 0.1.2 without its stemmer, to the last digit:
 *
 *   tokens   runs of [a-z0-9] in the lower-case text; all other characters separate tokens
 *   1, 2     matches: sum over n-grams of min(count in reference, count in candidate)
 *   L        matches: length of the longest common subsequence (LCS) of the two texts
 *   Lsum     texts are lists of sentences, one per line. Matches: for every sentence of the
 *            reference, the union of its LCSs with the sentences of the candidate. A token is not
 *            counted more often than it occurs in either text
 *
 *   recall = matches / the reference's n-grams, precision = matches / the candidate's,
 *   f = 2 precision recall / (precision + recall), or 0 if that is 0 / 0 */
#ifndef LK_EVAL_ROUGE_H
#define LK_EVAL_ROUGE_H

#include "base/err.h"

struct lk_rouge_score {
    double precision, recall, f;
};

struct lk_rouge {
    struct lk_rouge_score r1, r2, l, lsum;
};

/* Score `candidate` against `reference`, both UTF-8. Time is proportional to the product of their
 * lengths in tokens. An empty text scores 0. LK_E_NOMEM. */
lk_status lk_rouge(const char *reference, const char *candidate, struct lk_rouge *out, lk_err *err);

#endif
