/* Estimates of losses from one prefill: close to what is measured, the same each time, valid for
 * every family, and continued after an interruption. */
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"
#include "tiny_presets.h"
#include "tune/measure_set.h"
#include "tune/prompts.h"

#include <math.h>
#include <unistd.h>

enum { CHUNK = 320, N_TOK = 2 * CHUNK, N_SCORED = 40 };

static bool count_down(void *user, uint64_t done, uint64_t total) {
    int *left = user;
    assert_true(done <= total);
    return --*left != 0;
}

/* Estimate, or measure, what single groups lose. */
static lk_tune *open_tune(lk_model *model, const char *state, bool estimate, int *left,
                          lk_status *status) {
    int32_t tok[N_TOK];
    lk_tune *tune = NULL;
    lk_err err = {0};
    lk_tune_opts opts = {.estimate = estimate,
                         .chunk = CHUNK,
                         .n_chunk = 2,
                         .n_scored = N_SCORED,
                         .n_round = -1,
                         .state = state,
                         .progress = left ? count_down : NULL,
                         .user = left};
    random_tokens(tok, N_TOK, model, 11);
    if (lk_tune_new(&tune, model, tok, N_TOK, &opts, &err)) fail_msg("%s", err.msg);
    *status = lk_tune_measure(tune, &err);
    if (*status && *status != LK_E_CANCELLED) fail_msg("%s", err.msg);
    return tune;
}

/* The estimate of a layer's V is nearly what lk_compare measures, and the estimate of K has the
 * order of magnitude. */
static void losses_are_nearly_those_measured(void **state) {
    const double rounding = 1e-7; /* of logits in f32 */
    static const char *const preset[] = {"llama-mha", "gemma3", "gpt2"};
    for (int i = 0; i < 3; i++) {
        lk_model *model = open_preset(preset[i], CHUNK, 1);
        int32_t tok[N_TOK];
        lk_status status;
        lk_tune *tune = open_tune(model, NULL, true, NULL, &status);
        random_tokens(tok, N_TOK, model, 11);
        for (int layer = 0; layer < lk_model_get_info(model).n_cached; layer++)
            for (int side = 0; side < 2; side++) {
                char text[160];
                lk_recipe *recipe;
                lk_compare_result result;
                lk_compare_opts opts = {.n_ctx = CHUNK, .n_scored = N_SCORED, .prompt = true};
                snprintf(text, sizeof text,
                         "sink 4: f16; body: f16; layers %d: k=%s v=%s; window 32: f16", layer,
                         side ? "f16" : "rot2(trellis)", side ? "rot2(trellis)" : "f16");
                assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
                const lk_recipe *list = recipe;
                assert_int_equal(lk_compare(model, &list, 1, tok, N_TOK, &opts, &result, NULL),
                                 LK_OK);
                double kl = lk_tune_kl(tune, layer, side, 2);
                print_message("%s layer %d %s: %.3e estimated, %.3e measured\n", preset[i], layer,
                              side ? "V" : "K", kl, result.kl_mean);
                double most = side ? 4 : 16;
                assert_true(kl > result.kl_mean / most - rounding &&
                            kl < result.kl_mean * most + rounding);
                lk_recipe_free(recipe);
            }
        lk_tune_free(tune);
        lk_model_free(model);
    }
}

static const char size[] = "sink 4: f16; body: rot8; window 64: f16";

static lk_plan plan_of(const lk_model *model) {
    lk_recipe *recipe;
    lk_plan plan;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = CHUNK};
    assert_int_equal(lk_recipe_parse(&recipe, size, NULL), LK_OK);
    if (lk_plan_make(model, recipe, &opts, &plan, &err)) fail_msg("%s", err.msg);
    lk_recipe_free(recipe);
    return plan;
}

/* A recipe of that size from an estimate; the caller frees it. */
static lk_tuned solve(const lk_model *model, lk_tune *tune) {
    lk_tuned tuned;
    lk_err err = {0};
    lk_plan plan = plan_of(model);
    if (lk_tune_solve(tune, plan.cache_bytes, &tuned, &err))
        fail_msg("%s: %s", lk_model_get_info(model).arch, err.msg);
    assert_true(tuned.plan.cache_bytes <= plan.cache_bytes);
    return tuned;
}

static void interrupted_estimates_continue(void **state) {
    char path[] = "/tmp/lowkey-estimate-XXXXXX";
    int fd = mkstemp(path), n_cancelled = 0;
    lk_model *model = open_preset("llama", CHUNK, 1);
    lk_status status;
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    lk_tune *tune = open_tune(model, NULL, true, NULL, &status);
    lk_tuned whole = solve(model, tune);
    lk_tune_free(tune);
    for (;; n_cancelled++) { /* each run gets a little further than the one before */
        int left = 3 + 2 * n_cancelled;
        tune = open_tune(model, path, true, &left, &status);
        if (!status) break;
        lk_tune_free(tune);
        assert_true(n_cancelled < 100);
    }
    assert_true(n_cancelled > 1);
    lk_tune_free(tune);
    /* The state has everything: nothing is left to report. */
    int left = 1;
    tune = open_tune(model, path, true, &left, &status);
    assert_int_equal(status, LK_OK);
    assert_int_equal(left, 1);
    lk_tune_free(tune);
    tune = open_tune(model, path, true, NULL, &status);
    lk_tuned parts = solve(model, tune);
    assert_string_equal(lk_recipe_text(parts.recipe), lk_recipe_text(whole.recipe));
    assert_true(parts.estimate == whole.estimate);
    lk_recipe_free(parts.recipe);
    lk_recipe_free(whole.recipe);
    lk_tune_free(tune);
    lk_model_free(model);
    unlink(path);
}

/* Every family gets a recipe of the size that was asked for. */
static void families_have_recipes(void **state) {
    int n = 0, n_tried = 0;
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        if (!case_runs((size_t)(spec - tiny_presets))) continue;
        n_tried++;
        lk_model *model = open_preset(spec->name, CHUNK, 1);
        lk_status status;
        lk_tune *tune = open_tune(model, NULL, true, NULL, &status);
        double kl;
        uint64_t bytes;
        if (lk_tune_estimate(tune, plan_of(model).cache_bytes, &kl, &bytes, NULL) == LK_E_ARG) {
            lk_tune_free(tune); /* other states than rows are most of the bytes */
            lk_model_free(model);
            continue;
        }
        lk_tuned tuned = solve(model, tune);
        assert_int_equal(tuned.measured.n_scored, 2 * N_SCORED);
        print_message("%s: KL %.2e, estimated %.2e\n", spec->name, tuned.measured.kl_mean,
                      tuned.estimate);
        lk_recipe_free(tuned.recipe);
        lk_tune_free(tune);
        n++;
        lk_model_free(model);
    }
    assert_true(2 * n > n_tried);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_nearly_those_measured),
        cmocka_unit_test(interrupted_estimates_continue),
        cmocka_unit_test(families_have_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
