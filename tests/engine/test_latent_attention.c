/* Models with latent attention (MLA): bytes of their sessions, what is refused, damaged metadata,
 * and the same bits after copying and going back. Files are in test_save.c. */
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 500, PROMPT = 331 };

static const char *const refused[] = {"compressed", "streaming", "rot4; read 25%",
                                      "sink 4: f16; body: none; window 60: f16; absorb less",
                                      "all: k=latent50% v=f16"};

static bool is_refused(const char *text) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(refused[i], text) == 0) return true;
    return false;
}

static void recipes_are_refused(void **state) {
    lk_model *model = open_preset("deepseek2", CTX, 1);
    lk_compress *compress = NULL;
    lk_err err = {0};
    int32_t tok[CTX];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lk_recipe *recipe;
        lk_session *session = NULL;
        lk_session_opts opts = {.n_ctx = CTX};
        if (lk_recipe_parse(&recipe, refused[i], &err) != LK_OK) fail_msg("%s", err.msg);
        lk_status status = lk_session_new(&session, model, recipe, &opts, &err);
        if (status != LK_E_UNSUPPORTED || !strstr(err.msg, "(MLA)"))
            fail_msg("%s: %s", refused[i], status ? err.msg : "accepted");
        lk_recipe_free(recipe);
    }
    random_tokens(tok, CTX, model, 1);
    assert_int_equal(lk_compress_new(&compress, model, NULL, tok, CTX, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "latent attention"));
    lk_model_free(model);
}

/* A row is a latent and a rotary part, in f16 or as the codecs pack them. Nothing is held twice. */
static void bytes_are_counted(void **state) {
    lk_model *model = open_preset("deepseek2", CTX, 1);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    lk_preset preset;
    for (int i = 0; lk_recipe_preset(i, &preset); i++) {
        lk_recipe *recipe;
        lk_plan plan;
        lk_session_opts opts = {.n_ctx = 480};
        if (preset.compress || is_refused(preset.name)) continue;
        lk_session *session = open_session(model, preset.name, CTX, &recipe);
        assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_OK);
        assert_int_equal(lk_session_sync(session, tok, 480, NULL, NULL), LK_OK);
        lk_session_stats stats = lk_session_get_stats(session);
        assert_int_equal(stats.f16_bytes, 3 * 480 * (64 + 32) * 2);
        assert_int_equal(plan.f16_bytes, stats.f16_bytes);
        assert_int_equal(stats.cache_bytes,
                         lk_ledger_bytes(&session->ledger, LK_FOR_CACHE) +
                             lk_ledger_bytes(&session->rows.ledger, LK_FOR_CACHE));
        uint64_t tables = plan.cache_bytes / 16; /* they have room for more blocks */
        if (stats.cache_bytes > plan.cache_bytes + tables || plan.cache_bytes < stats.code_bytes)
            fail_msg("%s: %d bytes, planned %d", preset.name, (int)stats.cache_bytes,
                     (int)plan.cache_bytes);
        if (strcmp(preset.name, "f16") == 0)
            assert_true(stats.cache_bytes >= stats.f16_bytes &&
                        stats.cache_bytes < stats.f16_bytes + stats.f16_bytes / 8);
        lk_session_free(session);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Evaluate the same n tokens in both. */
static void continue_both(lk_session *a, lk_session *b, int n, uint64_t seed, const char *text) {
    int32_t tok[CTX];
    random_tokens(tok, n, a->model, seed);
    for (int at = 0, now; at < n; at += now) {
        now = at % 3 == 0 ? 1 : 7;
        if (now > n - at) now = n - at;
        assert_int_equal(lk_session_eval(a, tok + at, now, false, NULL), LK_OK);
        assert_int_equal(lk_session_eval(b, tok + at, now, false, NULL), LK_OK);
        assert_same_logits(a, b, text);
    }
}

static void check_copies(lk_model *model, const char *text) {
    lk_recipe *recipe[3];
    lk_session *s[3];
    int32_t tok[CTX];
    size_t reused[2];
    random_tokens(tok, CTX, model, 1);
    for (int i = 0; i < 3; i++) s[i] = open_session(model, text, CTX, &recipe[i]);
    assert_int_equal(lk_session_sync(s[0], tok, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s[1], tok, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_copy(s[2], s[0], NULL), LK_OK);
    continue_both(s[0], s[1], 40, 2, text);
    continue_both(s[2], s[1], 0, 3, text);
    /* The copy goes another way; the first one goes back, like one that was not copied. */
    assert_int_equal(lk_session_eval(s[2], tok, 45, false, NULL), LK_OK);
    memcpy(tok, lk_session_tokens(s[0]), (PROMPT + 35) * sizeof *tok);
    assert_int_equal(lk_session_sync(s[0], tok, PROMPT + 35, &reused[0], NULL), LK_OK);
    assert_int_equal(lk_session_sync(s[1], tok, PROMPT + 35, &reused[1], NULL), LK_OK);
    assert_int_equal(reused[0], reused[1]);
    assert_same_logits(s[0], s[1], text);
    continue_both(s[0], s[1], 60, 4, text);
    for (int i = 0; i < 3; i++) lk_session_free(s[i]), lk_recipe_free(recipe[i]);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

static void copies_and_going_back(void **state) {
    lk_model *model = open_preset("deepseek3", CTX, 1);
    lk_preset preset;
    for (int i = 0; lk_recipe_preset(i, &preset); i++)
        if (!preset.compress && !is_refused(preset.name)) check_copies(model, preset.name);
    check_copies(model, "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16");
    lk_model_free(model);
}

/* ---- damaged metadata ---- */

static void bad_metadata_is_refused(void **state) {
    static const struct metadata_change changes[] = {
        {"attention.key_length_mla", -1, "convert the model again"},
        {"attention.key_length_mla", 16, "not supported"},
        {"attention.key_length_mla", 64, "attn_k_b"},
        {"attention.key_length", 96, "not supported"},
        {"attention.key_length", 160, "RoPE over 16 channels"},
        {"attention.kv_lora_rank", -1, "kv_lora_rank"},
        {"attention.kv_lora_rank", 112, "RoPE over 16 channels"},
        {"attention.kv_lora_rank", 2000000000, "kv_lora_rank"},
        {"attention.kv_lora_rank", 40, "not supported"},
        {"attention.value_length_mla", 64, "attn_v_b"},
        {"attention.q_lora_rank", -1, "attn_q.weight"},
        {"attention.q_lora_rank", 96, "attn_q_a"},
        {"attention.head_count", 4, "[32, 128, 4]"},
        {"rope.dimension_count", 8, "RoPE over 8 channels"},
        {"leading_dense_block_count", 3, "leading_dense_block_count"},
        {"leading_dense_block_count", 1, "ffn_gate.weight"},
        {"expert_shared_count", -1, "expert_shared_count"},
        {"expert_shared_count", 3, "ffn_gate_shexp"},
        {"expert_gating_func", 3, "function 3"},
        {"expert_group_count", 3, "not possible"},
        {"expert_group_count", 8, "not possible"},
        {"expert_group_used_count", 1, "not possible"},
        {"expert_group_used_count", 5, "expected 1 to 4"},
        {"expert_count", 0, "expert_count"},
    };
    expect_refused("deepseek3", changes, sizeof changes / sizeof *changes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_are_refused), cmocka_unit_test(bytes_are_counted),
        cmocka_unit_test(copies_and_going_back), cmocka_unit_test(bad_metadata_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
