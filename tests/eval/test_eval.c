/* Evaluation of tiny models: tasks, figures, and results files that can be resumed. */
#include "base/ledger.h"
#include "eval/eval.h"
#include "eval/task.h"
#include "lowkey_lab.h"
#include "test.h"
#include "tiny_gguf.h"

#include <unistd.h>

enum { CTX = 512 };

static char folder[] = "/tmp/lowkey-eval-XXXXXX";
static char model_path[80], text[20000];

static const char *in_folder(const char *name) {
    static char path[4][120];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *name, const char *contents) {
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(contents, 1, strlen(contents), file), strlen(contents));
    fclose(file);
}

static char *read_file(const char *name) {
    FILE *file = fopen(in_folder(name), "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *contents = calloc(1, (size_t)size + 1);
    assert_int_equal(fread(contents, 1, (size_t)size, file), size);
    fclose(file);
    return contents;
}

static size_t count(const char *text_of, const char *what) {
    size_t n = 0;
    for (const char *at = text_of; (at = strstr(at, what)); at++) n++;
    return n;
}

static struct lk_model_pair models_of(lk_weights weights) {
    return (struct lk_model_pair){.path = model_path, .opts = {.n_threads = 1, .weights = weights}};
}

/* ---- figures ---- */

static void test_means(void **state) {
    struct lk_task_result result;
    json_t *records = json_loads("[{\"v\":1,\"x\":10,\"y\":0},{\"v\":3,\"x\":10,\"y\":1},{\"v\":"
                                 "true,\"x\":20,\"y\":0},{\"w\":5}]",
                                 0, NULL);
    assert_int_equal(lk_task_result_init(&result, NULL), LK_OK);
    lk_add_mean(&result, "mean", records, "v");
    lk_add_mean(&result, "none", records, "absent");
    lk_add_mean_series(&result, "series", "x", "y", records, "x", "v");
    lk_add_mean_heat(&result, "heat", "x", "y", records, "x", "y", "v");
    const json_t *mean = json_object_get(result.metrics, "mean");
    assert_true(fabs(lk_record_number(mean, "value") - 5.0 / 3) < 1e-12);
    assert_true(fabs(lk_record_number(mean, "stderr") - sqrt(8.0 / 9 / 2)) <
                1e-12); /* deviation / sqrt(n - 1) */
    assert_true(lk_record_number(mean, "n") == 3);
    assert_null(json_object_get(result.metrics, "none"));
    char *series =
        json_dumps(json_object_get(result.series, "series"), JSON_COMPACT | JSON_REAL_PRECISION(6));
    char *heat =
        json_dumps(json_object_get(result.heat, "heat"), JSON_COMPACT | JSON_REAL_PRECISION(6));
    assert_string_equal(series, "{\"x\":[10.0,20.0],\"y\":[2.0,1.0],\"stderr\":[1.0,0.0],\"x_"
                                "label\":\"x\",\"y_label\":\"y\"}");
    assert_string_equal(heat, "{\"x\":[10.0,20.0],\"y\":[0.0,1.0],\"z\":[[1.0,1.0],[3.0,null]],\"x_"
                              "label\":\"x\",\"y_label\":\"y\"}");
    free(series);
    free(heat);
    lk_task_result_free(&result);
    json_decref(records);
}

/* ---- the results file ---- */

static json_t *header_of(const char *model) {
    return json_pack("{s:s s:s s:s s:{s:i}}", "type", "run", "model_fingerprint", model, "weights",
                     "shipped", "options", "--seed", 1);
}

static lk_status open_results(struct lk_results_file **out, const char *name, const char *model,
                              lk_err *err) {
    json_t *header = header_of(model);
    lk_status status = lk_results_open(out, in_folder(name), header, err);
    json_decref(header);
    return status;
}

static void test_results_survive(void **state) {
    struct lk_results_file *results, *second;
    lk_err err = {0};
    json_t *record = json_pack("{s:f}", "v", 0.1);
    const char *path = in_folder("results");
    unlink(path);
    assert_int_equal(open_results(&results, "results", "m", &err), LK_OK);
    assert_int_equal(lk_results_add_item(results, "task", "kv", "1", record, &err), LK_OK);
    assert_int_equal(open_results(&second, "results", "m", &err),
                     LK_E_IO); /* the file has one writer */
    assert_non_null(strstr(err.msg, "in use"));
    lk_results_close(results, NULL);

    char *whole = read_file("results");
    FILE *file = fopen(in_folder("results"), "a"); /* an incomplete line */
    fputs("{\"type\":\"item\",\"task\":\"ta", file);
    fclose(file);
    assert_int_equal(open_results(&results, "results", "m", &err), LK_OK);
    assert_true(lk_record_number(lk_results_item(results, "task", "kv", "1"), "v") == 0.1);
    assert_null(lk_results_item(results, "task", "kv", "2"));
    assert_int_equal(lk_results_add_item(results, "task", "kv", "2", record, &err), LK_OK);
    struct lk_task_result result;
    assert_int_equal(lk_task_result_init(&result, &err), LK_OK);
    lk_add_metric(&result, "m", 1.0 / 3, -1, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(lk_results_add_result(results, "task", "kv", &result, &err), LK_OK);
    lk_task_result_free(&result);
    lk_results_close(results, NULL);
    free(whole);
    whole = read_file("results");
    assert_int_equal(count(whole, "\"type\":\"item\""), 2);
    assert_int_equal(count(whole, "\"type\":\"result\""), 1); /* an equal result is not appended */
    assert_int_equal(count(whole, "\"ta\n"), 0);
    free(whole);

    assert_int_equal(open_results(&results, "results", "other", &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "another model"));
    write_file("bad", "{\"type\":\"run\",\"model_fingerprint\":\"m\",\"weights\":\"shipped\","
                      "\"options\":{\"--seed\":1}}\n{\"type\":\n");
    assert_int_equal(open_results(&results, "bad", "m", &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "bad:2: "));
    write_file("bad", "{\"type\":\"run\",\"model_fingerprint\":\"m\",\"weights\":\"shipped\","
                      "\"options\":{\"--seed\":2}}\n");
    assert_int_equal(open_results(&results, "bad", "m", &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "--seed"));
    write_file("bad", "a letter to a friend\n");
    assert_int_equal(open_results(&results, "bad", "m", &err), LK_E_FORMAT);
    write_file("bad", "a letter without an end");
    assert_int_equal(open_results(&results, "bad", "m", &err), LK_E_FORMAT);
    char *kept = read_file("bad");
    assert_string_equal(kept, "a letter without an end");
    free(kept);
    write_file("bad", "\n{\"type\":\"run\",\"model_fingerprint\":\"other\",\"weights\":\"shipped\","
                      "\"options\":{\"--seed\":1}}\n");
    assert_int_equal(open_results(&results, "bad", "m", &err),
                     LK_E_ARG); /* the header is the second line */
    assert_non_null(strstr(err.msg, "another model"));
    write_file("bad", "\na letter without an end");
    assert_int_equal(open_results(&results, "bad", "m", &err), LK_E_FORMAT);
    assert_int_equal(open_results(&results, "no/such/folder", "m", &err), LK_E_IO);
    json_decref(record);
}

/* A recipe of thousands of bytes is a name, too: all of it counts. */
static void test_results_have_long_names(void **state) {
    enum { LEN = 4000 };
    struct lk_results_file *results;
    lk_err err = {0};
    char kv[2][LEN + 1];
    json_t *record = json_pack("{s:f}", "v", 0.1);
    for (int i = 0; i < 2; i++) {
        memset(kv[i], 'r', LEN);
        kv[i][LEN - 1] = (char)('0' + i);
        kv[i][LEN] = 0;
    }
    unlink(in_folder("results"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(open_results(&results, "results", "m", &err), LK_OK);
        if (i == 0)
            assert_int_equal(lk_results_add_item(results, "task", kv[0], "1", record, &err), LK_OK);
        assert_true(lk_record_number(lk_results_item(results, "task", kv[0], "1"), "v") == 0.1);
        assert_null(lk_results_item(results, "task", kv[1], "1"));
        lk_results_close(results, NULL);
    }
    json_decref(record);
}

static lk_status open_with_sidecar(const char *name, const char *sidecar, lk_err *err) {
    struct lk_results_file *results;
    struct lk_eval eval = {.models = {.path = model_path, .opts = {.sidecar = sidecar}}};
    json_t *header = lk_run_header(&eval, "a test", err);
    if (!header) return err->code;
    lk_status status = lk_results_open(&results, in_folder(name), header, err);
    json_decref(header);
    if (status == LK_OK) lk_results_close(results, NULL);
    return status;
}

/* Results belong to the contents of the sidecar, not to its name. */
static void test_results_of_a_sidecar(void **state) {
    char one[100], other[100], again[100];
    lk_err err = {0};
    write_file("one", "a sidecar");
    write_file("other", "b sidecar");
    write_file("again", "a sidecar");
    snprintf(one, sizeof one, "%s", in_folder("one"));
    snprintf(other, sizeof other, "%s", in_folder("other"));
    snprintf(again, sizeof again, "%s", in_folder("again"));
    unlink(in_folder("of-one"));
    assert_int_equal(open_with_sidecar("of-one", one, &err), LK_OK);
    assert_int_equal(open_with_sidecar("of-one", again, &err), LK_OK);
    const char *const wrong[] = {other, NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(open_with_sidecar("of-one", wrong[i], &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, "another --sidecar"));
    }
    assert_int_equal(open_with_sidecar("of-one", "/nowhere", &err), LK_E_IO);

    /* A file that does not name a sidecar was made without one. */
    struct lk_eval eval = {.models = {.path = model_path}};
    json_t *header = lk_run_header(&eval, "a test", &err);
    json_object_del(json_object_get(header, "options"), "--plain"); /* nor such options */
    json_object_del(json_object_get(header, "options"), "--min-answer");
    json_object_del(json_object_get(header, "options"), "--sidecar");
    char *line = json_dumps(header, JSON_COMPACT), *file = calloc(1, strlen(line) + 2);
    strcat(strcat(file, line), "\n");
    write_file("older", file);
    assert_int_equal(open_with_sidecar("older", NULL, &err), LK_OK);
    write_file("older", file);
    assert_int_equal(open_with_sidecar("older", one, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "which sidecar"));
    eval.opts.min_answer = 8;
    write_file("older", file);
    json_t *longer = lk_run_header(&eval, "a test", &err);
    struct lk_results_file *results;
    assert_int_equal(lk_results_open(&results, in_folder("older"), longer, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "another --min-answer"));
    json_decref(longer);
    free(line), free(file);
    json_decref(header);
}

/* ---- whole runs ---- */

struct budget {
    int left; /* calls until it cancels; negative: never */
};

static bool spend(void *user, const char *task, const char *kv, double done, double total) {
    struct budget *budget = user;
    (void)kv;
    assert_non_null(task);
    assert_true(done >= 0 && done <= total * (1 + 1e-9));
    return budget->left < 0 || budget->left-- > 0;
}

static lk_status run(const char *const *task, const char *const *kv, size_t n_kv,
                     const struct lk_eval_opts *opts, const char *output, int budget, lk_err *err) {
    const struct lk_task *chosen[8];
    size_t n_task = 0;
    for (; task[n_task]; n_task++) {
        chosen[n_task] = lk_task_find(task[n_task]);
        assert_non_null(chosen[n_task]);
    }
    struct budget left = {budget};
    struct lk_eval eval = {
        .task = chosen,
        .kv = kv,
        .n_task = n_task,
        .n_kv = n_kv,
        .opts = *opts,
        .models = {.path = model_path, .opts = {.n_threads = 1, .weights = LK_WEIGHTS_F32}},
        .progress = spend,
        .user = &left};
    json_t *header = lk_run_header(&eval, "a test", err);
    assert_non_null(header);
    lk_status status = lk_results_open(&eval.results, in_folder(output), header, err);
    json_decref(header);
    if (status == LK_OK) {
        status = lk_eval_run(&eval, err);
        lk_results_close(eval.results, NULL);
    }
    lk_model_pair_close(&eval.models);
    return status;
}

/* The result lines of a file, which do not depend on time. */
static char *results_of(const char *name) {
    char *whole = read_file(name), *out = calloc(1, strlen(whole) + 1);
    for (char *line = strtok(whole, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, "\"type\":\"result\"")) strcat(strcat(out, line), "\n");
    free(whole);
    return out;
}

static const struct lk_eval_opts text_opts = {.text_path = "the text",
                                              .text = text,
                                              .text_len = sizeof text - 1,
                                              .n_ctx = CTX,
                                              .limit = 2,
                                              .seed = 1};

/* A run that is cancelled repeatedly ends with the same results as an uninterrupted one. */
static void test_interrupted_runs_go_on(void **state) {
    static const char *const task[] = {"text", "agree", NULL}, *const kv[] = {"best-2",
                                                                              "llama.cpp:q4_0"};
    lk_err err = {0};
    unlink(in_folder("whole"));
    unlink(in_folder("pieces"));
    if (run(task, kv, 2, &text_opts, "whole", -1, &err) != LK_OK) fail_msg("%s", err.msg);
    int n_run = 0;
    lk_status status;
    do {
        status = run(task, kv, 2, &text_opts, "pieces", 40 + 30 * n_run++, &err);
        if (status != LK_OK && status != LK_E_CANCELLED) fail_msg("%s", err.msg);
        assert_true(n_run < 100);
    } while (status == LK_E_CANCELLED);
    assert_true(n_run > 3);
    char *pieces = read_file("pieces"), *a = results_of("whole"), *b = results_of("pieces");
    assert_int_equal(count(pieces, "\"type\":\"item\""), 2 * 2 * 4);
    assert_int_equal(count(pieces, "\"type\":\"run\""), (size_t)n_run);
    assert_int_equal(count(a, "\n"), 2 * 4);
    assert_string_equal(a, b);
    free(a);
    free(b);
    free(pieces);
    /* With more recipes and items, only what is missing is run. */
    static const char *const more[] = {"best-2", "llama.cpp:q4_0", "best-4"};
    struct lk_eval_opts longer = text_opts;
    longer.limit = 3;
    if (run(task, more, 3, &longer, "pieces", -1, &err) != LK_OK) fail_msg("%s", err.msg);
    pieces = read_file("pieces");
    assert_int_equal(count(pieces, "\"type\":\"item\""), 2 * 3 * 5);
    free(pieces);
    longer.seed = 2;
    assert_int_equal(run(task, more, 3, &longer, "pieces", -1, &err), LK_E_ARG);
}

static double metric(const char *file, const char *task, const char *kv, const char *name) {
    char want[200];
    double value = NAN;
    char *whole = read_file(file);
    snprintf(want, sizeof want, "\"type\":\"result\",\"task\":\"%s\",\"kv\":\"%s\"", task, kv);
    for (char *line = strtok(whole, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strstr(line, want)) continue;
        json_t *json = json_loads(line, 0, NULL);
        value = lk_record_number(json_object_get(json_object_get(json, "metrics"), name), "value");
        json_decref(json);
    }
    free(whole);
    return value;
}

static void test_figures_of_text(void **state) {
    static const char *const task[] = {"text", NULL}, *const kv[] = {"all: f16", "best-2"};
    lk_err err = {0};
    unlink(in_folder("text"));
    if (run(task, kv, 2, &text_opts, "text", -1, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_true(metric("text", "text", "all: f16", "kl_mean") == 0 &&
                metric("text", "text", "all: f16", "top1") == 1);
    assert_true(metric("text", "text", "best-2", "kl_mean") > 0);
    assert_true(metric("text", "text", "best-2", "bits_per_value") <
                metric("text", "text", "f16", "bits_per_value"));
    /* lk_compare gives the same figures. */
    struct lk_model_pair models = models_of(LK_WEIGHTS_F32);
    int32_t *tok;
    size_t n_tok;
    lk_recipe *recipe;
    lk_compare_result result;
    lk_compare_opts opts = {.n_ctx = CTX, .n_chunk = 2};
    assert_int_equal(lk_model_pair_open(&models, &err), LK_OK);
    assert_int_equal(lk_task_tokenize(models.lowkey, text, sizeof text - 1, &tok, &n_tok, &err),
                     LK_OK);
    assert_int_equal(lk_recipe_parse(&recipe, "best-2", &err), LK_OK);
    assert_int_equal(lk_compare(models.lowkey, (const lk_recipe *const *)&recipe, 1, tok, n_tok,
                                &opts, &result, &err),
                     LK_OK);
    assert_true(fabs(metric("text", "text", "best-2", "kl_mean") / result.kl_mean - 1) < 1e-6);
    assert_true(fabs(metric("text", "text", "best-2", "ppl") / result.ppl - 1) < 1e-6);
    assert_true(fabs(metric("text", "text", "best-2", "bits_per_value") / result.bits_per_value -
                     1) < 1e-6);
    lk_recipe_free(recipe);
    free(tok);
    lk_model_pair_close(&models);
}

static void test_bytes_are_the_ledgers(void **state) {
    static const char *const task[] = {"bytes", NULL}, *const kv[] = {"best-3", "llama.cpp:q8_0"};
    lk_err err = {0};
    unlink(in_folder("bytes"));
    if (run(task, kv, 2, &text_opts, "bytes", -1, &err) != LK_OK) fail_msg("%s", err.msg);
    double sum = metric("bytes", "bytes", "best-3", "code_bytes") +
                 metric("bytes", "bytes", "best-3", "scale_bytes") +
                 metric("bytes", "bytes", "best-3", "exact_bytes") +
                 metric("bytes", "bytes", "best-3", "padding_bytes");
    assert_true(sum == metric("bytes", "bytes", "best-3", "cache_bytes"));
    assert_true(fabs(16 * sum / metric("bytes", "bytes", "best-3", "f16_bytes") /
                         metric("bytes", "bytes", "best-3", "bits_per_value") -
                     1) < 1e-6);
    assert_true(metric("bytes", "bytes", "llama.cpp:q8_0", "cache_bytes") /
                    metric("bytes", "bytes", "llama.cpp:q8_0", "f16_bytes") ==
                8.5 / 16);
    assert_true(metric("bytes", "bytes", "f16", "peak_resident_bytes") > sum);
    char *whole = read_file("bytes");
    assert_int_equal(count(whole, "\"type\":\"item\""), 4);
    assert_int_equal(count(whole, "\"seconds\":"), 4);
    free(whole);
}

static void test_bad_input(void **state) {
    static const char *const text_task[] = {"text", NULL}, *const agree_task[] = {"agree", NULL},
                             *const bytes_task[] = {"bytes", NULL};
    static const char *const kv[] = {"best-3"};
    const char *const *const of_text[] = {text_task, agree_task, bytes_task};
    lk_err err = {0};
    for (int i = 0; i < 3; i++) {
        struct lk_eval_opts opts = text_opts;
        opts.text = NULL;
        assert_int_equal(run(of_text[i], kv, 1, &opts, "none", -1, &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, "give --text"));
        opts.text = "";
        opts.text_len = 0;
        unlink(in_folder("none"));
        assert_int_equal(run(of_text[i], kv, 1, &opts, "none", -1, &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, "is empty"));
        opts = text_opts;
        opts.n_ctx = 1 << 20;
        unlink(in_folder("none"));
        assert_int_equal(run(of_text[i], kv, 1, &opts, "none", -1, &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, "fewer than the context"));
        unlink(in_folder("none"));
    }
    struct lk_eval_opts opts = {.seed = 1};
    static const char *const nonsense[] = {"body: rot99"};
    assert_int_equal(run(text_task, nonsense, 1, &opts, "none", -1, &err), LK_E_FORMAT);
    unlink(in_folder("none"));
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    struct tiny_spec spec = *tiny_preset("llama-spm");
    spec.n_ctx = 2 * CTX;
    if (!tiny_gguf_write(model_path, &spec)) return 1;
    struct random r = {7};
    for (size_t i = 0; i + 1 < sizeof text; i++)
        text[i] = (char)(random_int(&r, 0, 4) ? random_int(&r, 'a', 'z') : ' ');
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_results_survive),
        cmocka_unit_test(test_results_have_long_names),
        cmocka_unit_test(test_results_of_a_sidecar),
        cmocka_unit_test(
            test_bytes_are_the_ledgers), /* forks, so it runs before there are threads */
        cmocka_unit_test(test_figures_of_text),
        cmocka_unit_test(test_interrupted_runs_go_on),
        cmocka_unit_test(test_bad_input),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char clean[160];
    snprintf(clean, sizeof clean, "rm -rf %s", folder);
    return system(clean) || failed;
}
