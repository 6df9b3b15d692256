/* Shares of the layers: one threshold has them, counted in another way, and they fit the size. */
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "recipe/recipe.h"
#include "support_model.h"
#include "test.h"
#include "tiny_presets.h"

enum { CHUNK = 320, N_CHUNK = 2, N_TOK = N_CHUNK * CHUNK + 7, N_SINK = 4 };

static const char like_text[] = "sink 4: f16; keep 40% by replay: k=rot3 v=rot2; window 32: rot8";

/* The scores of all layers, without sinks: [n_layer][CAP], n[n_layer]. */
enum { CAP = N_CHUNK * CHUNK * 8, MAX_LAYER = 8 };

static float score[MAX_LAYER][CAP];
static int n_score[MAX_LAYER];

static void collect(const lk_session *session, int n_layer) {
    for (int layer = 0; layer < n_layer; layer++) {
        const struct lk_evict *e = &session->cache->evict[layer];
        if (session->cache->kv[layer][LK_V].n_swa > 0) continue;
        for (int64_t i = 0; i < e->n * e->n_head; i++)
            if (e->pos[i] >= N_SINK && e->score[i] < LK_NOT_REPLAYED) {
                assert_true(n_score[layer] < CAP);
                score[layer][n_score[layer]++] = e->score[i];
            }
    }
}

/* How many rows of a layer have at least this score, in per cent. */
static double percent_above(int layer, float least) {
    int n = 0;
    for (int i = 0; i < n_score[layer]; i++) n += score[layer][i] >= least;
    return 100.0 * n / n_score[layer];
}

static uint64_t cache_bytes(const lk_model *model, const lk_recipe *recipe, int n_ctx) {
    lk_session_opts opts = {.n_ctx = n_ctx};
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_OK);
    return plan.cache_bytes;
}

/* The share that a recipe gives a layer, in per cent: without a part of its own, 40. */
static double percent_of(const lk_recipe *recipe, int layer) {
    for (int i = recipe->n_override - 1; i >= 0; i--)
        if (recipe->override[i].first <= layer && layer <= recipe->override[i].last)
            return (double)recipe->override[i].limit.percent;
    return 40;
}

/* For some row's score as the threshold, all layers have what the recipe gives them, up to
 * rounding to multiples of 5. */
static void layers_have_one_threshold(void **state) {
    static const char *const preset[] = {"llama-mha", "gemma3", "bloom"};
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++) {
        lk_model *model = open_preset(preset[i], CHUNK, 1);
        int n_layer = lk_model_get_info(model).n_cached;
        bool found = false;
        int32_t tok[N_TOK];
        lk_recipe *like, *all, *out;
        lk_session_opts session_opts = {.n_ctx = CHUNK};
        lk_budget_opts opts = {.chunk = CHUNK, .n_ctx = 4096};
        lk_err err = {0};
        assert_in_range(n_layer, 1, MAX_LAYER);
        memset(n_score, 0, sizeof n_score);
        random_tokens(tok, N_TOK, model, 5);
        assert_int_equal(lk_recipe_parse(&like, like_text, NULL), LK_OK);
        assert_int_equal(lk_recipe_parse(&all, "keep 100% by replay: f16; window 1: f16", NULL),
                         LK_OK);
        if (lk_tune_budgets(&out, model, like, tok, N_TOK, &opts, &err)) fail_msg("%s", err.msg);
        for (int c = 0; c < N_CHUNK; c++) {
            lk_session *session;
            assert_int_equal(lk_session_new(&session, model, all, &session_opts, NULL), LK_OK);
            assert_int_equal(lk_session_sync(session, tok + c * CHUNK, CHUNK, NULL, NULL), LK_OK);
            collect(session, n_layer);
            lk_session_free(session);
        }
        for (int k = 0; k < n_layer * CAP && !found; k++) {
            found = k % CAP < n_score[k / CAP];
            for (int layer = 0; layer < n_layer && found; layer++)
                found &= n_score[layer] == 0 ? percent_of(out, layer) == 40
                                             : fabs(percent_above(layer, score[k / CAP][k % CAP]) -
                                                    percent_of(out, layer)) < 2.7;
        }
        if (!found) fail_msg("%s: %s", preset[i], lk_recipe_text(out));
        assert_true(cache_bytes(model, out, 4096) <= cache_bytes(model, like, 4096));
        assert_true(10 * cache_bytes(model, out, 4096) >= 9 * cache_bytes(model, like, 4096));
        lk_recipe_free(out), lk_recipe_free(all), lk_recipe_free(like);
        lk_model_free(model);
    }
}

static bool stop(void *user, uint64_t done, uint64_t total) {
    assert_true(done <= total && total == (uint64_t)N_CHUNK * CHUNK);
    return --*(int *)user > 0;
}

static void others_are_refused(void **state) {
    static const char *const text[] = {
        "best-3", "keep 40% by h2o: f16; window 8: f16", "keep 64 by replay: rot3; window 8: f16",
        "keep 40% of context by replay: rot3; window 8: f16",
        "keep 40% by replay: rot3; layers 0: keep 20% by replay: rot3; window 8: f16"};
    lk_model *model = open_preset("llama-mha", CHUNK, 1);
    int32_t tok[N_TOK];
    lk_recipe *like, *out;
    lk_err err = {0};
    int left = 3;
    lk_budget_opts opts = {.chunk = CHUNK, .progress = stop, .user = &left};
    random_tokens(tok, N_TOK, model, 5);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        assert_int_equal(lk_recipe_parse(&like, text[i], &err), LK_OK);
        assert_int_equal(lk_tune_budgets(&out, model, like, tok, N_TOK, &opts, &err), LK_E_ARG);
        assert_null(out);
        lk_recipe_free(like);
    }
    assert_int_equal(lk_recipe_parse(&like, like_text, &err), LK_OK);
    assert_int_equal(lk_tune_budgets(&out, model, like, tok, CHUNK - 1, &opts, &err), LK_E_ARG);
    opts.chunk = 7;
    assert_int_equal(lk_tune_budgets(&out, model, like, tok, N_TOK, &opts, &err), LK_E_ARG);
    opts.chunk = CHUNK;
    assert_int_equal(lk_tune_budgets(&out, model, like, tok, N_TOK, &opts, &err), LK_E_CANCELLED);
    assert_null(out);
    lk_model_free(model);
    model = open_preset("gpt2", CHUNK, 1); /* cannot replay */
    assert_int_equal(lk_tune_budgets(&out, model, like, tok, N_TOK, &opts, &err), LK_E_UNSUPPORTED);
    lk_recipe_free(like);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_have_one_threshold),
                                       cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
