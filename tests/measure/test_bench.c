/* Measuring speed: copies of sessions, repeated rows, and the results of lk_bench. */
#include "lowkey_lab.h"
#include "measure/repeat_rows.h"
#include "support_model.h"
#include "test.h"

static const char *const models[] = {"llama", "gemma3"};
static const char *const recipes[] = {"f16", "best-3", "kivi-2",
                                      "sink 3: f16; body: rot2; recent 10%: rot4; window 33: f16"};
enum {
    N_MODEL = sizeof models / sizeof models[0],
    N_RECIPE = sizeof recipes / sizeof recipes[0],
    N_CTX = 2048
};

static void eval(lk_session *session, const int32_t *tok, size_t n, size_t step) {
    lk_err err = {0};
    for (size_t at = 0; at < n; at += step)
        if (lk_session_eval(session, tok + at, n - at < step ? n - at : step, false, &err) != LK_OK)
            fail_msg("%s", err.msg);
}

static void assert_same_rows(const lk_session *a, const lk_session *b) {
    lk_session_stats x = lk_session_get_stats(a), y = lk_session_get_stats(b);
    assert_int_equal(x.n_tok, y.n_tok);
    assert_int_equal(x.code_bytes, y.code_bytes);
    assert_int_equal(x.scale_bytes, y.scale_bytes);
    assert_int_equal(x.exact_bytes, y.exact_bytes);
}

/* A copy has the same logits as the original, bit by bit: at once, after both continued, and after
 * going back to where the original was. */
static void copies_answer_alike(lk_model *model, const char *text) {
    enum { N = 420, MORE = 150 };
    int32_t tok[N + MORE];
    random_tokens(tok, N + MORE, model, 11);
    lk_recipe *recipe[3];
    lk_session *s[3] = {open_session(model, text, N_CTX, &recipe[0]),
                        open_session(model, text, N_CTX, &recipe[1]),
                        open_session(model, text, N_CTX, &recipe[2])};
    size_t n_vocab = lk_model_get_info(model).n_vocab;
    assert_int_equal(lk_session_sync(s[0], tok, N, NULL, NULL), LK_OK);
    eval(s[1], tok, 77, 7); /* earlier contents must not matter */
    for (int i = 1; i < 3; i++) assert_int_equal(lk_session_copy(s[i], s[0], NULL), LK_OK);
    assert_same_rows(s[1], s[0]);
    assert_memory_equal(lk_session_logits(s[1], -1), lk_session_logits(s[0], -1),
                        n_vocab * sizeof(float));
    eval(s[0], tok + N, MORE, 1);
    eval(s[1], tok + N, MORE, 1);
    assert_same_rows(s[1], s[0]);
    assert_memory_equal(lk_session_logits(s[1], -1), lk_session_logits(s[0], -1),
                        n_vocab * sizeof(float));
    assert_int_equal(lk_session_copy(s[1], s[2], NULL), LK_OK);
    eval(s[1], tok + N, MORE, 1);
    assert_memory_equal(lk_session_logits(s[1], -1), lk_session_logits(s[0], -1),
                        n_vocab * sizeof(float));
    for (int i = 0; i < 3; i++) {
        lk_session_free(s[i]);
        lk_recipe_free(recipe[i]);
    }
}

/* Repeated rows age like computed rows. */
static void repeated_rows_age(lk_model *model, const char *text) {
    enum { N = 640, N_SOURCE = 256 };
    int32_t tok[N];
    random_tokens(tok, N, model, 11);
    lk_recipe *recipe[3];
    lk_session *source = open_session(model, "f16", N_CTX, &recipe[0]);
    lk_session *read = open_session(model, text, N_CTX, &recipe[1]),
               *s = open_session(model, text, N_CTX, &recipe[2]);
    assert_int_equal(lk_repeat_rows(s, source, 1, NULL), LK_E_ARG);
    assert_int_equal(lk_session_sync(source, tok, N_SOURCE, NULL, NULL), LK_OK);
    eval(read, tok, N, LK_MAX_MOVE);
    for (int n = 0; n < N; n += 2 * LK_MAX_MOVE) {
        int more = N - n < 2 * LK_MAX_MOVE ? N - n : 2 * LK_MAX_MOVE;
        assert_int_equal(lk_repeat_rows(s, source, more, NULL), LK_OK);
    }
    assert_same_rows(s, read);
    assert_int_equal(lk_repeat_rows(s, source, N_CTX, NULL), LK_E_FULL);
    assert_int_equal(lk_session_n_tok(s), N);
    eval(s, tok, 3, 1);
    lk_session_free(s);
    lk_session_free(read);
    lk_session_free(source);
    for (int i = 0; i < 3; i++) lk_recipe_free(recipe[i]);
}

static void test_sessions(void **state) {
    for (int m = 0; m < N_MODEL; m++) {
        lk_model *model = open_preset(models[m], 0, 2);
        for (int r = 0; r < N_RECIPE; r++) {
            copies_answer_alike(model, recipes[r]);
            repeated_rows_age(model, recipes[r]);
        }
        lk_model_free(model);
    }
}

/* Position p of an f16 session holds the row of position p % n_source. */
static void test_repeat_is_cyclic(void **state) {
    enum { N = 300, N_SOURCE = 70 };
    lk_model *model = open_preset("llama", 0, 2);
    int32_t tok[N_SOURCE];
    random_tokens(tok, N_SOURCE, model, 11);
    lk_recipe *recipe[2];
    lk_session *source = open_session(model, "f16", N_CTX, &recipe[0]),
               *s = open_session(model, "f16", N_CTX, &recipe[1]);
    assert_int_equal(lk_session_sync(source, tok, N_SOURCE, NULL, NULL), LK_OK);
    eval(s, tok, 33, 33);
    assert_int_equal(lk_repeat_rows(s, source, N - 33, NULL), LK_OK);
    const struct lk_cache_shape *shape = &s->cache->shape;
    for (int p = 33; p < N; p++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *a = &s->cache->kv[1][side], *b = &source->cache->kv[1][side];
            float x[LK_MAX_D_HEAD], y[LK_MAX_D_HEAD];
            int row;
            int64_t n;
            const void *block = lk_kv_locate(a, 0, p, &row, &n);
            lk_codec_decode(&(struct lk_part){&a->rule[0].codec, side, shape->d_head,
                                              a->rule[0].block_rows, NULL},
                            block, row, 1, x, shape->d_head);
            block = lk_kv_locate(b, 0, p % N_SOURCE, &row, &n);
            lk_codec_decode(&(struct lk_part){&b->rule[0].codec, side, shape->d_head,
                                              b->rule[0].block_rows, NULL},
                            block, row, 1, y, shape->d_head);
            assert_memory_equal(x, y, shape->d_head * sizeof *x);
        }
    lk_session_free(s);
    lk_session_free(source);
    lk_recipe_free(recipe[0]);
    lk_recipe_free(recipe[1]);
    lk_model_free(model);
}

static bool stop_after(void *user, uint64_t done, uint64_t total) {
    uint64_t *calls = user;
    (void)done, (void)total;
    return (*calls)-- > 1;
}

static bool never_back(void *user, uint64_t done, uint64_t total) {
    uint64_t *last = user;
    bool good = done >= *last && done <= total;
    *last = done;
    return good;
}

static void test_bench(void **state) {
    enum { N_TEXT = 600 };
    lk_model *model = open_preset("llama", 0, 2);
    int32_t tok[N_TEXT];
    random_tokens(tok, N_TEXT, model, 11);
    lk_recipe *recipe;
    lk_err err = {0};
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", &err), LK_OK);
    const size_t depth[] = {0, 100, 1300}, wrong[] = {5, 5};
    lk_bench_result r[3] = {{0}};
    uint64_t last = 0;
    lk_bench_opts opts = {.depth = depth,
                          .n_depth = 3,
                          .n_prefill = 20,
                          .n_decode = 3,
                          .n_repeat = 2,
                          .progress = never_back,
                          .user = &last};
    if (lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err) != LK_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].depth, depth[i]);
        assert_int_equal(r[i].n_tok, depth[i] ? depth[i] : 4);
        assert_int_equal(r[i].n_repeated, depth[i] > 512 ? depth[i] - 512 : 0);
        assert_true(r[i].prefill_tps > 0 && r[i].prefill_tps <= r[i].prefill_tps_best);
        assert_true(r[i].decode_tps > 0 && r[i].decode_tps <= r[i].decode_tps_best);
        assert_true(r[i].cpu_share > 0 && r[i].cpu_share < 1.1);
    }
    assert_true(r[2].bits_per_value < r[1].bits_per_value && r[2].cache_bytes > r[1].cache_bytes);

    uint64_t calls[] = {1, 3, 4, 6, 9, 12};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        opts.progress = stop_after;
        opts.user = &calls[i];
        assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_CANCELLED);
    }
    opts.progress = NULL;
    opts.max_bytes = 1 << 20;
    assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_NOMEM);
    opts.max_bytes = 0;
    assert_int_equal(lk_bench(model, recipe, tok, 511, &opts, r, &err), LK_E_ARG);
    opts.n_repeat = 0;
    assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_ARG);
    opts.n_repeat = 1;
    opts.n_depth = 0;
    assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_ARG);
    opts.n_depth = 2;
    opts.depth = wrong;
    assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_ARG);
    opts.n_depth = 1;
    opts.n_prefill = opts.n_decode = 0;
    assert_int_equal(lk_bench(model, recipe, tok, N_TEXT, &opts, r, &err), LK_E_ARG);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sessions),
                                       cmocka_unit_test(test_repeat_is_cyclic),
                                       cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
