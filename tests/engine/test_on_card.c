/* Models whose weights and rows are on one card: the emulated one, whose memory the host cannot
 * touch, and whose streams run only when the host waits for them. Logits equal the ones of passes
 * whose queries and partials go through RAM, but for roundings. */
#include "device/device.h"
#include "engine/plan.h"
#include "engine/prefill.h"
#include "engine/prefill_state.h"
#include "engine/session_state.h"
#include "kernels/kernels.h"
#include "lowkey_serve.h"
#include "support.h"
#include "support_card.h"
#include "support_compute.h"
#include "support_model.h"
#include "test.h"

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

/* Of chunks of less than 64 tokens ggml's operator for the CPU, which computes for the emulated
 * card, rounds queries and sums of values to f16. compute() has a second session with a prompt of 9
 * tokens: logits OF_SHORT and later. Its other prompt has 580. */
#define MAX_SHORT_NMSE 2e-5
enum { OF_SHORT = 7 };

/* Kernels that multiply the exact rows of a prompt as floats, as the card does. */
static const char *in_floats(void) { return lk_kernels_choose("avx2") ? "avx2" : NULL; }

/* Compute with the layers in RAM, then with all of them, or half of them too, on the card. False:
 * the recipe is not possible. */
static bool compare(const struct tiny_spec *spec, const char *recipe, bool half, double max_nmse) {
    int n_ctx = spec->n_ctx > 0 && spec->n_ctx < COMPUTE_CTX ? spec->n_ctx : COMPUTE_CTX;
    lk_model_opts opts = {.n_threads = 2,
                          .n_ctx = n_ctx,
                          .no_repack = true,
                          .kernels = in_floats(),
                          .cache_device = "emulated"};
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
        assert_int_equal(card.n, ram.n);
        bool is_short = n_ctx < COMPUTE_CTX;
        for (int i = 0; i < ram.n; i++) {
            size_t at = (size_t)i * (size_t)n_vocab;
            double limit = is_short || i >= OF_SHORT ? MAX_SHORT_NMSE : max_nmse,
                   error = nmse(card.logits + at, ram.logits + at, (size_t)n_vocab);
            if (!(error <= limit))
                fail_msg("%s, %s, %d layers on the card: logits %d differ by an NMSE of %.2g",
                         spec->name, recipe, opts.n_device_layers, i, error);
        }
        double error = nmse(card.embedding, ram.embedding, (size_t)lk_model_get_info(model).n_embd);
        if (!(error <= (n_ctx >= 70 ? max_nmse : MAX_SHORT_NMSE)))
            fail_msg("%s: embeddings differ, %.2g", spec->name, error);
        lk_model_free(model);
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

/* Latents, which are projected from exact rows on the card, and sums of evicted rows: what a step
 * combines there. */
static void partials_are_those_of_ram(void **state) {
    static const char *const recipes[] = {
        "palu",
        "palu-rot",
        "tale",
        "sink 4: f16; body: k=latent25%(pre)+rot4 v=latent50%+rot3",
        "body: k=latent25%(pre)+rot4 v=rot3(nosigma); recent 60: rot8; window 20: f16",
        "keep 96 by h2o: k=latent50%+rot8 v=f16; window 20: f16",
        "sink 4: f16; body: none; window 60: f16; absorb less",
        "sink 4: f16; keep 96 by h2o: rot4; recent 60: rot8(nosigma); window 20: f16; absorb less",
        "sink 4: f16; body: none; window 60: k=latent100%(pre) v=latent100%; absorb less"};
    (void)state;
    need_card();
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct results result[2] = {0};
        int32_t tok[COMPUTE_CTX];
        int n_vocab = 0;
        for (int card = 0; card < 2; card++) {
            lk_model_opts opts = {.n_threads = 2,
                                  .n_ctx = COMPUTE_CTX,
                                  .no_repack = true,
                                  .kernels = in_floats(),
                                  .cache_device = "emulated",
                                  .device = card ? "emulated" : NULL};
            lk_model *model = open_with_sidecar_by("llama", COMPUTE_CTX, opts, 5);
            n_vocab = lk_model_get_info(model).n_vocab;
            random_tokens(tok, COMPUTE_CTX, model, 7);
            compute(model, recipes[i], tok, COMPUTE_CTX, &result[card]);
            lk_model_free(model);
        }
        int row = first_difference(&result[0], &result[1], n_vocab, 1e-5);
        if (row >= 0) fail_msg("%s: logits %d differ", recipes[i], row);
        free(result[0].logits), free(result[1].logits);
    }
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
                                          "keep 96 by tova: f16; window 20: f16",
                                          "body: k=rot4 v=rot3; recent 90: rot8(nosigma)",
                                          "sink 4(shift): f16; body: none; window 60: f16"};
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
 * waits at its end. Tables of blocks go there when blocks come. n_download: per session and step;
 * n_upload: at most, per session and layer. */
enum { STEPS = 64 };
static void check_step(const char *preset, const char *text, bool sidecar, int n_download,
                       int n_upload) {
    enum { CTX = 512, PROMPT = 300, N = 2 };
    for (int n = 1; n <= N; n++) {
        struct tiny_spec spec = *tiny_preset(preset);
        spec.n_layer = 6;
        if (spec.n_ctx < CTX) spec.n_ctx = CTX;
        lk_model_opts opts = {
            .n_threads = 2, .n_ctx = CTX, .device = "emulated", .cache_device = "emulated"};
        lk_model *model =
            sidecar ? open_with_sidecar_by(preset, CTX, opts, 5) : open_tiny(&spec, &opts);
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
        assert_true(calls.n_upload <= n_upload * n * lk_hparams_cached(&model->net->hp));
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
    check_step("llama", "best-3", false, 0, 4);
    check_step("llama", "body: k=rot4 v=rot3; recent 90: rot8(nosigma)", false, 0, 4);
    check_step("llama", "palu-rot", true, 0, 4);
    /* A row leaves in each step. */
    check_step("llama", "sink 4: f16; body: none; window 60: f16; absorb less", true, 0, STEPS);
    /* The scores of all layers. */
    check_step("llama", "sink 4: f16; keep 160 by h2o: rot4; window 32: f16", false, 1, 4);
    check_step("qwen35", "best-3", false, 0, 4); /* states stay, too */
}

/* ---- prompts ---- */

enum { LONG_CTX = 800, LONG = 700, MARK = 600, N_LAYER = 3 }; /* LONG: two chunks */

static lk_model *open_long(const char *preset, const char *device) {
    struct tiny_spec spec = *tiny_preset(preset);
    if (strcmp(preset, "llama") == 0) spec.n_layer = N_LAYER;
    if (spec.n_ctx < LONG_CTX) spec.n_ctx = LONG_CTX;
    lk_model_opts opts = {.n_threads = 2,
                          .n_ctx = LONG_CTX,
                          .no_repack = true,
                          .kernels = in_floats(),
                          .device = device,
                          .cache_device = "emulated"};
    return open_tiny(&spec, &opts);
}

/* A prompt of two chunks brings positions to the card in each chunk of each layer and waits
 * there once. Logits come back, and what channel statistics are computed from. */
static void a_prompt_stays_on_the_card(void **state) {
    static const struct {
        const char *recipe;
        int n_down, n_up; /* in a layer */
    } cases[] = {{"kivi-2", 0, 0}, {"best-3", 2, 6}};
    (void)state;
    need_card();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_model *model = open_long("llama", "emulated");
        lk_recipe *recipe;
        lk_err err = {0};
        int32_t tok[LONG_CTX];
        int n_graph = N_LAYER * ((LONG + 511) / 512);
        random_tokens(tok, LONG_CTX, model, 3);
        lk_session *s = open_session(model, cases[i].recipe, LONG_CTX, &recipe);
        struct lk_device_functions counting = calls.real = *s->rows.device->call;
        const struct lk_device_functions *before = s->rows.device->call;
        counting.upload = upload, counting.download = download, counting.sync = sync;
        s->rows.device->call = &counting;
        calls.n_upload = calls.n_download = calls.n_sync = 0;
        take_card_copies();
        if (lk_session_sync(s, tok, LONG, NULL, &err)) fail_msg("%s", err.msg);
        struct card_copies copies = take_card_copies();
        assert_int_equal(copies.n_set, n_graph);
        assert_int_equal(copies.n_wait, n_graph);
        assert_int_equal(copies.n_get, 1);
        assert_int_equal(calls.n_download, cases[i].n_down * N_LAYER);
        assert_in_range(calls.n_upload, 0, cases[i].n_up * N_LAYER);
        assert_int_equal(calls.n_sync, 1);
        assert_true(lk_session_get_stats(s).device_bytes < (1 << 23)); /* exact rows are freed */
        s->rows.device->call = before;
        lk_session_free(s);
        lk_recipe_free(recipe);
        lk_model_free(model);
    }
}

static bool cut_after(void *user, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    return --*(int *)user != 0;
}

/* Leave in r, which the caller frees, the logits of a prompt, a step, and a text that branches at
 * MARK. The prompt is cut short after `cut` chunks (0: not) and goes on. */
static bool run_long(const char *preset, const char *text, const char *device, int cut,
                     struct results *r) {
    lk_model *model = open_long(preset, device);
    lk_recipe *recipe;
    lk_session *s = NULL;
    lk_session_opts opts = {
        .n_ctx = LONG_CTX, .n_checkpoint = 6, .progress = cut_after, .user = &cut};
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    int32_t tok[LONG_CTX];
    const size_t mark = MARK;
    random_tokens(tok, LONG_CTX, model, 3);
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    lk_status status = lk_session_sync_marked(s, tok, LONG, &mark, 1, NULL, NULL);
    bool was_cut = status == LK_E_CANCELLED;
    if (was_cut) {
        assert_true((s->suspended->card.buffer != NULL) == (device != NULL));
        assert_int_equal(lk_session_suspended(s, NULL), LONG);
        cut = 0;
        status = lk_session_sync_marked(s, tok, LONG, &mark, 1, NULL, NULL);
    }
    cut = 0;
    assert_int_equal(status, LK_OK);
    *r = (struct results){.logits = malloc(3 * n_vocab * sizeof(float)), .n = 3};
    memcpy(r->logits, lk_session_logits(s, -1), n_vocab * sizeof(float));
    assert_int_equal(lk_session_eval(s, tok + LONG, 1, false, NULL), LK_OK);
    memcpy(r->logits + n_vocab, lk_session_logits(s, -1), n_vocab * sizeof(float));
    size_t n_reused = 0;
    random_tokens(tok + MARK, 90, model, 9);
    assert_int_equal(lk_session_sync(s, tok, MARK + 90, &n_reused, NULL), LK_OK);
    assert_int_equal(n_reused, MARK);
    memcpy(r->logits + 2 * n_vocab, lk_session_logits(s, -1), n_vocab * sizeof(float));
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
    return was_cut;
}

/* A prompt on the card that is cut short goes on bit for bit, and its checkpoints are as in RAM.
 * Layers with windows, layers that share rows, latent attention, recurrences. */
static void prompts_go_on(void **state) {
    static const struct {
        const char *model, *recipe;
    } cases[] = {{"llama", "best-3"},
                 {"gemma3", "f16"},
                 {"gemma4", "f16"},
                 {"deepseek2", "best-3"},
                 {"qwen35", "best-3"}};
    (void)state;
    need_card();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].model, *recipe = cases[i].recipe;
        struct results ram, whole, parts;
        lk_model *model = open_long(name, NULL);
        int n_vocab = lk_model_get_info(model).n_vocab;
        lk_model_free(model);
        run_long(name, recipe, NULL, 0, &ram);
        run_long(name, recipe, "emulated", 0, &whole);
        int row = first_difference(&ram, &whole, n_vocab, 1e-6);
        if (row >= 0) fail_msg("%s: logits %d differ", name, row);
        for (int cut = 1; cut <= (i ? 3 : 2 * N_LAYER); cut += i ? 2 : 1) {
            if (!case_runs(i + (size_t)cut)) continue;
            assert_true(run_long(name, recipe, "emulated", cut, &parts));
            if (first_difference(&whole, &parts, n_vocab, 0) >= 0)
                fail_msg("%s: cut after %d chunks", name, cut);
            free(parts.logits);
        }
        free(ram.logits), free(whole.logits);
    }
}

/* Copy the blocks of K and V of the first layer to bytes. Returns how many there are. */
static size_t first_layer(const lk_session *s, char *bytes, size_t cap) {
    struct lk_device *device = s->rows.device;
    size_t n = 0;
    for (int k = 0; k < 2; k++) {
        const struct lk_kv *kv = lk_cache_kv(s->cache, k);
        for (int i = 0; i < kv->n_level; i++)
            for (int64_t b = 0; b < kv->level[i].n_block; b++, n += kv->level[i].block_bytes) {
                const char *at = lk_block_address(kv->arena, kv->level[i].block[b]);
                assert_true(n + kv->level[i].block_bytes <= cap);
                assert_int_equal(device->call->download(device, bytes + n, (uint64_t)(uintptr_t)at,
                                                        kv->level[i].block_bytes, NULL),
                                 LK_OK);
            }
    }
    return n;
}

/* The first layer's rows do not depend on attention: their blocks have the bytes of a prompt that
 * goes through RAM. */
static void blocks_are_those_of_ram(void **state) {
    enum { CAP = 1 << 20 };
    static const char *const texts[] = {"best-3", "kivi-2", "palu", "palu-rot",
                                        "body: k=latent(pre)+rot4 v=rot3; window 20: f16"};
    (void)state;
    need_card();
    char *bytes[2] = {malloc(CAP), malloc(CAP)};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n[2];
        for (int card = 0; card < 2; card++) {
            lk_model_opts opts = {.n_threads = 2,
                                  .n_ctx = LONG_CTX,
                                  .no_repack = true,
                                  .kernels = in_floats(),
                                  .cache_device = "emulated",
                                  .device = card ? "emulated" : NULL};
            lk_model *model = open_with_sidecar_by("llama", LONG_CTX, opts, 5);
            lk_recipe *recipe;
            int32_t tok[LONG_CTX];
            random_tokens(tok, LONG_CTX, model, 3);
            lk_session *s = open_session(model, texts[i], LONG_CTX, &recipe);
            assert_int_equal(lk_session_sync(s, tok, LONG, NULL, NULL), LK_OK);
            n[card] = first_layer(s, bytes[card], CAP);
            lk_session_free(s);
            lk_recipe_free(recipe);
            lk_model_free(model);
        }
        assert_int_equal(n[0], n[1]);
        if (memcmp(bytes[0], bytes[1], n[0]) != 0) fail_msg("%s: other blocks", texts[i]);
    }
    free(bytes[0]), free(bytes[1]);
}

/* One prompt for sessions with several recipes. */
static void sessions_share_a_prompt(void **state) {
    static const char *const texts[] = {"best-3", "f16", "kivi-2"};
    enum { N = 3 };
    (void)state;
    need_card();
    lk_model *model = open_long("llama", "emulated");
    lk_session *together[N], *alone[N];
    lk_recipe *recipe[2 * N];
    int32_t tok[LONG_CTX];
    random_tokens(tok, LONG_CTX, model, 3);
    for (int i = 0; i < N; i++) {
        together[i] = open_session(model, texts[i], LONG_CTX, &recipe[i]);
        alone[i] = open_session(model, texts[i], LONG_CTX, &recipe[N + i]);
        assert_int_equal(lk_session_sync(alone[i], tok, LONG, NULL, NULL), LK_OK);
    }
    assert_int_equal(lk_prefill_all(together, N, tok, LONG, NULL), LK_OK);
    for (int i = 0; i < N; i++) {
        assert_same_logits(together[i], alone[i], texts[i]);
        assert_int_equal(lk_session_eval(together[i], tok, 1, false, NULL), LK_OK);
        assert_int_equal(lk_session_eval(alone[i], tok, 1, false, NULL), LK_OK);
        assert_same_logits(together[i], alone[i], texts[i]);
        lk_session_free(together[i]), lk_session_free(alone[i]);
    }
    for (int i = 0; i < 2 * N; i++) lk_recipe_free(recipe[i]);
    lk_model_free(model);
}

/* The limit of the card's memory has to hold a prompt's hidden states and exact rows, too, and is
 * checked before the first token. */
static void limits_hold_a_prompt(void **state) {
    (void)state;
    need_card();
    lk_model *model = open_long("llama", "emulated");
    lk_recipe *recipe;
    lk_err err = {0};
    lk_plan plan;
    int32_t tok[LONG_CTX];
    random_tokens(tok, LONG_CTX, model, 3);
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    lk_session_opts opts = {.n_ctx = LONG};
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_OK);
    uint64_t prompt = lk_prefill_card_bytes(model->net, LONG);
    assert_true(prompt > LONG * sizeof(float) * (uint64_t)model->net->hp.n_embd);
    assert_true(plan.device_bytes > lk_model_get_info(model).device_weight_bytes + prompt);
    for (int fits = 0; fits < 2; fits++) {
        lk_session *s = NULL;
        int n_chunk = 1;
        opts = (lk_session_opts){.n_ctx = LONG_CTX, .progress = cut_after, .user = &n_chunk};
        opts.max_device_bytes =
            plan.device_cache_bytes + prompt + (fits ? plan.device_scratch_bytes : 0);
        assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
        lk_status status = lk_session_sync(s, tok, LONG, NULL, &err);
        assert_int_equal(status, fits ? LK_E_CANCELLED : LK_E_NOMEM);
        if (!fits) assert_non_null(strstr(err.msg, "of the memory of emulated"));
        if (!fits) assert_int_equal(n_chunk, 1);
        if (fits) assert_true(lk_session_get_stats(s).device_bytes > prompt);
        lk_session_free(s);
    }
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    setenv("LOWKEY_EMULATED_MIB", "2048", 1);
    open_card();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_stays_on_the_card),  cmocka_unit_test(a_prompt_stays_on_the_card),
        cmocka_unit_test(blocks_are_those_of_ram),   cmocka_unit_test(prompts_go_on),
        cmocka_unit_test(sessions_share_a_prompt),   cmocka_unit_test(limits_hold_a_prompt),
        cmocka_unit_test(partials_are_those_of_ram), cmocka_unit_test(recipes_are_those_of_ram),
        cmocka_unit_test(logits_are_those_of_ram),
    };
    return cmocka_run_group_tests_name("on_card", tests, NULL, NULL);
}
