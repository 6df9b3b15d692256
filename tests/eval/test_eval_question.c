/* Questions put to backends: records compared with libllama and with a second computation, and the
 * results computed from records. */
#include "base/ledger.h"
#include "eval/items.h"
#include "eval/task.h"
#include "test.h"
#include "tiny_gguf.h"

#include <unistd.h>

enum { N_CTX = 3000, N_ITEM = 4 };

static char path[256];
static struct lk_model_pair models;
static struct lk_open_task task;

static int set_up(void **state) {
    const char *dir = getenv("TMPDIR");
    lk_err err = {0};
    snprintf(path, sizeof path, "%s/lowkey-question-%d.gguf", dir ? dir : "/tmp", (int)getpid());
    assert_true(tiny_gguf_write(path, tiny_preset("qwen2-bpe")));
    models = (struct lk_model_pair){.path = path, .opts = {.n_threads = 1}};
    if (lk_model_pair_open(&models, &err) != LK_OK) fail_msg("%s", err.msg);
    static const struct lk_eval_opts opts = {.limit = N_ITEM, .seed = 3, .n_ctx = N_CTX};
    struct lk_task_env env = {.task = &lk_task_passkey, .opts = &opts, .model = models.lowkey};
    if (lk_task_passkey.open(&env, &task, &err) != LK_OK) fail_msg("%s", err.msg);
    return 0;
}

static int tear_down(void **state) {
    lk_task_passkey.close(task.state);
    lk_model_pair_close(&models);
    return unlink(path);
}

/* Records of all items. Owned. */
static json_t *run(const char *kv) {
    lk_err err = {0};
    struct lk_backend *backend;
    json_t *records = json_array();
    if (lk_backend_open(&backend, &models, kv, task.n_ctx, &err) != LK_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < task.n_item; i++) {
        json_t *record = json_object();
        if (lk_task_passkey.run(task.state, i, backend, NULL, record, &err) != LK_OK)
            fail_msg("%s", err.msg);
        json_array_append_new(records, record);
    }
    lk_backend_close(backend);
    return records;
}

static double number(const json_t *records, size_t i, const char *field) {
    return lk_record_number(json_array_get(records, i), field);
}

static void records_agree_with_libllama(void **state) {
    json_t *ours = run("f16"), *again = run("f16"), *theirs = run("llama.cpp:f16");
    assert_int_equal(task.n_item, N_ITEM);
    assert_true(json_equal(ours, again));
    for (size_t i = 0; i < N_ITEM; i++) {
        const json_t *record = json_array_get(ours, i);
        assert_true(number(ours, i, "length") <= N_CTX &&
                    number(ours, i, "n_head") + number(ours, i, "n_tail") <
                        number(ours, i, "length"));
        assert_true(number(ours, i, "score") == 0 || number(ours, i, "score") == 1);
        assert_true(json_is_string(json_object_get(record, "answer")) &&
                    json_is_string(json_object_get(record, "prompt")));
        assert_true(number(ours, i, "nll") > 0);
        /* This random model gives 40 to 50 nats per token, so rounding is visible. Items differ by
         * 10 % or more. */
        assert_true(fabs(number(ours, i, "nll") - number(theirs, i, "nll")) <
                    0.02 * number(ours, i, "nll"));
        char key[256];
        lk_task_passkey.key(task.state, i, key, sizeof key);
        double length, depth;
        assert_int_equal(sscanf(key, "%lf/%lf/", &length, &depth), 2);
        assert_true(length == number(ours, i, "length") && depth == number(ours, i, "depth"));
        assert_true(lk_task_passkey.cost(task.state, i) > number(ours, i, "n_head") / 8);
    }
    json_decref(ours);
    json_decref(again);
    json_decref(theirs);
}

/* The likelihood is the same if the tail and the answer are evaluated together. */
static void likelihood_is_that_of_the_answer(void **state) {
    static const struct lk_eval_opts opts = {.limit = N_ITEM, .seed = 3, .n_ctx = N_CTX};
    struct lk_task_env env = {.task = &lk_task_passkey, .opts = &opts, .model = models.lowkey};
    struct lk_items_opts items_opts = {
        .env = &env, .format = lk_prompt_format_of(models.lowkey), .n_ctx = N_CTX};
    struct lk_ledger ledger = {0};
    struct lk_items items = {.arena = {.ledger = &ledger}};
    const struct lk_question_kind *kind = lk_task_passkey.arg;
    assert_int_equal(kind->make(&items_opts, &items, NULL), LK_OK);
    struct lk_backend *backend;
    assert_int_equal(lk_backend_open(&backend, &models, "f16", N_CTX, NULL), LK_OK);
    json_t *records = run("f16");
    for (size_t i = 0; i < N_ITEM; i++) {
        struct lk_item_tokens t;
        double sum;
        assert_int_equal(lk_item_tokenize(&items_opts.format, &items.item[i], &t, NULL), LK_OK);
        size_t n_given = t.n_head + t.n_tail;
        assert_int_equal(
            lk_backend_nll(backend, t.tok, n_given, n_given + t.n_answer, &sum, NULL, NULL), LK_OK);
        assert_true(fabs(sum / (double)t.n_answer - number(records, i, "nll")) <
                    1e-3 * number(records, i, "nll"));
        lk_item_tokens_free(&t);
    }
    json_decref(records);
    lk_backend_close(backend);
    lk_arena_free(&items.arena);
}

/* A compressed cache changes likelihoods a little. */
static void compressed_caches_answer(void **state) {
    json_t *records = run("best-2"), *full = run("f16");
    double change = 0;
    for (size_t i = 0; i < N_ITEM; i++)
        change += fabs(number(records, i, "nll") - number(full, i, "nll"));
    assert_true(change > 1e-6 && change < 2 * N_ITEM);
    json_decref(records);
    json_decref(full);
}

/* ---- results ---- */

static double metric(const struct lk_task_result *result, const char *name, const char *field) {
    const json_t *value = json_object_get(json_object_get(result->metrics, name), field);
    if (!json_is_number(value)) fail_msg("no %s of %s", field, name);
    return json_number_value(value);
}

static void records_become_results(void **state) {
    /* Scores 1 0 1 1 compared with 1 1 1 0: the changes are 0 -1 0 1. Their mean is 0 and its
     * standard error is sqrt(0.5 / 3). */
    json_t *records =
        json_pack("[{s:f s:i s:i s:f} {s:f s:i s:i s:f} {s:f s:i s:i s:f} {s:f s:i s:i s:f}]",
                  "score", 1.0, "length", 10, "depth", 0, "nll", 1.0, "score", 0.0, "length", 20,
                  "depth", 0, "nll", 2.0, "score", 1.0, "length", 10, "depth", 50, "nll", 3.0,
                  "score", 1.0, "length", 10, "depth", 0, "nll", 6.0);
    json_t *full =
        json_pack("[{s:f s:f} {s:f s:f} {s:f s:f} {s:f s:f}]", "score", 1.0, "nll", 1.0, "score",
                  1.0, "nll", 1.0, "score", 1.0, "nll", 1.0, "score", 0.0, "nll", 1.0);
    struct lk_task_result result;
    assert_non_null(records);
    assert_int_equal(lk_task_result_init(&result, NULL), LK_OK);
    assert_int_equal(lk_task_passkey.summarize(task.state, records, full, &result, NULL), LK_OK);
    assert_true(metric(&result, "score", "value") == 0.75 && metric(&result, "nll", "value") == 3);
    assert_true(fabs(metric(&result, "score", "stderr") - 0.25) < 1e-12);
    assert_true(metric(&result, "score_change", "value") == 0 &&
                fabs(metric(&result, "score_change", "stderr") - sqrt(0.5 / 3)) < 1e-12);
    assert_true(metric(&result, "nll_change", "value") == 2 &&
                metric(&result, "nll_change", "n") == 4);
    const json_t *series = json_object_get(result.series, "score_by_length"),
                 *heat = json_object_get(result.heat, "nll");
    assert_int_equal(json_array_size(json_object_get(series, "x")), 2);
    assert_true(json_number_value(json_array_get(json_object_get(series, "y"), 1)) == 0);
    const json_t *z = json_object_get(heat, "z");
    assert_int_equal(json_array_size(z), 2); /* depths */
    assert_true(json_number_value(json_array_get(json_array_get(z, 0), 0)) == 3.5);
    assert_true(json_is_null(json_array_get(json_array_get(z, 1), 1)));
    lk_task_result_free(&result);

    assert_int_equal(lk_task_result_init(&result, NULL), LK_OK);
    assert_int_equal(lk_task_passkey.summarize(task.state, records, NULL, &result, NULL), LK_OK);
    assert_null(json_object_get(result.metrics, "score_change"));
    lk_task_result_free(&result);
    json_decref(records);
    json_decref(full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_agree_with_libllama),
        cmocka_unit_test(likelihood_is_that_of_the_answer),
        cmocka_unit_test(compressed_caches_answer),
        cmocka_unit_test(records_become_results),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
