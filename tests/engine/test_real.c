/* Recipe f16 on real models against libllama on the same file.
 *
 * With the shipped weights, activations are rounded to 8 bits, so every other order of summation
 * adds noise. The limit is then 1.3 times the distance between libllama's own flash and plain
 * attention, which the test measures. With f32 weights there is no such noise, and the limits are
 * absolute. The reference is then libllama's plain attention, because its flash attention
 * accumulates V in f16. Models that are absent are skipped. */
#include "lowkey.h"
#include "support_oracle.h"
#include "test.h"

#include <unistd.h>

enum { N_CTX = 640, STEP = 32, N_THREAD = 2 }; /* longer than any of the windows */

static const char *models[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                               "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
                               "gemma-3-270m.Q4_K_M.gguf"};

static void model_path(const char *name, char *out, size_t cap) {
    const char *dir = getenv("LOWKEY_MODELS"), *cache = getenv("LOWKEY_CACHE"),
               *home = getenv("HOME");
    if (dir)
        snprintf(out, cap, "%s/%s", dir, name);
    else if (cache)
        snprintf(out, cap, "%s/models/%s", cache, name);
    else
        snprintf(out, cap, "%s/.cache/lowkey/models/%s", home ? home : ".", name);
    if (access(out, R_OK) == 0) return;
    print_message("skipped: %s does not exist; run scripts/fetch-model\n", name);
    skip();
}

/* Tokens of this project's own documents. */
static void read_tokens(const lk_model *model, int32_t *tok) {
    static const char *files[] = {LOWKEY_SOURCE "/README.md", LOWKEY_SOURCE "/ARCHITECTURE.md",
                                  LOWKEY_SOURCE "/CONTRIBUTING.md",
                                  LOWKEY_SOURCE "/include/lowkey.h"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && n < N_CTX; i++) {
        FILE *f = fopen(files[i], "rb");
        if (!f) continue;
        static char text[1 << 16];
        size_t len = fread(text, 1, sizeof text, f), n_new;
        fclose(f);
        int32_t *more;
        lk_err err = {0};
        if (lk_tokenize(model, text, len, n == 0 ? LK_TOKENIZE_BEGIN : 0, 0, &more, &n_new, &err) !=
            LK_OK)
            fail_msg("%s: %s", files[i], err.msg);
        if (n_new > N_CTX - n) n_new = N_CTX - n;
        memcpy(tok + n, more, n_new * sizeof *tok);
        n += n_new;
        lk_tokens_free(more);
    }
    assert_int_equal(n, N_CTX);
}

struct distance {
    double kl, top1;
};

/* Mean KL(p || q) and top-1 agreement over rows of logits. */
static void compare_rows(const float *p, const float *q, size_t n_vocab, struct distance *sum) {
    double max_p = p[0], max_q = q[0], sum_p = 0, sum_q = 0, kl = 0;
    size_t best_p = 0, best_q = 0;
    for (size_t v = 1; v < n_vocab; v++) {
        if (p[v] > max_p) max_p = p[v], best_p = v;
        if (q[v] > max_q) max_q = q[v], best_q = v;
    }
    for (size_t v = 0; v < n_vocab; v++) sum_p += exp(p[v] - max_p), sum_q += exp(q[v] - max_q);
    double log_p = max_p + log(sum_p), log_q = max_q + log(sum_q);
    for (size_t v = 0; v < n_vocab; v++)
        kl += exp(p[v] - log_p) * ((p[v] - log_p) - (q[v] - log_q));
    sum->kl += kl > 0 ? kl : 0;
    sum->top1 += best_p == best_q;
}

static struct distance mean(struct distance sum) {
    return (struct distance){sum.kl / N_CTX, sum.top1 / N_CTX};
}

/* Distance of our logits from libllama's. If `floor` is not NULL, the reference is libllama's flash
 * attention, and *floor is the distance of its plain attention; else the reference is plain. */
static void measure(const char *path, const char *oracle_path, lk_weights weights,
                    struct distance *ours, struct distance *floor) {
    lk_err err = {0};
    lk_model *model;
    lk_model_opts opts = {.n_threads = N_THREAD, .weights = weights};
    if (lk_model_open(&model, path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    int32_t tok[N_CTX];
    read_tokens(model, tok);
    struct oracle reference, plain = {0};
    assert_true(oracle_open(&reference, oracle_path, NULL, N_CTX, GGML_TYPE_F16, GGML_TYPE_F16,
                            floor != NULL, N_THREAD));
    if (floor)
        assert_true(oracle_open(&plain, NULL, reference.model, N_CTX, GGML_TYPE_F16, GGML_TYPE_F16,
                                false, N_THREAD));
    lk_recipe *recipe;
    lk_session *session;
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    lk_session_opts session_opts = {.n_ctx = N_CTX};
    if (lk_session_new(&session, model, recipe, &session_opts, &err) != LK_OK)
        fail_msg("%s", err.msg);
    struct distance sum = {0}, sum_floor = {0};
    for (int at = 0; at < N_CTX; at += STEP) {
        const float *ref = oracle_eval(&reference, tok + at, STEP, at);
        const float *other = floor ? oracle_eval(&plain, tok + at, STEP, at) : NULL;
        if (lk_session_eval(session, tok + at, STEP, true, &err) != LK_OK) fail_msg("%s", err.msg);
        for (int i = 0; i < STEP; i++) {
            compare_rows(ref + (size_t)i * reference.n_vocab, lk_session_logits(session, i),
                         reference.n_vocab, &sum);
            if (other)
                compare_rows(ref + (size_t)i * reference.n_vocab,
                             other + (size_t)i * reference.n_vocab, reference.n_vocab, &sum_floor);
        }
    }
    *ours = mean(sum);
    if (floor) *floor = mean(sum_floor);
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
    oracle_close(&plain, false);
    oracle_close(&reference, true);
}

static void as_shipped(const char *name) {
    char path[512];
    model_path(name, path, sizeof path);
    struct distance ours, floor;
    measure(path, path, LK_WEIGHTS_AS_SHIPPED, &ours, &floor);
    print_message("%s: KL %.6f, top-1 %.4f; llama.cpp plain against flash: KL %.6f, top-1 %.4f\n",
                  name, ours.kl, ours.top1, floor.kl, floor.top1);
    assert_true(ours.kl <= 1.3 * floor.kl);
    assert_true(ours.top1 >= floor.top1 - 0.02);
}

static void test_smollm2_as_shipped(void **state) { as_shipped(models[0]); }
static void test_qwen2_as_shipped(void **state) { as_shipped(models[1]); }
static void test_gemma3_as_shipped(void **state) { as_shipped(models[2]); }

static void in_f32(const char *name) {
    char path[512], copy[] = "/tmp/lowkey-f32-XXXXXX";
    model_path(name, path, sizeof path);
    int fd = mkstemp(copy);
    assert_true(fd >= 0);
    close(fd);
    struct distance ours;
    bool written = oracle_write_f32(path, copy);
    if (written) measure(path, copy, LK_WEIGHTS_F32, &ours, NULL);
    unlink(copy);
    assert_true(written);
    print_message("%s, f32 weights: KL %.8f, top-1 %.4f\n", name, ours.kl, ours.top1);
    assert_true(ours.kl <= 2e-5);
    assert_true(ours.top1 >= 0.995);
}

static void test_smollm2_f32(void **state) { in_f32(models[0]); }
static void test_gemma3_f32(void **state) { in_f32(models[2]); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2_as_shipped), cmocka_unit_test(test_qwen2_as_shipped),
        cmocka_unit_test(test_gemma3_as_shipped),  cmocka_unit_test(test_smollm2_f32),
        cmocka_unit_test(test_gemma3_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
