/* Training LESS: cancelled and continued at any moment, rejected options, and leftover files. */
#include "lowkey_lab.h"
#include "support_model.h"
#include "training/less_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/lowkey-less-train-XXXXXX";

struct stop {
    uint64_t after; /* progress calls until cancelled; 0: never */
    uint64_t n;
    int layers;
    double loss; /* sum over layers */
};

static bool stop_after(void *user, uint64_t done, uint64_t total) {
    struct stop *stop = user;
    assert_true(done <= total);
    return stop->after == 0 || ++stop->n < stop->after;
}

static void check_layer(void *user, const lk_less_layer *layer) {
    struct stop *stop = user;
    assert_int_equal(layer->layer, stop->layers++);
    assert_true(layer->best_epoch >= 1 && layer->best_epoch <= layer->n_epoch);
    stop->loss += layer->loss;
}

static char *read_file(const char *name, long *size) {
    FILE *file = fopen(name, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*size);
    assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

enum { N_CTX = 96, N_SEQ = 5 };

static bool fail_if_collected(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)done, (void)total;
    fail_msg("existing examples were collected again");
    return false;
}

/* A file of examples is used again for the same source, whatever is in the padding of a policy. */
static void test_examples_kept(void **unused) {
    (void)unused;
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[2 * N_CTX];
    for (int i = 0; i < 2 * N_CTX; i++) tok[i] = i % 50;
    char name[100];
    snprintf(name, sizeof name, "%s.kept", path);
    struct lk_ledger ledger = {0};
    lk_err err = {0};
    for (int i = 0; i < 2; i++) {
        struct lk_less_policy policy;
        struct lk_less_data data;
        memset(&policy, i ? 0xff : 0, sizeof policy);
        policy.rule.kind = LK_POLICY_H2O, policy.rule.mean = false, policy.rule.per_head = false,
        policy.rule.seed = 0;
        policy.sink = 0, policy.keep = 8, policy.window = 8;
        struct lk_less_data_opts opts = {.path = name,
                                         .model = model,
                                         .policy = &policy,
                                         .n_policy = 1,
                                         .tok = tok,
                                         .n_seq = 2,
                                         .n_ctx = N_CTX,
                                         .progress = i ? fail_if_collected : NULL,
                                         .ledger = &ledger};
        if (lk_less_data_open(&data, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
        lk_less_data_close(&data);
    }
    unlink(name);
    lk_model_free(model);
}

/* A huge weight in a layer's file makes the loss infinite or NaN. Training stops, reports where,
 * writes no sidecar, and leaves the state of the last good epoch unchanged. */
static void test_not_finite(void **unused) {
    (void)unused;
    enum { HEAD = 40, WEIGHT = 7 }; /* bytes before the weights; one of phi's */
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[N_SEQ * N_CTX];
    random_tokens(tok, N_SEQ * N_CTX, model, 22);
    char name[100], layer[120], examples[120];
    snprintf(name, sizeof name, "%s-thrown", path);
    snprintf(layer, sizeof layer, "%s.layer-0", name);
    snprintf(examples, sizeof examples, "%s.examples", name);
    struct stop stop = {.after = (uint64_t)N_SEQ * lk_model_get_info(model).n_layer +
                                 2 * (N_SEQ - 1) + 2}; /* in the third epoch */
    lk_err err = {0};
    const int32_t budget[] = {16};
    lk_less_opts opts = {.policy = "h2o",
                         .budget = budget,
                         .n_budget = 1,
                         .n_ctx = N_CTX,
                         .n_hidden = 16,
                         .n_epoch = 6,
                         .n_query = 40,
                         .rate = 3e-3f,
                         .valid = 0.2f,
                         .progress = stop_after,
                         .user = &stop};
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name, &err), LK_E_CANCELLED);
    long size[2];
    char *bytes[2] = {read_file(layer, &size[0])};
    const float huge = 1e38f;
    memcpy(bytes[0] + HEAD + WEIGHT * sizeof huge, &huge, sizeof huge);
    FILE *file = fopen(layer, "wb");
    assert_int_equal(fwrite(bytes[0], 1, (size_t)size[0], file), size[0]);
    fclose(file);
    stop = (struct stop){0};
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "layer 0, epoch 3, sequence "));
    assert_non_null(strstr(err.msg, "the state after epoch 2 is kept in "));
    assert_int_equal(access(name, F_OK), -1);
    bytes[1] = read_file(layer, &size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    free(bytes[0]), free(bytes[1]);
    unlink(layer), unlink(examples);
    lk_model_free(model);
}

/* A layer's file that cannot be renamed: training stops, and no temporary file is left. */
static void test_layer_not_kept(void **unused) {
    (void)unused;
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[2 * N_CTX];
    for (int i = 0; i < 2 * N_CTX; i++) tok[i] = i % 50;
    char name[100], layer[120], draft[140], examples[120];
    snprintf(name, sizeof name, "%s-held", path);
    snprintf(layer, sizeof layer, "%s.layer-0", name);
    snprintf(draft, sizeof draft, "%s.new", layer);
    snprintf(examples, sizeof examples, "%s.examples", name);
    lk_err err = {0};
    const int32_t budget[] = {16};
    lk_less_opts opts = {.policy = "h2o",
                         .budget = budget,
                         .n_budget = 1,
                         .n_ctx = N_CTX,
                         .n_hidden = 16,
                         .n_epoch = 1,
                         .n_query = 40,
                         .n_layer = 1};
    assert_int_equal(mkdir(layer, 0700), 0);
    assert_int_equal(lk_train_less(model, tok, 2 * N_CTX, &opts, name, &err), LK_E_IO);
    assert_int_equal(access(draft, F_OK), -1);
    assert_int_equal(rmdir(layer), 0);
    unlink(examples);
    lk_model_free(model);
}

static void test_training(void **unused) {
    (void)unused;
    lk_model *model = open_preset("llama", 0, 1);
    lk_model_info info = lk_model_get_info(model);
    int32_t tok[N_SEQ * N_CTX];
    random_tokens(tok, N_SEQ * N_CTX, model, 21);
    char name[2][100], beside[120];
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "%s-%d", path, i);
    struct stop stop = {0};
    lk_err err = {0};
    const int32_t budget[] = {16, 24};
    lk_less_opts opts = {.policy = "h2o",
                         .budget = budget,
                         .n_budget = 2,
                         .n_ctx = N_CTX,
                         .n_hidden = 16,
                         .n_epoch = 6,
                         .n_query = 40,
                         .rate = 3e-3f,
                         .dropout = 0.3f,
                         .valid = 0.2f,
                         .seed = 5,
                         .progress = stop_after,
                         .layer_done = check_layer,
                         .user = &stop};
    if (lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name[0], &err) != LK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(stop.layers, info.n_layer);
    print_message("mean loss after training: %.4f of the policy's\n", stop.loss / info.n_layer);
    assert_true(stop.loss < 0.97 * info.n_layer);
    struct stop first = stop;
    snprintf(beside, sizeof beside, "%s.examples", name[0]);
    assert_int_equal(access(beside, F_OK), -1);

    /* Cancelled many times and continued each time: the same file. */
    lk_status status = LK_E_CANCELLED;
    int runs = 0;
    for (; status == LK_E_CANCELLED; runs++) {
        stop = (struct stop){.after = 11};
        status = lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name[1], &err);
        assert_true(runs < 100);
        if (status == LK_E_CANCELLED) assert_int_equal(access(name[1], F_OK), -1);
    }
    if (status != LK_OK) fail_msg("%s", err.msg);
    assert_true(runs > 3);
    long size[2];
    char *bytes[2] = {read_file(name[0], &size[0]), read_file(name[1], &size[1])};
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    free(bytes[1]);

    /* One call per layer, the last layer first: the same file. */
    unlink(name[1]);
    opts.progress = NULL, opts.layer_done = NULL;
    lk_less_opts one = opts;
    one.n_layer = 1;
    for (one.first_layer = info.n_layer - 1; one.first_layer >= 0; one.first_layer--) {
        assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &one, name[1], &err), LK_OK);
        assert_int_equal(access(name[1], F_OK), -1);
    }
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name[1], &err), LK_OK);
    bytes[1] = read_file(name[1], &size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    free(bytes[0]), free(bytes[1]);

    /* Fine-tuned, whatever sizes are requested: with a negligible rate the loss stays the same. */
    double before = first.loss;
    lk_less_opts more = opts;
    stop = (struct stop){0};
    more.from = name[0], more.n_hidden = 0, more.n_epoch = 1, more.rate = 1e-7f, more.dropout = 0;
    more.layer_done = check_layer;
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &more, name[1], &err), LK_OK);
    assert_float_equal(stop.loss, before, 1e-3 * before);
    assert_true(tiny_gguf_write(path, tiny_preset("llama")));
    more.from = path; /* a model */
    assert_int_not_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &more, name[1], &err), LK_OK);

    /* Rejected options. */
    stop = (struct stop){0};
    lk_less_opts bad = opts;
    bad.first_layer = info.n_layer;
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_ARG);
    bad = opts;
    bad.budget = (int32_t[]){16, 90};
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_ARG);
    bad = opts, bad.n_seq = 6;
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_ARG);
    bad = opts, bad.policy = "lambda", bad.budget = (int32_t[]){8, 4}; /* only its sinks */
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "at least 5"));
    bad = opts, bad.policy = "best";
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_ARG);
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &opts, "/nowhere/at/all", &err),
                     LK_E_IO);

    /* A rate that diverges: the error says where, the last good state is kept, no sidecar
     * appears. */
    unlink(name[1]);
    bad = opts, bad.rate = 1e30f;
    assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &bad, name[1], &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "layer 0, epoch"));
    assert_int_equal(access(name[1], F_OK), -1);
    for (int i = 0; i < info.n_layer; i++) {
        snprintf(beside, sizeof beside, "%s.layer-%d", name[1], i);
        unlink(beside);
    }
    snprintf(beside, sizeof beside, "%s.examples", name[1]);
    assert_int_equal(unlink(beside), 0);
    unlink(name[0]);
    lk_model_free(model);
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_kept), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_layer_not_kept), cmocka_unit_test(test_training)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
