/* Recipes compared with the full cache. */
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"

static void test_compare(void **state) {
    enum { N = 1300 };
    lk_model *model = open_preset("llama", 1024, 2);
    int32_t tok[N];
    random_tokens(tok, N, model, 11);
    const char *texts[] = {"f16", "selective", "best-4", "best-2"};
    lk_recipe *recipe[4];
    lk_compare_result result[4];
    lk_err err = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(lk_recipe_parse(&recipe[i], texts[i], NULL), LK_OK);
    lk_compare_opts opts = {.n_ctx = 640};
    if (lk_compare(model, (const lk_recipe *const *)recipe, 4, tok, N, &opts, result, &err) !=
        LK_OK)
        fail_msg("%s", err.msg);
    assert_true(result[0].kl_mean == 0 && result[0].top1 == 1);
    for (int i = 0; i < 4; i++)
        print_message("%-10s KL %.3g, bits %.2f\n", texts[i], result[i].kl_mean,
                      result[i].bits_per_value);
    assert_true(result[1].kl_mean < result[3].kl_mean && result[2].kl_mean < result[3].kl_mean);
    assert_true(result[3].bits_per_value < result[2].bits_per_value);
    assert_int_equal(result[0].n_scored, 2 * 319);
    opts.n_scored = opts.n_ctx;
    assert_int_equal(
        lk_compare(model, (const lk_recipe *const *)recipe, 4, tok, N, &opts, result, &err),
        LK_E_ARG);
    opts.n_scored = 0;
    opts.n_ctx = N + 1;
    assert_int_equal(
        lk_compare(model, (const lk_recipe *const *)recipe, 4, tok, N, &opts, result, &err),
        LK_E_ARG);
    for (int i = 0; i < 4; i++) lk_recipe_free(recipe[i]);
    lk_model_free(model);
}

static bool count_progress(void *user, uint64_t done, uint64_t total) {
    uint64_t *last = user;
    assert_true(last[0] <= done && done <= total);
    last[0] = done;
    last[1] = total;
    return true;
}

/* lk_compare scores the last predictions of a chunk as two sessions in lockstep do, with a prompt
 * and without one. */
static void test_compare_last(void **state) {
    enum { N = 300, N_SCORED = 17, N_PROMPT = N - 1 - N_SCORED };
    lk_model *model = open_preset("llama", 1024, 2);
    size_t n_vocab = lk_model_get_info(model).n_vocab;
    int32_t tok[N];
    random_tokens(tok, N, model, 12);
    lk_compare_set_bos(model, tok);
    lk_recipe *f16, *recipe;
    assert_int_equal(lk_recipe_parse(&f16, "f16", NULL), LK_OK);
    assert_int_equal(lk_recipe_parse(&recipe, "sink 4: f16; body: rot2; window 32: f16", NULL),
                     LK_OK);
    float *log_p = malloc(2 * n_vocab * sizeof *log_p);
    assert_non_null(log_p);
    for (int prompt = 0; prompt < 2; prompt++) {
        lk_session *s[2];
        lk_session_opts session_opts = {.n_ctx = N};
        assert_int_equal(lk_session_new(&s[0], model, f16, &session_opts, NULL), LK_OK);
        assert_int_equal(lk_session_new(&s[1], model, recipe, &session_opts, NULL), LK_OK);
        double kl = 0, nll = 0;
        for (int at = 0; at < N; at++) {
            lk_prediction p = {0};
            for (int i = 0; i < 2; i++) {
                lk_status status =
                    prompt && at < N_PROMPT
                        ? (at ? LK_OK : lk_session_sync(s[i], tok, N_PROMPT, NULL, NULL))
                        : lk_session_eval(s[i], tok + at, 1, false, NULL);
                assert_int_equal(status, LK_OK);
                if (at >= N_PROMPT && at + 1 < N)
                    p = lk_compare_score(lk_session_logits(s[i], 0), n_vocab, tok[at + 1], log_p,
                                         log_p + i * n_vocab);
            }
            kl += p.kl;
            nll += p.nll;
        }
        uint64_t progress[2] = {0};
        lk_compare_opts opts = {.n_ctx = N,
                                .n_scored = N_SCORED,
                                .n_step = 1,
                                .prompt = prompt,
                                .progress = count_progress,
                                .user = progress};
        lk_compare_result result;
        assert_int_equal(
            lk_compare(model, (const lk_recipe *const *)&recipe, 1, tok, N, &opts, &result, NULL),
            LK_OK);
        assert_int_equal(result.n_scored, N_SCORED);
        assert_true(kl > 0 && fabs(result.kl_mean - kl / N_SCORED) < 1e-9 * kl);
        assert_true(fabs(log(result.ppl) - nll / N_SCORED) < 1e-6);
        assert_int_equal(progress[0], progress[1]);
        assert_int_equal(progress[1], prompt ? N_PROMPT + 2 * (N_SCORED + 1) : 2 * N);
        lk_session_free(s[0]);
        lk_session_free(s[1]);
    }
    free(log_p);
    lk_recipe_free(f16);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Errors over predictions, and between the means of two chunks: NLL 1 and 3, KL 0.25 and 0.75. */
static void test_errors(void **state) {
    (void)state;
    lk_prediction score[] = {{0, 0.5f, true}, {2, 0, true}, {2, 0.5f, false}, {4, 1, true}},
                  same[4];
    memcpy(same, score, sizeof same);
    lk_compare_result two = lk_compare_summarize(score, 4, 2),
                      one = lk_compare_summarize(same, 4, 1);
    assert_true(fabs(two.kl_mean - 0.5) < 1e-12 && fabs(two.ppl - exp(2)) < 1e-9);
    assert_true(fabs(two.ppl_chunk_stderr - exp(2)) < 1e-9); /* (3 - 1) / 2 */
    assert_true(fabs(two.kl_chunk_stderr - 0.25) < 1e-12);
    assert_true(fabs(two.kl_stderr - sqrt(0.125 / 3)) < 1e-12);
    assert_true(one.kl_stderr == two.kl_stderr && one.kl_chunk_stderr == 0);
    assert_true(one.ppl_chunk_stderr == 0 && two.top1 == 0.75);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_compare_last),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
