/* Finds the number of units with which an item has the requested length. */
#include "eval/fit_length.h"

#include "base/ledger.h"

/* Count the tokens of the item of n units, including room for its answer. */
static lk_status count_item_tokens(const struct lk_fit_opts *fit,
                                   const struct lk_prompt_format *format, size_t n, size_t *n_tok,
                                   lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_item item = {0};
    lk_status status = fit->make(fit->user, n, &arena, &item, err);
    if (status == LK_OK) status = lk_arena_check(&arena, err);
    if (status == LK_OK) status = lk_item_length(format, &item, n_tok, err);
    if (status == LK_OK) *n_tok += item.n_generate;
    lk_arena_free(&arena);
    return status;
}

lk_status lk_fit_length(const struct lk_fit_opts *fit, const struct lk_prompt_format *format,
                        struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                        lk_err *err) {
    enum { FIRST_STEP = 16 };
    size_t low = fit->min_unit, high = fit->max_unit + 1, low_tok = 0; /* low fits, high does not */
    lk_status status = count_item_tokens(fit, format, low, &low_tok, err);
    if (status != LK_OK) return status;
    if (low_tok > fit->max_tok)
        return lk_fail(err, LK_E_ARG,
                       "%zu tokens are too few: the shortest item of this kind has %zu with its "
                       "answer",
                       fit->max_tok, low_tok);
    /* Units have similar lengths: extrapolate from the last two counts. */
    double unit = 0;
    while (high - low > 1 && (unit == 0 || fit->max_tok - low_tok >= unit)) {
        size_t step = unit > 0 ? (size_t)((fit->max_tok - low_tok) / unit) : FIRST_STEP, tok = 0;
        size_t n = step < high - low ? low + step : high - 1;
        status = count_item_tokens(fit, format, n, &tok, err);
        if (status != LK_OK) return status;
        unit = tok > low_tok ? (double)(tok - low_tok) / (n - low) : 1;
        if (tok <= fit->max_tok)
            low = n, low_tok = tok;
        else
            high = n;
    }
    status = fit->make(fit->user, low, arena, item, err);
    if (status == LK_OK) status = lk_arena_check(arena, err);
    if (status == LK_OK && n_unit) *n_unit = low;
    if (status == LK_OK && n_tok) *n_tok = low_tok - item->n_generate;
    return status;
}
