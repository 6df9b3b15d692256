/* The budget of requests in work: a ledger with a limit, and shares of what is free. */
#include "serve/budget.h"

/* A request may take this part of what is free. So requests of one size never use up all of it, and
 * smaller ones are still admitted. */
enum { FREE_PART = 4 };

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

void lk_budget_init(struct lk_budget *budget, uint64_t max, struct lk_metrics *metrics) {
    *budget = (struct lk_budget){.metrics = metrics};
    budget->ledger.limit = max;
}

uint64_t lk_budget_bytes(const struct lk_budget *budget) {
    return lk_ledger_bytes(&budget->ledger, LK_FOR_OTHER);
}

bool lk_charge_add(struct lk_charge *charge, uint64_t bytes, struct lk_api_error *error) {
    struct lk_budget *budget = charge->budget;
    if (!budget || bytes == 0) return true;
    uint64_t all = budget->ledger.limit, max = all / FREE_PART, need = charge->bytes + bytes,
             others = lk_budget_bytes(budget) - charge->bytes,
             free_bytes = others < all ? all - others : 0;
    if (need > max || need < bytes) {
        budget->metrics->refused++;
        return lk_api_error_set(error, 413, "request_too_large", NULL,
                                "this request needs %.1f MiB of memory; a request may use at most "
                                "%.1f MiB (a quarter of --request-memory)",
                                mib(need), mib(max));
    }
    if (need > free_bytes / FREE_PART || !lk_ledger_add(&budget->ledger, LK_FOR_OTHER, bytes)) {
        lk_api_error_set(error, 503, "overloaded", NULL,
                         "this request needs %.1f MiB of memory, but the requests in work hold "
                         "%.1f of %.1f MiB (--request-memory), and it may take a quarter of the "
                         "rest",
                         mib(need), mib(others), mib(all));
        error->retry_s = 2;
        budget->metrics->refused++;
        return false;
    }
    charge->bytes += bytes;
    return true;
}

void lk_charge_return(struct lk_charge *charge, uint64_t bytes) {
    if (!charge->budget || bytes == 0) return;
    lk_ledger_remove(&charge->budget->ledger, LK_FOR_OTHER, bytes);
    charge->bytes -= bytes;
}

void lk_charge_release(struct lk_charge *charge) { lk_charge_return(charge, charge->bytes); }
