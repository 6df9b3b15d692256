/* The allocator compared with trying everything, on small random instances. */
#include "base/hash.h"
#include "test.h"
#include "tune/tune_model.h"

enum { MAX_ITEM = 5, MAX_OPTION = 4 };

/* The smallest loss of items [at, n_item) within the budget; INFINITY: nothing fits. */
static double try_all(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                      size_t at, uint64_t budget) {
    double best = INFINITY;
    if (at == n_item) return 0;
    for (size_t i = 0; i < n_option; i++) {
        const struct lk_allocate_option *o = &option[at * n_option + i];
        if (!isfinite(o->loss) || o->cost > budget) continue;
        best = fmin(best, o->loss + try_all(option, n_item, n_option, at + 1, budget - o->cost));
    }
    return best;
}

static uint64_t random_to(uint64_t *state, uint64_t max) {
    return lk_splitmix64_next(state) % (max + 1);
}

/* Draw an instance. Some options are missing, but not the first one of an item. */
static void draw(uint64_t *state, struct lk_allocate_option *option, size_t n, size_t n_option) {
    for (size_t i = 0; i < n; i++) {
        bool missing = i % n_option > 0 && random_to(state, 5) == 0;
        option[i].cost = random_to(state, 30);
        option[i].loss = missing ? INFINITY : (double)random_to(state, 1000) / 8;
    }
}

/* Sum of the choice; fails if it is not a valid one. */
static double sum_choice(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                         const int *choice, uint64_t budget) {
    double loss = 0;
    uint64_t cost = 0;
    for (size_t i = 0; i < n_item; i++) {
        assert_in_range(choice[i], 0, n_option - 1);
        loss += option[i * n_option + (size_t)choice[i]].loss;
        cost += option[i * n_option + (size_t)choice[i]].cost;
    }
    assert_true(isfinite(loss));
    assert_true(cost <= budget);
    return loss;
}

static void finds_the_optimum(void **state) {
    struct lk_ledger ledger = {0};
    uint64_t seed = 7;
    int n_fit = 0;
    for (int k = 0; k < 2000; k++) {
        struct lk_allocate_option option[MAX_ITEM * MAX_OPTION];
        size_t n_item = 1 + random_to(&seed, MAX_ITEM - 1),
               n_option = 1 + random_to(&seed, MAX_OPTION - 1);
        uint64_t budget = random_to(&seed, 100);
        int choice[MAX_ITEM];
        double loss = -1;
        lk_err err = {0};
        draw(&seed, option, n_item * n_option, n_option);
        double best = try_all(option, n_item, n_option, 0, budget);
        lk_status status =
            lk_allocate(option, n_item, n_option, budget, &ledger, choice, &loss, &err);
        if (!isfinite(best)) {
            assert_int_equal(status, LK_E_ARG);
            continue;
        }
        assert_int_equal(status, LK_OK);
        assert_float_equal(loss, best, 1e-9);
        assert_float_equal(sum_choice(option, n_item, n_option, choice, budget), best, 1e-9);
        n_fit++;
    }
    assert_true(n_fit > 500);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_SCRATCH), 0);
}

/* Costs of megabytes are rounded to units: the budget holds, and little of it is lost. */
static void large_budgets_are_rounded(void **state) {
    struct lk_ledger ledger = {0};
    uint64_t seed = 3;
    for (int k = 0; k < 20; k++) {
        struct lk_allocate_option option[MAX_ITEM * MAX_OPTION];
        uint64_t budget = 0;
        int choice[MAX_ITEM];
        double loss;
        for (int i = 0; i < MAX_ITEM; i++) {
            uint64_t step = 1000000 + random_to(&seed, 1000000);
            double weight = 1 + (double)random_to(&seed, 100);
            for (int j = 0; j < MAX_OPTION; j++)
                option[i * MAX_OPTION + j] =
                    (struct lk_allocate_option){weight * pow(0.25, j), (uint64_t)j * step};
            budget += step * random_to(&seed, 2);
        }
        assert_int_equal(
            lk_allocate(option, MAX_ITEM, MAX_OPTION, budget, &ledger, choice, &loss, NULL), LK_OK);
        double found = sum_choice(option, MAX_ITEM, MAX_OPTION, choice, budget);
        double best = try_all(option, MAX_ITEM, MAX_OPTION, 0, budget);
        double smaller = try_all(option, MAX_ITEM, MAX_OPTION, 0, budget - budget / 400);
        assert_float_equal(found, loss, 1e-9);
        assert_true(found >= best - 1e-9 && found <= smaller + 1e-9);
    }
}

static void fails_without_memory(void **state) {
    const struct lk_allocate_option option[] = {{1, 1}, {0, 2}};
    for (int nth = 1; nth <= 2; nth++) {
        struct lk_ledger ledger = {.fail_at = nth};
        int choice[2];
        double loss;
        lk_err err = {0};
        assert_int_equal(lk_allocate(option, 2, 1, 9, &ledger, choice, &loss, &err), LK_E_NOMEM);
        assert_true(err.msg[0] != 0);
        assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_SCRATCH), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_optimum),
        cmocka_unit_test(large_budgets_are_rounded),
        cmocka_unit_test(fails_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
