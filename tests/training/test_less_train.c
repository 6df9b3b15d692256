/* Training LESS: cancelled and continued at any moment, rejected options, and leftover files. */
#include "codec/f16.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"
#include "training/less_checkpoint.h"
#include "training/less_data.h"
#include "training/less_net.h"

#include <sys/stat.h>
#include <unistd.h>

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

static void write_file(const char *name, const char *bytes, long size) {
    FILE *file = fopen(name, "wb");
    assert_int_equal(fwrite(bytes, 1, (size_t)size, file), size);
    fclose(file);
}

enum { N_CTX = 96, N_SEQ = 5 };

/* Two sequences under one policy. */
static struct lk_less_data_opts data_opts(const char *name, lk_model *model,
                                          const struct lk_less_policy *policy, const int32_t *tok,
                                          struct lk_ledger *ledger) {
    return (struct lk_less_data_opts){.path = name,
                                      .model = model,
                                      .policy = policy,
                                      .n_policy = 1,
                                      .tok = tok,
                                      .n_seq = 2,
                                      .n_ctx = N_CTX,
                                      .stride = 1,
                                      .ledger = ledger};
}

static bool fail_if_collected(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)done, (void)total;
    fail_msg("existing examples were collected again");
    return false;
}

/* A file of examples is used again for the same source, whatever is in the padding of a policy. */
static void test_examples_kept(void **unused) {
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
        policy.sink = 0, policy.keep = 8, policy.window = 8, policy.prompt = 0;
        struct lk_less_data_opts opts = data_opts(name, model, &policy, tok, &ledger);
        if (i) opts.progress = fail_if_collected;
        if (lk_less_data_open(&data, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
        lk_less_data_close(&data);
    }
    unlink(name);
    lk_model_free(model);
}

/* Rows that a session's policy evicts. */
struct evicted_rows {
    int n[8], d;
    float *k[8]; /* of each KV head of layer 0, [n][d] */
};

static void collect_row(void *user, int layer, int head, const float *k, const float *v) {
    struct evicted_rows *rows = user;
    (void)v;
    if (layer > 0) return;
    rows->k[head] = realloc(rows->k[head], (size_t)(rows->n[head] + 1) * rows->d * sizeof(float));
    memcpy(rows->k[head] + (size_t)rows->n[head]++ * rows->d, k, (size_t)rows->d * sizeof(float));
}

/* The examples have the rows that a cache with this policy evicts, in the same order. Keys of layer
 * 0 do not depend on attention, so they are the same with and without eviction. */
static void check_evicted_rows(lk_model *model, const int32_t *tok, const char *name,
                               const char *recipe_text, int prompt) {
    char path_of[100];
    snprintf(path_of, sizeof path_of, "%s.evicted", path);
    struct lk_ledger ledger = {0};
    struct lk_less_policy policy;
    struct lk_less_data data;
    struct lk_less_example ex;
    lk_err err = {0};
    assert_int_equal(lk_less_policy_named(&policy, name, 16, &err), LK_OK);
    policy.prompt = prompt;
    struct lk_less_data_opts opts = data_opts(path_of, model, &policy, tok, &ledger);
    if (lk_less_data_open(&data, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(lk_less_data_read(&data, 0, 1, &ex, &err), LK_OK);

    lk_recipe *recipe;
    lk_session *session = open_session(model, recipe_text, N_CTX, &recipe);
    const struct lk_hparams *hp = &model->net->hp;
    struct evicted_rows rows = {.d = hp->d_head};
    session->cache->evict_hook = (struct lk_evict_hook){collect_row, &rows};
    if (prompt) assert_int_equal(lk_session_sync(session, tok + N_CTX, prompt, NULL, &err), LK_OK);
    for (int i = prompt; i < N_CTX - 1; i++)
        assert_int_equal(lk_session_eval(session, tok + N_CTX + i, 1, false, &err), LK_OK);
    for (int head = 0; head < hp->n_head_kv; head++) {
        assert_int_equal(rows.n[head], ex.n_evicted);
        for (int i = 0; i < rows.n[head]; i++)
            for (int c = 0; c < rows.d; c++)
                assert_float_equal(
                    rows.k[head][i * rows.d + c],
                    lk_f16_to_f32(ex.k[((size_t)head * ex.n_evicted + i) * rows.d + c]), 0.02);
        free(rows.k[head]);
    }
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_less_data_close(&data);
    unlink(path_of);
}

static void test_evicted_rows(void **unused) {
    lk_model *model = open_with_sidecar("llama", 0, 1, 5);
    int32_t tok[2 * N_CTX];
    random_tokens(tok, 2 * N_CTX, model, 23);
    for (int prompt = 0; prompt <= 40; prompt += 40) {
        check_evicted_rows(model, tok, "h2o", "keep 8 by h2o: f16; window 8: f16", prompt);
        check_evicted_rows(model, tok, "tova", "keep 15 by tova: f16; window 1: f16", prompt);
        check_evicted_rows(model, tok, "lambda",
                           "sink 4: f16; body: none; window 12: f16; absorb less", prompt);
    }
    lk_model_free(model);
}

/* Rates halve after each quarter of the epochs in the paper, six times in the second half in ours.
 * A step of the paper has two sequences. */
static void test_schedule(void **unused) {
    struct lk_less_schedule paper = {.n_epoch = 40, .rate = 1e-3f, .plain = true},
                            ours = {.n_epoch = 40, .rate = 1e-3f};
    for (int epoch = 0; epoch < 40; epoch++) {
        assert_float_equal(lk_less_epoch_rate(&paper, epoch), 1e-3 / (1 << (epoch / 10)), 1e-9);
        if (epoch < 20) assert_float_equal(lk_less_epoch_rate(&ours, epoch), 1e-3, 1e-9);
    }
    assert_float_equal(lk_less_epoch_rate(&ours, 39), 1e-3 / 64, 1e-9);
    assert_int_equal(lk_less_batch(&paper), 2);
    assert_int_equal(lk_less_batch(&ours), 1);
}

/* Queries increase, the places take the rows of a prompt and those between queries, and what
 * follows a control token counts more. */
static void check_queries(lk_model *model, const int32_t *tok, bool plain, int wanted) {
    const int prompts[] = {0, 50, 5};
    struct lk_less_source source = {
        .n_layer = 1, .n_head = 1, .n_head_kv = 1, .n_ctx = N_CTX, .n_seq = 3, .stride = 2};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lk_less_policy_named(&source.policy[i], "h2o", 16, NULL), LK_OK);
        source.policy[i].prompt = prompts[i];
    }
    source.n_policy = 3;
    struct lk_less_queries q = {.model = model, .tok = tok, .plain = plain};
    int32_t query[N_CTX];
    float weight[N_CTX];
    lk_less_queries_size(&q, &source, wanted);
    assert_true(q.n_query >= 2 && q.n_query <= wanted);
    q.query = query, q.weight = weight;
    for (int seq = 0; seq < 3; seq++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            const struct lk_less_policy *policy = &source.policy[seq];
            int n_rows = 0, first = lk_less_policy_first(policy), n_heavy = 0;
            lk_less_choose_queries(&q, &source, seq, seed);
            for (int i = 0; i < q.n_query; i++) {
                /* Rows that a query misses: one by one, and before query 0 those of the prompt. */
                int missed = first - 16 + query[i] * 2;
                if (query[i] < 0) {
                    n_rows += q.n_between;
                    assert_true(prompts[seq] > 16 && n_heavy == 0 && weight[i] == 1);
                    continue;
                }
                if (n_rows > missed) n_rows = first - 16;
                assert_true(missed - n_rows <= q.n_between);
                assert_true(query[i] < lk_less_data_queries(&source, policy));
                if (i > 0) assert_true(query[i] > query[i - 1]);
                n_rows = missed;
                bool heavy = false;
                int pos = first + query[i] * 2;
                for (int p = pos - 8 < 0 ? 0 : pos - 8; p <= pos; p++)
                    heavy |= lk_token_is_control(model, tok[seq * N_CTX + p]);
                assert_true((weight[i] > 1) == (heavy && !plain));
                n_heavy++;
            }
            assert_true(n_heavy > 0);
        }
}

static void test_queries(void **unused) {
    lk_model *model = open_preset("llama-spm", 0, 1);
    int32_t tok[3 * N_CTX], control = 0;
    while (!lk_token_is_control(model, control)) assert_true(++control < 1000);
    random_tokens(tok, 3 * N_CTX, model, 24);
    tok[70] = tok[N_CTX + 60] = control;
    for (int wanted = 2; wanted <= N_CTX; wanted += 11) {
        check_queries(model, tok, false, wanted);
        check_queries(model, tok, true, wanted);
    }
    assert_int_equal(lk_less_stride(4096, 64), 4);
    assert_int_equal(lk_less_stride(96, 40), 1);
    lk_model_free(model);
}

/* A huge weight in a layer's file makes the loss infinite or NaN. Training stops, reports where,
 * writes no sidecar, and leaves the state of the last good epoch unchanged. */
static void test_not_finite(void **unused) {
    enum {
        HEAD = sizeof(struct lk_less_state),
        WEIGHT = 7
    }; /* bytes before the weights; one of phi's */
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
    stop = (struct stop){0};
    struct lk_less_state good, damaged[7];
    memcpy(&good, bytes[0], sizeof good);
    for (int i = 0; i < 7; i++) damaged[i] = good;
    damaged[0].n_epoch = 7, damaged[1].n_epoch = INT32_MIN;
    damaged[2].n_step = INT64_MAX, damaged[3].n_step = 0;
    damaged[4].best_epoch = 3, damaged[5].best = NAN, damaged[6].tuned = 2;
    for (int i = 0; i < 7; i++) {
        memcpy(bytes[0], &damaged[i], sizeof good);
        write_file(layer, bytes[0], size[0]);
        assert_int_equal(lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name, &err), LK_E_FORMAT);
        assert_non_null(strstr(err.msg, "is damaged"));
    }
    memcpy(bytes[0], &good, sizeof good);
    memcpy(bytes[0] + HEAD + WEIGHT * sizeof huge, &huge, sizeof huge);
    write_file(layer, bytes[0], size[0]);
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

/* Training as in the paper reduces the loss too. */
static void test_plain(void **unused) {
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[N_SEQ * N_CTX];
    random_tokens(tok, N_SEQ * N_CTX, model, 25);
    char name[100];
    snprintf(name, sizeof name, "%s-plain", path);
    struct stop stop = {0};
    lk_err err = {0};
    const int32_t budget[] = {16};
    lk_less_opts opts = {.policy = "tova",
                         .budget = budget,
                         .n_budget = 1,
                         .n_ctx = N_CTX,
                         .n_hidden = 16,
                         .n_epoch = 8,
                         .rate = 3e-3f,
                         .plain = true,
                         .layer_done = check_layer,
                         .user = &stop};
    if (lk_train_less(model, tok, N_SEQ * N_CTX, &opts, name, &err) != LK_OK)
        fail_msg("%s", err.msg);
    print_message("mean loss after plain training: %.4f of the policy's\n",
                  stop.loss / lk_model_get_info(model).n_layer);
    assert_true(stop.loss < lk_model_get_info(model).n_layer);
    unlink(name);
    lk_model_free(model);
}

static void test_training(void **unused) {
    lk_model *model = open_preset("llama", 0, 1);
    lk_model_info info = lk_model_get_info(model);
    int32_t tok[N_SEQ * N_CTX];
    random_tokens(tok, N_SEQ * N_CTX, model, 21);
    char name[2][100], beside[120];
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "%s-%d", path, i);
    struct stop stop = {0};
    lk_err err = {0};
    const int32_t budget[] = {16, 24}, prompt[] = {0, 0, 50};
    lk_less_opts opts = {.policy = "h2o",
                         .budget = budget,
                         .n_budget = 2,
                         .prompt = prompt,
                         .n_prompt = 3,
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
    bad = opts, bad.prompt = (int32_t[]){0, N_CTX}, bad.n_prompt = 2;
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
        cmocka_unit_test(test_examples_kept), cmocka_unit_test(test_evicted_rows),
        cmocka_unit_test(test_schedule),      cmocka_unit_test(test_queries),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_layer_not_kept),
        cmocka_unit_test(test_plain),         cmocka_unit_test(test_training)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
