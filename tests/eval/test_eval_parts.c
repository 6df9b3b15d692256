/* The parts that items are made of: arenas, random numbers, haystacks, JSON lines, and the scores
 * of answers. */
#include "base/buf.h"
#include "base/hash.h"
#include "base/ledger.h"
#include "eval/items.h"
#include "eval/material.h"
#include "test.h"

#include <unistd.h>

static char rows_path[] = "/tmp/lowkey-rows-XXXXXX";

static void write_rows(const char *content) {
    FILE *file = fopen(rows_path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void arenas_remember_failures(void **state) {
    struct lk_ledger ledger = {0};
    for (int fail_at = 0; fail_at < 4; fail_at++) {
        struct lk_arena arena = {.ledger = &ledger};
        const char *last = "";
        ledger.fail_at = fail_at;
        for (int i = 0; i < 60000; i++) last = lk_arena_printf(&arena, "%d,", i);
        assert_int_equal(lk_arena_check(&arena, NULL), fail_at ? LK_E_NOMEM : LK_OK);
        assert_string_equal(last, fail_at ? "" : "59999,");
        assert_string_equal(lk_arena_printf(&arena, "%s", "x"), fail_at ? "" : "x");
        ledger.fail_at = 0;
        lk_arena_free(&arena);
        assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 0);
        assert_string_equal(lk_arena_printf(&arena, "%s", "again"), "again");
        lk_arena_free(&arena);
    }
}

static void arenas_take_buffers(void **state) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_buf buf = {0}, small = {.max = 4}, empty = {0};
    for (int i = 0; i < 60000; i++) lk_buf_printf(&buf, "%d,", i);
    size_t len = buf.len;
    const char *text = lk_arena_take_buf(&arena, &buf);
    assert_int_equal(strlen(text), len);
    assert_string_equal(text + len - 12, "59998,59999,");
    assert_null(buf.at);
    assert_string_equal(lk_arena_take_buf(&arena, &empty), "");
    assert_int_equal(lk_arena_check(&arena, NULL), LK_OK);
    lk_buf_append_str(&small, "too long");
    assert_string_equal(lk_arena_take_buf(&arena, &small), "");
    assert_int_equal(lk_arena_check(&arena, NULL), LK_E_NOMEM);
    lk_arena_free(&arena);
}

static void random_orders(void **state) {
    struct lk_rng a = lk_rng_seed(1, "needle", 0), b = lk_rng_seed(1, "needle", 1),
                  c = lk_rng_seed(1, "needle", 0);
    assert_true(lk_splitmix64_next(&a.state) != lk_splitmix64_next(&b.state));
    (void)lk_splitmix64_next(&c.state);
    assert_true(a.state == c.state);
    double first = 0;
    for (int round = 0; round < 2000; round++) {
        uint32_t order[37];
        bool seen[37] = {false};
        lk_rng_permutation(&a, order, 37);
        for (int i = 0; i < 37; i++) seen[order[i]] = true;
        for (int i = 0; i < 37; i++) assert_true(seen[i]);
        first += order[0] / 36.0 / 2000;
    }
    assert_true(fabs(first - 0.5) < 0.05); /* standard error 0.0067 */
}

static void names_differ(void **state) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    const char *name[4096];
    for (uint32_t i = 0; i < 4096; i++) {
        name[i] = lk_invent_name(i, "", &arena);
        for (uint32_t j = 0; j < i; j++) assert_string_not_equal(name[i], name[j]);
    }
    lk_arena_free(&arena);
}

static void texts_are_split_into_sentences(void **state) {
    static const char *const want[] = {
        "One two, three.", "\"Four!\"",           "Five \xe2\x80\x9csix?\xe2\x80\x9d",
        "A title",         "Version 1.5 is out.", "no end"};
    static const char given[] =
        "  One two,\n three.  \"Four!\" Five \xe2\x80\x9csix?\xe2\x80\x9d\nA title\n \nVersion 1.5 "
        "is out.\n\n\nno end";
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_haystack haystack;
    assert_int_equal(lk_haystack_split(given, sizeof given - 1, &arena, &haystack, NULL), LK_OK);
    assert_int_equal(haystack.n_unit, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < haystack.n_unit; i++) assert_string_equal(haystack.unit[i], want[i]);
    assert_int_equal(lk_haystack_split(" \n\t ", 4, &arena, &haystack, NULL), LK_E_ARG);

    char long_one[3001]; /* "\u00e9" without a full stop: split between characters */
    for (int i = 0; i < 1500; i++) memcpy(long_one + 2 * i, "\xc3\xa9", 3);
    assert_int_equal(lk_haystack_split(long_one, 3000, &arena, &haystack, NULL), LK_OK);
    assert_true(haystack.n_unit > 1);
    for (size_t i = 0; i < haystack.n_unit; i++) assert_int_equal(strlen(haystack.unit[i]) % 2, 0);
    lk_arena_free(&arena);
}

static void needles_are_inserted(void **state) {
    static const char *units[] = {"a", "b", "c"};
    struct lk_haystack haystack = {units, 3};
    struct lk_needle needle[] = {{0, "N0"}, {2, "N2"}, {2, "M2"}, {4, "N4"}};
    struct lk_buf out = {0};
    lk_haystack_write(&haystack, 2, 4, needle, 4, " ", &out);
    assert_string_equal(out.at, "N0 c a N2 M2 b c N4");
    lk_buf_free(&out);
}

static lk_status count_row(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    const char *a;
    ++*(int *)user;
    return lk_jsonl_string(row, "a", &a, err);
}

static void errors_name_the_line(void **state) {
    static const struct {
        const char *content, *words;
        int n;
    } bad[] = {{"{\"a\":\"x\"}\n\n{\"a\":\n", ":3: not JSON", 1},
               {"[1]\n", ":1: not a JSON object", 0},
               {"{\"a\":\"x\"}\n{\"b\":\"x\"}", ":2: \"a\" is missing", 2},
               {"{\"a\":1}", ":1: \"a\" is missing or not a string", 1},
               {"{\"a\":\"x\",\"a\":\"y\"}", ":1: not JSON", 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lk_err err = {0};
        int n = 0;
        write_rows(bad[i].content);
        assert_int_equal(lk_jsonl_read(rows_path, count_row, &n, &err), LK_E_FORMAT);
        if (!strstr(err.msg, bad[i].words)) fail_msg("%s", err.msg);
        assert_int_equal(n, bad[i].n);
    }
    int n = 0;
    write_rows("{\"a\":\"x\"}\n \n{\"a\":\"\"}");
    assert_int_equal(lk_jsonl_read(rows_path, count_row, &n, NULL), LK_OK);
    assert_int_equal(n, 2);
    assert_int_equal(lk_jsonl_read("/nonexistent/rows.jsonl", count_row, &n, NULL), LK_E_IO);
}

/* ---- scores ---- */

static void answers_are_scored(void **state) {
    const char *three[] = {"Abc", "DEF", "ghi"};
    struct lk_item all = {.expect = three, .n_expect = 3, .match = LK_MATCH_ALL}, any = all;
    any.match = LK_MATCH_ANY;
    assert_true(lk_item_score(&all, "GHI, abc and def") == 1);
    assert_true(fabs(lk_item_score(&all, "xghi, abd") - 1.0 / 3) < 1e-12);
    assert_true(lk_item_score(&all, "") == 0);
    assert_true(lk_item_score(&any, "only def") == 1);
    assert_true(lk_item_score(&any, "nothing") == 0);
    all.stop = "\n";
    assert_true(fabs(lk_item_score(&all, "abc\ndef ghi") - 1.0 / 3) < 1e-12);
}

int main(void) {
    int file = mkstemp(rows_path);
    if (file < 0 || close(file)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_remember_failures),
        cmocka_unit_test(arenas_take_buffers),
        cmocka_unit_test(random_orders),
        cmocka_unit_test(names_differ),
        cmocka_unit_test(texts_are_split_into_sentences),
        cmocka_unit_test(needles_are_inserted),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(answers_are_scored),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return unlink(rows_path) || failed;
}
