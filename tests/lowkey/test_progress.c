/* The progress line: when it shows the remaining time, and what it says at the end. */
#include "progress.h"
#include "test.h"

bool interrupted(void) { return false; }

static char line[160];

static const char *at(struct progress *p, double now, uint64_t done) {
    progress_format(p, now, done, 1000, line, sizeof line);
    return line;
}

static long seconds_left(void) {
    long minutes, seconds;
    const char *left = strstr(line, "%  ");
    assert_non_null(left);
    assert_int_equal(sscanf(left + 3, "%ld:%ld left", &minutes, &seconds), 2);
    return 60 * minutes + seconds;
}

/* The first 3% take 4.4 s, because the weights are read from the disk; the other 97% take 5 s. */
static void a_slow_start_is_not_extrapolated(void **state) {
    struct progress p = progress_start("compressing");
    assert_string_equal(at(&p, 100.0, 0), "compressing    0%");
    assert_string_equal(at(&p, 104.4, 30), "compressing    3%"); /* used to say 2:22 left */
    assert_string_equal(at(&p, 104.5, 49), "compressing    4%"); /* too little to estimate from */
    for (double now = 105.0; now < 109.0; now += 0.1)
        at(&p, now, 30 + (uint64_t)((now - 104.4) / 5 * 970));
    at(&p, 109.0, 30 + (uint64_t)(4.6 / 5 * 970));
    assert_in_range(seconds_left(), 0, 1);
    p = progress_start("compressing");
    at(&p, 104.4, 30);
    at(&p, 105.5, 30 + (uint64_t)(1.1 / 5 * 970));
    assert_in_range(seconds_left(), 3, 5);
}

static void the_estimate_follows_a_change_of_speed(void **state) {
    struct progress p = progress_start("x");
    for (int i = 0; i <= 50; i++) at(&p, 100 + 0.1 * i, 1 + (uint64_t)(2 * i)); /* 20 per second */
    assert_in_range(seconds_left(), 40, 50);
    for (int i = 1; i <= 300; i++) at(&p, 105 + 0.1 * i, 101 + (uint64_t)i / 2); /* 5 per second */
    assert_in_range(seconds_left(), 120, 180); /* the mean of all is 7 per second: 104 s */
}

static void a_new_total_starts_again(void **state) {
    struct progress p = progress_start("x");
    at(&p, 100, 1);
    at(&p, 102, 500);
    assert_in_range(seconds_left(), 1, 3);
    assert_string_equal(at(&p, 103, 10), "x    1%");
}

static void the_end_shows_no_time(void **state) {
    struct progress p = progress_start("x");
    at(&p, 100, 1);
    at(&p, 105, 999);
    assert_non_null(strstr(line, " 99%")); /* rounded down */
    assert_string_equal(at(&p, 106, 1000), "x  100%  finishing");
    assert_string_equal(at(&p, 107, 1001), "x  100%  finishing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_start_is_not_extrapolated),
        cmocka_unit_test(the_estimate_follows_a_change_of_speed),
        cmocka_unit_test(a_new_total_starts_again),
        cmocka_unit_test(the_end_shows_no_time),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
