/* Sessions that let rows go: equal to the full cache while nothing went, and flat in memory after. */
#include "support.h"
#include "tiny_gguf.h"

#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/lowkey-evict-XXXXXX";

static lk_model *open_model(const char *preset, int n_ctx) {
    struct tiny_spec spec = *tiny_preset(preset);
    lk_err err = {0};
    lk_model *model = NULL;
    spec.n_ctx = n_ctx;
    assert_true(tiny_gguf_write(path, &spec));
    lk_model_opts opts = {.n_threads = 1};
    if (lk_model_open(&model, path, &opts, &err) != LK_OK) fail_msg("%s: %s", preset, err.msg);
    return model;
}

static lk_session *open_session(lk_model *model, const char *text, int n_ctx, lk_recipe **recipe) {
    lk_err err = {0};
    lk_session *session = NULL;
    lk_session_opts opts = {.n_ctx = n_ctx};
    if (lk_recipe_parse(recipe, text, &err) != LK_OK || lk_session_new(&session, model, *recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    return session;
}

static int32_t *random_tokens(const lk_model *model, int n, uint64_t seed) {
    struct random r = {seed};
    int32_t *tok = malloc(n * sizeof *tok);
    for (int i = 0; i < n; i++) tok[i] = random_int(&r, 0, lk_model_get_info(model).n_vocab - 1);
    return tok;
}

static const char *families[] = {"llama", "qwen2", "gemma3", "bloom", NULL};

/* While a recipe has room for all, it is the full cache but for the order of sums, over a prompt and steps. */
static void test_everything_kept(void **state) {
    (void)state;
    enum { N = 300, PROMPT = 200 };
    static const char *recipes[] = {"sink 4: f16; body: none; window 600: f16", "body: none; window 300: f16", NULL};
    for (int f = 0; families[f]; f++) {
        lk_model *model = open_model(families[f], 1024);
        int n_vocab = lk_model_get_info(model).n_vocab;
        int32_t *tok = random_tokens(model, N, 3);
        for (int i = 0; recipes[i]; i++) {
            lk_recipe *f16, *kept;
            lk_session *a = open_session(model, "f16", N, &f16), *b = open_session(model, recipes[i], N, &kept);
            assert_int_equal(lk_session_sync(a, tok, PROMPT, NULL, NULL), LK_OK);
            assert_int_equal(lk_session_sync(b, tok, PROMPT, NULL, NULL), LK_OK);
            for (int at = PROMPT; at < N; at += 4) {
                assert_int_equal(lk_session_eval(a, tok + at, 4, false, NULL), LK_OK);
                assert_int_equal(lk_session_eval(b, tok + at, 4, false, NULL), LK_OK);
                double e = nmse(lk_session_logits(b, -1), lk_session_logits(a, -1), n_vocab);
                if (!(e < 1e-8)) fail_msg("%s, %s: token %d: nmse %g", families[f], recipes[i], at, e);
            }
            lk_session_free(a), lk_session_free(b);
            lk_recipe_free(f16), lk_recipe_free(kept);
        }
        free(tok);
        lk_model_free(model);
    }
}

/* Thousands of tokens through a small cache: memory is what it was, and the ledger knows. */
static void test_memory_is_flat(void **state) {
    (void)state;
    enum { N = 4000, SETTLED = 700 };
    static const char *recipes[] = {"lambda", "sink 4: f16; body: none; recent 128: rot4; window 64: f16", NULL};
    lk_model *model = open_model("llama", 1024);
    int32_t *tok = random_tokens(model, N, 4);
    for (int i = 0; recipes[i]; i++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[i], N, &recipe);
        assert_int_equal(lk_session_sync(s, tok, 400, NULL, NULL), LK_OK);
        uint64_t most = 0;
        for (int at = 400; at < N; at++) {
            assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
            uint64_t bytes = lk_session_get_stats(s).cache_bytes;
            assert_int_equal(bytes, lk_ledger_bytes(&s->ledger, LK_FOR_CACHE));
            if (at < SETTLED && most < bytes) most = bytes;
            if (at >= SETTLED && bytes > most) fail_msg("%s: %d tokens: %d bytes, not %d", recipes[i], at, (int)bytes, (int)most);
        }
        assert_int_equal(lk_session_n_tok(s), N);
        /* What was let go cannot be had back: another text is read anew. */
        size_t reused = 1;
        assert_int_equal(lk_session_sync(s, tok, 300, &reused, NULL), LK_OK);
        assert_int_equal(reused, 0);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    free(tok);
    lk_model_free(model);
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_kept),
        cmocka_unit_test(test_memory_is_flat),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
