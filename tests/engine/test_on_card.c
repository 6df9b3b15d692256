/* Models whose weights and rows are on one card: the emulated one, whose memory the host cannot
 * touch, and whose streams run only when the host waits for them. Logits equal the ones of passes
 * whose queries and partials go through RAM, but for roundings. */
#include "device/device.h"
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "support.h"
#include "support_card.h"
#include "support_compute.h"
#include "support_model.h"
#include "test.h"

static bool has_card;

static void need_card(void) {
    if (has_card) return;
    print_message(
        "skipped: this build of ggml has other tables than tests/support/ggml_interface.h\n");
    skip();
}

/* Is a recipe possible on the card, with this model? */
static bool is_possible(lk_model *model, const char *text) {
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    lk_status status = lk_session_new(&session, model, recipe, NULL, NULL);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return !status;
}

/* Compute with the layers in RAM, then with all of them, or half of them too, on the card. False:
 * the recipe is not possible. */
static bool compare(const struct tiny_spec *spec, const char *recipe, bool half, double max_nmse) {
    int n_ctx = spec->n_ctx > 0 && spec->n_ctx < COMPUTE_CTX ? spec->n_ctx : COMPUTE_CTX;
    lk_model_opts opts = {
        .n_threads = 2, .n_ctx = n_ctx, .no_repack = true, .cache_device = "emulated"};
    struct results ram = {0};
    int32_t tok[COMPUTE_CTX];
    lk_model *model = open_tiny(spec, &opts);
    int n_vocab = lk_model_get_info(model).n_vocab;
    random_tokens(tok, COMPUTE_CTX, model, 7);
    bool possible = is_possible(model, recipe);
    if (possible) compute(model, recipe, tok, n_ctx, &ram);
    lk_model_free(model);
    opts.device = "emulated";
    for (int part = 0; possible && part < (half ? 2 : 1); part++) {
        struct results card = {0};
        opts.n_device_layers = part ? (spec->n_layer + 1) / 2 : 0;
        model = open_tiny(spec, &opts);
        compute(model, recipe, tok, n_ctx, &card);
        lk_model_free(model);
        int row = first_difference(&card, &ram, n_vocab, max_nmse);
        if (row >= 0)
            fail_msg("%s, %s, %d layers on the card: logits %d differ", spec->name, recipe,
                     opts.n_device_layers, row);
        free(card.logits);
    }
    free(ram.logits);
    return possible;
}

/* All families with f32 weights. Experts are chosen by other operators than on the CPU. */
static void logits_are_those_of_ram(void **state) {
    int n_compared = 0;
    (void)state;
    need_card();
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++)
        if (spec->type == GGML_TYPE_F32)
            n_compared += compare(spec, "f16", (spec - tiny_presets) % 3 == 0, 1e-6);
    print_message("%d models\n", n_compared);
    assert_true(n_compared >= 40);
}

/* Kernels that leave a result round otherwise than those that leave partials, so codes of later
 * layers' rows may be their neighbors. */
static void recipes_are_those_of_ram(void **state) {
    static const char *const recipes[] = {"best-3",
                                          "kivi-2",
                                          "trellis-2",
                                          "lambda",
                                          "eager; sink 4: f16; body: rot3; window 32: rot8",
                                          "sink 4: f16; keep 160 by h2o: rot4; window 32: f16",
                                          "keep 96 by tova: f16; window 20: f16"};
    (void)state;
    need_card();
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        assert_true(compare(tiny_preset("llama"), recipes[i], i == 0 || i == 5, 1e-9));
    /* Of layers that share rows, one counts. */
    assert_true(compare(tiny_preset("gemma4"), "keep 96 by h2o: f16; window 20: f16", true, 1e-9));
}

/* ---- what crosses RAM ---- */

static struct {
    struct lk_device_functions real;
    int n_upload, n_download, n_sync;
} calls;

static lk_status upload(struct lk_device *d, uint64_t to, const void *from, size_t n, lk_err *err) {
    calls.n_upload++;
    return calls.real.upload(d, to, from, n, err);
}
static lk_status download(struct lk_device *d, void *to, uint64_t from, size_t n, lk_err *err) {
    calls.n_download++;
    return calls.real.download(d, to, from, n, err);
}
static lk_status sync(struct lk_device *d, lk_err *err) {
    calls.n_sync++;
    return calls.real.sync(d, err);
}

/* The sessions of a batch on a card: a step brings tokens and positions there, and logits back, and
 * waits at its end. Tables of blocks go there when blocks come. n_download: per session and step.
 */
static void check_step(const char *text, int n_download) {
    enum { CTX = 512, PROMPT = 300, STEPS = 64, N = 2 };
    for (int n = 1; n <= N; n++) {
        struct tiny_spec spec = *tiny_preset("llama");
        spec.n_layer = 6;
        lk_model_opts opts = {
            .n_threads = 2, .n_ctx = CTX, .device = "emulated", .cache_device = "emulated"};
        lk_model *model = open_tiny(&spec, &opts);
        lk_session *s[N];
        lk_recipe *recipe[N];
        lk_batch *batch;
        lk_batch_entry entry[N] = {0};
        lk_err err = {0};
        int32_t tok[CTX];
        random_tokens(tok, CTX, model, 3);
        assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
        for (int i = 0; i < n; i++) {
            s[i] = open_session(model, text, CTX, &recipe[i]);
            if (lk_session_sync(s[i], tok, PROMPT, NULL, &err)) fail_msg("%s", err.msg);
        }
        struct lk_device_functions counting = calls.real = *s[0]->rows.device->call;
        const struct lk_device_functions *before = s[0]->rows.device->call;
        counting.upload = upload, counting.download = download, counting.sync = sync;
        s[0]->rows.device->call = &counting;
        for (int step = -2; step < STEPS; step++) {
            for (int i = 0; i < n; i++)
                entry[i] =
                    (lk_batch_entry){.session = s[i], .tok = tok + PROMPT + step + 2, .n_tok = 1};
            if (lk_batch_eval(batch, entry, (size_t)n, &err)) fail_msg("%s", err.msg);
            struct card_copies copies = take_card_copies();
            if (step < 0) { /* tables and scratch */
                calls.n_upload = calls.n_download = calls.n_sync = 0;
                continue;
            }
            assert_int_equal(copies.n_get, 1);
            assert_int_equal(copies.n_set, 2);
            assert_int_equal(copies.n_wait, 1);
        }
        assert_int_equal(calls.n_download, n_download * n * STEPS);
        assert_int_equal(calls.n_sync, n * STEPS); /* after the wait: nothing is left to do */
        /* Tables and channel statistics, when rows age. */
        assert_true(calls.n_upload <= 4 * n * spec.n_layer);
        s[0]->rows.device->call = before;
        lk_batch_free(batch);
        for (int i = 0; i < n; i++) {
            lk_session_free(s[i]);
            lk_recipe_free(recipe[i]);
        }
        lk_model_free(model);
    }
}

static void a_step_stays_on_the_card(void **state) {
    (void)state;
    need_card();
    check_step("best-3", 0);
    /* The scores of all layers. */
    check_step("sink 4: f16; keep 160 by h2o: rot4; window 32: f16", 1);
}

int main(void) {
    setenv("LOWKEY_EMULATED_MIB", "2048", 1);
    has_card = open_card();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_stays_on_the_card),
        cmocka_unit_test(recipes_are_those_of_ram),
        cmocka_unit_test(logits_are_those_of_ram),
    };
    return cmocka_run_group_tests_name("on_card", tests, NULL, NULL);
}
