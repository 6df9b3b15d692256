/* A text's chunks whose prompts are computed once, and what other caches predict after them.
 *
 * A chunk is a prompt of n_prompt tokens and n_query tokens whose predictions are scored. Two
 * sessions have the prompt: `full` in f16, and `coded`, which quantizes all rows but the sinks and
 * a window. A session of any other recipe gets its rows from these (lk_prefill_recode).
 *
 * The KL of a prediction is over the tokens that the full cache gives at least a millionth of the
 * probability of the most probable one. */
#ifndef LK_TUNE_PROMPTS_H
#define LK_TUNE_PROMPTS_H

#include "engine/session_state.h"
#include "tune/measure_set.h"

/* What the full cache predicts after one token. */
struct lk_prompt_prediction {
    size_t first, n;  /* of lk_prompt.likely */
    double log_total; /* logarithm of the sum of their exponentials */
    int32_t best;     /* the most probable one */
};

struct lk_likely {
    int32_t token;
    float logit;
};

struct lk_prompt {
    lk_session *full, *coded;                /* NULL: the prompt is not computed yet */
    struct lk_prompt_prediction *prediction; /* [n_query]; NULL: not evaluated yet */
    struct lk_likely *likely;                /* [n_likely], room for likely_cap */
    size_t n_likely, likely_cap;
};

struct lk_prompts {
    struct lk_ledger ledger;
    lk_model *model;
    uint64_t id; /* of the text */
    size_t n_prompt, n_query, n_chunk, n_vocab;
    int32_t *tok; /* [n_chunk][n_prompt + n_query + 1] */
    lk_recipe *recipe[2];
    struct lk_prompt *chunk; /* [n_chunk] */
    size_t n_step;           /* tokens that are evaluated in one pass */
    lk_session *run;         /* an f16 cache that evaluates tokens */
    lk_progress progress;
    void *user;
    uint64_t done, total; /* tokens: the caller sets total */
};

/* Hold the chunks of `text`, whose n_scored is not 0. bits: of `coded`. *out is owned:
 * lk_prompts_free. LK_E_NOMEM. */
lk_status lk_prompts_new(struct lk_prompts **out, const struct lk_measure *m,
                         const struct lk_measure_text *text, int bits, lk_err *err);
void lk_prompts_free(struct lk_prompts *h);

/* Report `more` tokens on top of h->done. False: the user cancels. */
bool lk_prompts_report(const struct lk_prompts *h, uint64_t more);

/* The tokens of a chunk. */
const int32_t *lk_prompts_tok(const struct lk_prompts *h, size_t chunk);

/* Compute a chunk's prompt, or its full cache's predictions after it, unless they are there.
 * LK_E_NOMEM, LK_E_CANCELLED. */
lk_status lk_prompts_compute_prompt(struct lk_prompts *h, size_t chunk, lk_err *err);
lk_status lk_prompts_predict(struct lk_prompts *h, size_t chunk, lk_err *err);

/* Evaluate the scored tokens of a chunk with a session that has the prompt, and compare
 * predictions. score: [n_query]; nll: also find the negative logarithms of the next tokens'
 * probabilities. */
lk_status lk_prompts_score(struct lk_prompts *h, size_t chunk, lk_session *s, bool nll,
                           lk_prediction *score, lk_err *err);

/* Measure a recipe on all chunks as lk_compare would. LK_E_UNSUPPORTED if the recipe's rows cannot
 * be made of the prompts' rows; LK_E_NOMEM, LK_E_CANCELLED. */
lk_status lk_prompts_measure(struct lk_prompts *h, const lk_recipe *recipe,
                             lk_compare_result *result, lk_err *err);

#endif
