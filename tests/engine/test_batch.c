/* Sessions of a batch get what each gets alone, and a failure of one does not affect the others. */
#include "engine/batch.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

enum { N_SESSION = 8, CTX = 600 };

/* Sessions with different recipes, and the tokens that each evaluates. */
struct group {
    lk_model *model;
    int n, n_vocab;
    lk_recipe *recipe[N_SESSION];
    lk_session *session[N_SESSION];
    int32_t tok[N_SESSION][CTX];
};

static const char *const recipes[N_SESSION] = {
    "f16",    "best-3", "selective", "kivi-4",
    "best-2", "int8",   "best-4",    "sink 4: f16; body: k=rot4 v=rot4; window 32: f16"};

static struct group *open_group(lk_model *model, int n, uint64_t seed) {
    struct group *g = calloc(1, sizeof *g);
    g->model = model;
    g->n = n;
    g->n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < n; i++) g->session[i] = open_session(model, recipes[i], CTX, &g->recipe[i]);
    random_tokens(&g->tok[0][0], n * CTX, model, seed);
    return g;
}

static void close_group(struct group *g) {
    for (int i = 0; i < g->n; i++) {
        lk_session_free(g->session[i]);
        lk_recipe_free(g->recipe[i]);
    }
    free(g);
}

/* The next n_tok tokens of session i. */
static lk_batch_entry next_item(const struct group *g, int i, size_t n_tok, bool all) {
    return (lk_batch_entry){.session = g->session[i],
                            .tok = g->tok[i] + lk_session_n_tok(g->session[i]),
                            .n_tok = n_tok,
                            .all = all};
}

static void eval_batch(lk_batch *batch, lk_batch_entry *item, size_t n) {
    lk_err err = {0};
    if (lk_batch_eval(batch, item, n, &err) != LK_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < n; i++)
        if (item[i].err.code != LK_OK) fail_msg("item %zu: %s", i, item[i].err.msg);
}

/* Random chunks of random sessions against twins that are evaluated alone. ggml's product of one
 * row sums in another order than for several rows. Results are equal up to that, and up to
 * values near the boundary between two codes. */
static void test_batch_equals_single(void **state) {
    static const char *const presets[] = {
        "llama",      "qwen2",     "gpt2",      "gemma3",        "bloom",
        "qwen35",     "qwen35moe", "deepseek3", "gpt-oss",       "gemma4",
        "gemma4-moe", "lfm2",      "lfm2moe",   "granitehybrid", "granitehybrid-moe",
        NULL};
    for (int p = 0; presets[p]; p++) {
        lk_model *model = open_preset(presets[p], CTX, 2);
        struct group *a = open_group(model, N_SESSION, 20), *b = open_group(model, N_SESSION, 20);
        lk_batch *batch;
        assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
        struct random r = {p};
        double worst_exact = 0, worst = 0;
        for (int round = 0; round < 60; round++) {
            lk_batch_entry item[N_SESSION];
            int index[N_SESSION], n = 0;
            for (int i = 0; i < N_SESSION; i++) {
                int n_tok = random_int(&r, 0, 5) ? 1 : random_int(&r, 2, 70);
                if (random_int(&r, 0, 3) == 0 || lk_session_n_tok(a->session[i]) + n_tok > CTX)
                    continue;
                item[n] = next_item(a, i, n_tok, random_int(&r, 0, 4) == 0);
                index[n++] = i;
            }
            if (n == 0) continue;
            eval_batch(batch, item, n);
            for (int k = 0; k < n; k++) {
                lk_session *twin = b->session[index[k]];
                assert_int_equal(
                    lk_session_eval(twin, item[k].tok, item[k].n_tok, item[k].all, NULL), LK_OK);
                assert_int_equal(lk_session_n_tok(twin), lk_session_n_tok(item[k].session));
                int rows = item[k].all ? (int)item[k].n_tok : 1;
                assert_null(lk_session_logits(item[k].session, rows));
                double e = nmse(lk_session_logits(item[k].session, 0), lk_session_logits(twin, 0),
                                (size_t)rows * a->n_vocab);
                double *max = index[k] == 0 ? &worst_exact : &worst;
                if (e > *max) *max = e;
            }
        }
        print_message("%-8s nmse %.2g f16, %.2g quantized\n", presets[p], worst_exact, worst);
        /* A code that is rounded the other way can change which experts a token has. */
        bool experts = strstr(presets[p], "moe") || strcmp(presets[p], "gpt-oss") == 0;
        if (!(worst_exact <= 1e-6 && worst <= (experts ? 1e-2 : 2e-3)))
            fail_msg("%s: nmse %g f16, %g quantized", presets[p], worst_exact, worst);
        lk_batch_free(batch);
        close_group(a), close_group(b);
        lk_model_free(model);
    }
}

/* With the same number of rows, the results do not depend on the other sessions, to the bit. */
static void test_other_sessions_do_not_matter(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    struct group *a = open_group(model, N_SESSION, 30), *b = open_group(model, N_SESSION, 30),
                 *others = open_group(model, N_SESSION, 31);
    lk_batch *batch;
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    for (int round = 0; round < 300; round++) {
        lk_batch_entry together[N_SESSION], apart[N_SESSION];
        int n_tok = round % 50 == 0 ? 33 : 1;
        for (int i = 0; i < N_SESSION; i++) together[i] = next_item(a, i, n_tok, false);
        eval_batch(batch, together, N_SESSION);
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < N_SESSION; i++)
                apart[i] =
                    next_item(i % 2 == half ? b : others, i, i % 2 == half ? n_tok : 1, false);
            if (n_tok == 1) eval_batch(batch, apart, N_SESSION);
        }
        for (int i = 0; n_tok > 1 && i < N_SESSION; i++) { /* one's chunk with rows of another */
            lk_batch_entry item[] = {next_item(others, (i + 1) % N_SESSION, 2, false),
                                     next_item(b, i, n_tok, false)};
            eval_batch(batch, item, 2);
        }
        for (int i = 0; i < N_SESSION; i++)
            if (memcmp(lk_session_logits(a->session[i], -1), lk_session_logits(b->session[i], -1),
                       a->n_vocab * sizeof(float)) != 0)
                fail_msg("%s differs at token %zu", recipes[i], lk_session_n_tok(a->session[i]));
    }
    lk_batch_free(batch);
    close_group(a), close_group(b), close_group(others);
    lk_model_free(model);
}

/* Items that fail have an error. The others get the same results as without them. */
static void test_one_fails(void **state) {
    enum { FULL = 1, NO_MEMORY = 3, WRONG = 5, LONG = 6 };
    lk_model *model = open_preset("llama", CTX, 2);
    struct group *a = open_group(model, N_SESSION, 40), *b = open_group(model, N_SESSION, 40);
    lk_batch *batch;
    lk_err err = {0};
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    for (int round = 0; round < 40; round++) {
        lk_batch_entry item[N_SESSION], fine[N_SESSION];
        int n = 0;
        int32_t wrong = a->n_vocab;
        for (int i = 0; i < N_SESSION; i++) item[i] = next_item(a, i, 1, false);
        a->session[FULL]->opts.n_ctx = (int32_t)lk_session_n_tok(a->session[FULL]);
        a->session[NO_MEMORY]->ledger.limit = 1;
        item[WRONG].tok = &wrong;
        item[LONG].n_tok = LK_EVAL_MAX + 1;
        assert_int_equal(lk_batch_eval(batch, item, N_SESSION, &err), LK_OK);
        assert_int_equal(item[FULL].err.code, LK_E_FULL);
        assert_int_equal(item[WRONG].err.code, LK_E_ARG);
        assert_int_equal(item[LONG].err.code, LK_E_ARG);
        assert_int_equal(item[NO_MEMORY].err.code, LK_E_NOMEM);
        for (int i = 0; i < N_SESSION; i++)
            if (item[i].err.code == LK_OK)
                fine[n++] = next_item(b, i, 1, false);
            else
                assert_true(item[i].err.msg[0]);
        eval_batch(batch, fine, n);
        for (int i = 0; i < N_SESSION; i++)
            if (item[i].err.code == LK_OK)
                assert_memory_equal(lk_session_logits(a->session[i], -1),
                                    lk_session_logits(b->session[i], -1),
                                    a->n_vocab * sizeof(float));
    }
    a->session[FULL]->opts.n_ctx = CTX;
    a->session[NO_MEMORY]->ledger.limit = 0;
    for (int i = 0; i < N_SESSION; i++)
        assert_int_equal(lk_session_sync(a->session[i], a->tok[i], 100, NULL, &err), LK_OK);
    lk_batch_free(batch);
    close_group(a), close_group(b);
    lk_model_free(model);
}

/* Whichever allocation of the batch fails: no item is evaluated, each has an error, and all can
 * continue. */
static void test_batch_without_memory(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    struct group *g = open_group(model, 3, 50);
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        lk_batch *batch;
        lk_err err = {0};
        assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
        lk_batch_entry item[3];
        size_t before[3];
        for (int i = 0; i < 3; i++) {
            item[i] = next_item(g, i, i + 1, false);
            before[i] = lk_session_n_tok(g->session[i]);
        }
        atomic_store(&batch->ledger.fail_at, nth);
        lk_status status = lk_batch_eval(batch, item, 3, &err);
        bool reached = atomic_load(&batch->ledger.fail_at) <= 0;
        if (reached) {
            n_failed++;
            assert_int_equal(status, LK_E_NOMEM);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(item[i].err.code, LK_E_NOMEM);
                assert_int_equal(lk_session_n_tok(g->session[i]), before[i]);
                item[i] = next_item(g, i, i + 1, false);
            }
            atomic_store(&batch->ledger.fail_at, 0);
            eval_batch(batch, item, 3);
        }
        lk_batch_free(batch);
        if (!reached) break;
    }
    assert_in_range(n_failed, 4, 20);
    close_group(g);
    lk_model_free(model);
}

/* Once memory is reserved and the graph is built, steps of the same sessions allocate nothing. */
static void test_steps_allocate_nothing(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    struct group *g = open_group(model, N_SESSION, 60);
    lk_batch *batch;
    lk_batch_entry item[N_SESSION];
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    uint64_t before = 0;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < N_SESSION; i++) item[i] = next_item(g, i, round ? 1 : 100, false);
        eval_batch(batch, item, N_SESSION);
        for (int i = 0; round == 1 && i < N_SESSION; i++)
            assert_int_equal(lk_session_reserve(g->session[i], 399, NULL), LK_OK);
        uint64_t n = atomic_load(&batch->ledger.n_alloc);
        for (int i = 0; i < N_SESSION; i++) n += atomic_load(&g->session[i]->ledger.n_alloc);
        if (round == 1) before = n;
        if (round > 1) assert_int_equal(n, before);
    }
    assert_true(lk_batch_scratch_bytes(batch) > 0);
    lk_batch_free(batch);
    close_group(g);
    lk_model_free(model);
}

static void test_misuse(void **state) {
    lk_model *model = open_preset("llama", CTX, 1), *other = open_preset("llama", CTX, 1);
    struct group *g = open_group(model, 3, 70);
    lk_batch *batch, *other_batch;
    lk_err err = {0};
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    assert_int_equal(lk_batch_new(&other_batch, other, NULL), LK_OK);
    lk_batch_entry item[3] = {next_item(g, 0, 2, false), next_item(g, 1, 2, false),
                              next_item(g, 0, 2, false)};
    assert_int_equal(lk_batch_eval(batch, item, 0, &err), LK_E_ARG);
    assert_int_equal(lk_batch_eval(batch, item, 3, &err), LK_E_ARG); /* one session twice */
    assert_int_equal(item[1].err.code, LK_E_ARG);
    assert_int_equal(lk_batch_eval(other_batch, item, 2, &err), LK_E_ARG);
    for (int i = 0; i < 3; i++) item[i] = next_item(g, i, LK_EVAL_MAX, false);
    assert_int_equal(lk_batch_eval(batch, item, 3, &err), LK_E_ARG); /* too many tokens */
    assert_int_equal(lk_session_n_tok(g->session[0]), 0);
    item[0].n_tok = 0;
    assert_int_equal(lk_batch_eval(batch, item, 1, &err), LK_OK);
    assert_int_equal(item[0].err.code, LK_E_ARG);
    lk_batch_free(batch);
    lk_batch_free(other_batch);
    lk_batch_free(NULL);
    close_group(g);
    lk_model_free(model);
    lk_model_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_equals_single),
        cmocka_unit_test(test_other_sessions_do_not_matter),
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_batch_without_memory),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
