/* Copies of sessions share cache blocks and continue bit-identically to sessions that evaluated
 * their tokens alone. Shared memory is counted once and freed with the last session. */
#include "engine/batch.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 700, N_FORK = 4, PROMPT = 331 };

static char saved_path[] = "/tmp/lowkey-fork-XXXXXX";

static lk_session *new_session(lk_model *model, const lk_recipe *recipe) {
    lk_session_opts opts = {.n_ctx = CTX};
    lk_session *session = NULL;
    lk_err err = {0};
    if (lk_session_new(&session, model, recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(recipe), err.msg);
    return session;
}

/* Evaluate the same n tokens in both, in chunks and one by one. */
static void continue_both(lk_session *a, lk_session *b, uint64_t seed, int n, const char *where) {
    int32_t tok[CTX];
    struct random r = {seed};
    random_tokens(tok, n, a->model, seed + 100);
    for (int at = 0; at < n;) {
        int now = random_int(&r, 0, 9) ? 1 : random_int(&r, 1, 40);
        if (now > n - at) now = n - at;
        assert_int_equal(lk_session_eval(a, tok + at, now, false, NULL), LK_OK);
        assert_int_equal(lk_session_eval(b, tok + at, now, false, NULL), LK_OK);
        assert_same_logits(a, b, where);
        at += now;
    }
}

/* Bytes that all sessions hold, shared ones once. They must agree with the ledgers. */
static uint64_t total_bytes(const lk_model *model, lk_session *const *session) {
    uint64_t sum = lk_model_get_info(model).shared_bytes;
    assert_int_equal(sum, lk_ledger_bytes(&model->ledger, LK_FOR_CACHE) +
                              lk_ledger_bytes(&model->device_ledger, LK_FOR_CACHE));
    for (int i = 0; i < N_FORK; i++) {
        if (!session[i]) continue;
        lk_session_stats s = lk_session_get_stats(session[i]);
        assert_int_equal(s.cache_bytes, s.code_bytes + s.scale_bytes + s.exact_bytes +
                                            s.padding_bytes + s.state_bytes);
        assert_int_equal(s.cache_bytes - s.shared_bytes,
                         lk_ledger_bytes(&session[i]->ledger, LK_FOR_CACHE) +
                             lk_ledger_bytes(&session[i]->rows.ledger, LK_FOR_CACHE));
        sum += s.cache_bytes - s.shared_bytes;
    }
    return sum;
}

static void check_forks(lk_model *model, const char *text, int order) {
    lk_session *fork[N_FORK] = {0}, *alone[N_FORK] = {0};
    lk_recipe *recipe;
    int32_t tok[PROMPT], other[PROMPT];
    random_tokens(tok, PROMPT, model, 1);
    random_tokens(other, PROMPT, model, 2);
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    for (int i = 0; i < N_FORK; i++) {
        fork[i] = new_session(model, recipe), alone[i] = new_session(model, recipe);
        assert_int_equal(lk_session_sync(alone[i], tok, PROMPT, NULL, NULL), LK_OK);
    }
    assert_int_equal(lk_session_sync(fork[0], tok, PROMPT, NULL, NULL), LK_OK);
    uint64_t one = lk_session_get_stats(fork[0]).cache_bytes,
             immutable = lk_session_immutable_bytes(fork[0]),
             f16 = lk_session_get_stats(fork[0]).f16_bytes;
    for (int i = 1; i < N_FORK; i++) {
        assert_int_equal(lk_session_copy(fork[i], fork[i / 2], NULL),
                         LK_OK); /* also copies of copies */
        assert_same_logits(fork[i], alone[i], text);
        assert_true(lk_session_get_stats(fork[i]).cache_bytes <= one + one / 8);
    }
    uint64_t all = total_bytes(model, fork);
    uint64_t states = (N_FORK - 1) * lk_session_get_stats(fork[0]).state_bytes; /* never shared */
    if (all > one + states + N_FORK * f16 / 10)
        fail_msg("%s: %d sessions hold %d bytes, one %d", text, N_FORK, (int)all, (int)one);
    for (int i = 0; i < N_FORK; i++) {
        continue_both(fork[i], alone[i], i, 10 + 20 * i, text);
        total_bytes(model, fork);
    }
    assert_true(lk_session_get_stats(fork[0]).shared_bytes >= immutable);
    assert_true(immutable > 0 || strcmp(text, "f16") != 0);
    /* One session is cut back, or rebuilt if its recipe evicts. The others are not affected. */
    size_t n = lk_session_n_tok(fork[1]) - 5, reused[2];
    int32_t *back = malloc(CTX * sizeof *back);
    memcpy(back, lk_session_tokens(fork[1]), n * sizeof *back);
    assert_int_equal(lk_session_sync(fork[1], back, n, &reused[0], NULL), LK_OK);
    assert_int_equal(lk_session_sync(alone[1], back, n, &reused[1], NULL), LK_OK);
    assert_int_equal(reused[0], reused[1]);
    assert_same_logits(fork[1], alone[1], text);
    free(back);
    assert_int_equal(lk_session_sync(fork[2], other, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(alone[2], other, PROMPT, NULL, NULL), LK_OK);
    for (int i = 0; i < N_FORK; i++) continue_both(fork[i], alone[i], 10 + i, 15, text);
    for (int i = 0; i < N_FORK; i++) {
        int k = (i * order + 1) % N_FORK;
        lk_session_free(fork[k]), lk_session_free(alone[k]);
        fork[k] = NULL;
        total_bytes(model, fork);
        for (int j = 0; j < N_FORK; j++)
            if (fork[j]) continue_both(fork[j], alone[j], 20 + 4 * i + j, 4, text);
    }
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    lk_recipe_free(recipe);
}

static void test_forks_equal_single(void **state) {
    static const char *const models[] = {
        "llama",  "gemma3",     "qwen2", "qwen35",  "qwen35moe",     "qwen3next",         "gpt-oss",
        "gemma4", "gemma4-moe", "lfm2",  "lfm2moe", "granitehybrid", "granitehybrid-moe", NULL};
    for (int m = 0; models[m]; m++) {
        lk_model *model = open_with_sidecar(models[m], CTX, 1, 5);
        lk_preset preset;
        for (int i = m; lk_recipe_preset(i, &preset); i += m ? 8 : 1)
            if (case_runs(m ? (i - m) / 8 : i) && (!preset.compress || !model->net->hp.norms_v))
                check_forks(model, preset.name, i % 2 ? 1 : 3);
        if (case_runs(m + 2))
            check_forks(model, "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16",
                        1);
        if (model->net->hp.n_swa == 0) { /* absorb does not support sliding windows */
            if (case_runs(m))
                check_forks(model, "sink 4: f16; keep 40 by h2o: rot4; window 30: f16; absorb less",
                            3);
            if (case_runs(m + 1))
                check_forks(model, "sink 4: f16; body: none; window 60: f16; absorb less", 1);
        }
        lk_model_free(model);
    }
}

/* In one batch, forks get what unrelated sessions get in a batch of the same size. */
static void test_in_one_batch(void **state) {
    lk_model *model = open_with_sidecar("llama", CTX, 1, 5);
    lk_preset preset;
    for (int p = 0; lk_recipe_preset(p, &preset); p++) {
        if (!case_runs(p)) continue;
        lk_recipe *recipe;
        lk_batch *batch;
        lk_session *fork[N_FORK], *alone[N_FORK];
        int32_t tok[PROMPT], next[2][N_FORK];
        random_tokens(tok, PROMPT, model, 3);
        assert_int_equal(lk_recipe_parse(&recipe, preset.name, NULL), LK_OK);
        assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
        for (int i = 0; i < N_FORK; i++) {
            fork[i] = new_session(model, recipe), alone[i] = new_session(model, recipe);
            assert_int_equal(lk_session_sync(alone[i], tok, PROMPT, NULL, NULL), LK_OK);
            assert_int_equal(i ? lk_session_copy(fork[i], fork[0], NULL)
                               : lk_session_sync(fork[0], tok, PROMPT, NULL, NULL),
                             LK_OK);
        }
        uint64_t n_alloc = 0;
        for (int step = 0; step < 40; step++) {
            lk_batch_entry item[2][N_FORK];
            random_tokens(next[0], N_FORK, model, 50 + step);
            for (int i = 0; i < N_FORK; i++) {
                item[0][i] = (lk_batch_entry){.session = fork[i], .tok = &next[0][i], .n_tok = 1};
                item[1][i] = (lk_batch_entry){.session = alone[i], .tok = &next[0][i], .n_tok = 1};
                if (step == 1) assert_int_equal(lk_session_reserve(fork[i], 39, NULL), LK_OK);
            }
            for (int k = 0; k < 2; k++)
                assert_int_equal(lk_batch_eval(batch, item[k], N_FORK, NULL), LK_OK);
            uint64_t n = atomic_load(&batch->ledger.n_alloc) + atomic_load(&model->ledger.n_alloc);
            for (int i = 0; i < N_FORK; i++) {
                assert_int_equal(item[0][i].err.code, LK_OK);
                assert_same_logits(fork[i], alone[i], preset.name);
                n += atomic_load(&fork[i]->ledger.n_alloc);
            }
            if (step == 1) n_alloc = n;
            if (step > 1) assert_int_equal(n, n_alloc);
        }
        for (int i = 0; i < N_FORK; i++) lk_session_free(fork[i]), lk_session_free(alone[i]);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
        lk_batch_free(batch);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Saving a session that shares blocks gives the same as saving one that does not. */
static void test_saved_and_loaded(void **state) {
    lk_model *model = open_with_sidecar("llama", CTX, 1, 5);
    static const char *const recipes[] = {
        "f16",      "best-3", "kivi-2",    "selective",
        "best-1.9", "tale",   "streaming", "keep 40 by tova: rot4; window 30: f16; absorb less"};
    for (size_t p = 0; p < sizeof recipes / sizeof *recipes; p++) {
        lk_recipe *recipe;
        int32_t tok[PROMPT];
        lk_err err = {0};
        random_tokens(tok, PROMPT, model, 4);
        assert_int_equal(lk_recipe_parse(&recipe, recipes[p], NULL), LK_OK);
        lk_session *a = new_session(model, recipe), *b = new_session(model, recipe),
                   *c = new_session(model, recipe), *d = new_session(model, recipe);
        assert_int_equal(lk_session_sync(a, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_sync(d, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_copy(b, a, NULL), LK_OK);
        continue_both(b, d, 5, 50, recipes[p]);
        if (lk_session_save(b, NULL, saved_path, &err) != LK_OK) fail_msg("%s", err.msg);
        if (lk_session_load(c, NULL, saved_path, &err) != LK_OK) fail_msg("%s", err.msg);
        if (lk_session_load(a, NULL, saved_path, &err) != LK_OK)
            fail_msg("%s", err.msg); /* replaces shared blocks */
        assert_same_logits(a, c, recipes[p]);
        continue_both(c, a, 6, 30, recipes[p]);
        lk_session_free(a), lk_session_free(c);
        continue_both(b, d, 6, 30, recipes[p]);
        lk_session_free(b), lk_session_free(d);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Running out of memory while writing to shared blocks is an error and damages nothing. */
static void test_without_memory(void **state) {
    lk_model *model = open_with_sidecar("llama", CTX, 1, 5);
    lk_preset preset;
    for (int p = 0; lk_recipe_preset(p, &preset); p++) {
        if (!case_runs(p)) continue;
        const char *text = preset.name;
        lk_recipe *recipe;
        int32_t tok[PROMPT], next = 7;
        random_tokens(tok, PROMPT, model, 8);
        assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
        lk_session *a = new_session(model, recipe), *b = new_session(model, recipe),
                   *alone = new_session(model, recipe);
        assert_int_equal(lk_session_sync(a, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_sync(alone, tok, PROMPT, NULL, NULL), LK_OK);
        for (int nth = 1, failed = 1; failed; nth++) {
            assert_int_equal(lk_session_copy(b, a, NULL), LK_OK);
            atomic_store(&b->ledger.fail_at, nth);
            lk_status status = lk_session_eval(b, &next, 1, false, NULL);
            failed = atomic_load(&b->ledger.fail_at) <= 0;
            atomic_store(&b->ledger.fail_at, 0);
            if (failed && status != LK_E_NOMEM)
                fail_msg("%s: status %d at allocation %d", text, status, nth);
            if (failed && lk_session_n_tok(b) == PROMPT)
                assert_int_equal(lk_session_eval(b, &next, 1, false, NULL), LK_OK);
            else
                assert_int_equal(status, failed ? LK_E_NOMEM : LK_OK);
        }
        continue_both(a, alone, 9, 40, text);
        lk_session_free(a), lk_session_free(b), lk_session_free(alone);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

int main(void) {
    int fd = mkstemp(saved_path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forks_equal_single),
        cmocka_unit_test(test_in_one_batch),
        cmocka_unit_test(test_saved_and_loaded),
        cmocka_unit_test(test_without_memory),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(saved_path);
    return failed;
}
