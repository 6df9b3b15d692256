/* Multiple-choice knapsack by dynamic programming over the budget. */
#include "tune/allocate.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

uint64_t lk_allocate_least(const struct lk_allocate_option *option, size_t n_option) {
    uint64_t min = UINT64_MAX;
    for (size_t i = 0; i < n_option; i++)
        if (isfinite(option[i].loss) && option[i].cost < min) min = option[i].cost;
    return min;
}

/* best[u]: minimal loss of the items so far with at most u units above their minimum costs.
 * Extends it by one item, from `before`, and records the item's choice for each u in pick. */
static void add_item(const struct lk_allocate_option *option, size_t n_option, uint64_t unit,
                     size_t n_unit, const double *before, double *best, uint8_t *pick) {
    uint64_t min = lk_allocate_least(option, n_option);
    for (size_t u = 0; u <= n_unit; u++) best[u] = INFINITY;
    for (size_t i = 0; i < n_option; i++) {
        if (!isfinite(option[i].loss)) continue;
        uint64_t need = (option[i].cost - min + unit - 1) / unit;
        for (size_t u = (size_t)need; need <= n_unit && u <= n_unit; u++) {
            double loss = before[u - (size_t)need] + option[i].loss;
            if (loss >= best[u]) continue;
            best[u] = loss;
            pick[u] = (uint8_t)i;
        }
    }
}

lk_status lk_allocate(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                      uint64_t budget, struct lk_ledger *ledger, int *choice, double *loss,
                      lk_err *err) {
    uint64_t floor = 0;
    for (size_t i = 0; i < n_item; i++) floor += lk_allocate_least(option + i * n_option, n_option);
    if (floor > budget)
        return lk_fail(err, LK_E_ARG, "%llu bytes are too few; the smallest recipe has %llu",
                       (unsigned long long)budget, (unsigned long long)floor);
    uint64_t room = budget - floor, unit = room / LK_ALLOCATE_UNITS + 1;
    size_t n_unit = (size_t)(room / unit), row = n_unit + 1;
    double *best = lk_alloc(ledger, LK_FOR_SCRATCH, 2 * row * sizeof *best);
    uint8_t *pick = lk_alloc(ledger, LK_FOR_SCRATCH, n_item * row);
    lk_status status = LK_OK;
    if (!best || !pick)
        status = lk_fail(err, LK_E_NOMEM, "no memory to allocate bits to %zu items", n_item);
    for (size_t i = 0; status == LK_OK && i < n_item; i++)
        add_item(option + i * n_option, n_option, unit, n_unit, best + i % 2 * row,
                 best + (i + 1) % 2 * row, pick + i * row);
    if (status == LK_OK) {
        size_t u = n_unit;
        *loss = best[n_item % 2 * row + u];
        for (size_t i = n_item; i-- > 0;) {
            const struct lk_allocate_option *item = option + i * n_option;
            choice[i] = pick[i * row + u];
            u -= (size_t)((item[choice[i]].cost - lk_allocate_least(item, n_option) + unit - 1) /
                          unit);
        }
    }
    lk_release(ledger, LK_FOR_SCRATCH, pick, n_item * row);
    lk_release(ledger, LK_FOR_SCRATCH, best, 2 * row * sizeof *best);
    return status;
}
