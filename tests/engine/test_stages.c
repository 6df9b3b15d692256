/* Layers that several ranks divide into stages, against one process. Ranks are threads here. */
#include "cluster/cluster.h"
#include "engine/session.h"
#include "measure/repeat_rows.h"
#include "support_cluster.h"
#include "support_model.h"
#include "support_sidecar.h"
#include "test.h"
#include "tiny_presets.h"

#include <unistd.h>

enum { CTX = BOTH_CTX };

/* A prompt that gives each of two ranks of a stage rows. */
enum { LONG = LK_STRIPE + 200, SHORT = 280 };

/* Stages of one rank compute the bits of one process; recipes and families whose layers differ. */
static void test_families(void **state) {
    static const struct {
        const char *preset;
        int n_rank, n_stage;
        const char *recipe[4];
    } cases[] = {
        {"llama", 2, 2, {"h2o", "palu"}},
        {"gemma2", 3, 3, {"layers 1-2: f16; body: k=rot4 v=rot3; window 40: f16"}},
        {"gemma4", 2, 2, {"best-4"}},
        {"qwen35", 5, 5, {"best-4"}}, /* a stage has no recurrent layer, and some nothing else */
        {"lfm2", 2, 2, {"rot4; read 25%"}},
        {"llama", 4, 2, {"best-4"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *preset = cases[i].preset;
        bool same = cases[i].n_rank == cases[i].n_stage, sidecar = i == 0;
        struct both b;
        open_tiny_stages(&b, preset, cases[i].n_rank, cases[i].n_stage, sidecar, NULL);
        for (int k = 0; k < 4 && cases[i].recipe[k]; k++) {
            const char *recipe = cases[i].recipe[k];
            if (!same) {
                check_recipe(&b, preset, recipe, LONG);
                continue;
            }
            struct worst worst = compare_recipe(&b, recipe, SHORT);
            if (!(worst.moved == 0 && worst.apart == 0))
                fail_msg("%s, %s: NMSE %g over the same codes, %g apart", preset, recipe,
                         worst.moved, worst.apart);
        }
        close_both(&b);
    }
}

/* A session that was saved by two stages goes on in stages of two ranks, and the other way. */
static void test_topologies(void **state) {
    static int32_t tok[CTX];
    char path[] = "/tmp/lowkey-ranks-XXXXXX";
    struct both from, to;
    lk_err err = {0};
    close(mkstemp(path));
    open_tiny_stages(&from, "qwen35", 2, 2, false, NULL);
    open_tiny_stages(&to, "qwen35", 4, 2, false, NULL);
    struct pair p = open_pair(&from, "best-3", &(lk_session_opts){.n_ctx = CTX}),
                q = open_pair(&to, "best-3", &(lk_session_opts){.n_ctx = CTX});
    random_tokens(tok, CTX, from.single, 1);
    assert_int_equal(lk_session_sync(p.many, tok, LONG, NULL, &err), LK_OK);
    assert_int_equal(lk_session_save(p.many, NULL, path, &err), LK_OK);
    if (lk_session_load(q.many, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_true(distance(p.many, q.many) == 0);
    eval_both(p.many, q.many, tok + LONG, 1, false);
    assert_true(distance(p.many, q.many) <= 1e-6);
    assert_int_equal(lk_session_save(q.many, NULL, path, &err), LK_OK);
    assert_int_equal(lk_session_load(p.many, NULL, path, &err), LK_OK);
    eval_both(p.many, q.many, tok + LONG + 1, 1, false);
    assert_true(distance(p.many, q.many) <= 1e-6);
    close_pair(&p), close_pair(&q);
    close_both(&from), close_both(&to);
    unlink(path);
}

static void test_operations(void **state) { compare_operations("llama", 2, 2, 0); }

/* Files of one process and of stages hold the same checkpoints. */
static void test_saved_checkpoints(void **state) {
    static const struct {
        const char *preset;
        int n_rank;
        const char *recipe;
    } cases[] = {
        {"llama", 2, "sink 4: f16; keep 60 by h2o: rot4; window 30: f16"},
        {"gemma3", 4, "best-4"},
        {"qwen35", 2, "best-4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct both b;
        open_tiny_stages(&b, cases[i].preset, cases[i].n_rank, 2, false, NULL);
        compare_saved_checkpoints(&b, cases[i].recipe, (int)i, cases[i].n_rank == 2 ? 0 : 1e-6);
        close_both(&b);
    }
}

/* ---- memory ---- */

enum { N_STAGE = 2 };

/* A rank has its share of the cache and half of the weights, as the plan of its stage says. */
static void check_rank_memory(struct both *b, struct pair *p, const char *path, int rank,
                              int n_part) {
    const lk_model_opts header_only = {.n_threads = 1, .no_mmap = true, .header_only = true};
    const lk_session_opts opts = {.n_ctx = p->one->opts.n_ctx};
    int n_rank = lk_cluster_n_peer(lk_cluster_of(b->divided->peers)),
        stage = rank * N_STAGE / n_rank;
    struct lk_cluster *c = ranks_cluster(b->ranks, rank);
    const lk_model *model = lk_handles_get(&c->models, b->divided->number);
    lk_peer_weights all, part;
    lk_model *header;
    lk_plan plan;
    lk_err err = {0};
    if (lk_model_open_stage(&header, path, &header_only, stage, N_STAGE, &err) != LK_OK)
        fail_msg("%s", err.msg);
    if (lk_plan_make_peers(header, p->r1, &opts, n_rank, &plan, &err) != LK_OK)
        fail_msg("%s", err.msg);
    double whole = (double)lk_session_get_stats(p->one).cache_bytes,
           share = (double)lk_session_peer_bytes(p->many, rank) * n_part / whole,
           planned = (double)plan.cache_bytes * n_part / whole,
           weights = (double)lk_ledger_bytes(&model->ledger, LK_FOR_WEIGHTS) * N_STAGE /
                     (double)lk_ledger_bytes(&b->single->ledger, LK_FOR_WEIGHTS);
    print_message("%s, rank %d: cache %.3f of its share, planned %.3f; weights %.3f\n",
                  lk_recipe_text(p->r1), rank, share, planned, weights);
    assert_true(share > 0.95 && share < 1.05 && planned > 0.95 && planned < 1.06);
    assert_true(weights > 0.95 && weights < 1.05);
    assert_true(lk_model_get_peer(b->divided, rank, &part));
    assert_true(lk_model_get_peer(b->single, 0, &all) && !lk_model_get_peer(b->single, 1, &all));
    assert_true((double)part.weight_bytes * N_STAGE < 1.05 * (double)all.weight_bytes);
    assert_int_equal(part.stage, stage);
    assert_int_equal(part.n_layer, 2);
    lk_model_free(header);
}

/* n_part: how many ranks hold different rows. Layers with a policy are not divided by rows. */
static void check_memory(struct both *b, const char *path, const char *recipe, int n_tok,
                         int n_part) {
    enum { N_SOURCE = 100 };
    static int32_t tok[N_SOURCE];
    const lk_session_opts opts = {.n_ctx = n_tok};
    struct pair p = open_pair(b, recipe, &opts);
    lk_recipe *f16;
    lk_session *source[2];
    lk_err err = {0};
    random_tokens(tok, N_SOURCE, b->single, 3);
    assert_int_equal(lk_recipe_parse(&f16, "f16", NULL), LK_OK);
    for (int k = 0; k < 2; k++) {
        lk_model *model = k ? b->divided : b->single;
        assert_int_equal(lk_session_new_held(&source[k], model, f16, &opts, true, &err), LK_OK);
        assert_int_equal(lk_session_sync(source[k], tok, N_SOURCE, NULL, &err), LK_OK);
        if (lk_repeat_rows(k ? p.many : p.one, source[k], (size_t)n_tok - 1, &err) != LK_OK)
            fail_msg("%s", err.msg);
    }
    for (int rank = 0; rank < lk_cluster_n_peer(lk_cluster_of(b->divided->peers)); rank++)
        check_rank_memory(b, &p, path, rank, n_part);
    eval_both(p.one, p.many, tok, 1, false);
    assert_true(distance(p.one, p.many) <= 1e-6);
    lk_session_free(source[1]), lk_session_free(source[0]);
    lk_recipe_free(f16);
    close_pair(&p);
}

static void test_memory(void **state) {
    char path[] = "/tmp/lowkey-ranks-XXXXXX";
    struct tiny_spec spec = *tiny_preset("llama-mha");
    const lk_model_opts opts = {.n_threads = 1, .no_mmap = true};
    struct both b;
    spec.n_ctx = 24 * LK_STRIPE;
    spec.n_layer = 4;
    close(mkstemp(path));
    assert_true(tiny_gguf_write(path, &spec));
    open_both(&b, path, &opts, 2 * N_STAGE, N_STAGE);
    check_memory(&b, path, "f16", 24 * LK_STRIPE, 4);
    close_both(&b);
    open_both(&b, path, &opts, N_STAGE, N_STAGE);
    check_memory(&b, path, "best-3", 3000, 2);
    check_memory(&b, path, "h2o", 1500, 2);
    close_both(&b);
    unlink(path);
}

/* ---- failures ---- */

/* user: whether to stop. */
static bool stop_half_way(void *user, uint64_t done, uint64_t total) {
    return !*(const bool *)user || done < total / 2;
}

/* A prompt that is cancelled, or fails on a rank, leaves all stages at the same token. */
static void test_failures(void **state) {
    static int32_t tok[CTX];
    struct both b;
    lk_err err = {0};
    size_t n;
    bool stops = true;
    const lk_session_opts opts = {
        .n_ctx = CTX, .chunked_prefill = true, .progress = stop_half_way, .user = &stops};
    open_tiny_stages(&b, "llama", 2, 2, false, NULL);
    assert_int_equal(lk_cluster_set_stages(b.cluster, 3, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "divisor"));
    random_tokens(tok, CTX, b.single, 1);
    struct pair p = open_pair(&b, "best-3", &opts);
    assert_int_equal(lk_session_sync(p.many, tok, 2500, NULL, &err), LK_E_CANCELLED);
    n = lk_session_n_tok(p.many);
    assert_true(n > 0 && n < 2500 && n % LK_EVAL_MAX == 0);
    stops = false;
    assert_int_equal(lk_session_sync(p.one, tok, n, NULL, &err), LK_OK);
    assert_true(distance(p.one, p.many) == 0);
    assert_int_equal(lk_session_sync(p.many, tok, 2500, &n, &err), LK_OK);
    assert_true(n > 0);
    assert_int_equal(lk_session_sync(p.one, tok, 2500, NULL, &err), LK_OK);
    assert_true(distance(p.one, p.many) == 0);
    for (int rank = 0; rank < 2; rank++)
        for (int nth = 1; nth < 200; nth += 67) {
            struct lk_session *there =
                lk_handles_get(&ranks_cluster(b.ranks, rank)->sessions, p.many->number);
            lk_session_clear(p.many);
            lk_session_get_stats(p.many); /* returns when the other rank has cleared its session */
            atomic_store(&there->ledger.fail_at, nth);
            lk_status status = lk_session_sync(p.many, tok, 1100, NULL, &err);
            atomic_store(&there->ledger.fail_at, 0);
            assert_true(status == LK_OK || status == LK_E_NOMEM);
            lk_session_get_stats(p.many);
            assert_int_equal(there->n_tok, lk_session_n_tok(p.many));
            assert_true(status == LK_OK ? there->n_tok == 1100 : there->n_tok < 1100);
        }
    lk_session_clear(p.one), lk_session_clear(p.many); /* what was kept may differ */
    assert_int_equal(lk_session_sync(p.one, tok, 1100, NULL, &err), LK_OK);
    assert_int_equal(lk_session_sync(p.many, tok, 1100, NULL, &err), LK_OK);
    assert_true(distance(p.one, p.many) == 0);
    close_pair(&p);
    lk_recipe *recipe;
    lk_session *s;
    assert_int_equal(lk_recipe_parse(&recipe, "body: none; window 64: f16; absorb less", &err),
                     LK_OK);
    assert_int_equal(lk_session_new(&s, b.divided, recipe, NULL, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "stages"));
    lk_recipe_free(recipe);
    close_both(&b);
}

/* A model with too few layers, or with layers that share K and V, is not divided into so many
 * stages. */
static void test_too_many_stages(void **state) {
    static const struct {
        const char *preset;
        int max;
    } cases[] = {{"llama", 2}, {"gemma4", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/lowkey-ranks-XXXXXX";
        const lk_model_opts opts = {.header_only = true};
        lk_model *model;
        lk_err err = {0};
        close(mkstemp(path));
        assert_true(tiny_gguf_write(path, tiny_preset(cases[i].preset)));
        for (int n = 1; n <= cases[i].max + 1; n++) {
            lk_status status = lk_model_open_stage(&model, path, &opts, n - 1, n, &err);
            if (status != (n <= cases[i].max ? LK_OK : LK_E_UNSUPPORTED))
                fail_msg("%s, %d stages: %d %s", cases[i].preset, n, status, err.msg);
            if (status == LK_OK) lk_model_free(model);
        }
        assert_non_null(strstr(err.msg, "cannot be divided into"));
        for (int stage = -1; stage <= 2; stage += 3) {
            assert_int_equal(lk_model_open_stage(&model, path, &opts, stage, 2, &err), LK_E_ARG);
            assert_non_null(strstr(err.msg, "does not exist"));
        }
        assert_int_equal(lk_model_open_stage(&model, path, NULL, 0, 1, &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, "header_only"));
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_many_stages),   cmocka_unit_test(test_failures),
        cmocka_unit_test(test_topologies),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_operations),        cmocka_unit_test(test_families),
        cmocka_unit_test(test_saved_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
