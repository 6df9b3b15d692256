/* Backends on a tiny model: sessions and libllama predict the same, and sessions share a
 * prefill. */
#include "eval/backend.h"
#include "lowkey_lab.h"
#include "test.h"
#include "tiny_gguf.h"

#include <unistd.h>

enum { CTX = 512 };

static char model_path[] = "/tmp/lowkey-backend-XXXXXX";

static struct lk_model_pair models_of(lk_weights weights) {
    return (struct lk_model_pair){.path = model_path, .opts = {.n_threads = 1, .weights = weights}};
}

static struct lk_backend *open_backend(struct lk_model_pair *models, const char *kv) {
    struct lk_backend *backend = NULL;
    lk_err err = {0};
    if (lk_backend_open(&backend, models, kv, CTX, &err) != LK_OK) fail_msg("%s: %s", kv, err.msg);
    return backend;
}

static void random_tokens(int32_t *tok, size_t n, size_t n_vocab, uint64_t seed) {
    struct random r = {seed};
    for (size_t i = 0; i < n; i++) tok[i] = random_int(&r, 0, (int)n_vocab - 1);
}

/* A session with the recipe f16 and libllama's f16 context predict the same. Both are full
 * caches. */
static void test_lowkey_and_libllama_agree(void **state) {
    enum { STEP = 32 };
    struct lk_model_pair models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_backend *backend[] = {open_backend(&models, "f16"),
                                    open_backend(&models, "llama.cpp:f16"),
                                    open_backend(&models, "llama.cpp:q4_0")};
    struct lk_predictor predictor[3];
    struct lk_prediction *score[3];
    size_t n = lk_compare_n_scored(CTX), n_vocab = backend[0]->n_vocab;
    int32_t tok[CTX];
    lk_err err = {0};
    random_tokens(tok, CTX, n_vocab, 1);
    for (int i = 0; i < 3; i++) {
        predictor[i] = lk_backend_predictor(backend[i]);
        score[i] = malloc(n * sizeof *score[i]);
    }
    lk_compare_text chunk = {.tok = tok, .n_ctx = CTX, .n_step = STEP, .n_vocab = n_vocab};
    if (lk_compare_chunk(predictor, 3, &chunk, score, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_compare_result same = lk_compare_summarize(score[1], n, 1),
                      worse = lk_compare_summarize(score[2], n, 1);
    print_message("llama.cpp:f16 against f16: KL %.3g; q4_0: %.3g\n", same.kl_mean, worse.kl_mean);
    assert_true(same.kl_mean < 1e-5 && same.top1 > 0.95);
    assert_true(worse.kl_mean > 10 * same.kl_mean);
    assert_true(fabs(lk_backend_stats(backend[2]).bits_per_value - 4.5) < 1e-9);
    assert_int_equal(lk_backend_stats(backend[1]).cache_bytes,
                     lk_backend_stats(backend[1]).f16_bytes);
    for (int i = 0; i < 3; i++) {
        free(score[i]);
        lk_backend_close(backend[i]);
    }
    lk_model_pair_close(&models);
}

/* With f32 weights, libllama opens a temporary copy and gives the same likelihoods. */
static void test_f32_weights(void **state) {
    struct lk_model_pair models = models_of(LK_WEIGHTS_F32);
    struct lk_backend *ours = open_backend(&models, "f16"),
                      *theirs = open_backend(&models, "llama.cpp:plain");
    int32_t tok[64];
    double a, b;
    random_tokens(tok, 64, ours->n_vocab, 2);
    assert_int_equal(lk_backend_nll(ours, tok, 10, 64, &a, NULL, NULL), LK_OK);
    assert_int_equal(lk_backend_nll(theirs, tok, 10, 64, &b, NULL, NULL), LK_OK);
    assert_true(fabs(a - b) < 1e-3 * a);
    lk_backend_close(ours);
    lk_backend_close(theirs);
    lk_model_pair_close(&models);
}

/* The likelihood of a continuation is the sum over its tokens, whatever was evaluated before. */
static void test_likelihoods_add_up(void **state) {
    static const char *const kv[] = {"f16", "selective", "llama.cpp:f16"};
    enum { N = 200, GIVEN = 37 };
    struct lk_model_pair models = models_of(LK_WEIGHTS_AS_SHIPPED);
    for (int i = 0; i < 3; i++) {
        struct lk_backend *s = open_backend(&models, kv[i]);
        int32_t tok[N], other[N];
        float each[N];
        double whole, again, part;
        random_tokens(tok, N, s->n_vocab, 3);
        random_tokens(other, N, s->n_vocab, 4);
        assert_int_equal(lk_backend_nll(s, tok, GIVEN, N, &whole, each, NULL), LK_OK);
        double sum = 0;
        for (int t = 0; t < N - GIVEN; t++) sum += each[t];
        assert_true(fabs(sum - whole) < 1e-3 * whole);
        memcpy(other, tok, GIVEN * sizeof *tok);
        assert_int_equal(lk_backend_nll(s, other, GIVEN, N, &part, NULL, NULL), LK_OK);
        assert_int_equal(lk_backend_nll(s, tok, GIVEN, N, &again, NULL, NULL), LK_OK);
        assert_true(fabs(again - whole) < 1e-3 * whole);
        assert_true(fabs(part - whole) > 1e-3 * whole);
        assert_int_equal(lk_backend_nll(s, tok, N, N, &part, NULL, NULL), LK_E_ARG);
        assert_int_equal(lk_backend_nll(s, tok, 0, N, &part, NULL, NULL), LK_E_ARG);
        lk_backend_close(s);
    }
    lk_model_pair_close(&models);
}

static bool same_logits(const struct lk_backend *a, const struct lk_backend *b) {
    return memcmp(lk_backend_logits(a, -1), lk_backend_logits(b, -1), a->n_vocab * sizeof(float)) ==
           0;
}

/* A prefill of several sessions leaves each in the same state as its own prefill, whatever they
 * held before. */
static void test_shared_prefill(void **state) {
    static const char *const kv[] = {"f16", "best-3", "kivi-2", "selective"};
    enum { N = 300, MORE = 40, N_KV = sizeof kv / sizeof kv[0] };
    struct lk_model_pair models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_backend *together[N_KV], *alone[N_KV];
    int32_t tok[CTX + 1];
    lk_err err = {0};
    for (int i = 0; i < N_KV; i++)
        together[i] = open_backend(&models, kv[i]), alone[i] = open_backend(&models, kv[i]);
    random_tokens(tok, CTX + 1, alone[0]->n_vocab, 6);
    assert_int_equal(lk_backend_prefill(together[2], tok + 7, 90, NULL), LK_OK);
    assert_int_equal(lk_backend_prefill_all(together, N_KV, tok, CTX + 1, &err), LK_E_FULL);
    for (int round = 0; round < 2; round++) {
        if (lk_backend_prefill_all(together, N_KV, tok, N, &err) != LK_OK) fail_msg("%s", err.msg);
        for (int i = 0; i < N_KV; i++) {
            lk_backend_clear(alone[i]);
            assert_int_equal(lk_backend_prefill(alone[i], tok, N, NULL), LK_OK);
            assert_true(same_logits(together[i], alone[i]));
            assert_int_equal(lk_backend_stats(together[i]).cache_bytes,
                             lk_backend_stats(alone[i]).cache_bytes);
            assert_int_equal(lk_backend_eval(together[i], tok + N, MORE, false, NULL), LK_OK);
            assert_int_equal(lk_backend_eval(alone[i], tok + N, MORE, false, NULL), LK_OK);
            assert_true(same_logits(together[i], alone[i]));
        }
    }
    assert_false(same_logits(together[0], together[2]));
    for (int i = 0; i < N_KV; i++) lk_backend_close(together[i]), lk_backend_close(alone[i]);
    lk_model_pair_close(&models);
}

/* A backend returns to a saved state, logits and cache included. A prefill of the tokens that it
 * already holds does nothing. */
static void test_save_and_restore(void **state) {
    static const char *const kv[] = {"f16", "best-2", "llama.cpp:f16", "llama.cpp:q4_0"};
    enum { N = 300, MORE = 70 };
    struct lk_model_pair models = models_of(LK_WEIGHTS_AS_SHIPPED);
    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++) {
        struct lk_backend *s = open_backend(&models, kv[i]), *t = open_backend(&models, kv[i]);
        int32_t tok[N + MORE];
        random_tokens(tok, N + MORE, s->n_vocab, 7);
        for (int k = 0; k < 2; k++) {
            struct lk_backend *one = k ? t : s;
            assert_int_equal(lk_backend_prefill(one, tok, N - 1, NULL), LK_OK);
            assert_int_equal(lk_backend_eval(one, tok + N - 1, 1, false, NULL), LK_OK);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(lk_backend_save(s, NULL), LK_OK);
            assert_int_equal(lk_backend_eval(s, tok + 5, MORE, false, NULL), LK_OK);
            assert_false(same_logits(s, t));
            assert_int_equal(lk_backend_restore(s, NULL), LK_OK);
            assert_true(same_logits(s, t));
            assert_int_equal(lk_backend_prefill(s, tok, N, NULL), LK_OK);
            assert_true(same_logits(s, t));
        }
        assert_int_equal(lk_backend_eval(s, tok + N, MORE, false, NULL), LK_OK);
        assert_int_equal(lk_backend_eval(t, tok + N, MORE, false, NULL), LK_OK);
        assert_true(same_logits(s, t));
        lk_backend_close(s);
        lk_backend_close(t);
    }
    lk_model_pair_close(&models);
}

/* Generation is greedy and ends at the stop text. */
static void test_generation(void **state) {
    enum { N = 24 };
    struct lk_model_pair models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_backend *s = open_backend(&models, "f16"),
                      *t = open_backend(&models, "llama.cpp:f16");
    int32_t tok[40], a[N], b[N], c[N];
    size_t n_a, n_b, n_c;
    random_tokens(tok, 40, s->n_vocab, 5);
    assert_int_equal(lk_backend_generate(s, 0, N, NULL, a, &n_a, NULL), LK_E_ARG);
    assert_int_equal(lk_backend_prefill(s, tok, 40, NULL), LK_OK);
    assert_int_equal(lk_backend_generate(s, 0, N, NULL, a, &n_a, NULL), LK_OK);
    assert_int_equal(lk_backend_prefill(t, tok, 40, NULL), LK_OK);
    assert_int_equal(lk_backend_generate(t, 0, N, NULL, b, &n_b, NULL), LK_OK);
    assert_true(n_a == N || n_a == n_b);
    assert_true(n_a > 0 && a[0] == b[0]);
    /* The first occurrence of the stop text ends it. */
    const char *piece = "";
    size_t first = 0, len = 0;
    while (first < n_a && !*(piece = lk_token_text(models.lowkey, a[first], &len))) first++;
    if (first < n_a) {
        assert_int_equal(lk_backend_prefill(s, tok, 40, NULL), LK_OK);
        assert_int_equal(lk_backend_generate(s, 0, N, piece, c, &n_c, NULL), LK_OK);
        assert_true(n_c <= first + 1 && memcmp(a, c, n_c * sizeof *a) == 0);
        /* An answer that must be longer takes another token there. */
        assert_int_equal(lk_backend_prefill(s, tok, 40, NULL), LK_OK);
        assert_int_equal(lk_backend_generate(s, first + 2, N, piece, c, &n_c, NULL), LK_OK);
        assert_true(n_c >= first + 2 && memcmp(a, c, first * sizeof *a) == 0);
        assert_true(c[first] != a[first]);
    }
    lk_backend_close(s);
    lk_backend_close(t);
    lk_model_pair_close(&models);
}

static void test_backend_names(void **state) {
    lk_err err = {0};
    assert_int_equal(lk_backend_check("llama.cpp:q8_0", &err), LK_OK);
    assert_int_equal(lk_backend_check("llama.cpp:q9", &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "iq4_nl"));
    assert_int_equal(lk_backend_check("nonsense", &err), LK_E_FORMAT);
    assert_string_equal(lk_backend_full("llama.cpp:q8_0"), "llama.cpp:f16");
    assert_string_equal(lk_backend_full("best-3"), "f16");
}

int main(void) {
    int file = mkstemp(model_path);
    struct tiny_spec spec = *tiny_preset("llama-spm");
    spec.n_ctx = 2 * CTX;
    if (file < 0 || close(file) || !tiny_gguf_write(model_path, &spec)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_names),  cmocka_unit_test(test_lowkey_and_libllama_agree),
        cmocka_unit_test(test_f32_weights),    cmocka_unit_test(test_likelihoods_add_up),
        cmocka_unit_test(test_shared_prefill), cmocka_unit_test(test_save_and_restore),
        cmocka_unit_test(test_generation),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return unlink(model_path) || failed;
}
