/* The ledger counts what is held, refuses past its limit and at a chosen allocation; errors are one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/ledger.h"

static uint64_t held(const struct lk_ledger *ledger) {
    uint64_t sum = 0;
    for (int i = 0; i < LK_N_PURPOSE; i++) sum += lk_ledger_bytes(ledger, (enum lk_purpose)i);
    return sum;
}

static void memory_is_aligned_and_zero(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    static const size_t size[] = {1, 63, 64, 65, 4096, 100003};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        unsigned char *p = lk_alloc(&ledger, LK_FOR_SCRATCH, size[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(p[j], 0);
        memset(p, 0xff, size[i]);
        lk_release(&ledger, LK_FOR_SCRATCH, p, size[i]);
    }
    assert_int_equal(held(&ledger), 0);
}

static void bytes_are_counted_by_purpose(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    void *a = lk_alloc(&ledger, LK_FOR_CACHE, 1000);
    void *b = lk_alloc(&ledger, LK_FOR_OTHER, 64);
    assert_true(lk_ledger_bytes(&ledger, LK_FOR_CACHE) >= 1000);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 64);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), 0);
    assert_int_equal(ledger.n_alloc, 2);
    lk_release(&ledger, LK_FOR_CACHE, a, 1000);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_CACHE), 0);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 64);
    lk_release(&ledger, LK_FOR_OTHER, b, 64);
    assert_int_equal(held(&ledger), 0);
}

static void releasing_nothing_does_nothing(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    lk_release(&ledger, LK_FOR_CACHE, NULL, 1000);
    assert_int_equal(held(&ledger), 0);
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, 0));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX - 64));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX / 2));
    assert_int_equal(held(&ledger), 0);
}

static void the_limit_holds_over_all_purposes(void **state) {
    (void)state;
    struct lk_ledger ledger = {.limit = 1024};
    void *a = lk_alloc(&ledger, LK_FOR_CACHE, 512);
    assert_non_null(a);
    assert_null(lk_alloc(&ledger, LK_FOR_SCRATCH, 513));
    void *b = lk_alloc(&ledger, LK_FOR_SCRATCH, 512);
    assert_non_null(b);
    assert_null(lk_alloc(&ledger, LK_FOR_OTHER, 1));
    assert_int_equal(lk_ledger_enter(&ledger, LK_FOR_WEIGHTS, 1), 0);
    assert_int_equal(held(&ledger), 1024);
    lk_release(&ledger, LK_FOR_CACHE, a, 512);
    a = lk_alloc(&ledger, LK_FOR_OTHER, 512);
    assert_non_null(a);
    lk_release(&ledger, LK_FOR_OTHER, a, 512);
    lk_release(&ledger, LK_FOR_SCRATCH, b, 512);
    assert_int_equal(held(&ledger), 0);
}

static void the_nth_allocation_fails_once(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n++) {
        struct lk_ledger ledger = {.fail_at = n};
        void *p[5];
        for (int i = 0; i < 5; i++) {
            p[i] = lk_alloc(&ledger, LK_FOR_CACHE, 64);
            if (i + 1 == n) assert_null(p[i]);
            else assert_non_null(p[i]);
        }
        for (int i = 0; i < 5; i++) lk_release(&ledger, LK_FOR_CACHE, p[i], 64);
        assert_int_equal(held(&ledger), 0);
    }
}

static void growing_keeps_contents(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    void *p = NULL;
    assert_true(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 0, 100));
    for (int i = 0; i < 100; i++) ((unsigned char *)p)[i] = (unsigned char)i;
    assert_true(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 100, 5000));
    for (int i = 0; i < 100; i++) assert_int_equal(((unsigned char *)p)[i], i);
    for (int i = 100; i < 5000; i++) assert_int_equal(((unsigned char *)p)[i], 0);
    lk_release(&ledger, LK_FOR_SCRATCH, p, 5000);
    assert_int_equal(held(&ledger), 0);
}

static void refused_growth_changes_nothing(void **state) {
    (void)state;
    struct lk_ledger ledger = {0};
    void *p = lk_alloc(&ledger, LK_FOR_SCRATCH, 100), *before = p;
    memset(p, 7, 100);
    uint64_t bytes = held(&ledger);
    ledger.fail_at = 1;
    assert_false(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 100, 5000));
    assert_ptr_equal(p, before);
    assert_int_equal(held(&ledger), bytes);
    for (int i = 0; i < 100; i++) assert_int_equal(((unsigned char *)p)[i], 7);
    lk_release(&ledger, LK_FOR_SCRATCH, p, 100);
    assert_int_equal(held(&ledger), 0);
}

static void foreign_memory_is_entered(void **state) {
    (void)state;
    struct lk_ledger ledger = {.limit = 1000};
    assert_true(lk_ledger_enter(&ledger, LK_FOR_WEIGHTS, 1000));
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), 1000);
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, 1));
    lk_ledger_remove(&ledger, LK_FOR_WEIGHTS, 1000);
    assert_int_equal(held(&ledger), 0);
}

static void an_error_is_a_status_and_a_line(void **state) {
    (void)state;
    lk_err err = {0};
    assert_int_equal(lk_fail(&err, LK_E_FORMAT, "tensor %s has %d rows", "blk.0", 3), LK_E_FORMAT);
    assert_int_equal(err.code, LK_E_FORMAT);
    assert_string_equal(err.msg, "tensor blk.0 has 3 rows");
    assert_int_equal(lk_fail(NULL, LK_E_IO, "nobody reads %s", "this"), LK_E_IO);
}

static void a_long_error_is_cut(void **state) {
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    lk_err err = {0};
    assert_int_equal(lk_fail(&err, LK_E_ARG, "%s", text), LK_E_ARG);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void every_status_has_its_own_name(void **state) {
    (void)state;
    const char *name[8];
    for (int i = 0; i < 8; i++) {
        name[i] = lk_status_name((lk_status)-i);
        assert_non_null(name[i]);
        for (int j = 0; j < i; j++) assert_string_not_equal(name[i], name[j]);
    }
    assert_string_equal(lk_status_name((lk_status)-99), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_zero),
        cmocka_unit_test(bytes_are_counted_by_purpose),
        cmocka_unit_test(releasing_nothing_does_nothing),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(the_limit_holds_over_all_purposes),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(growing_keeps_contents),
        cmocka_unit_test(refused_growth_changes_nothing),
        cmocka_unit_test(foreign_memory_is_entered),
        cmocka_unit_test(an_error_is_a_status_and_a_line),
        cmocka_unit_test(a_long_error_is_cut),
        cmocka_unit_test(every_status_has_its_own_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
