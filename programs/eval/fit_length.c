#include "eval/fit_length.h"

#include "base/ledger.h"

/* Tokens of the item of n units, with room for its answer. */
static lk_status measure(const struct lk_fit *fit, const struct lk_reader *reader, size_t n,
                         size_t *n_tok, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_item item = {0};
    lk_status status = fit->make(fit->user, n, &arena, &item, err);
    if (status == LK_OK) status = lk_arena_check(&arena, err);
    if (status == LK_OK) status = lk_item_length(reader, &item, n_tok, err);
    if (status == LK_OK) *n_tok += item.n_generate;
    lk_arena_free(&arena);
    return status;
}

lk_status lk_fit_item(const struct lk_fit *fit, const struct lk_reader *reader,
                      struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                      lk_err *err) {
    enum { FIRST_STEP = 16 };
    size_t low = fit->n_least, high = fit->n_most + 1, low_tok = 0; /* low fits, high does not */
    lk_status status = measure(fit, reader, low, &low_tok, err);
    if (status != LK_OK) return status;
    if (low_tok > fit->n_tok)
        return lk_fail(
            err, LK_E_ARG,
            "%zu tokens are too few: the shortest item of this kind has %zu with its answer",
            fit->n_tok, low_tok);
    /* Units are about equally long: follow the line through the last two measurements. */
    double unit = 0;
    while (high - low > 1 && (unit == 0 || fit->n_tok - low_tok >= unit)) {
        size_t step = unit > 0 ? (size_t)((fit->n_tok - low_tok) / unit) : FIRST_STEP, tok = 0;
        size_t n = step < high - low ? low + step : high - 1;
        status = measure(fit, reader, n, &tok, err);
        if (status != LK_OK) return status;
        unit = tok > low_tok ? (double)(tok - low_tok) / (n - low) : 1;
        if (tok <= fit->n_tok)
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
