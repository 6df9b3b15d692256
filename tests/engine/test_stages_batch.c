/* Batches through several stages, compared with one process. Ranks are threads here. */
#include "cluster/cluster.h"
#include "engine/batch.h"
#include "engine/session.h"
#include "lowkey_serve.h"
#include "measure/repeat_rows.h"
#include "support_cluster.h"
#include "support_model.h"
#include "test.h"

enum { N = 6, CTX = 40000, PROMPT = 280, N_TOK = 400 };

/* Sessions of one process and of a cluster that hold the same. */
struct set {
    struct both b;
    struct pair p[N];
    lk_batch *one, *many;
    int32_t tok[N][N_TOK];
    double max; /* NMSE */
};

/* Fill a pair with n_tok tokens: a prompt, and then rows of a short text again and again. */
static void fill_pair(struct set *s, int i, const char *recipe, size_t n_tok) {
    const lk_session_opts opts = {.n_ctx = CTX};
    lk_recipe *f16;
    lk_err err = {0};
    s->p[i] = open_pair(&s->b, recipe, &opts);
    random_tokens(s->tok[i], N_TOK, s->b.single, (uint64_t)i);
    sync_pair(&s->p[i], s->tok[i], PROMPT, 0, s->max);
    assert_int_equal(lk_recipe_parse(&f16, "f16", NULL), LK_OK);
    for (int k = 0; k < 2; k++) {
        lk_session *source, *to = k ? s->p[i].many : s->p[i].one;
        assert_int_equal(lk_session_new_held(&source, to->model, f16, &opts, true, &err), LK_OK);
        assert_int_equal(lk_session_sync(source, s->tok[i], 100, NULL, &err), LK_OK);
        if (lk_repeat_rows(to, source, n_tok - PROMPT, &err) != LK_OK) fail_msg("%s", err.msg);
        lk_session_free(source);
    }
    lk_recipe_free(f16);
}

static struct set *open_set(const char *preset, int n_rank, int n_stage,
                            const char *const recipe[N]) {
    static const size_t n_tok[N] = {20000, 300, 500, 12500, 6000, 30000};
    struct set *s = calloc(1, sizeof *s);
    lk_err err = {0};
    s->max = n_rank == n_stage ? 0 : 1e-6;
    open_tiny_stages(&s->b, preset, n_rank, n_stage, false, NULL);
    for (int i = 0; i < N; i++) fill_pair(s, i, recipe[i], n_tok[i]);
    assert_int_equal(lk_batch_new(&s->one, s->b.single, &err), LK_OK);
    assert_int_equal(lk_batch_new(&s->many, s->b.divided, &err), LK_OK);
    return s;
}

static void close_set(struct set *s) {
    lk_batch_free(s->one), lk_batch_free(s->many);
    for (int i = 0; i < N; i++) close_pair(&s->p[i]);
    close_both(&s->b);
    free(s);
}

/* n_tok [N] tokens of each session, or none: all in one batch of the cluster, and of one process.
 * err [N] receives the items' errors. An item that fails before the pass is not in it. */
static void step(struct set *s, const size_t *n_tok, lk_err *err) {
    lk_batch_entry many[N], one[N];
    size_t n = 0, n_one = 0;
    lk_err why = {0};
    int index[N];
    for (int i = 0; i < N; i++) {
        if (n_tok[i] == 0) continue;
        index[n] = i;
        many[n++] = (lk_batch_entry){.session = s->p[i].many,
                                     .tok = s->tok[i] + PROMPT,
                                     .n_tok = n_tok[i],
                                     .all = n_tok[i] > 1};
    }
    if (lk_batch_eval(s->many, many, n, &why) != LK_OK) fail_msg("%s", why.msg);
    const struct lk_pass *pass = &s->many->pass;
    for (size_t k = 0; k < pass->n_seq; k++) {
        const lk_batch_entry *item = pass->seq[k].entry;
        one[n_one] = *item;
        one[n_one++].session = s->p[index[item - many]].one;
    }
    if (n_one > 0) assert_int_equal(lk_batch_eval(s->one, one, n_one, &why), LK_OK);
    for (size_t k = 0; k < n; k++) {
        const struct pair *p = &s->p[index[k]];
        err[index[k]] = many[k].err;
        if (many[k].err.code != LK_OK) continue;
        double e = distance(p->one, p->many);
        if (!(e <= s->max)) fail_msg("session %d: NMSE %g", index[k], e);
    }
}

/* Items get what they get in one process; bit for bit if stages have one rank. */
static void test_batches(void **state) {
    static const char *const mixed[N] = {"f16", "best-3", "h2o", "best-4", "f16", "kivi-4"},
                             *const exact[N] = {"f16", "f16", "f16", "f16", "f16", "f16"};
    static const struct {
        const char *preset;
        int n_rank, n_stage;
        const char *const *recipe;
    } cases[] = {
        {"llama", 2, 2, mixed},
        {"gemma2", 3, 3, mixed},
        {"qwen35-mtp", 2, 2, mixed},
        {"llama", 4, 2, exact},
    };
    static const size_t n_tok[][N] = {{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1},  {3, 1, 0, 3, 1, 1},
                                      {1, 0, 1, 1, 1, 0}, {1, 40, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!case_runs(i)) continue;
        struct set *s =
            open_set(cases[i].preset, cases[i].n_rank, cases[i].n_stage, cases[i].recipe);
        for (size_t k = 0; k < sizeof n_tok / sizeof *n_tok; k++) {
            lk_err err[N] = {0};
            step(s, n_tok[k], err);
            for (int j = 0; j < N; j++)
                if (err[j].code != LK_OK) fail_msg("session %d: %s", j, err[j].msg);
        }
        close_set(s);
    }
}

/* The session of a rank. */
static struct lk_session *session_there(struct set *s, int i, int rank) {
    return lk_handles_get(&ranks_cluster(s->b.ranks, rank)->sessions, s->p[i].many->number);
}

/* Items that fail get an error, and the others what they get without them. */
static void test_items_fail(void **state) {
    enum { CANCELLED = 0, FULL = 2, NO_MEMORY = 3, NODE = 4 };
    static const char *const recipe[N] = {"f16", "f16", "best-4", "f16", "f16", "f16"};
    static const size_t n_tok[N] = {1, 1, 1, 1, 1, 1}, /* and more than the blocks have room for */
        first[N] = {1, 1, 1, 200, 1, 1};
    struct set *s = open_set("llama", 2, 2, recipe);
    struct lk_session *there = session_there(s, NO_MEMORY, 1);
    lk_err err[N] = {0};
    size_t n[N];
    for (int i = 0; i < N; i++) n[i] = lk_session_n_tok(s->p[i].many);
    lk_session_get_stats(s->p[0].many); /* rank 1 is done with what came before */
    atomic_store(&there->ledger.limit, 1);
    lk_session_cancel(s->p[CANCELLED].many);
    s->p[FULL].many->opts.n_ctx = (int32_t)n[FULL];
    step(s, first, err);
    assert_int_equal(err[CANCELLED].code, LK_E_CANCELLED);
    assert_int_equal(err[FULL].code, LK_E_FULL);
    assert_int_equal(err[NO_MEMORY].code, LK_E_NOMEM);
    assert_non_null(strstr(err[NO_MEMORY].msg, "rank 1: "));
    for (int i = 0; i < N; i++)
        assert_int_equal(lk_session_n_tok(s->p[i].many), n[i] + (err[i].code == LK_OK));
    atomic_store(&there->ledger.limit, 0);
    s->p[FULL].many->opts.n_ctx = CTX;
    step(s, n_tok, err);
    for (int i = 0; i < N; i++) assert_int_equal(err[i].code, LK_OK);

    /* A node of rank 1 fails: it takes the memory for reserved. */
    there = session_there(s, NODE, 1);
    lk_session_get_stats(s->p[0].many);
    atomic_store(&there->ledger.limit, 1);
    there->cache->reserved = 1 << 20;
    for (int i = 0; i < 64 && err[NODE].code == LK_OK; i++) step(s, n_tok, err);
    assert_int_equal(err[NODE].code, LK_E_NOMEM);
    for (int i = 0; i < N; i++)
        if (i != NODE) assert_int_equal(err[i].code, LK_OK);
    lk_session_get_stats(s->p[0].many);
    for (int rank = 0; rank < 2; rank++) assert_int_equal(session_there(s, NODE, rank)->n_tok, 0);
    atomic_store(&there->ledger.limit, 0);
    there->cache->reserved = 0;
    lk_session_clear(s->p[NODE].one);
    sync_pair(&s->p[NODE], s->tok[NODE], PROMPT, 0, 0);
    step(s, n_tok, err);
    for (int i = 0; i < N; i++) assert_int_equal(err[i].code, LK_OK);
    close_set(s);
}

/* Let the batch of a rank allocate all its memory again. Returns it. */
static lk_batch *empty_batch(struct set *s, int rank) {
    struct lk_cluster *c = ranks_cluster(s->b.ranks, rank);
    lk_batch *batch = rank ? c->batch : s->many;
    lk_session_get_stats(s->p[0].many); /* the other rank waits for the next operation */
    lk_pass_free(&batch->pass);
    lk_err err = {0};
    lk_model *model = lk_handles_get(&c->models, s->b.divided->number);
    assert_int_equal(lk_pass_init(&batch->pass, model, &batch->ledger, &err), LK_OK);
    return batch;
}

/* Whichever allocation of a rank's batch fails: no item is evaluated, and all can continue. */
static void test_no_memory(void **state) {
    static const char *const recipe[N] = {"f16", "f16", "f16", "f16", "f16", "f16"};
    static const size_t n_tok[N] = {1, 1, 1, 1, 1, 1};
    struct set *s = open_set("llama", 2, 2, recipe);
    lk_err err[N] = {0}, why = {0};
    step(s, n_tok, err);
    for (int rank = 0; rank < 2; rank++) {
        lk_status status = LK_E_NOMEM;
        int n_failed = 0;
        for (int nth = 1; status != LK_OK; nth++) {
            lk_batch *batch = empty_batch(s, rank);
            lk_batch_entry item[N];
            size_t before[N];
            for (int i = 0; i < N; i++) {
                before[i] = lk_session_n_tok(s->p[i].many);
                item[i] = (lk_batch_entry){
                    .session = s->p[i].many, .tok = s->tok[i] + PROMPT, .n_tok = 1};
            }
            atomic_store(&batch->ledger.fail_at, nth);
            status = lk_batch_eval(s->many, item, N, &why);
            lk_session_get_stats(s->p[0].many);
            if (status == LK_OK) break;
            atomic_store(&batch->ledger.fail_at, 0);
            n_failed++;
            assert_int_equal(status, LK_E_NOMEM);
            for (int i = 0; i < N; i++) {
                assert_int_equal(item[i].err.code, LK_E_NOMEM);
                for (int k = 0; k < 2; k++)
                    assert_int_equal(session_there(s, i, k)->n_tok, before[i]);
            }
        }
        assert_in_range(n_failed, 4, 20);
        for (int i = 0; i < N; i++) /* the twins follow */
            assert_int_equal(lk_session_eval(s->p[i].one, s->tok[i] + PROMPT, 1, false, &why),
                             LK_OK);
    }
    close_set(s);
}

/* A rank that is lost ends the batch with an error, wherever it is. */
static void test_lost_rank(void **state) {
    static const char *const recipe[N] = {"f16", "f16", "f16", "f16", "f16", "f16"};
    for (int k = 1; k < 12; k += 2) {
        if (!case_runs((size_t)(k / 2))) continue;
        struct set *s = open_set("llama", 2, 2, recipe);
        lk_batch_entry item[N];
        lk_status status = LK_OK;
        lk_err err = {0};
        for (int i = 0; i < N; i++)
            item[i] =
                (lk_batch_entry){.session = s->p[i].many, .tok = s->tok[i] + PROMPT, .n_tok = 1};
        lk_session_get_stats(s->p[0].many);
        ranks_lose(s->b.ranks, 1, k);
        for (int i = 0; i < 4 && status == LK_OK; i++) {
            status = lk_batch_eval(s->many, item, N, &err);
            for (int j = 0; j < N && status == LK_OK; j++) status = item[j].err.code;
        }
        assert_int_equal(status, LK_E_IO);
        lk_batch_free(s->one), lk_batch_free(s->many);
        for (int i = 0; i < N; i++) close_pair(&s->p[i]);
        lk_model_free(s->b.divided), lk_model_free(s->b.single);
        assert_int_equal(ranks_end(s->b.ranks, &err), LK_E_IO);
        free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items_fail),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_lost_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
