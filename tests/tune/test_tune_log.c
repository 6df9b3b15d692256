/* The file of measurements: what is read is what was written, and damaged files are rejected. */
#include "base/buf.h"
#include "test.h"
#include "tune/tune_log.h"

#include <unistd.h>

static char path[] = "/tmp/lowkey-tune-log-XXXXXX";

static lk_compare_result result_of(double kl) {
    return (lk_compare_result){.ppl = 20.25,
                               .ppl_stderr = 0.1,
                               .kl_mean = kl,
                               .kl_stderr = kl / 7,
                               .kl_median = kl / 2,
                               .kl_p99 = 2 * kl,
                               .kl_p999 = 3 * kl,
                               .top1 = 0.97,
                               .bytes_per_token = 4000,
                               .bits_per_value = 3.3,
                               .tokens_per_second = 11,
                               .n_scored = 1022,
                               .bits_with_sidecar = 3.3};
}

static void write_file(const char *text, size_t len) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static struct lk_buf read_file(void) {
    struct lk_buf text = {0};
    char part[512];
    size_t n;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    while ((n = fread(part, 1, sizeof part, file)) > 0) lk_buf_append(&text, part, n);
    fclose(file);
    return text;
}

static void make_log(int n) {
    struct lk_tune_log log;
    unlink(path);
    assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_OK);
    for (int i = 0; i < n; i++) {
        char recipe[40];
        lk_compare_result r = result_of(0.1 / (i + 1));
        snprintf(recipe, sizeof recipe, "all: rot%d", i + 1);
        assert_int_equal(lk_tune_log_add(&log, 99, recipe, &r, NULL), LK_OK);
    }
    assert_int_equal(lk_tune_log_save(&log, NULL), LK_OK);
    lk_tune_log_close(&log);
}

static void results_are_kept(void **state) {
    struct lk_tune_log log;
    make_log(3);
    assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_OK);
    assert_int_equal(log.n, 3);
    const lk_compare_result *r = lk_tune_log_find(&log, 99, "all: rot3");
    lk_compare_result same = result_of(0.1 / 3);
    assert_non_null(r);
    assert_memory_equal(r, &same, sizeof same);
    assert_null(lk_tune_log_find(&log, 98, "all: rot3"));
    assert_null(lk_tune_log_find(&log, 99, "all: rot4"));
    lk_tune_log_close(&log);
}

static void other_runs_are_rejected(void **state) {
    struct lk_tune_log log;
    lk_err err = {0};
    make_log(1);
    assert_int_equal(lk_tune_log_open(&log, path, 6, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "another model"));
    assert_int_equal(lk_tune_log_open(&log, "/", 6, &err), LK_E_IO);
}

/* Any changed byte, and any shorter or longer file. */
static void damage_is_found(void **state) {
    struct lk_tune_log log;
    make_log(2);
    struct lk_buf text = read_file();
    for (size_t i = 0; i < text.len; i++) {
        lk_err err = {0};
        text.at[i] ^= 1;
        write_file(text.at, text.len);
        lk_status status = lk_tune_log_open(&log, path, 5, &err);
        text.at[i] ^= 1;
        assert_true(status == LK_E_FORMAT || status == LK_E_ARG);
        assert_true(err.msg[0] != 0 && !strchr(err.msg, '\n'));
    }
    for (size_t n = 0; n < text.len; n++) {
        write_file(text.at, n);
        assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_E_FORMAT);
    }
    lk_buf_append_str(&text, "\n");
    write_file(text.at, text.len);
    assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_E_FORMAT);
    lk_buf_free(&text);
}

/* Values that no measurement has, in a file whose hash is right. */
static void impossible_values_are_rejected(void **state) {
    const double bad[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < 4; i++) {
        struct lk_tune_log log;
        lk_compare_result r = result_of(0.1);
        if (i < 3)
            r.kl_mean = bad[i];
        else
            r.top1 = 1.5;
        unlink(path);
        assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_OK);
        assert_int_equal(lk_tune_log_add(&log, 1, "rot3", &r, NULL), LK_OK);
        assert_int_equal(lk_tune_log_save(&log, NULL), LK_OK);
        lk_tune_log_close(&log);
        assert_int_equal(lk_tune_log_open(&log, path, 5, NULL), LK_E_FORMAT);
    }
}

static void logs_are_bounded(void **state) {
    struct lk_tune_log log;
    lk_compare_result r = result_of(0.1);
    lk_err err = {0};
    assert_int_equal(lk_tune_log_open(&log, NULL, 5, NULL), LK_OK);
    for (int i = 0; i < LK_TUNE_LOG_MAX; i++)
        assert_int_equal(lk_tune_log_add(&log, (uint64_t)i, "rot3", &r, NULL), LK_OK);
    assert_int_equal(lk_tune_log_add(&log, 1, "rot3", &r, NULL), LK_E_FULL);
    assert_int_equal(lk_tune_log_save(&log, NULL), LK_OK); /* no file: nothing to do */
    lk_tune_log_close(&log);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i <= LK_TUNE_LOG_BYTES / 4096; i++) {
        static const char part[4096];
        fwrite(part, 1, sizeof part, file);
    }
    fclose(file);
    assert_int_equal(lk_tune_log_open(&log, path, 5, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "too large"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_kept), cmocka_unit_test(other_runs_are_rejected),
        cmocka_unit_test(damage_is_found),  cmocka_unit_test(impossible_values_are_rejected),
        cmocka_unit_test(logs_are_bounded),
    };
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
