/* The memory of requests in work, besides the caches of sessions: bodies, parsed JSON, texts,
 * tokens, samplers, log-probabilities. Every request is charged before the work starts that needs
 * the memory, and all charges together have a limit. Prices are upper bounds. */
#ifndef LK_SERVE_BUDGET_H
#define LK_SERVE_BUDGET_H

#include "base/ledger.h"
#include "serve/api_error.h"
#include "serve/metrics.h"

struct lk_budget {
    struct lk_ledger ledger;
    struct lk_metrics *metrics;
};

/* `max`: bytes of all requests together. `metrics` is borrowed and counts refused requests. */
void lk_budget_init(struct lk_budget *budget, uint64_t max, struct lk_metrics *metrics);

/* Bytes that all requests hold now. */
uint64_t lk_budget_bytes(const struct lk_budget *budget);

/* What one request holds. {.budget = ...} holds nothing. One thread at a time may use it. */
struct lk_charge {
    struct lk_budget *budget; /* NULL: nothing is counted */
    uint64_t bytes;
};

/* Charge a request for more bytes. A request may hold a quarter of what other requests leave, so
 * many large ones never lock out a small one. False: see `error`. 413: the request alone exceeds a
 * quarter of the budget. 503: other requests hold the memory. */
bool lk_charge_add(struct lk_charge *charge, uint64_t bytes, struct lk_api_error *error);

/* Return the last `bytes` of a charge, or all of it. */
void lk_charge_return(struct lk_charge *charge, uint64_t bytes);
void lk_charge_release(struct lk_charge *charge);

#endif
