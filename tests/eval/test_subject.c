/* Subjects on a tiny model: two programs that predict alike, and sessions that share their prompts. */
#include "eval/subject.h"
#include "lowkey_lab.h"
#include "support.h"
#include "tiny_gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CTX = 512 };

static char model_path[] = "/tmp/lowkey-subject-XXXXXX";

static struct lk_models models_of(lk_weights weights) {
    return (struct lk_models){.path = model_path, .opts = {.n_threads = 1, .weights = weights}};
}

static struct lk_subject *open_subject(struct lk_models *models, const char *kv) {
    struct lk_subject *subject = NULL;
    lk_err err = {0};
    if (lk_subject_open(&subject, models, kv, CTX, &err) != LK_OK) fail_msg("%s: %s", kv, err.msg);
    return subject;
}

static void random_tokens(int32_t *tok, size_t n, size_t n_vocab, uint64_t seed) {
    struct random r = {seed};
    for (size_t i = 0; i < n; i++) tok[i] = random_int(&r, 0, (int)n_vocab - 1);
}

/* A session with the recipe f16 and libllama's context predict the same: both stand for the full cache. */
static void test_both_kinds_agree(void **state) {
    (void)state;
    enum { STEP = 32 };
    struct lk_models models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_subject *subject[] = {open_subject(&models, "f16"),
                                    open_subject(&models, "llama.cpp:f16"),
                                    open_subject(&models, "llama.cpp:q4_0")};
    struct lk_predictor predictor[3];
    struct lk_prediction *score[3];
    size_t n = lk_compare_scored(CTX), n_vocab = subject[0]->n_vocab;
    int32_t tok[CTX];
    lk_err err = {0};
    float *work = malloc((STEP + 1) * n_vocab * sizeof *work);
    random_tokens(tok, CTX, n_vocab, 1);
    for (int i = 0; i < 3; i++) {
        predictor[i] = lk_subject_predictor(subject[i]);
        score[i] = malloc(n * sizeof *score[i]);
    }
    if (lk_compare_chunk(predictor, 3, n_vocab, tok, CTX, STEP, work, score, NULL, NULL, &err) !=
        LK_OK)
        fail_msg("%s", err.msg);
    lk_compare_result same = lk_compare_summarise(score[1], n),
                      worse = lk_compare_summarise(score[2], n);
    print_message("llama.cpp:f16 against f16: KL %.3g; q4_0: %.3g\n", same.kl_mean, worse.kl_mean);
    assert_true(same.kl_mean < 1e-5 && same.top1 > 0.95);
    assert_true(worse.kl_mean > 10 * same.kl_mean);
    assert_true(fabs(lk_subject_stats(subject[2]).bits_per_value - 4.5) < 1e-9);
    assert_int_equal(lk_subject_stats(subject[1]).cache_bytes,
                     lk_subject_stats(subject[1]).f16_bytes);
    for (int i = 0; i < 3; i++) {
        free(score[i]);
        lk_subject_close(subject[i]);
    }
    free(work);
    lk_models_close(&models);
}

/* With f32 weights libllama reads a temporary copy, which is gone afterwards. */
static void test_f32_weights(void **state) {
    (void)state;
    struct lk_models models = models_of(LK_WEIGHTS_F32);
    struct lk_subject *ours = open_subject(&models, "f16"),
                      *theirs = open_subject(&models, "llama.cpp:plain");
    int32_t tok[64];
    double a, b;
    random_tokens(tok, 64, ours->n_vocab, 2);
    assert_int_equal(lk_subject_nll(ours, tok, 10, 64, &a, NULL, NULL), LK_OK);
    assert_int_equal(lk_subject_nll(theirs, tok, 10, 64, &b, NULL, NULL), LK_OK);
    assert_true(fabs(a - b) < 1e-3 * a);
    lk_subject_close(ours);
    lk_subject_close(theirs);
    lk_models_close(&models);
}

/* The likelihood of a continuation is the sum over its tokens, whatever was read before. */
static void test_likelihoods_add_up(void **state) {
    (void)state;
    static const char *const kv[] = {"f16", "selective", "llama.cpp:f16"};
    enum { N = 200, GIVEN = 37 };
    struct lk_models models = models_of(LK_WEIGHTS_AS_SHIPPED);
    for (int i = 0; i < 3; i++) {
        struct lk_subject *s = open_subject(&models, kv[i]);
        int32_t tok[N], other[N];
        float each[N];
        double whole, again, part;
        random_tokens(tok, N, s->n_vocab, 3);
        random_tokens(other, N, s->n_vocab, 4);
        assert_int_equal(lk_subject_nll(s, tok, GIVEN, N, &whole, each, NULL), LK_OK);
        double sum = 0;
        for (int t = 0; t < N - GIVEN; t++) sum += each[t];
        assert_true(fabs(sum - whole) < 1e-3 * whole);
        memcpy(other, tok, GIVEN * sizeof *tok);
        assert_int_equal(lk_subject_nll(s, other, GIVEN, N, &part, NULL, NULL), LK_OK);
        assert_int_equal(lk_subject_nll(s, tok, GIVEN, N, &again, NULL, NULL), LK_OK);
        assert_true(fabs(again - whole) < 1e-3 * whole);
        assert_true(fabs(part - whole) > 1e-3 * whole);
        assert_int_equal(lk_subject_nll(s, tok, N, N, &part, NULL, NULL), LK_E_ARG);
        assert_int_equal(lk_subject_nll(s, tok, 0, N, &part, NULL, NULL), LK_E_ARG);
        lk_subject_close(s);
    }
    lk_models_close(&models);
}

static bool same_logits(const struct lk_subject *a, const struct lk_subject *b) {
    return memcmp(lk_subject_logits(a, -1), lk_subject_logits(b, -1), a->n_vocab * sizeof(float)) ==
           0;
}

/* A prompt that several sessions read at once leaves each as if it had read it alone, whatever they held. */
static void test_prompts_read_together(void **state) {
    (void)state;
    static const char *const kv[] = {"f16", "best-3", "kivi-2", "selective"};
    enum { N = 300, MORE = 40, N_KV = sizeof kv / sizeof kv[0] };
    struct lk_models models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_subject *together[N_KV], *alone[N_KV];
    int32_t tok[CTX + 1];
    lk_err err = {0};
    for (int i = 0; i < N_KV; i++)
        together[i] = open_subject(&models, kv[i]), alone[i] = open_subject(&models, kv[i]);
    random_tokens(tok, CTX + 1, alone[0]->n_vocab, 6);
    assert_int_equal(lk_subject_prompt(together[2], tok + 7, 90, NULL), LK_OK);
    assert_int_equal(lk_subjects_prompt(together, N_KV, tok, CTX + 1, &err), LK_E_FULL);
    for (int round = 0; round < 2; round++) {
        if (lk_subjects_prompt(together, N_KV, tok, N, &err) != LK_OK) fail_msg("%s", err.msg);
        for (int i = 0; i < N_KV; i++) {
            lk_subject_clear(alone[i]);
            assert_int_equal(lk_subject_prompt(alone[i], tok, N, NULL), LK_OK);
            assert_true(same_logits(together[i], alone[i]));
            assert_int_equal(lk_subject_stats(together[i]).cache_bytes,
                             lk_subject_stats(alone[i]).cache_bytes);
            assert_int_equal(lk_subject_read(together[i], tok + N, MORE, false, NULL), LK_OK);
            assert_int_equal(lk_subject_read(alone[i], tok + N, MORE, false, NULL), LK_OK);
            assert_true(same_logits(together[i], alone[i]));
        }
    }
    assert_false(same_logits(together[0], together[2]));
    for (int i = 0; i < N_KV; i++) lk_subject_close(together[i]), lk_subject_close(alone[i]);
    lk_models_close(&models);
}

/* A subject comes back to where it was, to its logits and to its cache; it need not read what it stands behind. */
static void test_save_and_restore(void **state) {
    (void)state;
    static const char *const kv[] = {"f16", "best-2", "llama.cpp:f16", "llama.cpp:q4_0"};
    enum { N = 300, MORE = 70 };
    struct lk_models models = models_of(LK_WEIGHTS_AS_SHIPPED);
    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++) {
        struct lk_subject *s = open_subject(&models, kv[i]), *t = open_subject(&models, kv[i]);
        int32_t tok[N + MORE];
        random_tokens(tok, N + MORE, s->n_vocab, 7);
        for (int k = 0; k < 2; k++) {
            struct lk_subject *one = k ? t : s;
            assert_int_equal(lk_subject_prompt(one, tok, N - 1, NULL), LK_OK);
            assert_int_equal(lk_subject_read(one, tok + N - 1, 1, false, NULL), LK_OK);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(lk_subject_save(s, NULL), LK_OK);
            assert_int_equal(lk_subject_read(s, tok + 5, MORE, false, NULL), LK_OK);
            assert_false(same_logits(s, t));
            assert_int_equal(lk_subject_restore(s, NULL), LK_OK);
            assert_true(same_logits(s, t));
            assert_int_equal(lk_subject_prompt(s, tok, N, NULL), LK_OK);
            assert_true(same_logits(s, t));
        }
        assert_int_equal(lk_subject_read(s, tok + N, MORE, false, NULL), LK_OK);
        assert_int_equal(lk_subject_read(t, tok + N, MORE, false, NULL), LK_OK);
        assert_true(same_logits(s, t));
        lk_subject_close(s);
        lk_subject_close(t);
    }
    lk_models_close(&models);
}

/* Generation is greedy and ends where it was told to. */
static void test_generation(void **state) {
    (void)state;
    enum { N = 24 };
    struct lk_models models = models_of(LK_WEIGHTS_AS_SHIPPED);
    struct lk_subject *s = open_subject(&models, "f16"),
                      *t = open_subject(&models, "llama.cpp:f16");
    int32_t tok[40], a[N], b[N], c[N];
    size_t n_a, n_b, n_c;
    random_tokens(tok, 40, s->n_vocab, 5);
    assert_int_equal(lk_subject_generate(s, N, NULL, a, &n_a, NULL), LK_E_ARG);
    assert_int_equal(lk_subject_prompt(s, tok, 40, NULL), LK_OK);
    assert_int_equal(lk_subject_generate(s, N, NULL, a, &n_a, NULL), LK_OK);
    assert_int_equal(lk_subject_prompt(t, tok, 40, NULL), LK_OK);
    assert_int_equal(lk_subject_generate(t, N, NULL, b, &n_b, NULL), LK_OK);
    assert_true(n_a == N || n_a == n_b);
    assert_true(n_a > 0 && a[0] == b[0]);
    /* The stop text is found where it appears first. */
    char piece[64];
    size_t first = 0;
    while (first < n_a && !lk_token_text(models.lowkey, a[first], piece, sizeof piece)) first++;
    if (first < n_a) {
        assert_int_equal(lk_subject_prompt(s, tok, 40, NULL), LK_OK);
        assert_int_equal(lk_subject_generate(s, N, piece, c, &n_c, NULL), LK_OK);
        assert_true(n_c <= first + 1 && memcmp(a, c, n_c * sizeof *a) == 0);
    }
    lk_subject_close(s);
    lk_subject_close(t);
    lk_models_close(&models);
}

static void test_names_of_subjects(void **state) {
    (void)state;
    lk_err err = {0};
    assert_int_equal(lk_subject_check("llama.cpp:q8_0", &err), LK_OK);
    assert_int_equal(lk_subject_check("llama.cpp:q9", &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "iq4_nl"));
    assert_int_equal(lk_subject_check("nonsense", &err), LK_E_FORMAT);
    assert_string_equal(lk_subject_full("llama.cpp:q8_0"), "llama.cpp:f16");
    assert_string_equal(lk_subject_full("best-3"), "f16");
}

int main(void) {
    int file = mkstemp(model_path);
    struct tiny_spec spec = *tiny_preset("llama-spm");
    spec.n_ctx = 2 * CTX;
    if (file < 0 || close(file) || !tiny_gguf_write(model_path, &spec)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_subjects),
        cmocka_unit_test(test_both_kinds_agree),
        cmocka_unit_test(test_f32_weights),
        cmocka_unit_test(test_likelihoods_add_up),
        cmocka_unit_test(test_prompts_read_together),
        cmocka_unit_test(test_save_and_restore),
        cmocka_unit_test(test_generation),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return unlink(model_path) || failed;
}
