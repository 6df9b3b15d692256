/* Every pair of features of the table of combinations (lib/recipe/combinations.c), in a session of
 * a tiny model: the pairs that can be combined prefill and decode, hold what the plan says, and age
 * by the rules. The others are refused with the table's reason. */
#include "codec/f16.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "lowkey_serve.h"
#include "recipe/recipe_check.h"
#include "sidecar/sidecar_write.h"
#include "support_baselines.h"
#include "support_basis.h"
#include "support_model.h"
#include "test.h"
#include "tiny_presets.h"

#include <unistd.h>

enum { PROMPT = 300, N_STEP = 64, N_TOK = PROMPT + N_STEP };

/* ---- a model with a sidecar that has bases and networks ---- */

static char path[] = "/tmp/lowkey-combinations-XXXXXX";

static void add_tensor(struct lk_sidecar_builder *builder, struct random *r, int layer,
                       const char *part, enum lk_sidecar_type type, int a, int b, int c,
                       void **data) {
    struct lk_sidecar_tensor t = {.ne = {a, b, c}, .type = type};
    size_t n = (size_t)a * b * c;
    lk_err err = {0};
    snprintf(t.name, sizeof t.name, "blk.%d.less.%s", layer, part);
    t.data = *data = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        float x = 0.1f * random_gauss(r);
        if (type == LK_SIDECAR_F16)
            ((uint16_t *)t.data)[i] = lk_f32_to_f16(x);
        else
            ((float *)t.data)[i] = x;
    }
    if (lk_sidecar_builder_add(builder, &t, &err) != LK_OK) fail_msg("%s", err.msg);
}

/* Random bases of groups of `group` heads, as far as the model has them, and random networks. */
static void write_bases(const lk_model *model, int group) {
    enum { MAX_LAYER = 8, N_PART = 8, FEATURES = 8, HIDDEN = 16 };
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_sidecar_info info = {
        .method = "test",
        .model = {model->net->fingerprint, lk_hparams_cached(hp), hp->n_head_kv, hp->d_head}};
    if (hp->n_head_kv % group) group = 1;
    int width = group * hp->d_head, d = hp->d_head, n_kv = hp->n_head_kv;
    struct random r = {1};
    struct lk_ledger ledger = {0};
    struct lk_sidecar_builder *builder;
    struct lk_basis basis[MAX_LAYER][LK_N_BASIS];
    void *data[MAX_LAYER][N_PART];
    lk_err err = {0};
    int n_layer = lk_hparams_cached(hp);
    assert_in_range(n_layer, 2, MAX_LAYER);
    assert_int_equal(lk_sidecar_builder_new(&builder, &info, &ledger, &err), LK_OK);
    for (int layer = 0; layer < n_layer; layer++) {
        for (int side = 0; side < LK_N_BASIS; side++) {
            struct lk_basis *b = &basis[layer][side];
            *b = random_basis(&r, n_kv / group, width, width, width / 2, false, true);
            b->error = calloc((size_t)b->n_group * width, sizeof *b->error);
            if (lk_sidecar_builder_add_basis(builder, layer, side, b, &err) != LK_OK)
                fail_msg("%s", err.msg);
        }
        const struct {
            const char *name;
            enum lk_sidecar_type type;
            int ne[3];
        } part[N_PART] = {{"phi.w1", LK_SIDECAR_F16, {HIDDEN, d, hp->n_head}},
                          {"phi.w2", LK_SIDECAR_F16, {FEATURES, HIDDEN, hp->n_head}},
                          {"psi.w1", LK_SIDECAR_F16, {HIDDEN, d, n_kv}},
                          {"psi.w2", LK_SIDECAR_F16, {FEATURES, HIDDEN, n_kv}},
                          {"phi.level", LK_SIDECAR_F32, {hp->n_head, 1, 1}},
                          {"psi.w3", LK_SIDECAR_F32, {FEATURES, FEATURES, n_kv}},
                          {"psi.s1", LK_SIDECAR_F32, {FEATURES, n_kv, 1}},
                          {"psi.s2", LK_SIDECAR_F32, {FEATURES, n_kv, 1}}};
        for (int i = 0; i < N_PART; i++)
            add_tensor(builder, &r, layer, part[i].name, part[i].type, part[i].ne[0], part[i].ne[1],
                       part[i].ne[2], &data[layer][i]);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(lk_sidecar_builder_write(builder, f, &err), LK_OK);
    assert_int_equal(fclose(f), 0);
    lk_sidecar_builder_free(builder);
    for (int layer = 0; layer < n_layer; layer++) {
        for (int i = 0; i < N_PART; i++) free(data[layer][i]);
        for (int side = 0; side < LK_N_BASIS; side++) {
            free((void *)basis[layer][side].error);
            free_basis(&basis[layer][side]);
        }
    }
}

static lk_model *open_with_bases(const char *preset, int group) {
    struct tiny_spec spec = *tiny_preset(preset);
    lk_model_opts opts = {.n_threads = 1};
    spec.n_ctx = 512;
    lk_model *model = open_tiny(&spec, &opts);
    if (model->net->hp.d_rope > 0) return model; /* has latents without a sidecar */
    write_bases(model, group);
    lk_model_free(model);
    opts.sidecar = path;
    return open_tiny(&spec, &opts);
}

/* ---- what must hold after any number of tokens ---- */

/* Bytes that the blocks, tables, scores and statistics of the session need, without room for more:
 * what a plan counts. */
static uint64_t needed_bytes(const lk_session *s) {
    const struct lk_cache *cache = s->cache;
    struct lk_ledger ledger = {0};
    struct lk_pool pool;
    uint64_t bytes = s->absorb ? lk_absorb_state_bytes(s->absorb) : 0;
    lk_pool_init(&pool, LK_SLAB_BYTES, &ledger);
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < 2; i++) {
            const struct lk_equalizer *e = &kv->equalizer[i];
            uint64_t n = ((size_t)e->n_part * e->stride * sizeof(float) + 63) / 64 * 64;
            bytes += (e->sigma ? n : 0) + (e->query_power ? n : 0);
        }
        if (kv->evict && kv->side == LK_K) bytes += lk_evict_bytes(kv->evict, kv->evict->n);
        for (int i = 0; i < kv->n_level; i++) {
            bytes += (uint64_t)kv->level[i].n_block * LK_BLOCK_TABLE_BYTES;
            assert_true(
                lk_pool_reserve(&pool, kv->level[i].block_bytes, (size_t)kv->level[i].n_block));
        }
    }
    for (int i = 0; i < pool.n_class; i++) {
        const struct lk_pool_class *class = &pool.class[i];
        bytes += (class->n_reserved + class->n_block - 1) / class->n_block * class->n_block *
                 class->size;
    }
    lk_pool_destroy(&pool);
    return bytes;
}

/* prompt: all tokens arrived at once. If they did not, sizes in percent and sliding windows may
 * have dropped other rows than the plan assumes. */
static void check_bytes(const lk_session *s, bool prompt, const char *text) {
    lk_plan plan;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = (int32_t)lk_session_n_tok(s)};
    uint64_t ledger = lk_ledger_bytes(&s->ledger, LK_FOR_CACHE);
    assert_int_equal(lk_session_get_stats(s).cache_bytes, ledger);
    if (lk_plan_make(s->model, s->recipe, &opts, &plan, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    bool swa = s->cache->shape.n_swa > 0,
         percent = lk_recipe_features(s->recipe) & lk_feature_bit(LK_FEATURE_PERCENT),
         exact = prompt || (!percent && !swa);
    if (exact ? plan.cache_bytes != needed_bytes(s) : !swa && plan.cache_bytes < needed_bytes(s))
        fail_msg("%s, %d tokens: planned %lu bytes, needs %lu (%lu held)", text, opts.n_ctx,
                 (unsigned long)plan.cache_bytes, (unsigned long)needed_bytes(s),
                 (unsigned long)ledger);
    assert_true(!exact || ledger >= plan.cache_bytes);
}

/* The rows of K or V: their number, their positions, and how many each level may have. */
static void check_rows(const struct lk_kv *kv, int n_head, const char *text) {
    int64_t n = 0, sinks = lk_level_sinks(kv->rule, kv->n_level);
    for (int i = 0; i < kv->n_level; i++) n += kv->count[i].rows;
    if (n != kv->n_tok - kv->first) fail_msg("%s: %d rows", text, (int)n);
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level_rule *rule = &kv->rule[i];
        int64_t rows = kv->count[i].rows;
        if (lk_level_room(rule, &(struct lk_level_count){0}, kv->n_tok, rows) < rows)
            fail_msg("%s: level %d has %d rows, more than its limit", text, i, (int)rows);
        bool oldest = i == (sinks ? 1 : 0);
        int64_t keep = rule->percent > 0 ? (int64_t)ceil(rule->percent / 100.0 * (double)kv->n_tok)
                                         : rule->keep;
        if (i && !oldest && kv->count[i - 1].rows && rows >= keep + rule->batch)
            fail_msg("%s: level %d has %d rows, which should have left it", text, i, (int)rows);
    }
    for (int head = 0; head < n_head; head++) {
        bool seen[N_TOK] = {false};
        int64_t before = -1;
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t at = 0; at < kv->count[i].rows; at++) {
                int64_t pos = lk_kv_position(kv, i, at, head);
                if (pos < 0 || pos >= kv->n_tok || seen[pos])
                    fail_msg("%s: head %d, level %d: position %d", text, head, i, (int)pos);
                seen[pos] = true;
                bool ordered = kv->rule[i].limit.policy.kind == LK_POLICY_NONE;
                if (ordered && at > 0) assert_int_equal(pos, before + 1);
                before = pos;
            }
        for (int64_t pos = 0; pos < sinks && pos < kv->n_tok; pos++) assert_true(seen[pos]);
        assert_true(seen[kv->n_tok - 1]);
    }
}

static void check_session(const lk_session *s, bool prompt, const char *text) {
    const struct lk_cache *cache = s->cache;
    const float *logits = lk_session_logits(s, -1);
    for (int i = 0; i < lk_model_get_info(s->model).n_vocab; i++)
        if (!isfinite(logits[i])) fail_msg("%s: logit %d is %g", text, i, (double)logits[i]);
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_kv *kv = cache->kv[layer];
        for (int side = 0; side < 2; side++) check_rows(&kv[side], kv[side].n_head, text);
        const struct lk_evict *evict = kv[LK_K].evict;
        if (!evict) continue;
        assert_int_equal(kv[LK_K].first, kv[LK_V].first);
        assert_int_equal(evict->n, kv[LK_K].n_tok - kv[LK_K].first);
        for (int64_t i = 0; i < evict->n * evict->n_head; i++)
            assert_int_equal(evict->pos[i], evict->pos[i / evict->unit * evict->unit]);
    }
    check_bytes(s, prompt, text);
}

static void run_pair(lk_model *model, const lk_combination *pair) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    lk_session *s = NULL;
    lk_session_opts opts = {.n_ctx = N_TOK};
    int32_t tok[N_TOK];
    lk_status status = lk_recipe_parse(&recipe, pair->example, &err);
    if (status == LK_OK) status = lk_session_new(&s, model, recipe, &opts, &err);
    if (pair->reason) {
        if (status == LK_OK || !strstr(err.msg, pair->reason))
            fail_msg("%s: not '%s' but '%s'", pair->example, pair->reason, err.msg);
        lk_recipe_free(recipe);
        return;
    }
    if (status != LK_OK) fail_msg("%s: %s", pair->example, err.msg);
    random_tokens(tok, N_TOK, model, 5);
    if (lk_session_sync(s, tok, PROMPT, NULL, &err) != LK_OK)
        fail_msg("%s: %s", pair->example, err.msg);
    check_session(s, true, pair->example);
    for (int at = PROMPT; at < N_TOK; at++) {
        if (lk_session_eval(s, tok + at, 1, false, &err) != LK_OK)
            fail_msg("%s: %s", pair->example, err.msg);
        if (at % 21 == 0 || at + 1 == N_TOK) check_session(s, false, pair->example);
    }
    bool evicts = lk_recipe_evicts(recipe), evicted = false;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        evicted |= s->cache->kv[layer][LK_K].first > 0;
    if (evicts && !evicted) fail_msg("%s: nothing was evicted", pair->example);
    lk_session_free(s);
    lk_recipe_free(recipe);
}

/* All pairs that need the model `preset`. b: the feature of the model; NULL: pairs of recipes. */
static void run_pairs(const char *preset, const char *b) {
    lk_model *model = open_with_bases(preset, 2);
    lk_combination pair;
    size_t n = 0, n_refused = 0;
    for (size_t i = 0; lk_recipe_combination(i, &pair); i++) {
        bool of_model = false;
        for (int f = LK_FEATURE_SLIDING; f < LK_N_FEATURE; f++)
            of_model |= strcmp(pair.b, lk_feature_name((enum lk_feature)f)) == 0;
        if (b ? strcmp(pair.b, b) != 0 : of_model) continue;
        n++;
        n_refused += pair.reason != NULL;
        if (model->net->hp.n_shared == 0 || !strstr(pair.example, "replay")) /* see below */
            run_pair(model, &pair);
    }
    print_message("%s: %zu pairs, %zu of them refused\n", preset, n, n_refused);
    assert_true(n >= LK_FEATURE_SLIDING);
    lk_model_free(model);
}

static void test_pairs_of_features(void **state) { run_pairs("llama", NULL); }

static void test_sliding_windows(void **state) {
    run_pairs("gemma3-cap", lk_feature_name(LK_FEATURE_SLIDING));
}

static void test_learned_positions(void **state) {
    run_pairs("gpt2", lk_feature_name(LK_FEATURE_LEARNED));
}

static void test_alibi(void **state) { run_pairs("bloom", lk_feature_name(LK_FEATURE_ALIBI)); }

static void test_softcap(void **state) { run_pairs("gemma2", lk_feature_name(LK_FEATURE_SOFTCAP)); }

static void test_latent_attention(void **state) {
    run_pairs("deepseek2", lk_feature_name(LK_FEATURE_SHARED));
}

static void test_two_heads(void **state) {
    run_pairs("gemma4", lk_feature_name(LK_FEATURE_TWO_HEADS));
}

/* What a recipe by replay needs, and these models do not have. */
static void test_replays_are_refused(void **state) {
    static const char *const models[] = {"gemma4", "qwen35", "gpt2"};
    for (int i = 0; i < 3; i++) {
        lk_model *model = open_preset(models[i], 512, 1);
        lk_recipe *recipe = NULL;
        lk_session *s = NULL;
        lk_err err = {0};
        assert_int_equal(lk_recipe_parse(&recipe, "keep 64 by replay; window 32: f16", &err),
                         LK_OK);
        assert_int_equal(lk_session_new(&s, model, recipe, NULL, &err), LK_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "another policy than replay"));
        lk_recipe_free(recipe);
        lk_model_free(model);
    }
}

/* Latents, codecs, ages, a policy, a state and other settings in single layers, all at once. */
static void test_everything_at_once(void **state) {
    static const char *recipes[] = {
        "sink 4: k=latent75%(pre) v=latent75%; keep 64 by h2o: k=latent50%(pre)+kivi4 "
        "v=latent50%+rot3; layers 1: keep 20% by tova(apart): "
        "k=latent25%(pre)+rot4(nomean,nosigma) "
        "v=latent50%+kivi4; recent 10%: k=latent75%(pre)+rot8(nomean,nosigma) v=latent75%+int8; "
        "window 16: k=latent100%(pre) v=latent100%; absorb less",
        "sink 2: int8; body: none; layers 0: keep 64 by h2o(mean): k=kivi2(g64) v=latent25%+rot2; "
        "recent 40: k=rot8 v=latent50%+rot8; window 16: f16; absorb less",
        "sink 3(shift): k=latent50% v=latent50%; keep 64 by newest: k=latent50%+rot2 v=kivi2; "
        "layers 1: none; recent 20: k=latent75% v=f16; absorb less",
        "keep 10% by random: k=latent(pre)+rot2 v=latent+rot2; layers last 1: keep 100% by newest: "
        "k=latent(pre)+rot2 v=latent+rot2"};
    lk_model *model = open_with_bases("llama", 2);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        lk_err err = {0};
        lk_recipe *recipe;
        lk_session *s;
        int32_t tok[N_TOK];
        random_tokens(tok, N_TOK, model, 5);
        s = open_session(model, recipes[i], N_TOK, &recipe);
        for (int at = 0; at < N_TOK; at++) {
            if (lk_session_eval(s, tok + at, 1, false, &err) != LK_OK)
                fail_msg("%s: %s", recipes[i], err.msg);
            if (at % 21 == 0 || at + 1 == N_TOK) check_session(s, false, recipes[i]);
        }
        if (lk_session_sync(s, tok + 1, PROMPT, NULL, &err) != LK_OK)
            fail_msg("%s: %s", recipes[i], err.msg);
        check_session(s, true, recipes[i]);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Latents of single heads and full rank change neither the logits of a policy nor, but for nearly
 * equal scores, the rows that it keeps. */
static void test_full_rank_equals_no_latents(void **state) {
    static const char *policies[] = {"h2o", "h2o(mean)", "tova", "tova(apart)", "newest", "random"};
    static const char *presets[] = {"llama", "llama3", "qwen2", "gemma3-cap", "falcon", "bloom"};
    int n_same = 0, n_run = 0;
    for (int m = 0; m < 6; m++) {
        lk_model *model = open_with_bases(presets[m], 1);
        int n_vocab = lk_model_get_info(model).n_vocab;
        int32_t tok[N_TOK];
        random_tokens(tok, N_TOK, model, 6);
        for (int i = 0; i < 6; i++) {
            if (!case_runs((size_t)(m + i))) continue;
            char text[2][128];
            lk_recipe *recipe[2];
            lk_session *s[2];
            double worst = 0;
            int64_t n_row = 0, n_other = 0;
            snprintf(text[0], sizeof text[0], "sink 4: f16; keep 64 by %s; window 32: f16",
                     policies[i]);
            snprintf(text[1], sizeof text[1],
                     "sink 4: f16; keep 64 by %s: k=latent100%%%s v=latent100%%; window 32: f16",
                     policies[i], (i + m) % 2 ? "(pre)" : "");
            for (int j = 0; j < 2; j++) {
                s[j] = open_session(model, text[j], N_TOK, &recipe[j]);
                assert_int_equal(lk_session_sync(s[j], tok, PROMPT, NULL, NULL), LK_OK);
            }
            for (int at = PROMPT; at < N_TOK; at++) {
                for (int j = 0; j < 2; j++)
                    assert_int_equal(lk_session_eval(s[j], tok + at, 1, false, NULL), LK_OK);
                double e = nmse(lk_session_logits(s[1], -1), lk_session_logits(s[0], -1), n_vocab);
                if (e > worst) worst = e;
            }
            for (int layer = 0; layer < s[0]->cache->shape.n_layer; layer++) {
                const struct lk_evict *a = &s[0]->cache->evict[layer],
                                      *b = &s[1]->cache->evict[layer];
                assert_int_equal(a->n, b->n);
                for (int64_t row = 0; row < a->n * a->n_head; row++, n_row++)
                    n_other += a->pos[row] != b->pos[row];
            }
            print_message("%s, %s: nmse %.2g, %d of %d rows differ\n", presets[m], text[1], worst,
                          (int)n_other, (int)n_row);
            n_same += n_other == 0, n_run++;
            if (n_other ? n_other * 20 > n_row : !(worst < 1e-5))
                fail_msg("%s, %s: nmse %g, %d of %d rows differ", presets[m], text[1], worst,
                         (int)n_other, (int)n_row);
            for (int j = 0; j < 2; j++) {
                lk_session_free(s[j]);
                lk_recipe_free(recipe[j]);
            }
        }
        lk_model_free(model);
    }
    assert_true(6 * n_same >= 5 * n_run);
}

/* Networks are trained into a sidecar that keeps the bases, so one sidecar serves both. */
static void test_bases_and_networks_in_one_sidecar(void **state) {
    enum { N_SEQ = 3, N_CTX = 96 };
    char both[sizeof path + 8];
    snprintf(both, sizeof both, "%s-both", path);
    lk_model *model = open_with_bases("llama", 2);
    const int32_t budget = 20;
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 7);
    lk_less_opts train = {.policy = "h2o",
                          .budget = &budget,
                          .n_budget = 1,
                          .n_ctx = N_CTX,
                          .n_hidden = 16,
                          .n_epoch = 1,
                          .n_query = 32,
                          .rate = 1e-3f,
                          .valid = 0.4f};
    lk_err err = {0};
    if (lk_train_less(model, tok, N_SEQ * N_CTX, &train, both, &err) != LK_OK)
        fail_msg("%s", err.msg);
    struct tiny_spec spec = *tiny_preset("llama");
    spec.n_ctx = 512;
    lk_model_opts opts = {.n_threads = 1, .sidecar = both};
    lk_model *again = open_tiny(&spec, &opts);
    const struct lk_sidecar *a = model->sidecar, *b = again->sidecar;
    assert_int_equal(a->n_tensor, b->n_tensor);
    for (int side = 0; side < LK_N_BASIS; side++) {
        const struct lk_basis *x = &a->basis[side][1], *y = &b->basis[side][1];
        size_t n = lk_basis_numbers_bytes(x->type, (size_t)x->n_group * x->n_comp * x->width);
        assert_int_equal(x->n_group, y->n_group);
        assert_memory_equal(x->down.any, y->down.any, n);
    }
    lk_recipe *recipe;
    lk_session *s = open_session(
        again,
        "keep 64 by h2o: k=latent50%(pre)+rot4 v=latent50%+rot4; window 32: f16; absorb less",
        N_TOK, &recipe);
    assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_eval(s, tok + PROMPT, N_STEP, false, NULL), LK_OK);
    check_session(s, false, lk_recipe_text(recipe));
    assert_true(lk_session_get_stats(s).state_bytes > 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model), lk_model_free(again);
    unlink(both);
}

static int tear_down(void **state) {
    unlink(path);
    return 0;
}

int main(void) {
    register_baselines();
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_of_features),
        cmocka_unit_test(test_sliding_windows),
        cmocka_unit_test(test_learned_positions),
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_two_heads),
        cmocka_unit_test(test_replays_are_refused),
        cmocka_unit_test(test_everything_at_once),
        cmocka_unit_test(test_full_rank_equals_no_latents),
        cmocka_unit_test(test_bases_and_networks_in_one_sidecar),
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
