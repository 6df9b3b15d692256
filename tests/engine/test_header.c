/* Models that are opened without their weights. */
#include "lowkey_lab.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

/* Plans and properties are the same as with weights. */
static void header_has_the_same_plan(void **state) {
    static const char *const kv[] = {"f16", "best-3", "kivi-2", "h2o"};
    for (size_t i = 0; tiny_presets[i].name; i++) {
        lk_model_opts header = {.n_threads = 1, .header_only = true}, all = {.n_threads = 1};
        lk_model *model[2] = {open_tiny(&tiny_presets[i], &header),
                              open_tiny(&tiny_presets[i], &all)};
        lk_model_info a = lk_model_get_info(model[0]), b = lk_model_get_info(model[1]);
        assert_int_equal(a.n_param, b.n_param);
        assert_int_equal(a.file_bytes, b.file_bytes);
        assert_int_equal(a.weight_bytes, b.weight_bytes);
        assert_int_equal(a.n_layer, b.n_layer);
        assert_int_equal(a.n_head_kv, b.n_head_kv);
        assert_int_equal(a.d_head, b.d_head);
        assert_int_equal(a.n_vocab, b.n_vocab);
        assert_int_equal(a.n_swa, b.n_swa);
        assert_int_equal(a.eos, b.eos);
        assert_string_equal(a.arch, b.arch);
        for (size_t k = 0; k < sizeof kv / sizeof kv[0]; k++) {
            lk_recipe *recipe = NULL;
            assert_int_equal(lk_recipe_parse(&recipe, kv[k], NULL), LK_OK);
            lk_plan plan[2];
            memset(plan, 0, sizeof plan);
            lk_status status[2];
            for (int m = 0; m < 2; m++) {
                lk_session_opts opts = {.n_ctx = 200};
                status[m] = lk_plan_make(model[m], recipe, &opts, &plan[m], NULL);
            }
            assert_int_equal(status[0], status[1]);
            assert_memory_equal(&plan[0], &plan[1], sizeof plan[0]);
            lk_recipe_free(recipe);
        }
        lk_model_free(model[0]);
        lk_model_free(model[1]);
    }
}

static void what_needs_weights_is_refused(void **state) {
    lk_model_opts opts = {.header_only = true};
    lk_model *model = open_tiny(&tiny_presets[0], &opts);
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    lk_batch *batch = NULL;
    lk_compress *compress = NULL;
    lk_err err = {0};
    int32_t tok[64] = {0}, budget = 8;
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    assert_int_equal(lk_session_new(&session, model, recipe, NULL, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "opened without its weights"));
    assert_null(session);
    assert_int_equal(lk_batch_new(&batch, model, &err), LK_E_ARG);
    assert_null(batch);
    lk_less_opts less = {.policy = "h2o", .budget = &budget, .n_budget = 1, .n_ctx = 32};
    assert_int_equal(lk_train_less(model, tok, 64, &less, "none.gguf", &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "opened without its weights"));
    lk_compress_opts low = {.method = LK_METHOD_PALU, .svd = LK_SVD_PLAIN};
    assert_int_equal(lk_compress_new(&compress, model, &low, tok, 0, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "opened without its weights"));
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_the_same_plan),
        cmocka_unit_test(what_needs_weights_is_refused),
    };
    return cmocka_run_group_tests_name("header", tests, NULL, NULL);
}
