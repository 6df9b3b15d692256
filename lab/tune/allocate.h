/* Choosing one option for each item, within a budget: the multiple-choice knapsack.
 *
 * An item is one side of one layer, an option its bits, the cost bytes and the loss KL. Dynamic
 * programming over the budget finds the minimum of the sum of losses exactly if costs are counted
 * in units of one. With large budgets a unit is larger, and costs are rounded up to whole units. */
#ifndef LK_TUNE_ALLOCATE_H
#define LK_TUNE_ALLOCATE_H

#include "base/ledger.h"
#include "lowkey.h"

enum { LK_ALLOCATE_OPTIONS = 64, LK_ALLOCATE_UNITS = 2048 };

struct lk_allocate_option {
    double loss; /* INFINITY: not an option */
    uint64_t cost;
};

/* The cost of an item's cheapest option. */
uint64_t lk_allocate_least(const struct lk_allocate_option *option, size_t n_option);

/* Choose choice[i] in [0, n_option) for each of n_item items, so that the sum of costs is at most
 * `budget` and the sum of losses is minimal. option: [n_item][n_option], n_option at most
 * LK_ALLOCATE_OPTIONS, at least one of them finite for each item. *loss: the sum. The sum of costs
 * above each item's minimum is divided into at most LK_ALLOCATE_UNITS units. Scratch memory comes
 * from `ledger`. LK_E_ARG if even the cheapest options exceed the budget, LK_E_NOMEM. */
lk_status lk_allocate(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                      uint64_t budget, struct lk_ledger *ledger, int *choice, double *loss,
                      lk_err *err);

#endif
