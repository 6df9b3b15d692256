/* Models with recurrent layers: damaged metadata, what is refused, states in plans and files, and
 * the same results in a batch, in parts and after going back. */
#include "engine/recurrent.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 256 };

static void bad_metadata_is_refused(void **state) {
    static const struct metadata_change qwen35[] = {
        {"ssm.state_size", 24, "not supported"},
        {"ssm.state_size", 100000, "ssm.state_size"},
        {"ssm.group_count", 3, "not supported"},
        {"ssm.group_count", 0, "ssm.group_count"},
        {"ssm.time_step_rank", 2000000000, "ssm.time_step_rank"},
        {"ssm.time_step_rank", 8, "not supported"},
        {"ssm.inner_size", 129, "not supported"},
        {"ssm.conv_kernel", 1, "ssm.conv_kernel"},
        {"ssm.conv_kernel", 5, "ssm_conv1d"},
        {"ssm.conv_kernel", -1, "ssm.conv_kernel"},
        {"full_attention_interval", 1, "attn_q"},
        {"full_attention_interval", 3, "attn_q"},
        {"full_attention_interval", 9, "attn_qkv"},
        {"rope.dimension_sections", -1, "sections"},
        {"rope.dimension_sections", 11, "sections"},
        {"nextn_predict_layers", 5, "predict"},
        {"expert_count", 4, "expert_used_count"},
    };
    static const struct metadata_change qwen35moe[] = {
        {"expert_count", 0, "expert_count"},
        {"expert_used_count", 7, "expected 1 to 6"},
        {"expert_feed_forward_length", -1, "ffn_down_exps"},
        {"expert_shared_feed_forward_length", 0, "shared_feed_forward_length is 0"},
        {"expert_shared_feed_forward_length", 96, "ffn_gate_shexp"},
        {"expert_group_count", 6, "expert_group_used_count"},
    };
    static const struct metadata_change qwen3next[] = {
        {"expert_count", -1, "expert_count"},
        {"ssm.group_count", 3, "attn_qkv"},
    };
    static const struct metadata_change lfm2[] = {
        {"shortconv.l_cache", 1, "expected 2 to 16"},
        {"shortconv.l_cache", 4, "shortconv.conv"},
        {"shortconv.l_cache", -1, "shortconv.l_cache"},
        {"attention.head_count_kv", 0, "is 0 for all layers"},
        {"attention.head_count_kv", 2, "attn_q_norm"},
        {"attention.head_count_kv", 3, "multiple of 3"},
        {"attention.sliding_window", 16, "sliding window of 16"},
        {"block_count", 2, "list of 2"},
        {"expert_count", 2, "expert_used_count"},
    };
    static const struct metadata_change lfm2moe[] = {
        {"expert_count", 0, "expert_count"},
        {"expert_count", 5, "ffn_gate_inp"},
        {"expert_used_count", 9, "expected 1 to 6"},
        {"expert_feed_forward_length", 64, "ffn_down_exps"},
        {"expert_gating_func", -1, "expert_gating_func"},
        {"expert_gating_func", 3, "function 3"},
        {"leading_dense_block_count", 1, "ffn_gate_inp"},
        {"leading_dense_block_count", 3, "blk.2.ffn_gate"},
        {"leading_dense_block_count", 7, "expected 0 to 6"},
        {"feed_forward_length", -1, "ffn_gate"},
    };
    static const struct metadata_change granite[] = {
        {"attention.head_count_kv", 0, "is 0 for all layers"},
        {"attention.head_count_kv", 2, "attn_output"},
        {"ssm.conv_kernel", 1, "ssm.conv_kernel"},
        {"ssm.conv_kernel", 5, "ssm_conv1d"},
        {"ssm.inner_size", 200, "not supported"},
        {"ssm.inner_size", 2000000000, "ssm.inner_size"},
        {"ssm.inner_size", 512, "ssm_in"},
        {"ssm.state_size", 64, "ssm_in"},
        {"ssm.state_size", 257, "expected 1 to 256"},
        {"ssm.state_size", -1, "ssm.state_size"},
        {"ssm.time_step_rank", 7, "not supported"},
        {"ssm.time_step_rank", 0, "ssm.time_step_rank"},
        {"ssm.group_count", 3, "not supported"},
        {"ssm.group_count", 1000, "expected 1 to 64"},
        {"logit_scale", -1, "logit_scale"},
        {"expert_count", 4, "expert_used_count"},
    };
    expect_refused("qwen35", qwen35, sizeof qwen35 / sizeof *qwen35);
    expect_refused("qwen35moe", qwen35moe, sizeof qwen35moe / sizeof *qwen35moe);
    expect_refused("qwen3next", qwen3next, sizeof qwen3next / sizeof *qwen3next);
    expect_refused("lfm2", lfm2, sizeof lfm2 / sizeof *lfm2);
    expect_refused("lfm2moe", lfm2moe, sizeof lfm2moe / sizeof *lfm2moe);
    expect_refused("granitehybrid", granite, sizeof granite / sizeof *granite);
}

static void add_next_token_layer(struct gguf_context *gguf, void *user) {
    gguf_set_val_u32(gguf, "qwen35.nextn_predict_layers", 1);
}

/* A layer that predicts further tokens is ignored. */
static void next_token_layers_are_ignored(void **state) {
    char path[] = "/tmp/lowkey-hybrid-XXXXXX";
    lk_model *model = NULL;
    close(mkstemp(path));
    assert_true(tiny_gguf_write_edited(path, tiny_preset("qwen35"), add_next_token_layer, NULL));
    assert_int_equal(lk_model_open(&model, path, NULL, NULL), LK_OK);
    assert_int_equal(lk_model_get_info(model).n_layer, tiny_preset("qwen35")->n_layer - 1);
    assert_int_equal(lk_model_get_info(model).n_cached, 1);
    lk_model_free(model);
    unlink(path);
}

static void what_needs_attention_is_refused(void **state) {
    const char *family = *state;
    lk_model *model = open_preset(family, CTX, 1);
    lk_compress *compress = NULL;
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    assert_int_equal(lk_compress_new(&compress, model, NULL, tok, CTX, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "recurrent"));
    lk_lora_opts opts = {.n_ctx = 64};
    assert_int_equal(lk_train_lora(model, recipe, tok, CTX, &opts, "none.lk.gguf", &err),
                     LK_E_UNSUPPORTED);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The states are a part of the plan, and of what a session counts. */
static void states_are_counted(void **state) {
    const char *family = *state;
    lk_model *model = open_preset(family, CTX, 1);
    size_t bytes = lk_recurrent_bytes(&model->net->hp);
    lk_preset preset;
    for (int i = 0; lk_recipe_preset(i, &preset); i++) {
        lk_recipe *recipe = NULL;
        lk_plan plan;
        lk_session_opts opts = {.n_ctx = CTX};
        int32_t tok[CTX];
        if (preset.compress) continue;
        random_tokens(tok, CTX, model, 1);
        lk_session *session = open_session(model, preset.name, CTX, &recipe);
        assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_OK);
        assert_int_equal(lk_session_sync(session, tok, CTX, NULL, NULL), LK_OK);
        lk_session_stats stats = lk_session_get_stats(session);
        assert_int_equal(stats.state_bytes, bytes);
        uint64_t tables = plan.cache_bytes / 32; /* they have room for more blocks */
        if (stats.cache_bytes > plan.cache_bytes + tables || plan.cache_bytes < bytes)
            fail_msg("%s: %d bytes, planned %d", preset.name, (int)stats.cache_bytes,
                     (int)plan.cache_bytes);
        lk_session_free(session);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* A state that is not finite is not loaded. */
static void damaged_states_are_refused(void **state) {
    const char *family = *state;
    char path[] = "/tmp/lowkey-hybrid-XXXXXX";
    lk_model *model = open_preset(family, CTX, 1);
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    int32_t tok[40];
    random_tokens(tok, 40, model, 1);
    lk_session *session = open_session(model, "best-3", CTX, &recipe);
    close(mkstemp(path));
    assert_int_equal(lk_session_sync(session, tok, 40, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
    assert_int_equal(lk_session_load(session, NULL, path, &err), LK_OK);
    session->recurrent[5] = NAN;
    assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
    assert_int_equal(lk_session_load(session, NULL, path, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "recurrent"));
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
    unlink(path);
}

/* Without a checkpoint, a session can only go on. */
static void sessions_are_not_cut_back(void **state) {
    const char *family = *state;
    lk_model *model = open_preset(family, CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[80];
    size_t reused;
    random_tokens(tok, 80, model, 1);
    lk_session *session = open_session(model, "f16", CTX, &recipe);
    assert_int_equal(lk_session_sync(session, tok, 80, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_reusable(session, tok, 70), 0);
    assert_int_equal(lk_session_reusable(session, tok, 80), 80);
    assert_int_equal(lk_session_sync(session, tok, 70, &reused, NULL), LK_OK);
    assert_int_equal(reused, 0);
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_metadata_is_refused),
        cmocka_unit_test(next_token_layers_are_ignored),
        cmocka_unit_test_prestate(what_needs_attention_is_refused, (void *)"qwen35"),
        cmocka_unit_test_prestate(what_needs_attention_is_refused, (void *)"lfm2"),
        cmocka_unit_test_prestate(what_needs_attention_is_refused, (void *)"granitehybrid"),
        cmocka_unit_test_prestate(states_are_counted, (void *)"qwen35"),
        cmocka_unit_test_prestate(states_are_counted, (void *)"lfm2"),
        cmocka_unit_test_prestate(states_are_counted, (void *)"granitehybrid"),
        cmocka_unit_test_prestate(damaged_states_are_refused, (void *)"qwen35"),
        cmocka_unit_test_prestate(damaged_states_are_refused, (void *)"lfm2"),
        cmocka_unit_test_prestate(damaged_states_are_refused, (void *)"granitehybrid"),
        cmocka_unit_test_prestate(sessions_are_not_cut_back, (void *)"qwen35"),
        cmocka_unit_test_prestate(sessions_are_not_cut_back, (void *)"lfm2"),
        cmocka_unit_test_prestate(sessions_are_not_cut_back, (void *)"granitehybrid"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
