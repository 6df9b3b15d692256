/* Recurrences on a device: the emulated card (support_card.h), whose memory the host cannot touch.
 * States are as on the CPU but for roundings, and everything that a session can do with them
 * changes no bit. */
#include "engine/prefill.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "model/recurrence_nodes.h"
#include "support.h"
#include "support_card.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 200, PROMPT = 30 };

/* A hybrid of each kind: state spaces, short convolutions, and a delta rule whose value heads are
 * adjacent, or not. */
static const char *const families[] = {"qwen35", "qwen3next", "granitehybrid", "lfm2"};
enum { N_FAMILY = sizeof families / sizeof *families };

/* With all layers on the card, or the last n_layer. rows: caches are there, too. */
static lk_model *open_hybrid(const char *preset, bool card, bool rows, int n_layer) {
    struct tiny_spec spec = *tiny_preset(preset);
    lk_model_opts opts = {.n_threads = 1,
                          .no_repack = true,
                          .device = card ? "emulated" : NULL,
                          .n_device_layers = n_layer,
                          .cache_device = rows ? "emulated" : NULL};
    if (spec.n_ctx < CTX) spec.n_ctx = CTX;
    lk_model *model = open_tiny(&spec, &opts);
    assert_int_equal(lk_model_get_info(model).n_device_recurrent,
                     lk_recurrence_count_there(model->net));
    return model;
}

static lk_session *new_session(lk_model *model, const lk_recipe *recipe) {
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4};
    lk_session *s = NULL;
    lk_err err = {0};
    if (lk_session_new(&s, model, recipe, &opts, &err)) fail_msg("%s", err.msg);
    return s;
}

static void eval(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_eval(s, tok, n, n > 1, &err)) fail_msg("%s", err.msg);
}

static void read_text(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_sync(s, tok, n, NULL, &err)) fail_msg("%s", err.msg);
}

/* The states of a session, which the caller frees. */
static float *states_of(const lk_session *s) {
    float *states = calloc(1, lk_recurrent_bytes(&s->model->net->hp));
    assert_int_equal(lk_recurrent_get(s, states, NULL), LK_OK);
    return states;
}

/* States differ by at most an NMSE of max; 0: not in a bit. */
static void assert_near(const lk_session *a, const lk_session *b, double max, const char *what) {
    float *x = states_of(a), *y = states_of(b);
    size_t n = lk_recurrent_bytes(&a->model->net->hp) / sizeof *x;
    double e = max > 0 ? nmse(x, y, n) : memcmp(x, y, n * sizeof *x) != 0;
    if (!(e <= max)) fail_msg("%s: states differ, %g", what, e);
    size_t n_vocab = (size_t)a->model->net->hp.n_vocab;
    e = nmse(lk_session_logits(a, -1), lk_session_logits(b, -1), n_vocab);
    if (!(e <= max)) fail_msg("%s: logits differ, %g", what, e);
    free(x), free(y);
}

/* Prompts, steps and passes of several tokens, with all layers there and with half of them. What
 * sessions have there is counted and planned. */
static void states_are_those_of_the_cpu(void **state) {
    const char *family = *state;
    need_card();
    lk_model *plain = open_hybrid(family, false, false, 0);
    lk_recipe *recipe;
    lk_session *a = open_session(plain, "f16", CTX, &recipe);
    int32_t tok[CTX];
    random_tokens(tok, CTX, plain, 3);
    read_text(a, tok, PROMPT);
    for (int i = 0; i < 3; i++) eval(a, tok + PROMPT + 2 * i, 1 + (size_t)i % 2);
    for (int part = 0; part < 4; part++) {
        int n_layer = part % 2 ? plain->net->hp.n_layer / 2 : 0;
        lk_model *model = open_hybrid(family, true, part / 2, n_layer);
        lk_session *b = new_session(model, recipe);
        int n_there = lk_recurrence_count_there(model->net);
        assert_null(lk_model_get_info(model).recurrence_lack);
        assert_true(n_there > 0 && n_there <= model->net->hp.n_recurrent);
        assert_true((n_there < model->net->hp.n_recurrent) == (n_layer > 0));
        read_text(b, tok, PROMPT);
        for (int i = 0; i < 3; i++) eval(b, tok + PROMPT + 2 * i, 1 + (size_t)i % 2);
        assert_near(b, a, 1e-6, family);
        lk_session_stats stats = lk_session_get_stats(b);
        uint64_t there = b->recurrent_there.now.size;
        lk_plan plan;
        assert_int_equal(lk_plan_make(model, recipe, &(lk_session_opts){.n_ctx = CTX}, &plan, NULL),
                         LK_OK);
        assert_int_equal(stats.state_bytes, there + lk_recurrent_ram_bytes(model->net));
        assert_true(there >=
                    (size_t)n_there * lk_recurrence_state_floats(&model->net->hp.recurrence));
        assert_true(stats.device_bytes >= there && stats.cache_bytes >= stats.state_bytes);
        assert_true(plan.device_cache_bytes >= there && plan.cache_bytes >= stats.state_bytes);
        if (part < 2) assert_int_equal(stats.device_bytes, there + b->recurrent_there.before.size);
        if (part < 2)
            assert_int_equal(plan.device_cache_bytes, lk_recurrent_there_bytes(model->net));
        lk_session_free(b);
        lk_model_free(model);
    }
    lk_session_free(a);
    lk_recipe_free(recipe);
    lk_model_free(plain);
}

/* A pass that ends with n_drop wrong tokens, which are dropped. */
static void run_pass(lk_session *s, const int32_t *tok, size_t n, size_t n_drop, uint64_t seed) {
    int32_t pass[LK_DRAFT_MAX];
    size_t held = s->n_tok;
    random_tokens(pass, (int)n, s->model, seed);
    memcpy(pass, tok, (n - n_drop) * sizeof *pass);
    eval(s, pass, n);
    if (n_drop > 1 && seed % 2)
        assert_int_equal(lk_session_truncate(s, held + n - n_drop / 2, NULL), LK_OK);
    assert_int_equal(lk_session_truncate(s, held + n - n_drop, NULL), LK_OK);
}

/* Replace a session by a copy of it, or by one that was saved and loaded. */
static lk_session *replace(lk_session *s, bool save) {
    char path[] = "/tmp/lowkey-recurrent-XXXXXX";
    lk_session *other = new_session(s->model, s->recipe);
    lk_err err = {0};
    if (save) {
        close(mkstemp(path));
        if (lk_session_save(s, NULL, path, &err)) fail_msg("%s", err.msg);
        if (lk_session_load(other, NULL, path, &err)) fail_msg("%s", err.msg);
        unlink(path);
    } else if (lk_session_copy(other, s, &err)) {
        fail_msg("%s", err.msg);
    }
    lk_session_free(s);
    return other;
}

/* Two sessions with other wrong drafts stay equal to the bit, and one of them is copied, saved and
 * loaded. They are close to one on the CPU. */
static void dropped_drafts_change_nothing(void **state) {
    const char *family = *state;
    need_card();
    lk_model *model = open_hybrid(family, true, false, 3),
             *plain = open_hybrid(family, false, 0, 0);
    lk_recipe *recipe;
    lk_session *a = open_session(model, "f16", CTX, &recipe), *b = new_session(model, recipe),
               *c = new_session(plain, recipe);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 7);
    lk_session *all[] = {a, b, c};
    for (int i = 0; i < 3; i++) read_text(all[i], tok, PROMPT);
    for (int k = 0; k < 8; k++) {
        size_t n = (size_t)k % 5 + 2, n_drop = (size_t)k % 3, held = a->n_tok;
        if (n_drop >= n) n_drop = 1;
        run_pass(a, tok + held, n, n_drop, 2 * (uint64_t)k);
        run_pass(b, tok + held, n, n_drop, 2 * (uint64_t)k + 1);
        run_pass(c, tok + held, n, n_drop, 2 * (uint64_t)k);
        assert_near(a, b, 0, family);
        assert_near(a, c, 1e-6, family);
        if (k % 3 == 1) b = replace(b, k % 2);
    }
    lk_session_free(a), lk_session_free(b), lk_session_free(c);
    lk_recipe_free(recipe);
    lk_model_free(model);
    lk_model_free(plain);
}

/* Going back to a checkpoint, starting again, and prompts of several sessions at once. */
static void sessions_go_back(void **state) {
    const char *family = *state;
    need_card();
    lk_model *model = open_hybrid(family, true, false, 0);
    lk_recipe *recipe;
    lk_session *a = open_session(model, "f16", CTX, &recipe), *b = new_session(model, recipe);
    int32_t tok[CTX];
    size_t n_reused = 0;
    random_tokens(tok, CTX, model, 9);
    lk_session_free(a);
    a = new_session(model, recipe);
    read_text(a, tok, 80);
    float *first = states_of(a);
    random_tokens(tok + 90, 20, model, 11);
    read_text(a, tok, 100);
    random_tokens(tok + 85, 30, model, 12);
    assert_int_equal(lk_session_sync(a, tok, 110, &n_reused, NULL), LK_OK);
    assert_int_equal(n_reused, 80);
    read_text(b, tok, 80);
    read_text(b, tok, 110);
    assert_near(a, b, 0, family);
    lk_session_clear(a);
    float *empty = states_of(a);
    for (size_t i = 0; i < lk_recurrent_bytes(&model->net->hp) / sizeof *empty; i++)
        assert_true(empty[i] == 0);
    lk_session *both[] = {a, b};
    assert_int_equal(lk_prefill_all(both, 2, tok, 80, NULL), LK_OK);
    for (int i = 0; i < 2; i++) {
        float *again = states_of(both[i]);
        assert_memory_equal(again, first, lk_recurrent_bytes(&model->net->hp));
        free(again);
    }
    eval(a, tok + 80, 1), eval(b, tok + 80, 1);
    assert_near(a, b, 0, family);
    free(first), free(empty);
    lk_session_free(a), lk_session_free(b);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Passes of one batch with other sessions, and other numbers of tokens, each time. */
static void batches_change(void **state) {
    enum { N = 3 };
    const char *family = *state;
    need_card();
    lk_model *model = open_hybrid(family, true, false, 0),
             *plain = open_hybrid(family, false, 0, 0);
    lk_session *s[2][N];
    lk_batch *batch[2];
    lk_recipe *recipe;
    int32_t tok[CTX];
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    random_tokens(tok, CTX, model, 5);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(lk_batch_new(&batch[k], k ? plain : model, NULL), LK_OK);
        for (int i = 0; i < N; i++) {
            s[k][i] = new_session(k ? plain : model, recipe);
            read_text(s[k][i], tok + i, 10);
        }
    }
    for (int step = 0; step < 6; step++) {
        for (int k = 0; k < 2; k++) {
            lk_batch_entry entry[N];
            size_t n = 0;
            for (int i = 0; i < N; i++)
                if (i != step % 4)
                    entry[n++] = (lk_batch_entry){.session = s[k][i],
                                                  .tok = tok + s[k][i]->n_tok + (size_t)i,
                                                  .n_tok = (size_t)(step + i) % 3 + 1};
            assert_int_equal(lk_batch_eval(batch[k], entry, n, NULL), LK_OK);
            lk_session *other = new_session(k ? plain : model, recipe); /* in the same memory? */
            assert_int_equal(lk_session_copy(other, s[k][step % N], NULL), LK_OK);
            lk_session_free(s[k][step % N]);
            s[k][step % N] = other;
        }
        for (int i = 0; i < N; i++) assert_near(s[0][i], s[1][i], 1e-6, family);
    }
    for (int k = 0; k < 2; k++) {
        lk_batch_free(batch[k]);
        for (int i = 0; i < N; i++) lk_session_free(s[k][i]);
    }
    lk_recipe_free(recipe);
    lk_model_free(model), lk_model_free(plain);
}

/* Too little memory there is an error of one line. */
static void memory_has_a_limit(void **state) {
    const char *family = *state;
    need_card();
    lk_model *model = open_hybrid(family, true, false, 0);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", CTX, &recipe), *other = NULL;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = CTX, .max_device_bytes = s->recurrent_there.now.size - 1};
    assert_int_equal(lk_session_new(&other, model, recipe, &opts, &err), LK_E_NOMEM);
    if (!strstr(err.msg, "out of memory of emulated") || strchr(err.msg, '\n'))
        fail_msg("%s", err.msg);
    opts.max_device_bytes++;
    assert_int_equal(lk_session_new(&other, model, recipe, &opts, &err), LK_OK);
    int32_t tok[4] = {1, 2, 3, 4};
    eval(other, tok, 1);
    assert_int_equal(lk_session_eval(other, tok, 4, true, &err), LK_E_NOMEM); /* drafts need more */
    assert_int_equal(lk_session_n_tok(other), 1);
    eval(other, tok, 1);
    lk_session_free(other);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Sizes for which ggml has no operators there: the CPU computes them, and `info` says so. */
static void others_are_computed_here(void **state) {
    (void)state;
    need_card();
    struct tiny_spec spec = *tiny_preset("lfm2");
    lk_model_opts opts = {.n_threads = 1, .device = "emulated"};
    spec.n_conv = 6;
    lk_model *model = open_tiny(&spec, &opts);
    lk_model_info info = lk_model_get_info(model);
    assert_non_null(strstr(info.recurrence_lack, "has no operators"));
    assert_int_equal(info.n_device_recurrent, 0);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", 64, &recipe);
    int32_t tok[20];
    random_tokens(tok, 20, model, 1);
    read_text(s, tok, 20);
    assert_int_equal(lk_session_get_stats(s).device_bytes, 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    int n_failed = 0;
    setenv("LOWKEY_EMULATED_MIB", "1024", 1);
    open_card();
    for (int i = 0; i < N_FAMILY; i++) {
        void *family = (void *)families[i];
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(states_are_those_of_the_cpu, family),
            cmocka_unit_test_prestate(dropped_drafts_change_nothing, family),
            cmocka_unit_test_prestate(sessions_go_back, family),
            cmocka_unit_test_prestate(batches_change, family),
            cmocka_unit_test_prestate(memory_has_a_limit, family),
        };
        n_failed += cmocka_run_group_tests_name(families[i], tests, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(others_are_computed_here)};
    return n_failed + cmocka_run_group_tests_name("other sizes", tests, NULL, NULL);
}
