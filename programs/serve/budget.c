/* The budget of requests in work: a ledger with a limit, and a share for small requests. */
#include "serve/budget.h"

/* A request is small if it needs less than this part of the budget. */
enum { SMALL_PART = 64 };

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
    uint64_t all = budget->ledger.limit, need = charge->bytes + bytes,
             max = need > all / SMALL_PART ? all - all / 4 : all, used = lk_budget_bytes(budget);
    if (need > max || need < bytes) {
        budget->metrics->refused++;
        return lk_api_error_set(error, 413, "request_too_large", NULL,
                                "this request needs %.1f MiB of memory; a request may use at most "
                                "%.1f MiB (--request-memory)",
                                mib(need), mib(max));
    }
    if (used + bytes > max || !lk_ledger_add(&budget->ledger, LK_FOR_OTHER, bytes)) {
        lk_api_error_set(error, 503, "overloaded", NULL,
                         "this request needs %.1f MiB of memory, but the requests in work hold "
                         "%.1f of %.1f MiB (--request-memory)",
                         mib(need), mib(used), mib(all));
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
