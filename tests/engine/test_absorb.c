/* LESS inside a session: states hold the evicted rows, attention uses them, and training reduces
 * the error. */
#include "engine/absorb_device.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

static char less_path[] = "/tmp/lowkey-absorb-XXXXXX";

enum { N_TRAIN = 6, N_CTX = 128, BUDGET = 20 };

static lk_model *model;
static struct lk_sidecar *sidecar;
static struct lk_ledger ledger;
static int32_t text[(N_TRAIN + 1) * N_CTX];

static struct lk_sidecar_model sidecar_model(void) {
    const struct lk_hparams *hp = &model->net->hp;
    return (struct lk_sidecar_model){model->net->fingerprint, hp->n_layer, hp->n_head_kv,
                                     hp->d_head};
}

static int set_up(void **unused) {
    lk_model_opts opts = {.n_threads = 1, .weights = LK_WEIGHTS_F32};
    lk_err err = {0};
    model = open_tiny(tiny_preset("llama"), &opts);
    random_tokens(text, sizeof text / sizeof *text, model, 8);
    const int32_t budget = BUDGET;
    lk_less_opts train = {.policy = "lambda",
                          .budget = &budget,
                          .n_budget = 1,
                          .n_ctx = N_CTX,
                          .n_feature = 6,
                          .n_hidden = 16,
                          .n_epoch = 12,
                          .n_query = 64,
                          .rate = 3e-3f,
                          .valid = 0.2f};
    if (lk_train_less(model, text, N_TRAIN * N_CTX, &train, less_path, &err))
        fail_msg("%s", err.msg);
    struct lk_sidecar_model of = sidecar_model();
    if (lk_sidecar_open(&sidecar, less_path, &of, &ledger, &err)) fail_msg("%s", err.msg);
    return 0;
}

static int tear_down(void **unused) {
    lk_sidecar_close(sidecar);
    lk_model_free(model);
    unlink(less_path);
    return 0;
}

struct reader {
    lk_recipe *recipe;
    lk_session *session;
};

static struct reader open_reader(const char *recipe) {
    struct reader r;
    lk_err err = {0};
    r.session = open_session(model, recipe, 2 * N_CTX, &r.recipe);
    if (r.recipe->absorbs && lk_session_enable_absorb(r.session, sidecar, &err))
        fail_msg("%s", err.msg);
    return r;
}

static void close_reader(struct reader *r) {
    lk_session_free(r->session);
    lk_recipe_free(r->recipe);
}

static void eval_tokens(struct reader *r, const int32_t *tok, int n, int step) {
    lk_err err = {0};
    for (int at = 0; at < n; at += step)
        if (lk_session_eval(r->session, tok + at, (size_t)(n - at < step ? n - at : step), false,
                            &err))
            fail_msg("%s", err.msg);
}

/* All rows of one head of an f16 cache without eviction: x [n_tok][d_head]. */
static void read_rows(const struct lk_kv *kv, int head, int d, float *x) {
    for (int level = 0; level < kv->n_level; x += kv->count[level++].rows * d)
        lk_kv_read(&(struct lk_row_range){kv, level, 0, kv->count[level].rows}, head,
                   &lk_kernels_reference, x, d);
}

/* The states of the first layer must be the sums over the evicted rows. Its rows do not depend on
 * attention, so the full cache's serve as reference. */
static void check_states(struct reader *less, struct reader *full, int sinks, int window,
                         int n_tok) {
    struct lk_absorb *a = less->session->absorb;
    lk_absorb_fetch(a, false);
    const struct lk_less_shape *s = &a->shape;
    int d = s->d_head;
    float *k = malloc((size_t)n_tok * d * sizeof *k), *v = malloc((size_t)n_tok * d * sizeof *v);
    float *expected = malloc(lk_less_state_floats(s) * sizeof *expected), psi[LK_LESS_MAX_FEATURE],
          work[LK_LESS_MAX_HIDDEN];
    for (int head = 0; head < s->n_head_kv; head++) {
        read_rows(&full->session->cache->kv[0][LK_K], head, d, k);
        read_rows(&full->session->cache->kv[0][LK_V], head, d, v);
        memset(expected, 0, lk_less_state_floats(s) * sizeof *expected);
        for (int i = sinks; i < n_tok - window; i++) {
            lk_less_psi(s, &a->maps[0], head, k + (size_t)i * d, psi, work);
            lk_less_absorb(s, expected, psi, v + (size_t)i * d);
        }
        assert_true(nmse(a->state + (size_t)head * lk_less_state_floats(s), expected,
                         lk_less_state_floats(s)) < 1e-6);
    }
    free(k), free(v), free(expected);
}

static void test_states(void **unused) {
    struct reader full = open_reader("f16"),
                  less = open_reader("sink 4: f16; body: none; window 16: f16; absorb less");
    eval_tokens(&full, text, 100, 1), eval_tokens(&less, text, 100, 1);
    check_states(&less, &full, 4, 16, 100);
    lk_session_stats stats = lk_session_get_stats(less.session);
    assert_true(stats.state_bytes > 0 &&
                stats.cache_bytes == lk_ledger_bytes(&less.session->ledger, LK_FOR_CACHE) +
                                         lk_ledger_bytes(&less.session->rows.ledger, LK_FOR_CACHE));

    /* The same tokens as a prompt: the rows that are not kept are absorbed. */
    struct reader prompt = open_reader("sink 4: f16; body: none; window 16: f16; absorb less");
    assert_int_equal(lk_session_sync(prompt.session, text, 100, NULL, NULL), LK_OK);
    check_states(&prompt, &full, 4, 16, 100);

    /* An empty session has empty states. */
    assert_int_equal(lk_session_sync(prompt.session, text + 50, 30, NULL, NULL), LK_OK);
    struct reader other = open_reader("f16");
    eval_tokens(&other, text + 50, 30, 1);
    check_states(&prompt, &other, 4, 16, 30);

    /* A copy continues like the original. */
    struct reader copy = open_reader("sink 4: f16; body: none; window 16: f16; absorb less");
    assert_int_equal(lk_session_copy(copy.session, less.session, NULL), LK_OK);
    eval_tokens(&copy, text + 100, 20, 1), eval_tokens(&less, text + 100, 20, 1);
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    assert_memory_equal(lk_session_logits(copy.session, -1), lk_session_logits(less.session, -1),
                        n_vocab * sizeof(float));
    close_reader(&full), close_reader(&less), close_reader(&prompt), close_reader(&other),
        close_reader(&copy);
}

/* Sum of squared differences between a recipe's logits and the full cache's, from token `from`
 * on. */
static double distance(const char *recipe, int from) {
    struct reader full = open_reader("f16"), r = open_reader(recipe);
    const int32_t *tok = text + N_TRAIN * N_CTX; /* not in the training set */
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    double sum = 0;
    for (int i = 0; i < N_CTX; i++) {
        eval_tokens(&full, tok + i, 1, 1), eval_tokens(&r, tok + i, 1, 1);
        const float *a = lk_session_logits(full.session, -1), *b = lk_session_logits(r.session, -1);
        for (size_t c = 0; i >= from && c < n_vocab; c++) sum += (a[c] - b[c]) * (a[c] - b[c]);
    }
    close_reader(&full), close_reader(&r);
    return sum;
}

static void test_quality(void **unused) {
    double policy = distance("sink 4: f16; body: none; window 16: f16", 40);
    double less = distance("sink 4: f16; body: none; window 16: f16; absorb less", 40);
    double longer = distance("sink 4: f16; body: none; window 24: f16", 40);
    double all = distance("sink 4: f16; body: none; window 128: f16; absorb less", 0);
    print_message("distance from the full cache: %.3g by the policy, %.3g with the state, %.3g "
                  "with 8 more rows\n",
                  policy, less, longer);
    assert_true(less < 0.8 * policy);
    assert_true(all <= 1e-6 * policy); /* nothing was evicted */
}

/* A plan includes the states. It needs the sidecar for that, like a session. */
static void test_plan(void **unused) {
    enum { N_TOK = 100 };
    lk_err err = {0};
    lk_plan with, without;
    lk_recipe *less, *policy;
    lk_session_opts session_opts = {.n_ctx = N_TOK, .chunked_prefill = true};
    lk_model_opts opts = {.n_threads = 1, .weights = LK_WEIGHTS_F32, .sidecar = less_path};
    assert_int_equal(
        lk_recipe_parse(&less, "sink 4: f16; body: none; window 16: f16; absorb less", &err),
        LK_OK);
    assert_int_equal(lk_recipe_parse(&policy, "sink 4: f16; body: none; window 16: f16", &err),
                     LK_OK);
    assert_int_equal(lk_plan_make(model, less, &session_opts, &with, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "train less"));
    lk_model *other = open_tiny(tiny_preset("llama"), &opts);
    assert_int_equal(lk_plan_make(other, less, &session_opts, &with, &err), LK_OK);
    assert_int_equal(lk_plan_make(other, policy, &session_opts, &without, &err), LK_OK);
    lk_session *session;
    assert_int_equal(lk_session_new(&session, other, less, NULL, &err), LK_OK);
    for (int i = 0; i < N_TOK; i++)
        assert_int_equal(lk_session_eval(session, text + i, 1, false, &err), LK_OK);
    lk_session_stats stats = lk_session_get_stats(session);
    assert_true(stats.state_bytes > 0);
    assert_true(with.cache_bytes <=
                stats.cache_bytes); /* the plan omits positions and scores of rows */
    assert_true(with.cache_bytes >= without.cache_bytes + stats.state_bytes);
    lk_session_free(session);
    lk_recipe_free(less), lk_recipe_free(policy);
    lk_model_free(other);
}

/* Steps that absorb rows allocate nothing. */
static void test_steps_allocate_nothing(void **unused) {
    static const char *recipes[] = {"sink 4: f16; body: none; window 16: f16; absorb less",
                                    "keep 16 by h2o: rot4; window 32: f16; absorb less", NULL};
    for (int i = 0; recipes[i]; i++) {
        struct reader r = open_reader(recipes[i]);
        eval_tokens(&r, text, 60, 1);
        assert_int_equal(lk_session_reserve(r.session, 60, NULL), LK_OK);
        uint64_t n_alloc = r.session->ledger.n_alloc;
        eval_tokens(&r, text + 60, 60, 1);
        assert_int_equal(r.session->ledger.n_alloc, n_alloc);
        close_reader(&r);
    }
}

static void test_errors(void **unused) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, "sink 4: f16; body: rot4; absorb less", &err),
                     LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "needs evicted rows"));
    assert_int_equal(lk_recipe_parse(&recipe, "body: none; window 16: f16; absorb more", &err),
                     LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "expected 'less'"));
    assert_int_equal(lk_recipe_parse(&recipe, "body: none; window 16: f16; absorb less", &err),
                     LK_OK);
    lk_session *session = NULL;
    assert_int_equal(lk_session_new(&session, model, recipe, NULL, &err), LK_OK);
    assert_int_equal(lk_session_eval(session, text, 4, false, &err), LK_E_ARG); /* no sidecar */
    assert_non_null(strstr(err.msg, "train less"));

    /* A layer without networks, and a sidecar of another method. */
    struct lk_sidecar broken = *sidecar;
    broken.tensor = malloc(sidecar->n_tensor * sizeof *broken.tensor);
    memcpy(broken.tensor, sidecar->tensor, sidecar->n_tensor * sizeof *broken.tensor);
    for (size_t i = 0; i < broken.n_tensor; i++)
        if (strcmp(broken.tensor[i].name, "blk.1.less.psi.w3") == 0) broken.tensor[i].name[0] = 'x';
    assert_int_equal(lk_session_enable_absorb(session, &broken, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "lacks blk.1.less.psi.w3"));
    memcpy(broken.tensor, sidecar->tensor, sidecar->n_tensor * sizeof *broken.tensor);
    for (size_t i = 0; i < broken.n_tensor; i++)
        if (strcmp(broken.tensor[i].name, "blk.0.less.phi.w2") == 0) broken.tensor[i].ne[2] = 3;
    assert_int_equal(lk_session_enable_absorb(session, &broken, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "do not fit a model"));
    broken.n_tensor = 0;
    assert_int_equal(lk_session_enable_absorb(session, &broken, &err), LK_E_ARG);
    free(broken.tensor);
    for (int nth = 1; nth < 5; nth++) { /* out of memory for the states */
        atomic_store(&session->ledger.fail_at, nth);
        lk_status status = lk_session_enable_absorb(session, sidecar, &err);
        atomic_store(&session->ledger.fail_at, 0);
        assert_int_equal(status, LK_E_NOMEM);
        assert_null(session->absorb);
    }
    assert_int_equal(lk_session_enable_absorb(session, sidecar, &err), LK_OK);
    assert_int_equal(lk_session_eval(session, text, 4, false, &err), LK_OK);
    lk_session_free(session);
    lk_recipe_free(recipe);
}

int main(void) {
    int fd = mkstemp(less_path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states), cmocka_unit_test(test_quality), cmocka_unit_test(test_plan),
        cmocka_unit_test(test_steps_allocate_nothing), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
