/* Models whose last layers attend to K and V of earlier ones, and whose layers with a window have
 * other heads: what is stored, what plans count, and what is refused. */
#include "engine/prefill_state.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 256 };

/* Rows are stored once: by layers that have K and V, with the heads of each layer. */
static void rows_are_stored_once(void **state) {
    const struct tiny_spec *spec = tiny_preset("gemma4");
    lk_model *model = open_preset("gemma4", CTX, 1);
    lk_model_info info = lk_model_get_info(model);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    int n_cached = spec->n_layer - spec->n_shared;
    random_tokens(tok, CTX, model, 1);
    assert_int_equal(info.n_cached, n_cached);
    assert_int_equal(info.n_value,
                     2 * 2 *
                         (spec->n_head_kv * spec->d_head + spec->n_head_kv_swa * spec->d_head_swa));
    lk_session *s = open_session(model, "f16", CTX, &recipe);
    assert_int_equal(lk_session_sync(s, tok, CTX, NULL, NULL), LK_OK);
    assert_int_equal(s->cache->shape.n_layer, n_cached);
    for (int layer = 0; layer < n_cached; layer++) {
        const struct lk_kv *kv = &s->cache->kv[layer][LK_K];
        bool swa = layer % 2 == 0;
        assert_int_equal(kv->n_head, swa ? spec->n_head_kv_swa : spec->n_head_kv);
        assert_int_equal(kv->level[0].d_part, swa ? spec->d_head_swa : spec->d_head);
        assert_true(swa ? kv->first > CTX - 2 * 32 - spec->n_swa : kv->first == 0);
    }
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* With every preset that needs no sidecar: the plan is what is held after a prompt. */
static void plans_are_what_is_held(void **state) {
    lk_model *model = open_preset("gemma4", CTX, 1);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    lk_preset preset;
    for (int i = 0; lk_recipe_preset(i, &preset); i++) {
        lk_recipe *recipe = NULL;
        lk_session *s = NULL;
        lk_plan plan;
        lk_err err = {0};
        lk_session_opts opts = {.n_ctx = CTX};
        if (preset.compress) continue;
        assert_int_equal(lk_recipe_parse(&recipe, preset.name, NULL), LK_OK);
        lk_status planned = lk_plan_make(model, recipe, &opts, &plan, &err),
                  opened = lk_session_new(&s, model, recipe, &opts, &err);
        if (planned || opened) fail_msg("%s: %s", preset.name, err.msg);
        if (lk_session_sync(s, tok, CTX, NULL, &err)) fail_msg("%s: %s", preset.name, err.msg);
        lk_session_stats stats = lk_session_get_stats(s);
        uint64_t tables = plan.cache_bytes / 32; /* they have room for more blocks */
        if (stats.cache_bytes > plan.cache_bytes + tables ||
            stats.cache_bytes < plan.cache_bytes / 2)
            fail_msg("%s: %d bytes, planned %d", preset.name, (int)stats.cache_bytes,
                     (int)plan.cache_bytes);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Exact rows of two layers are held while a prompt is prefilled: the limit knows of both. */
static void limits_count_both_layers(void **state) {
    const struct tiny_spec *spec = tiny_preset("gemma4");
    lk_model *model = open_preset("gemma4", CTX, 1);
    uint64_t width =
        (uint64_t)(spec->n_head_kv * spec->d_head + spec->n_head_kv_swa * spec->d_head_swa);
    assert_int_equal(lk_prefill_exact_bytes(model->net, false), 2 * width * sizeof(uint16_t));
    lk_model_free(model);
    spec = tiny_preset("gemma4-512");
    model = open_preset("gemma4-512", CTX, 1);
    width = (uint64_t)(spec->n_head_kv * spec->d_head);
    assert_int_equal(lk_prefill_exact_bytes(model->net, false), 2 * width * sizeof(uint16_t));
    lk_model_free(model);
}

/* A prompt of several chunks. Only the last chunk goes through the layers that share. */
static void long_prompts_equal_steps(void **state) {
    enum { LONG = 2 * LK_EVAL_MAX + 40 };
    struct tiny_spec spec = *tiny_preset("gemma4");
    lk_model_opts opts = {.n_threads = 2};
    spec.n_ctx = LONG;
    lk_model *model = open_tiny(&spec, &opts);
    lk_recipe *recipe = NULL;
    lk_session *s[2] = {NULL, NULL};
    int32_t *tok = malloc(LONG * sizeof *tok);
    random_tokens(tok, LONG, model, 2);
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    for (int i = 0; i < 2; i++) {
        lk_session_opts session = {.n_ctx = LONG, .chunked_prefill = i == 1};
        assert_int_equal(lk_session_new(&s[i], model, recipe, &session, NULL), LK_OK);
        assert_int_equal(lk_session_sync(s[i], tok, LONG, NULL, NULL), LK_OK);
    }
    int n_vocab = lk_model_get_info(model).n_vocab;
    double error = nmse(lk_session_logits(s[0], -1), lk_session_logits(s[1], -1), (size_t)n_vocab);
    if (!(error <= 1e-5)) fail_msg("nmse %g", error);
    for (int i = 0; i < 2; i++) lk_session_free(s[i]);
    free(tok);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* A policy counts the attention of the layer that stores the rows: each query gives weights whose
 * sum is 1. */
static void scores_are_of_the_first_layer(void **state) {
    enum { STEPS = 40 };
    const struct tiny_spec *spec = tiny_preset("gemma4");
    lk_model *model = open_preset("gemma4", CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "keep 128 by h2o: f16; window 16: f16", CTX, &recipe);
    int32_t tok[CTX];
    int n_scored = 0;
    random_tokens(tok, CTX, model, 4);
    for (int i = 0; i < STEPS; i += 1 + (i == 8)) /* two tokens at once, too */
        assert_int_equal(lk_session_eval(s, tok + i, 1 + (i == 8), false, NULL), LK_OK);
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++) {
        const struct lk_evict *evict = &s->cache->evict[layer];
        double sum = 0;
        if (!evict->needs_scores) continue;
        for (int64_t i = 0; i < evict->n * evict->n_head; i++) sum += evict->score[i];
        assert_float_equal(sum, spec->n_head * STEPS, 1e-2);
        n_scored++;
    }
    assert_true(n_scored > 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static void what_needs_plain_projections_is_refused(void **state) {
    lk_model *model = open_preset("gemma4", CTX, 1);
    lk_compress *compress = NULL;
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    assert_int_equal(lk_compress_new(&compress, model, NULL, tok, CTX, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "normalize V"));
    lk_lora_opts opts = {.n_ctx = 64};
    assert_int_equal(lk_train_lora(model, recipe, tok, CTX, &opts, "none.lk.gguf", &err),
                     LK_E_UNSUPPORTED);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static void bad_metadata_is_refused(void **state) {
    static const struct metadata_change changes[] = {
        {"attention.shared_kv_layers", 2, "share K and V"},
        {"attention.shared_kv_layers", 6, "share K and V"},
        {"attention.shared_kv_layers", 7, "expected 0 to 6"},
        {"attention.shared_kv_layers", -1, "attn_k"},
        {"attention.key_length_swa", 48, "equal multiples of 16"},
        {"attention.key_length_swa", 4000000, "expected 16 to 512"},
        {"attention.key_length_swa", -1, "key_length_swa"},
        {"attention.value_length_swa", -1, "value_length_swa"},
        {"attention.sliding_window", -1, "sliding_window"},
        {"attention.sliding_window_pattern", 1, "others with the same window"},
        {"attention.sliding_window_pattern", -1, "sliding_window_pattern"},
        {"attention.head_count_kv", 2, "blk.1.attn_k"},
        {"attention.head_count_kv", 0, "is 0 for all layers"},
        {"rope.dimension_count_swa", 33, "33 of 64 channels"},
        {"embedding_length_per_layer_input", -1, "embedding_length_per_layer_input"},
        {"embedding_length_per_layer_input", 32, "per_layer_token_embd"},
        {"embedding_length_per_layer_input", 0, "per_layer"},
        {"embedding_length_per_layer_input", 1000000, "expected 0 to 16384"},
        {"feed_forward_length", 256, "blk.4.ffn_gate"},
        {"feed_forward_length", 0, "feed_forward_length"},
        {"expert_count", 4, "expert"},
    };
    static const struct metadata_change experts[] = {
        {"expert_count", -1, "ffn_gate_inp.scale"},
        {"expert_count", 5, "ffn_gate_inp"},
        {"expert_used_count", 7, "expected 1 to 6"},
        {"expert_feed_forward_length", 64, "ffn_down_exps"},
        {"expert_feed_forward_length", 2000000, "expected 1 to 1048576"},
    };
    expect_refused("gemma4", changes, sizeof changes / sizeof *changes);
    expect_refused("gemma4-moe", experts, sizeof experts / sizeof *experts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_stored_once),
        cmocka_unit_test(plans_are_what_is_held),
        cmocka_unit_test(limits_count_both_layers),
        cmocka_unit_test(long_prompts_equal_steps),
        cmocka_unit_test(scores_are_of_the_first_layer),
        cmocka_unit_test(what_needs_plain_projections_is_refused),
        cmocka_unit_test(bad_metadata_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
