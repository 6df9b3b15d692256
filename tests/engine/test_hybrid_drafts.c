/* Passes of drafts on models with recurrent layers: dropped drafts change no bit of the states, of
 * what is saved, or of what follows. */
#include "engine/recurrent.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 420, PROMPT = 30 };

static const char *const recipes[] = {"f16", "best-4", "best-2", "body: rot4; window 40: f16"};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

static size_t n_vocab_of(const lk_session *s) { return (size_t)s->model->net->hp.n_vocab; }

static void assert_same_states(const lk_session *a, const lk_session *b, const char *what) {
    if (memcmp(a->recurrent, b->recurrent, lk_recurrent_bytes(&a->model->net->hp)) != 0)
        fail_msg("%s, after %zu tokens: the states differ", what, a->n_tok);
}

/* A pass that ends with n_drop tokens of another seed, which are dropped in two parts if there are
 * several. */
static void run_pass(lk_session *s, const int32_t *tok, size_t n, size_t n_drop, uint64_t seed) {
    int32_t pass[LK_DRAFT_MAX];
    lk_err err = {0};
    size_t held = s->n_tok;
    random_tokens(pass, (int)n, s->model, seed);
    memcpy(pass, tok, (n - n_drop) * sizeof *pass);
    if (lk_session_eval(s, pass, n, true, &err) != LK_OK) fail_msg("%s", err.msg);
    if (n_drop > 1 && seed % 2)
        assert_int_equal(lk_session_truncate(s, held + n - n_drop / 2, NULL), LK_OK);
    if (lk_session_truncate(s, held + n - n_drop, &err) != LK_OK) fail_msg("%s", err.msg);
}

/* Replace a session by one that was copied from it, or saved and loaded. */
static lk_session *replace_session(lk_session *s, bool save) {
    char path[] = "/tmp/lowkey-hybrid-drafts-XXXXXX";
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 3};
    lk_session *other = NULL;
    lk_err err = {0};
    if (lk_session_new(&other, s->model, s->recipe, &opts, &err)) fail_msg("%s", err.msg);
    if (save) {
        close(mkstemp(path));
        if (lk_session_save(s, NULL, path, &err)) fail_msg("%s", err.msg);
        if (lk_session_load(other, NULL, path, &err)) fail_msg("%s", err.msg);
        unlink(path);
    } else if (lk_session_copy(other, s, &err) != LK_OK) {
        fail_msg("%s", err.msg);
    }
    lk_session_free(s);
    return other;
}

/* Two sessions with the same tokens and different wrong drafts stay equal to the bit; the second
 * one is copied, saved and loaded on the way. A third one, which gets no drafts, is close. */
static void dropped_drafts_change_nothing(void **state) {
    const char *preset = *state;
    lk_model *model = open_preset(preset, CTX, 2);
    int n_dropped = 0;
    for (int k = 0; k < N_RECIPE; k++) {
        lk_recipe *recipe;
        lk_session *a = open_session(model, recipes[k], CTX, &recipe), *b = NULL, *plain = NULL;
        lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 3};
        struct random r = {(uint64_t)k + 1};
        int32_t tok[CTX];
        random_tokens(tok, CTX, model, 7);
        assert_int_equal(lk_session_new(&b, model, recipe, &opts, NULL), LK_OK);
        assert_int_equal(lk_session_new(&plain, model, recipe, &opts, NULL), LK_OK);
        assert_int_equal(lk_session_sync(a, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_sync(b, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_sync(plain, tok, PROMPT, NULL, NULL), LK_OK);
        while (a->n_tok + LK_DRAFT_MAX < CTX) {
            size_t max = (size_t)random_int(&r, 1, LK_DRAFT_MAX), held = a->n_tok;
            size_t n = lk_session_draftable(a, max, NULL);
            size_t n_drop = (size_t)random_int(&r, 0, (int)n - 1);
            run_pass(a, tok + held, n, n_drop, random_u32(&r));
            run_pass(b, tok + held, n, n_drop, random_u32(&r));
            for (size_t i = held; i < a->n_tok; i++)
                assert_int_equal(lk_session_eval(plain, tok + i, 1, false, NULL), LK_OK);
            assert_same_states(a, b, recipes[k]);
            assert_same_logits(a, b, recipes[k]);
            n_dropped += (int)n_drop;
            double e = nmse(lk_session_logits(a, -1), lk_session_logits(plain, -1), n_vocab_of(a));
            if (!(e < 1e-3)) fail_msg("%s after %zu tokens: NMSE %g", recipes[k], a->n_tok, e);
            if (random_int(&r, 0, 5) == 0) b = replace_session(b, random_int(&r, 0, 1));
        }
        lk_session_free(a);
        lk_session_free(b);
        lk_session_free(plain);
        lk_recipe_free(recipe);
    }
    assert_true(n_dropped > 300);
    lk_model_free(model);
}

/* With exact rows, states after a pass are those of decoding one by one up to the order of sums. */
static void states_are_those_of_plain_decoding(void **state) {
    const char *preset = *state;
    lk_model *model = open_preset(preset, CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", CTX, &recipe), *plain = NULL;
    lk_session_opts opts = {.n_ctx = CTX};
    int32_t tok[CTX];
    size_t n_float = lk_recurrent_bytes(&model->net->hp) / sizeof(float);
    random_tokens(tok, CTX, model, 8);
    assert_int_equal(lk_session_new(&plain, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
    for (size_t n = 2; n <= LK_DRAFT_MAX; n += 3)
        for (size_t n_keep = 1; n_keep <= n; n_keep += 2) {
            size_t held = s->n_tok;
            if (held + n > CTX) break;
            assert_int_equal(lk_session_copy(plain, s, NULL), LK_OK);
            run_pass(s, tok + held, n, n - n_keep, n);
            for (size_t i = 0; i < n_keep; i++)
                assert_int_equal(lk_session_eval(plain, tok + held + i, 1, false, NULL), LK_OK);
            double e = nmse(s->recurrent, plain->recurrent, n_float);
            if (!(e < 1e-10)) fail_msg("%zu of %zu tokens: NMSE of states %g", n_keep, n, e);
        }
    lk_session_free(s);
    lk_session_free(plain);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* A session with drafts goes back to checkpoints, and goes on from there. */
static void checkpoints_hold_states(void **state) {
    const char *preset = *state;
    lk_model *model = open_preset(preset, CTX, 1);
    lk_recipe *recipe;
    lk_session *plain = open_session(model, "best-4", CTX, &recipe), *s = NULL;
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4};
    int32_t tok[CTX];
    size_t n_reused;
    random_tokens(tok, CTX, model, 9);
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 100, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(plain, tok, 100, NULL, NULL), LK_OK);
    while (s->n_tok < 200) run_pass(s, tok + s->n_tok, lk_session_draftable(s, 6, NULL), 0, 1);
    for (int i = 0; i < 3; i++) { /* each time from the checkpoint */
        assert_int_equal(lk_session_sync(s, tok, 101, &n_reused, NULL), LK_OK);
        assert_int_equal(n_reused, 100);
        if (i == 0) assert_int_equal(lk_session_eval(plain, tok + 100, 1, false, NULL), LK_OK);
        assert_same_states(s, plain, "checkpoint");
        assert_same_logits(s, plain, "checkpoint");
        run_pass(s, tok + s->n_tok, lk_session_draftable(s, 9, NULL), 1, 2);
    }
    lk_session_free(s);
    lk_session_free(plain);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Without memory for what a pass of drafts needs, the session is as before, and goes on. The last
 * pass can still be cut. */
static void failures_change_nothing(void **state) {
    const char *preset = *state;
    lk_model *model = open_preset(preset, CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "best-4", CTX, &recipe), *plain = NULL;
    lk_session_opts opts = {.n_ctx = CTX};
    int32_t tok[CTX];
    int n_failed = 0;
    random_tokens(tok, CTX, model, 10);
    assert_int_equal(lk_session_new(&plain, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 40, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(plain, tok, 40, NULL, NULL), LK_OK);
    for (int grows = 0; grows < 2; grows++) {
        size_t n = grows ? 20 : 5;
        if (grows) { /* a pass that is cut only after the next one has failed */
            assert_int_equal(lk_session_eval(s, tok + s->n_tok, 4, true, NULL), LK_OK);
            run_pass(plain, tok + plain->n_tok, 4, 2, 1);
        }
        for (int fail = 1;; fail++) {
            s->ledger.fail_at = fail;
            lk_status status = lk_session_eval(s, tok + s->n_tok, n, true, NULL);
            bool failed = s->ledger.fail_at <= 0;
            s->ledger.fail_at = 0;
            if (status == LK_OK) {
                assert_false(failed && fail < 3);
                break;
            }
            assert_int_equal(status, LK_E_NOMEM);
            n_failed++;
            if (!grows || fail > 1) continue;
            assert_int_equal(lk_session_truncate(s, s->n_tok - 2, NULL), LK_OK);
            assert_same_states(s, plain, "a cut after a failure");
        }
        run_pass(plain, tok + plain->n_tok, n, 0, 1);
        assert_same_states(s, plain, "failures");
        assert_same_logits(s, plain, "failures");
    }
    assert_true(n_failed > 8);
    lk_session_free(s);
    lk_session_free(plain);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Sessions of a batch have drafts or not, and are cut independently of each other. */
static void sessions_of_a_batch_are_independent(void **state) {
    const char *preset = *state;
    enum { N = 3 };
    lk_model *model = open_preset(preset, CTX, 2);
    lk_recipe *recipe[2][N];
    lk_session *s[2][N];
    lk_batch *batch = NULL;
    struct random r = {5};
    int32_t tok[CTX], other[CTX];
    random_tokens(tok, CTX, model, 11);
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    for (int k = 0; k < 2 * N; k++) {
        s[k / N][k % N] = open_session(model, recipes[k % N], CTX, &recipe[k / N][k % N]);
        assert_int_equal(lk_session_sync(s[k / N][k % N], tok, 20 + (size_t)k % N, NULL, NULL),
                         LK_OK);
    }
    for (int step = 0; step < 20; step++) {
        size_t n[N], n_drop[N];
        for (int i = 0; i < N; i++) {
            n[i] = lk_session_draftable(s[0][i], (size_t)random_int(&r, 1, 9), NULL);
            n_drop[i] = (size_t)random_int(&r, 0, (int)n[i] - 1);
        }
        for (int k = 0; k < 2; k++) {
            lk_batch_entry item[N];
            random_tokens(other, CTX, model, (uint64_t)(2 * step + k)); /* wrong drafts */
            int32_t pass[N][LK_DRAFT_MAX];
            for (int i = 0; i < N; i++) {
                memcpy(pass[i], other + 10 * i, n[i] * sizeof(int32_t));
                memcpy(pass[i], tok + s[k][i]->n_tok, (n[i] - n_drop[i]) * sizeof(int32_t));
                item[i] = (lk_batch_entry){
                    .session = s[k][i], .tok = pass[i], .n_tok = n[i], .all = n[i] > 1};
            }
            assert_int_equal(lk_batch_eval(batch, item, N, NULL), LK_OK);
            for (int i = 0; i < N; i++) {
                assert_int_equal(item[i].err.code, LK_OK);
                assert_int_equal(lk_session_truncate(s[k][i], s[k][i]->n_tok - n_drop[i], NULL),
                                 LK_OK);
            }
        }
        for (int i = 0; i < N; i++) {
            assert_same_states(s[0][i], s[1][i], "batch");
            assert_same_logits(s[0][i], s[1][i], "batch");
        }
    }
    for (int k = 0; k < 2 * N; k++) {
        lk_session_free(s[k / N][k % N]);
        lk_recipe_free(recipe[k / N][k % N]);
    }
    lk_batch_free(batch);
    lk_model_free(model);
}

/* What drafts need is counted, and no more than what is promised. */
static void memory_is_counted(void **state) {
    const char *preset = *state;
    lk_model *model = open_preset(preset, CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", CTX, &recipe);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 12);
    assert_int_equal(lk_session_sync(s, tok, 40, NULL, NULL), LK_OK);
    for (int n = 2; n <= LK_DRAFT_MAX; n++) {
        uint64_t before = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH);
        lk_recurrent_drafts_free(s);
        uint64_t none = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH);
        assert_true(none <= before);
        assert_int_equal(lk_recurrent_drafts_reserve(s, n, NULL), LK_OK);
        uint64_t held = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH) - none,
                 bound = lk_recurrent_drafts_bytes(model->net, n);
        if (held > bound || held < lk_recurrent_bytes(&model->net->hp))
            fail_msg("%d tokens: %d bytes, bound %d", n, (int)held, (int)bound);
    }
    assert_int_equal(lk_recurrent_drafts_bytes(&(struct lk_net){.n_param = 0}, 8), 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    static const char *const families[] = {"qwen35", "qwen35moe", "qwen3next", "lfm2",
                                           "granitehybrid"};
    int n_failed = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        void *family = (void *)families[i];
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(dropped_drafts_change_nothing, family),
            cmocka_unit_test_prestate(states_are_those_of_plain_decoding, family),
            cmocka_unit_test_prestate(checkpoints_hold_states, family),
            cmocka_unit_test_prestate(failures_change_nothing, family),
            cmocka_unit_test_prestate(sessions_of_a_batch_are_independent, family),
            cmocka_unit_test_prestate(memory_is_counted, family),
        };
        n_failed += cmocka_run_group_tests_name(families[i], tests, NULL, NULL);
    }
    return n_failed;
}
