/* Models with recurrent layers: damaged metadata, what is refused, states in plans and files, and
 * the same results in a batch, in parts and after going back. */
#include "engine/recurrent.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CTX = 256 };

struct change {
    const char *preset; /* NULL: qwen35 */
    const char *key;
    int value; /* -1: remove the key */
    const char *reason;
};

static const char *preset_of(const struct change *change) {
    return change->preset ? change->preset : "qwen35";
}

static void change_key(struct gguf_context *gguf, void *user) {
    const struct change *change = user;
    char key[96];
    snprintf(key, sizeof key, "%s.%s", preset_of(change), change->key);
    if (change->value < 0)
        gguf_remove_key(gguf, key);
    else
        gguf_set_val_u32(gguf, key, (uint32_t)change->value);
}

static void bad_metadata_is_refused(void **state) {
    (void)state;
    static const struct change changes[] = {
        {NULL, "ssm.state_size", 24, "not supported"},
        {NULL, "ssm.state_size", 100000, "ssm.state_size"},
        {NULL, "ssm.group_count", 3, "not supported"},
        {NULL, "ssm.group_count", 0, "ssm.group_count"},
        {NULL, "ssm.time_step_rank", 2000000000, "ssm.time_step_rank"},
        {NULL, "ssm.time_step_rank", 8, "not supported"},
        {NULL, "ssm.inner_size", 129, "not supported"},
        {NULL, "ssm.conv_kernel", 1, "ssm.conv_kernel"},
        {NULL, "ssm.conv_kernel", 5, "ssm_conv1d"},
        {NULL, "ssm.conv_kernel", -1, "ssm.conv_kernel"},
        {NULL, "full_attention_interval", 1, "attn_q"},
        {NULL, "full_attention_interval", 3, "attn_q"},
        {NULL, "full_attention_interval", 9, "attn_qkv"},
        {NULL, "rope.dimension_sections", -1, "sections"},
        {NULL, "rope.dimension_sections", 11, "sections"},
        {NULL, "nextn_predict_layers", 5, "predict"},
        {"qwen35moe", "expert_count", 0, "expert_count"},
        {"qwen35moe", "expert_used_count", 7, "expected 1 to 6"},
        {"qwen35moe", "expert_feed_forward_length", -1, "ffn_gate_exps"},
        {"qwen35moe", "expert_shared_feed_forward_length", 0, "shared_feed_forward_length is 0"},
        {"qwen35moe", "expert_shared_feed_forward_length", 96, "ffn_gate_shexp"},
        {"qwen35moe", "expert_group_count", 6, "expert_group_used_count"},
        {"qwen3next", "expert_count", -1, "expert_count"},
        {"qwen3next", "ssm.group_count", 3, "attn_qkv"},
        {"lfm2", "shortconv.l_cache", 1, "expected 2 to 16"},
        {"lfm2", "shortconv.l_cache", 4, "shortconv.conv"},
        {"lfm2", "shortconv.l_cache", -1, "shortconv.l_cache"},
        {"lfm2", "attention.head_count_kv", 0, "is 0 for all layers"},
        {"lfm2", "attention.head_count_kv", 2, "attn_q_norm"},
        {"lfm2", "attention.head_count_kv", 3, "multiple of 3"},
        {"lfm2", "attention.sliding_window", 16, "sliding window of 16"},
        {"lfm2", "block_count", 2, "list of 2"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char path[] = "/tmp/lowkey-hybrid-XXXXXX";
        struct change change = changes[i];
        lk_model *model = NULL;
        lk_err err = {0};
        close(mkstemp(path));
        assert_true(
            tiny_gguf_write_edited(path, tiny_preset(preset_of(&change)), change_key, &change));
        lk_status status = lk_model_open(&model, path, NULL, &err);
        unlink(path);
        if (status == LK_OK || !strstr(err.msg, change.reason))
            fail_msg("%s = %d: %s", change.key, change.value, status ? err.msg : "opened");
    }
}

/* A layer that predicts further tokens is ignored. */
static void next_token_layers_are_ignored(void **state) {
    (void)state;
    char path[] = "/tmp/lowkey-hybrid-XXXXXX";
    struct change change = {NULL, "nextn_predict_layers", 1, NULL};
    lk_model *model = NULL;
    close(mkstemp(path));
    assert_true(tiny_gguf_write_edited(path, tiny_preset("qwen35"), change_key, &change));
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
    for (int i = 0; lk_recipe_preset(i).name; i++) {
        lk_preset preset = lk_recipe_preset(i);
        lk_recipe *recipe = NULL;
        lk_plan plan;
        lk_session_opts opts = {.n_ctx = CTX};
        int32_t tok[CTX];
        if (preset.sidecar) continue;
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
        cmocka_unit_test_prestate(states_are_counted, (void *)"qwen35"),
        cmocka_unit_test_prestate(states_are_counted, (void *)"lfm2"),
        cmocka_unit_test_prestate(damaged_states_are_refused, (void *)"qwen35"),
        cmocka_unit_test_prestate(damaged_states_are_refused, (void *)"lfm2"),
        cmocka_unit_test_prestate(sessions_are_not_cut_back, (void *)"qwen35"),
        cmocka_unit_test_prestate(sessions_are_not_cut_back, (void *)"lfm2"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
