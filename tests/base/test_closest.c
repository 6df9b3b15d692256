/* The closest name to a misspelled word. */
#include "base/closest.h"
#include "test.h"

static const char *closest(const char *word) {
    static const char *const name[] = {"max-memory", "kv", "ctx", "stats", "session", "seed"};
    struct lk_closest search = {.word = word, .len = strlen(word)};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) lk_closest_offer(&search, name[i]);
    return search.name;
}

static void misspelled_words_find_their_name(void **state) {
    assert_string_equal(closest("max_memory"), "max-memory");
    assert_string_equal(closest("maxmemory"), "max-memory");
    assert_string_equal(closest("MAX-MEMROY"), "max-memory"); /* exchanged letters are one edit */
    assert_string_equal(closest("stat"), "stats");
    assert_string_equal(closest("sesion"), "session");
    assert_string_equal(closest("ctz"), "ctx");
    assert_string_equal(closest("kv"), "kv");
}

static void other_words_find_nothing(void **state) {
    static char long_word[200];
    memset(long_word, 'a', sizeof long_word - 1);
    assert_null(closest(""));
    assert_null(closest("kx")); /* half of the letters differ */
    assert_null(closest("gpu-layers"));
    assert_null(closest(long_word));
}

static void the_first_of_equals_wins(void **state) {
    struct lk_closest search = {.word = "best-5", .len = 6};
    lk_closest_offer(&search, "best-4");
    lk_closest_offer(&search, "best-3");
    assert_string_equal(search.name, "best-4");
    assert_int_equal(search.distance, 1);
    lk_closest_offer(&search, "best-5");
    assert_string_equal(search.name, "best-5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misspelled_words_find_their_name),
        cmocka_unit_test(other_words_find_nothing),
        cmocka_unit_test(the_first_of_equals_wins),
    };
    return cmocka_run_group_tests_name("closest", tests, NULL, NULL);
}
