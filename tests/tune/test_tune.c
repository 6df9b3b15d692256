/* Tuning tiny random models: sizes hold, results are measured, an interrupted run continues. */
#include "engine/model.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"
#include "tune/tune_model.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 320, N_TOK = 4 * CHUNK };

static char path[] = "/tmp/lowkey-tune-XXXXXX";

/* A progress callback that cancels at its n-th call. */
struct canceller {
    int left;
};

static bool count_down(void *user, uint64_t done, uint64_t total) {
    struct canceller *c = user;
    assert_true(done <= total);
    return --c->left != 0;
}

static lk_tune_opts opts_with(const char *state, struct canceller *c) {
    return (lk_tune_opts){.chunk = CHUNK,
                          .n_chunk = 2,
                          .n_round = 1,
                          .state = state,
                          .progress = c ? count_down : NULL,
                          .user = c};
}

static uint64_t bytes_of(const lk_model *model, const char *text) {
    lk_recipe *recipe = NULL;
    lk_plan plan;
    lk_session_opts opts = {.n_ctx = CHUNK};
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_OK);
    lk_recipe_free(recipe);
    return plan.cache_bytes;
}

/* Tune to the size of a recipe; LK_E_CANCELLED if `c` cancels. */
static lk_status tune_like(lk_model *model, const int32_t *tok, const char *like, const char *state,
                           struct canceller *c, lk_tuned *out) {
    lk_tune_opts opts = opts_with(state, c);
    lk_tune *tune = NULL;
    lk_err err = {0};
    lk_status status = lk_tune_new(&tune, model, tok, N_TOK, &opts, &err);
    if (status == LK_OK) status = lk_tune_measure(tune, &err);
    if (status == LK_OK) status = lk_tune_solve(tune, bytes_of(model, like), out, &err);
    if (status != LK_OK && status != LK_E_CANCELLED) fail_msg("%s", err.msg);
    lk_tune_free(tune);
    return status;
}

static void sizes_hold(void **state) {
    static const char *const preset[] = {"llama", "gemma3"};
    for (int i = 0; i < 2; i++) {
        lk_model *model = open_preset(preset[i], CHUNK, 1);
        int32_t tok[N_TOK];
        random_tokens(tok, N_TOK, model, 5);
        lk_tuned fine = {0}, coarse = {0};
        assert_int_equal(tune_like(model, tok, "best-4", NULL, NULL, &fine), LK_OK);
        assert_int_equal(tune_like(model, tok, "best-2", NULL, NULL, &coarse), LK_OK);
        assert_true(fine.plan.cache_bytes <= bytes_of(model, "best-4"));
        assert_true(coarse.plan.cache_bytes <= bytes_of(model, "best-2"));
        assert_int_equal(fine.plan.cache_bytes, bytes_of(model, lk_recipe_text(fine.recipe)));
        const double rounding = 1e-9; /* of logits in f32 */
        assert_true(fine.measured.kl_mean <= coarse.measured.kl_mean + rounding);
        assert_true(fine.measured.n_scored == 2 * lk_compare_n_scored(CHUNK));
        lk_recipe_free(fine.recipe);
        lk_recipe_free(coarse.recipe);
        lk_model_free(model);
    }
}

/* What a result says is what lk_compare says of its recipe. */
static void results_are_measured(void **state) {
    lk_model *model = open_preset("qwen2", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 6);
    lk_tune_opts opts = opts_with(NULL, NULL);
    lk_tune *tune = NULL;
    lk_tuned tuned;
    lk_compare_result checked[2], again[2];
    lk_compare_opts compare = {.n_ctx = CHUNK, .n_chunk = 2};
    double kl;
    uint64_t bytes;
    assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_OK);
    assert_int_equal(lk_tune_estimate(tune, 1 << 20, &kl, &bytes, NULL), LK_E_ARG);
    assert_true(lk_tune_kl(tune, 0, 0, 3) == 0);
    assert_int_equal(lk_tune_measure(tune, NULL), LK_OK);
    for (int bits = 1; bits < 6; bits++)
        assert_true(lk_tune_kl(tune, 1, 1, bits) > lk_tune_kl(tune, 1, 1, bits + 1));
    assert_int_equal(lk_tune_solve(tune, 10, &tuned, NULL), LK_E_ARG);
    assert_int_equal(lk_tune_solve(tune, bytes_of(model, "best-3"), &tuned, NULL), LK_OK);
    assert_int_equal(lk_tune_estimate(tune, bytes_of(model, "best-3"), &kl, &bytes, NULL), LK_OK);
    assert_true(bytes <= bytes_of(model, "best-3") && kl > 0);
    lk_recipe_free(tuned.recipe);
    lk_recipe *like = NULL;
    assert_int_equal(lk_recipe_parse(&like, "best-3", NULL), LK_OK);
    assert_int_equal(lk_tune_solve_like(tune, like, &tuned, NULL, NULL), LK_OK);
    assert_true(tuned.plan.cache_bytes <= bytes_of(model, "best-3"));
    const lk_recipe *both[] = {like, tuned.recipe};
    assert_int_equal(lk_tune_check(tune, both, 2, tok, N_TOK, 2, checked, NULL), LK_OK);
    assert_true(checked[1].bytes_per_token <= checked[0].bytes_per_token);
    lk_recipe_free(like);
    const lk_recipe *recipe[] = {tuned.recipe, tuned.recipe};
    assert_int_equal(lk_tune_check(tune, recipe, 2, tok, N_TOK, 2, checked, NULL), LK_OK);
    assert_int_equal(lk_compare(model, recipe, 2, tok, N_TOK, &compare, again, NULL), LK_OK);
    assert_true(checked[1].kl_mean == again[0].kl_mean && checked[0].kl_p999 == again[0].kl_p999);
    lk_tune_free(tune);
    lk_recipe_free(tuned.recipe);
    lk_model_free(model);
}

/* What is measured with a prompt that is held is nearly what lk_compare measures: it leaves out the
 * least probable tokens. Codecs without a trellis can be chosen later. */
static void estimates_hold_the_prompt(void **state) {
    static const char *const name[] = {"best-4", "best-3", "rot8"};
    static const char *const preset[] = {"llama", "gemma3", "qwen3"};
    for (size_t k = 0; k < 3; k++) {
        lk_model *model = open_preset(preset[k], CHUNK, 1);
        int32_t tok[N_TOK];
        lk_tune *tune[2];
        random_tokens(tok, N_TOK, model, 9);
        lk_compare_opts compare = {.n_ctx = CHUNK, .n_chunk = 2, .n_scored = 40, .prompt = true};
        for (int i = 0; i < 2; i++) {
            lk_tune_opts opts = {.estimate = true,
                                 .chunk = CHUNK,
                                 .n_chunk = 2,
                                 .n_scored = 40,
                                 .n_round = -1,
                                 .fast = i};
            assert_int_equal(lk_tune_new(&tune[i], model, tok, 2 * CHUNK, &opts, NULL), LK_OK);
            assert_int_equal(lk_tune_measure(tune[i], NULL), LK_OK);
        }
        assert_int_equal(lk_tune_set_fast(tune[0], true, NULL), LK_OK);
        for (int i = 0; i < 3; i++) {
            lk_recipe *like;
            lk_tuned tuned[2];
            lk_compare_result of_like, result[2];
            assert_int_equal(lk_recipe_parse(&like, name[i], NULL), LK_OK);
            lk_err err = {0};
            if (lk_tune_solve_like(tune[0], like, &tuned[0], &of_like, &err))
                fail_msg("%s, %s: %s", preset[k], name[i], err.msg);
            assert_int_equal(lk_tune_solve_like(tune[1], like, &tuned[1], NULL, NULL), LK_OK);
            assert_string_equal(lk_recipe_text(tuned[0].recipe), lk_recipe_text(tuned[1].recipe));
            assert_null(strstr(lk_recipe_text(tuned[0].recipe), "trellis"));
            const lk_recipe *both[] = {like, tuned[0].recipe};
            assert_int_equal(lk_compare(model, both, 2, tok, 2 * CHUNK, &compare, result, NULL),
                             LK_OK);
            const lk_compare_result *held[] = {&of_like, &tuned[0].measured};
            for (int r = 0; r < 2; r++) {
                assert_true(fabs(held[r]->kl_mean - result[r].kl_mean) <
                            1e-3 * result[r].kl_mean + 1e-7);
                assert_true(fabs(held[r]->ppl / result[r].ppl - 1) < 1e-5);
                assert_true(held[r]->top1 == result[r].top1);
                /* lk_compare also evaluates the last token. */
                assert_true(fabs(held[r]->bits_per_value / result[r].bits_per_value - 1) < 0.02);
                lk_recipe_free(tuned[r].recipe);
            }
            lk_recipe_free(like);
        }
        for (int i = 0; i < 2; i++) lk_tune_free(tune[i]);
        lk_model_free(model);
    }
}

/* More heads than a mask has bits are one group; UBSan sees a shift that is too far. */
static void many_heads_are_one_group(void **state) {
    struct lk_cache_shape shape = {.n_layer = 1};
    struct lk_tune_group group[LK_TUNE_MAX_GROUP];
    static const int n_head[] = {64, 65, 112, 128};
    for (size_t i = 0; i < sizeof n_head / sizeof *n_head; i++) {
        shape.n_head_kv = n_head[i];
        int n = lk_tune_divide_heads(&shape, LK_TUNE_MAX_GROUP, group);
        assert_int_equal(n, n_head[i] > 64 ? 1 : LK_TUNE_MAX_GROUP);
        assert_true(group[n - 1].heads == (n > 1 ? 0xffull << 56 : 0));
    }
}

/* Costs of single groups add up to what the planner says of a recipe, also for layers with a
 * sliding window, whose rows may all be in the level 'recent'. */
static void costs_add_up(void **state) {
    enum { MAX_GROUP = 64 };
    static const char *const preset[] = {"llama", "gemma3"};
    static const int32_t n_ctx[] = {8192, 4096};
    struct random r = {3};
    for (int i = 0; i < 2; i++) {
        struct tiny_spec spec = *tiny_preset(preset[i]);
        lk_model_opts opts = {.n_threads = 1};
        spec.n_ctx = n_ctx[i];
        if (spec.n_swa) spec.n_swa = 256;
        lk_model *model = open_tiny(&spec, &opts);
        struct lk_cache_shape shape = lk_model_cache_shape(model);
        struct lk_tune_group group[MAX_GROUP];
        double part[MAX_GROUP][LK_TUNE_AGES][2];
        struct lk_tune_model loss = {.n_layer = shape.n_layer, .group = group};
        assert_true(lk_tune_divide_heads(&shape, LK_TUNE_MAX_GROUP, NULL) <= MAX_GROUP);
        loss.n_group = lk_tune_divide_heads(&shape, LK_TUNE_MAX_GROUP, group);
        for (int recent = 0; recent < LK_TUNE_N_RECENT; recent++) {
            struct lk_tune_cost cost = {.part = part};
            struct lk_tune_bits bits[MAX_GROUP];
            assert_int_equal(lk_tune_count_cost(&cost, &loss, model, n_ctx[i], recent, NULL),
                             LK_OK);
            double sum = (double)cost.base;
            /* Recent rows have 8 bits in the last layer but one, which has full attention. */
            for (int g = 0; g < loss.n_group; g++)
                for (int side = 0; side < 2; side++) {
                    int fine = group[g].layer == group[loss.n_group - 2].layer,
                        body = random_int(&r, 0, 3), newer = fine ? LK_TUNE_N_BITS - 1 : body;
                    bits[g].of[LK_TUNE_BODY][side] = lk_tune_bits_at[body];
                    bits[g].of[LK_TUNE_RECENT][side] = lk_tune_bits_at[recent ? newer : body];
                    sum +=
                        part[g][LK_TUNE_BODY][side] * (double)cost.more[LK_TUNE_BODY][side][body];
                    if (recent)
                        sum += part[g][LK_TUNE_RECENT][side] *
                               (double)cost.more[LK_TUNE_RECENT][side][newer];
                }
            struct lk_buf text = {0};
            lk_plan plan;
            lk_tune_print(&text, group, bits, loss.n_group, lk_tune_recent_at[recent],
                          LK_TUNE_TRELLIS);
            assert_int_equal(lk_tune_plan(model, text.at, n_ctx[i], &plan, NULL), LK_OK);
            double ratio = sum / (double)plan.cache_bytes;
            print_message("%s, recent %d %%: %.4f of the plan\n", preset[i],
                          lk_tune_recent_at[recent], ratio);
            assert_true(ratio > 0.93 && ratio < 1.07);
            lk_buf_free(&text);
        }
        lk_model_free(model);
    }
}

/* The fewest bits of rot in a recipe that follow a word: "k=" or, for both sides, ": ". */
static int fewest_bits_after(const char *recipe, const char *word) {
    char codec[8];
    int fewest = 16;
    snprintf(codec, sizeof codec, "%srot", word);
    for (const char *at = recipe; (at = strstr(at, codec)) != NULL; at++) {
        int bits = atoi(at + strlen(codec));
        if (bits < fewest) fewest = bits;
    }
    return fewest;
}

/* Keys have no codec with fewer bits than asked for, by default two. With a smaller minimum some
 * have less than four bits in the same size. */
static void keys_have_enough_bits(void **state) {
    lk_model *model = open_preset("qwen2", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 9);
    static const int mins[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        int min = mins[i];
        lk_tune_opts opts = opts_with(NULL, NULL);
        opts.min_k_bits = min == 2 ? 0 : min;
        opts.n_round = -1;
        lk_tune *tune = NULL;
        lk_tuned tuned;
        assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_OK);
        assert_int_equal(lk_tune_measure(tune, NULL), LK_OK);
        uint64_t bytes = bytes_of(model, "sink 4: f16; body: k=rot6 v=rot1; window 32: rot8");
        assert_int_equal(lk_tune_solve(tune, bytes, &tuned, NULL), LK_OK);
        const char *text = lk_recipe_text(tuned.recipe);
        int k = fewest_bits_after(text, "k="), both = fewest_bits_after(text, ": ");
        if (min < 4) assert_true(k < 4 || both < 4);
        if (k < min || both < min) fail_msg("keys of less than %d bits: %s", min, text);
        lk_recipe_free(tuned.recipe);
        lk_tune_free(tune);
    }
    lk_tune_opts opts = opts_with(NULL, NULL);
    lk_tune *tune = NULL;
    opts.min_k_bits = 7;
    assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_E_ARG);
    lk_model_free(model);
}

/* The same, if only the last predictions are scored, after a prompt. */
static void last_predictions_are_scored(void **state) {
    enum { N_SCORED = 20 };
    lk_model *model = open_preset("qwen2", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 8);
    lk_tune_opts opts = opts_with(NULL, NULL);
    lk_tune *tune = NULL;
    lk_tuned tuned;
    lk_compare_result checked, again;
    lk_compare_opts compare = {.n_ctx = CHUNK, .n_chunk = 2, .n_scored = N_SCORED, .prompt = true};
    opts.n_scored = CHUNK;
    assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_E_ARG);
    opts.n_scored = N_SCORED;
    assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_OK);
    assert_int_equal(lk_tune_measure(tune, NULL), LK_OK);
    assert_int_equal(lk_tune_solve(tune, bytes_of(model, "best-3"), &tuned, NULL), LK_OK);
    assert_int_equal(tuned.measured.n_scored, 2 * N_SCORED);
    const lk_recipe *recipe = tuned.recipe;
    assert_int_equal(lk_tune_check(tune, &recipe, 1, tok, N_TOK, 2, &checked, NULL), LK_OK);
    assert_int_equal(lk_compare(model, &recipe, 1, tok, N_TOK, &compare, &again, NULL), LK_OK);
    assert_true(checked.kl_mean > 0 && checked.kl_mean == again.kl_mean);
    assert_int_equal(checked.n_scored, 2 * N_SCORED);
    lk_tune_free(tune);
    lk_recipe_free(tuned.recipe);
    lk_model_free(model);
}

/* Heads get their own bits, unless they are one group. */
static void heads_have_their_own_bits(void **state) {
    lk_model *model = open_preset("llama", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 9);
    for (int groups = 0; groups < 2; groups++) {
        lk_tune_opts opts = opts_with(NULL, NULL);
        lk_tune *tune = NULL;
        lk_tuned tuned;
        opts.n_round = -1;
        opts.max_groups = groups;
        assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_OK);
        assert_int_equal(lk_tune_measure(tune, NULL), LK_OK);
        assert_int_equal(lk_tune_solve(tune, bytes_of(model, "best-3"), &tuned, NULL), LK_OK);
        assert_int_equal(strstr(lk_recipe_text(tuned.recipe), "heads") != NULL, groups == 0);
        assert_true(tuned.plan.cache_bytes <= bytes_of(model, "best-3"));
        lk_tune_free(tune);
        lk_recipe_free(tuned.recipe);
    }
    lk_model_free(model);
}

static void interrupted_runs_continue(void **state) {
    lk_model *model = open_preset("llama", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 7);
    lk_tuned whole, parts = {0};
    int n_cancelled = 0;
    assert_int_equal(tune_like(model, tok, "best-3", NULL, NULL, &whole), LK_OK);
    unlink(path);
    for (;; n_cancelled++) { /* each run gets a little further than the one before */
        struct canceller c = {.left = 100 + 50 * n_cancelled};
        lk_status status = tune_like(model, tok, "best-3", path, &c, &parts);
        if (status == LK_OK) break;
        assert_int_equal(status, LK_E_CANCELLED);
        assert_true(n_cancelled < 100);
    }
    assert_true(n_cancelled > 1);
    assert_string_equal(lk_recipe_text(parts.recipe), lk_recipe_text(whole.recipe));
    assert_true(parts.measured.kl_mean == whole.measured.kl_mean);
    assert_true(parts.measured.kl_p999 == whole.measured.kl_p999);
    assert_true(parts.estimate == whole.estimate);
    lk_recipe_free(parts.recipe);
    lk_recipe_free(whole.recipe);
    lk_model_free(model);
}

/* Trellis-coded levels are used unless recipes have to be fast, and the same state serves both. */
static void fast_recipes_have_no_trellis(void **state) {
    lk_model *model = open_preset("llama", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 5);
    for (int fast = 0; fast < 2; fast++) {
        lk_tune_opts opts = opts_with(path, NULL);
        lk_tune *tune = NULL;
        lk_tuned tuned = {0};
        lk_err err = {0};
        opts.fast = fast;
        lk_status status = lk_tune_new(&tune, model, tok, N_TOK, &opts, &err);
        if (status == LK_OK) status = lk_tune_measure(tune, &err);
        if (status == LK_OK) status = lk_tune_solve(tune, bytes_of(model, "best-2"), &tuned, &err);
        if (status != LK_OK) fail_msg("%s", err.msg);
        assert_int_equal(strstr(lk_recipe_text(tuned.recipe), "trellis") == NULL, fast);
        assert_true(tuned.plan.cache_bytes <= bytes_of(model, "best-2"));
        lk_recipe_free(tuned.recipe);
        lk_tune_free(tune);
    }
    unlink(path);
    lk_model_free(model);
}

static void finds_a_recipe_for_a_loss(void **state) {
    lk_model *model = open_preset("llama", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 8);
    const double max_kl = 1e-3;
    lk_tuned tuned;
    lk_tune_opts opts = opts_with(path, NULL);
    lk_tune *tune = NULL;
    lk_err err = {0};
    unlink(path);
    assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &opts, NULL), LK_OK);
    assert_int_equal(lk_tune_measure(tune, NULL), LK_OK);
    if (lk_tune_solve_kl(tune, max_kl, &tuned, &err)) fail_msg("%s", err.msg);
    assert_true(tuned.measured.kl_mean <= max_kl);
    assert_true(tuned.plan.cache_bytes < bytes_of(model, "best-3"));
    lk_recipe_free(tuned.recipe);
    /* A loss that no recipe has. */
    assert_int_equal(lk_tune_solve_kl(tune, 1e-30, &tuned, &err), LK_E_ARG);
    lk_tune_free(tune);
    lk_model_free(model);
}

static void bad_options_are_rejected(void **state) {
    lk_model *model = open_preset("llama", CHUNK, 1);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 9);
    static const int32_t order[] = {3, 2}, seven[] = {7};
    const lk_tune_opts bad[] = {
        {.chunk = 3},
        {.chunk = CHUNK, .n_chunk = 5},
        {.chunk = CHUNK, .n_ctx = -1},
        {.chunk = CHUNK, .bits = order, .n_bits = 2},
        {.chunk = CHUNK, .bits = seven, .n_bits = 1},
        {.chunk = CHUNK, .bits = order, .n_bits = 7},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lk_tune *tune = NULL;
        lk_err err = {0};
        assert_int_equal(lk_tune_new(&tune, model, tok, N_TOK, &bad[i], &err), LK_E_ARG);
        assert_true(err.msg[0] != 0);
        assert_null(tune);
    }
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_hold),
        cmocka_unit_test(results_are_measured),
        cmocka_unit_test(estimates_hold_the_prompt),
        cmocka_unit_test(many_heads_are_one_group),
        cmocka_unit_test(costs_add_up),
        cmocka_unit_test(keys_have_enough_bits),
        cmocka_unit_test(last_predictions_are_scored),
        cmocka_unit_test(heads_have_their_own_bits),
        cmocka_unit_test(interrupted_runs_continue),
        cmocka_unit_test(fast_recipes_have_no_trellis),
        cmocka_unit_test(finds_a_recipe_for_a_loss),
        cmocka_unit_test(bad_options_are_rejected),
    };
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
