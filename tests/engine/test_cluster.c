/* Sessions whose rows several ranks hold, against sessions of one process. Ranks are threads here;
 * tests/lowkey/test_ranks.sh runs processes. */
#include "cluster/cluster.h"
#include "engine/session.h"
#include "lowkey_serve.h"
#include "measure/repeat_rows.h"
#include "support_cluster.h"
#include "support_model.h"
#include "support_sidecar.h"
#include "test.h"
#include "tiny_presets.h"

#include <unistd.h>

enum { CTX = BOTH_CTX, MAX_CTX = 96 * LK_STRIPE, MAX_RANK = 4 };

static void open_tiny_both(struct both *b, const char *preset, int n_rank, bool sidecar,
                           const char *kernels) {
    open_tiny_stages(b, preset, n_rank, 1, sidecar, kernels);
}

/* A prompt that gives every rank a stripe, and the first one a part of another. */
static int long_prompt(int n_rank) { return n_rank * LK_STRIPE + 200; }

/* All presets, each with 2, 3 or 4 ranks. */
static void test_presets(void **state) {
    for (int n_rank = 2; n_rank <= MAX_RANK; n_rank++) {
        struct both b;
        open_tiny_both(&b, "llama", n_rank, true, NULL);
        lk_preset preset;
        for (int i = 0; lk_recipe_preset((size_t)i, &preset); i++) {
            const char *name = preset.name;
            if (i % 3 != n_rank - 2 || !case_runs((size_t)i)) continue;
            check_recipe(&b, "llama", name, long_prompt(n_rank));
            check_recipe(&b, "llama", name, 30); /* all rows on one rank */
        }
        close_both(&b);
    }
}

/* With one rank nothing is divided: the bits equal one process's. */
static void test_one_rank(void **state) {
    struct both b;
    open_tiny_both(&b, "llama", 1, false, NULL);
    struct worst worst = compare_recipe(&b, "best-3", long_prompt(1));
    assert_true(worst.moved == 0 && worst.apart == 0);
    close_both(&b);
}

/* Layers with windows, shared rows, states and latents. Fast kernels round queries, which these
 * random models amplify. */
static void test_families(void **state) {
    static const char *const preset[] = {"qwen2", "gemma3",    "gemma4", "qwen35", "bloom",
                                         "gpt2",  "deepseek3", "lfm2",   "gpt-oss"};
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++) {
        struct both b;
        open_tiny_both(&b, preset[i], 2, false, "reference");
        if (case_runs(3 * i)) check_recipe(&b, preset[i], "f16", long_prompt(1));
        if (case_runs(3 * i + 1)) check_recipe(&b, preset[i], "best-4", long_prompt(1));
        close_both(&b);
    }
}

/* Each rank holds its share of the cache, and rank 0 reports the sum. Tables of blocks are not
 * divided: with narrow heads they weigh more. */
static void test_memory(void **state) {
    enum { N_SOURCE = LK_STRIPE, N_TOK = MAX_CTX };
    static int32_t tok[N_SOURCE];
    static const char *const recipes[] = {"f16", "best-3"};
    const lk_session_opts opts = {.n_ctx = N_TOK};
    for (int n_rank = 2; n_rank <= MAX_RANK; n_rank += 2) {
        if (!case_runs((size_t)n_rank - 2)) continue;
        struct both b;
        lk_recipe *f16;
        lk_session *source[2];
        lk_err err = {0};
        open_tiny_both(&b, "llama-mha", n_rank, false, NULL);
        random_tokens(tok, N_SOURCE, b.single, 3);
        assert_int_equal(lk_recipe_parse(&f16, "f16", NULL), LK_OK);
        for (int i = 0; i < 2; i++) {
            lk_model *model = i ? b.divided : b.single;
            assert_int_equal(lk_session_new_held(&source[i], model, f16, &opts, true, &err), LK_OK);
            assert_int_equal(lk_session_sync(source[i], tok, N_SOURCE, NULL, &err), LK_OK);
        }
        assert_true(distance(source[0], source[1]) == 0); /* nothing is divided */
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
            if (!case_runs(i)) continue;
            struct pair p = open_pair(&b, recipes[i], &opts);
            assert_int_equal(lk_repeat_rows(p.one, source[0], N_TOK - 1, &err), LK_OK);
            assert_int_equal(lk_repeat_rows(p.many, source[1], N_TOK - 1, &err), LK_OK);
            double whole = (double)lk_session_get_stats(p.one).cache_bytes,
                   sum = (double)lk_session_get_stats(p.many).cache_bytes,
                   max = (double)lk_session_max_peer_bytes(p.many) * n_rank;
            print_message("%s, %d ranks: %.0f bytes, in sum %.3f, largest %.3f of its share\n",
                          recipes[i], n_rank, whole, sum / whole, max / whole);
            assert_true(sum / whole < 1.05 && max / whole < 1.05);
            lk_plan plan; /* a part of a stripe more at most, for each level */
            assert_int_equal(lk_plan_make_peers(b.single, p.r1, &opts, n_rank, &plan, &err), LK_OK);
            assert_true(plan.cache_bytes * n_rank > 0.97 * max &&
                        plan.cache_bytes * n_rank < 1.06 * max);
            eval_both(p.one, p.many, tok, 1, false);
            assert_true(distance(p.one, p.many) <= 1e-6);
            close_pair(&p);
        }
        lk_session_free(source[1]), lk_session_free(source[0]);
        lk_recipe_free(f16);
        close_both(&b);
    }
}

/* ---- operations ---- */

static void test_operations(void **state) { compare_operations("llama", 3, 1, 1e-3); }

/* Checkpoints hold other numbers of bytes on each rank, but all ranks drop the same ones. */
static void test_checkpoint_bytes(void **state) {
    static int32_t tok[CTX], other[CTX];
    struct both b;
    lk_err err = {0};
    size_t reused = 0;
    const lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 20, .checkpoint_bytes = 200000};
    open_tiny_both(&b, "llama", 3, false, NULL);
    struct pair p = open_pair(&b, "selective", &opts);
    random_tokens(tok, CTX, b.single, 1);
    memcpy(other, tok, sizeof other);
    random_tokens(other + 1200, CTX - 1200, b.single, 2);
    for (int n = 700; n < 1600; n += 60)
        if (lk_session_sync(p.many, tok, (size_t)n, NULL, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_session_get_stats(p.many); /* returns when the other ranks have done the calls before it */
    int n_left = p.many->checkpoints.n;
    for (int rank = 0; rank < 3; rank++) {
        const lk_session *s =
            lk_handles_get(&ranks_cluster(b.ranks, rank)->sessions, p.many->number);
        assert_int_equal(s->checkpoints.n, n_left);
        for (int i = 0; i < n_left; i++)
            assert_int_equal(s->checkpoints.at[i].n_tok, p.many->checkpoints.at[i].n_tok);
    }
    assert_true(n_left >= 8 && n_left < 15); /* fewer than were taken */
    if (lk_session_sync(p.many, other, 1700, &reused, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_true(reused > 0 && reused <= 1200);
    /* The same way to the checkpoint, and the same rest. */
    size_t n_kept;
    for (size_t n = 700; n <= reused; n += 60)
        assert_int_equal(lk_session_sync(p.one, tok, n, NULL, &err), LK_OK);
    assert_int_equal(lk_session_n_tok(p.one), reused);
    assert_int_equal(lk_session_sync(p.one, other, 1700, &n_kept, &err), LK_OK);
    assert_int_equal(n_kept, reused);
    assert_true(distance(p.one, p.many) <= 1e-3); /* 5e-11, more if a code rounds up */
    close_pair(&p);
    close_both(&b);
}

/* Files of one process and of ranks hold the same checkpoints. */
static void test_saved_checkpoints(void **state) {
    static const struct {
        const char *preset, *recipe[3];
    } cases[] = {
        {"llama",
         {"best-4", "body: rot4; window 30: f16; layers 0-0: keep 60 by h2o", "selective"}},
        {"gemma3", {"best-4"}},
        {"qwen35", {"best-4"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct both b;
        open_tiny_both(&b, cases[i].preset, 2, false, NULL);
        for (int k = 0; k < 3 && cases[i].recipe[k]; k++)
            compare_saved_checkpoints(&b, cases[i].recipe[k], 3 * (int)i + k, 1e-6);
        close_both(&b);
    }
}

/* A rank without memory for a checkpoint: no rank has it, nor older ones. */
static void test_checkpoint_without_memory(void **state) {
    static int32_t tok[CTX];
    char path[] = "/tmp/lowkey-ranks-XXXXXX";
    struct both b;
    lk_err err = {0};
    const lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 8};
    close(mkstemp(path));
    open_tiny_both(&b, "llama", 2, false, NULL);
    struct pair p = open_pair(&b, "best-4", &opts);
    random_tokens(tok, CTX, b.single, 1);
    for (size_t n = 200; n <= 1200; n += 200)
        assert_int_equal(lk_session_sync(p.one, tok, n, NULL, &err), LK_OK);
    assert_int_equal(lk_session_save(p.one, NULL, path, &err), LK_OK);
    int n_all = p.one->checkpoints.n, n_less = 0;
    for (int rank = 0; rank < 2; rank++)
        for (int nth = 1; nth < 400; nth += 19) {
            lk_session *own[2];
            for (int i = 0; i < 2; i++)
                own[i] = lk_handles_get(&ranks_cluster(b.ranks, i)->sessions, p.many->number);
            lk_session_get_stats(p.many); /* the other rank has ended the last call */
            atomic_store(&own[rank]->checkpoints.ledger.fail_at, nth);
            if (lk_session_load(p.many, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
            lk_session_get_stats(p.many);
            atomic_store(&own[rank]->checkpoints.ledger.fail_at, 0);
            assert_int_equal(own[0]->checkpoints.n, own[1]->checkpoints.n);
            n_less += own[0]->checkpoints.n < n_all;
            eval_both(p.one, p.many, tok, 1, false);
            assert_int_equal(lk_session_load(p.one, NULL, path, &err), LK_OK);
        }
    assert_true(n_less > 10);
    if (lk_session_load(p.many, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(p.many->checkpoints.n, n_all);
    close_pair(&p);
    close_both(&b);
    unlink(path);
}

/* ---- progress callbacks, and threads ---- */

/* A session that is used while another one is prefilled, and what was done with it. */
struct meanwhile {
    const lk_recipe *recipe;
    lk_session *prefilled, *other, *copy;
    lk_batch *batch;
    int32_t tok[CTX];
    int n_call, n_step, stop_at; /* stop_at: end the prefill in this call; 0: never */
};

/* Decode with another session, copy it, and ask for stats of both. */
static bool use_other_session(void *user, uint64_t done, uint64_t total) {
    struct meanwhile *m = user;
    lk_err err = {0};
    (void)done, (void)total;
    m->n_call++;
    assert_true(lk_session_get_stats(m->prefilled).n_tok <= CTX);
    lk_batch_entry item = {.session = m->other, .tok = &m->tok[m->n_step++], .n_tok = 1};
    if (lk_batch_eval(m->batch, &item, 1, &err) != LK_OK) fail_msg("%s", err.msg);
    if (m->n_call % 4 == 1) {
        lk_session_free(m->copy);
        assert_int_equal(lk_session_new(&m->copy, m->other->model, m->recipe,
                                        &(lk_session_opts){.n_ctx = CTX}, &err),
                         LK_OK);
        if (lk_session_copy(m->copy, m->other, &err) != LK_OK) fail_msg("%s", err.msg);
        assert_int_equal(lk_session_n_tok(m->copy), lk_session_n_tok(m->other));
    }
    return m->n_call != m->stop_at;
}

/* A thread that works with the copy until *over is set, as the server's disk thread does. */
struct worker {
    lk_session *session;
    const int32_t *tok;
    _Atomic bool over;
    int n_step;
};

static void *work_with_session(void *arg) {
    struct worker *w = arg;
    while (!w->over && w->n_step < 200 &&
           lk_session_eval(w->session, w->tok + w->n_step, 1, false, NULL) == LK_OK)
        w->n_step++;
    return NULL;
}

/* While a prompt is prefilled, its progress callback and another thread use other sessions. They
 * hold what they hold in one process, also if the callback ends the prefill. */
static void test_meanwhile(void **state) {
    static struct meanwhile m;
    static int32_t prompt[CTX];
    struct both b;
    lk_err err = {0};
    open_tiny_both(&b, "llama", 2, false, NULL);
    random_tokens(prompt, CTX, b.single, 1);
    random_tokens(m.tok, CTX, b.single, 2);
    for (int chunked = 0; chunked < 2; chunked++) {
        const lk_session_opts plain = {.n_ctx = CTX, .chunked_prefill = chunked},
                              opts = {.n_ctx = CTX,
                                      .chunked_prefill = chunked,
                                      .progress = use_other_session,
                                      .user = &m};
        struct pair other = open_pair(&b, "best-4", &plain);
        lk_session *threads;
        sync_pair(&other, m.tok, 900, 0, 1e-3);
        m.recipe = other.r2;
        m.other = other.many;
        m.n_call = m.n_step = 0;
        m.stop_at = 3;
        m.copy = NULL;
        assert_int_equal(lk_batch_new(&m.batch, b.divided, &err), LK_OK);
        assert_int_equal(lk_session_new(&m.prefilled, b.divided, other.r2, &opts, &err), LK_OK);
        assert_int_equal(lk_session_new(&threads, b.divided, other.r2, &plain, &err), LK_OK);
        struct worker worker = {.session = threads, .tok = m.tok};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, work_with_session, &worker), 0);
        assert_int_equal(lk_session_sync(m.prefilled, prompt, 1800, NULL, &err), LK_E_CANCELLED);
        size_t n_kept = lk_session_n_tok(m.prefilled);
        m.n_call = m.stop_at = 0;
        assert_int_equal(lk_session_sync(m.prefilled, prompt, 1800, NULL, &err), LK_OK);
        worker.over = true;
        pthread_join(thread, NULL);
        assert_true(worker.n_step > 0 && m.n_call > 0);
        for (int i = 0; i < m.n_step; i++)
            assert_int_equal(lk_session_eval(other.one, m.tok + i, 1, false, &err), LK_OK);
        assert_true(distance(other.one, other.many) <= 1e-3);
        lk_session_clear(other.one);
        for (int i = 0; i < worker.n_step; i++)
            assert_int_equal(lk_session_eval(other.one, m.tok + i, 1, false, &err), LK_OK);
        assert_true(distance(other.one, threads) <= 1e-3);
        lk_session_clear(other.one);
        if (n_kept > 0) /* of the call that was cancelled */
            assert_int_equal(lk_session_sync(other.one, prompt, n_kept, NULL, &err), LK_OK);
        assert_int_equal(lk_session_sync(other.one, prompt, 1800, NULL, &err), LK_OK);
        assert_true(distance(other.one, m.prefilled) <= 1e-3); /* 5e-7, the same */
        lk_session_free(threads), lk_session_free(m.copy), lk_session_free(m.prefilled);
        lk_batch_free(m.batch);
        close_pair(&other);
    }
    close_both(&b);
}

/* ---- failures ---- */

static bool stop_half_way(void *user, uint64_t done, uint64_t total) {
    const bool *stops = user;
    return !*stops || done < total / 2;
}

/* What fails on one rank fails on all, with one message, and the session can be used again. */
static void test_failures(void **state) {
    static int32_t tok[CTX];
    struct both b;
    lk_err err = {0};
    lk_model *model;
    lk_recipe *recipe;
    lk_session *s;
    open_tiny_both(&b, "llama", 3, false, NULL);
    random_tokens(tok, CTX, b.single, 1);
    assert_int_equal(lk_model_open_cluster(&model, "/nowhere.gguf", NULL, b.cluster, &err),
                     LK_E_IO);
    assert_int_equal(lk_recipe_parse(&recipe, "rot3; read 25%", NULL),
                     LK_OK); /* chooses among all */
    assert_int_equal(lk_session_new(&s, b.divided, recipe, NULL, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "several ranks"));
    lk_recipe_free(recipe);
    bool stops = true;
    lk_session_opts opts = {.n_ctx = CTX, .progress = stop_half_way, .user = &stops};
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    assert_int_equal(lk_session_new(&s, b.divided, recipe, &opts, &err), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 1400, NULL, &err), LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(s), 0);
    stops = false;
    lk_session_cancel(s);
    assert_int_equal(lk_session_eval(s, tok, 1, false, &err), LK_E_CANCELLED);
    assert_int_equal(lk_session_eval(s, tok, 1, false, &err), LK_OK);
    /* Each rank fails in turn, at each of its first allocations in a prompt. */
    for (int rank = 0; rank < 3; rank++)
        for (int nth = 1; nth < 400; nth += 23) {
            struct lk_cluster *c = ranks_cluster(b.ranks, rank);
            struct lk_session *there = lk_handles_get(&c->sessions, s->number);
            atomic_store(&there->ledger.fail_at, nth);
            lk_status status = lk_session_sync(s, tok, 600, NULL, &err);
            atomic_store(&there->ledger.fail_at, 0);
            if (status != LK_OK) {
                assert_int_equal(status, LK_E_NOMEM);
                if (rank > 0) assert_memory_equal(err.msg, rank == 1 ? "rank 1: " : "rank 2: ", 8);
            }
            lk_session_clear(s);
        }
    assert_int_equal(lk_session_sync(s, tok, 600, NULL, &err), LK_OK);
    assert_int_equal(lk_session_save(s, NULL, "/nowhere/file", &err), LK_E_IO);
    assert_int_equal(lk_session_load(s, NULL, "/nowhere/file", &err), LK_E_IO);
    assert_int_equal(lk_session_n_tok(s), 600);
    lk_session_free(s);
    lk_recipe_free(recipe);
    close_both(&b);
}

/* A rank that is lost ends every operation with an error, on all ranks. */
static void test_lost_rank(void **state) {
    static int32_t tok[CTX];
    for (int k = 1; k < 60; k += 4) {
        struct both b;
        lk_recipe *recipe;
        lk_err err = {0};
        open_tiny_both(&b, "llama", 3, false, NULL);
        random_tokens(tok, CTX, b.single, 1);
        lk_session *s = open_session(b.divided, "best-4", CTX, &recipe);
        ranks_lose(b.ranks, 1 + k % 2, k);
        lk_status status = lk_session_sync(s, tok, 700, NULL, &err);
        for (int i = 0; status == LK_OK && i < 60; i++)
            status = lk_session_eval(s, tok + i, 1, false, &err);
        assert_int_equal(status, LK_E_IO);
        assert_non_null(strstr(err.msg, "lost"));
        assert_int_equal(lk_session_eval(s, tok, 1, false, &err), LK_E_IO);
        lk_session_free(s);
        lk_recipe_free(recipe);
        lk_model_free(b.divided);
        lk_model_free(b.single);
        assert_int_equal(ranks_end(b.ranks, &err), LK_E_IO);
    }
}

/* Messages that rank 0 would not send end the ranks that follow, with an error. */
static void test_damaged_messages(void **state) {
    struct random r = {5};
    for (int round = 0; round < 300; round++) {
        lk_cluster *cluster;
        lk_err err = {0};
        struct ranks *ranks = ranks_start(2, &cluster);
        struct lk_message op = {.magic = LK_OP_MAGIC,
                                .kind = (uint32_t)random_int(&r, 1, LK_N_OP + 1),
                                .session = random_int(&r, -1, 1),
                                .n = (uint64_t)random_int(&r, 0, 70),
                                .n_payload = (uint64_t)random_int(&r, 0, LK_MESSAGE_INLINE)};
        if (op.kind == LK_OP_MODEL_OPEN) op.kind = LK_OP_MODEL_FREE;
        if (round % 10 == 0) op.magic++;
        if (round % 10 == 1) op.n = UINT64_MAX - (uint64_t)round;
        for (int i = 0; i < LK_MESSAGE_INLINE; i++) op.payload[i] = (char)random_int(&r, 0, 255);
        ranks_broadcast(ranks, &op, sizeof op);
        lk_status status = ranks_end(ranks, &err);
        if (status != LK_E_FORMAT) fail_msg("kind %u: status %d, %s", op.kind, status, err.msg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),          cmocka_unit_test(test_presets),
        cmocka_unit_test(test_families),          cmocka_unit_test(test_memory),
        cmocka_unit_test(test_operations),        cmocka_unit_test(test_checkpoint_bytes),
        cmocka_unit_test(test_meanwhile),         cmocka_unit_test(test_failures),
        cmocka_unit_test(test_lost_rank),         cmocka_unit_test(test_damaged_messages),
        cmocka_unit_test(test_saved_checkpoints), cmocka_unit_test(test_checkpoint_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
