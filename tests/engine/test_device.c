/* Sessions whose rows are on the pretend device: the same logits as in RAM, bit for bit, whatever
 * happens to the session, and files that either continues. */
#include "engine/absorb_device.h"
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

enum { CTX = 512, PROMPT = 300, STEPS = 70 };

static const lk_session_opts in_ram = {.n_ctx = CTX, .n_checkpoint = 4, .device = "cpu"},
                             on_device = {.n_ctx = CTX, .n_checkpoint = 4, .device = "pretend"};

static const char *const recipes[] = {
    "f16",
    "best-3",
    "best-4",
    "kivi-2",
    "h2o",
    "sink 4: f16; keep 60 by replay: rot4; window 32: f16",
    "streaming",
    "eager; sink 4: f16; body: rot3; window 32: rot8",
    "sink 4: f16; body: rot2; recent 64: rot4; window 32: f16",
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

static lk_session *new_session(lk_model *model, const lk_recipe *recipe,
                               const lk_session_opts *opts) {
    lk_session *session;
    lk_err err = {0};
    if (lk_session_new(&session, model, recipe, opts, &err)) fail_msg("%s", err.msg);
    return session;
}

static void eval(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_eval(s, tok, n, false, &err)) fail_msg("%s", err.msg);
}

static void sync_text(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_sync(s, tok, n, NULL, &err)) fail_msg("%s", err.msg);
}

/* A prompt, steps, going back to a checkpoint, a copy, and a file that the other one loads. */
static void compare(lk_model *model, const char *text) {
    lk_recipe *recipe;
    lk_err err = {0};
    int32_t tok[CTX];
    char path[] = "/tmp/lowkey-test-device-XXXXXX";
    random_tokens(tok, CTX, model, 3);
    if (lk_recipe_parse(&recipe, text, &err)) fail_msg("%s: %s", text, err.msg);
    lk_session *a = new_session(model, recipe, &in_ram),
               *b = new_session(model, recipe, &on_device);
    assert_non_null(b->rows.device);
    lk_session *both[] = {a, b};
    for (int i = 0; i < 2; i++) sync_text(both[i], tok, PROMPT);
    assert_same_logits(a, b, text);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) eval(both[i], tok + PROMPT + step, 1);
        assert_same_logits(a, b, text);
    }
    lk_session *copy = new_session(model, recipe, &on_device);
    if (lk_session_copy(copy, b, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++) {
        sync_text(both[i], tok + 1, PROMPT / 2); /* another text */
        sync_text(both[i], tok, PROMPT);
        eval(both[i], tok + PROMPT, STEPS);
    }
    assert_same_logits(a, b, text);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 2; i++) { /* each continues what the other one has saved */
        if (lk_session_save(both[i], NULL, path, &err)) fail_msg("%s", err.msg);
        if (lk_session_load(both[1 - i], NULL, path, &err)) fail_msg("%s", err.msg);
        for (int k = 0; k < 2; k++) eval(both[k], tok + PROMPT + STEPS + i, 1);
        assert_same_logits(a, b, text);
    }
    unlink(path);
    eval(copy, tok + PROMPT + STEPS, 1); /* it has what b had */
    lk_session *again = new_session(model, recipe, &in_ram);
    sync_text(again, tok, PROMPT);
    for (int step = 0; step <= STEPS; step++) eval(again, tok + PROMPT + step, 1);
    assert_same_logits(copy, again, text);
    lk_session_free(again);
    lk_session_free(copy);
    lk_session_free(a);
    lk_session_free(b);
    lk_recipe_free(recipe);
}

static void test_same_logits(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    for (int i = 0; i < N_RECIPE; i++) compare(model, recipes[i]);
    lk_model_free(model);
}

/* A batch of sessions in RAM and on the device. */
static void test_batch(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    lk_recipe *recipe;
    lk_batch *batch;
    lk_err err = {0};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 5);
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    assert_int_equal(lk_batch_new(&batch, model, &err), LK_OK);
    lk_session *s[4];
    lk_batch_entry entry[4] = {0};
    for (int i = 0; i < 4; i++) {
        s[i] = new_session(model, recipe, i % 2 ? &on_device : &in_ram);
        sync_text(s[i], tok + i / 2, PROMPT);
    }
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < 4; i++)
            entry[i] = (lk_batch_entry){.session = s[i], .tok = tok + PROMPT + step, .n_tok = 1};
        if (lk_batch_eval(batch, entry, 4, &err)) fail_msg("%s", err.msg);
    }
    assert_same_logits(s[0], s[1], "first text");
    assert_same_logits(s[2], s[3], "second text");
    for (int i = 0; i < 4; i++) lk_session_free(s[i]);
    lk_batch_free(batch);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The plan of the session's tokens is at least what its rows take of the device, and less than two
 * slabs of each block size more; also at least what all else takes there, and for what sessions
 * share, at most a quarter more. */
static void check_plan(const lk_session *s, const char *device) {
    lk_session_opts opts = {.n_ctx = (int32_t)lk_session_n_tok(s), .device = device};
    lk_plan plan;
    assert_int_equal(lk_plan_make(s->model, s->recipe, &opts, &plan, NULL), LK_OK);
    uint64_t held = lk_ledger_bytes(&s->rows.ledger, LK_FOR_CACHE) +
                    atomic_load(&s->rows.ledger.borrowed) - s->cache->there_bytes,
             scratch = lk_ledger_bytes(&s->rows.ledger, LK_FOR_SCRATCH),
             shared = s->cache->there_bytes, networks = 0, rest = 0; /* a slab of each block size */
    if (s->absorb && s->absorb->there) networks = s->absorb->there->networks->bytes;
    for (int i = 0; i < s->cache->pool.n_class; i++)
        rest += (uint64_t)s->cache->pool.class[i].n_block * s->cache->pool.class[i].size;
    if (held == 0 || plan.device_cache_bytes < held || plan.device_cache_bytes >= held + 2 * rest)
        fail_msg("%s: the plan has %llu bytes of the device, the session %llu, slabs %llu",
                 lk_recipe_text(s->recipe), (unsigned long long)plan.device_cache_bytes,
                 (unsigned long long)held, (unsigned long long)rest);
    assert_true(plan.cache_bytes >= plan.device_cache_bytes);
    if (scratch == 0 || plan.device_scratch_bytes < scratch ||
        plan.device_shared_bytes < shared + networks ||
        plan.device_shared_bytes > shared + shared / 4 + networks)
        fail_msg("%s: the plan has %llu and %llu bytes of scratch and shared, the session %llu, "
                 "%llu",
                 lk_recipe_text(s->recipe), (unsigned long long)plan.device_scratch_bytes,
                 (unsigned long long)plan.device_shared_bytes, (unsigned long long)scratch,
                 (unsigned long long)shared);
    assert_int_equal(lk_ledger_bytes(&s->rows.ledger, LK_FOR_WEIGHTS), 0);
    lk_session_stats stats = lk_session_get_stats(s);
    assert_true(stats.device_bytes == held + scratch + shared);
    assert_true(stats.shared_bytes <= stats.cache_bytes);
    opts.device = "cpu";
    lk_plan in_ram;
    assert_int_equal(lk_plan_make(s->model, s->recipe, &opts, &in_ram, NULL), LK_OK);
    assert_int_equal(in_ram.device_cache_bytes, 0);
    assert_true(in_ram.peak_bytes > plan.peak_bytes);
}

/* Bytes of the device are counted and limited; without memory the session stays valid. */
static void test_memory(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    lk_recipe *recipe;
    lk_err err = {0};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 7);
    assert_int_equal(lk_recipe_parse(&recipe, "best-4", NULL), LK_OK);
    lk_session *a = new_session(model, recipe, &in_ram),
               *b = new_session(model, recipe, &on_device);
    sync_text(a, tok, PROMPT);
    sync_text(b, tok, PROMPT);
    eval(b, tok + PROMPT, 1);
    eval(a, tok + PROMPT, 1);
    lk_session_stats in = lk_session_get_stats(a), out = lk_session_get_stats(b);
    assert_int_equal(in.device_bytes, 0);
    assert_int_equal(in.cache_bytes, out.cache_bytes);
    assert_true(out.device_bytes > out.code_bytes + out.exact_bytes);
    check_plan(b, "pretend");
    lk_session_opts opts = on_device;
    opts.max_device_bytes = out.device_bytes * 3 / 4;
    lk_session *limited = new_session(model, recipe, &opts);
    assert_int_equal(lk_session_sync(limited, tok, PROMPT, NULL, &err), LK_E_NOMEM);
    assert_int_equal(lk_session_n_tok(limited), 0);
    sync_text(limited, tok, 20);
    lk_session_free(limited);
    opts.max_device_bytes = 1;
    limited = new_session(model, recipe, &opts);
    assert_int_equal(lk_session_sync(limited, tok, PROMPT, NULL, &err), LK_E_NOMEM);
    assert_non_null(strstr(err.msg, "of the memory of pretend"));
    lk_session_free(limited);
    lk_session_free(a);
    lk_session_free(b);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* A name without a device is an error, and so is a copy to another device. */
static void test_errors(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe;
    lk_session *a;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = CTX, .device = "card7"};
    assert_int_equal(lk_recipe_parse(&recipe, "best-4", NULL), LK_OK);
    assert_int_not_equal(lk_session_new(&a, model, recipe, &opts, &err), LK_OK);
    assert_non_null(strstr(err.msg, "card7"));
    a = new_session(model, recipe, &in_ram);
    lk_session *b = new_session(model, recipe, &on_device);
    assert_int_equal(lk_session_copy(b, a, &err), LK_E_ARG);
    lk_session_free(a);
    lk_session_free(b);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The rows of the first layer, which depend on no attention: the same, bit for bit. */
static void assert_same_rows(const lk_session *a, const lk_session *b, const char *text) {
    enum { WIDE = 128 };
    static float x[CTX * WIDE], y[CTX * WIDE];
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv[] = {&a->cache->kv[0][side], &b->cache->kv[0][side]};
        for (int level = 0; level < kv[0]->n_level; level++) {
            int64_t n = kv[0]->count[level].rows;
            assert_int_equal(kv[1]->count[level].rows, n);
            for (int part = 0; part < kv[0]->level[level].n_part; part++) {
                struct lk_row_range from[] = {{kv[0], level, 0, n}, {kv[1], level, 0, n}};
                int n_channel = lk_level_part_channels(&kv[0]->level[level], part);
                assert_in_range(n_channel, 1, WIDE);
                lk_kv_read(&from[0], part, a->cache->kernels, x, WIDE);
                lk_kv_read(&from[1], part, a->cache->kernels, y, WIDE);
                for (int64_t r = 0; r < n; r++)
                    if (memcmp(x + r * WIDE, y + r * WIDE, n_channel * sizeof *x) != 0)
                        fail_msg("%s: row %d of level %d of %s differs", text, (int)r, level,
                                 side == LK_K ? "K" : "V");
            }
        }
    }
}

/* Squared differences of the last logits. */
static double distance(const lk_session *a, const lk_session *b, int n_vocab) {
    const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) sum += (x[i] - y[i]) * (double)(x[i] - y[i]);
    return sum;
}

/* A session on the emulated card. It attends with other roundings than the CPU, so codes of the
 * second layer's rows may be their neighbors: the difference is small next to what the recipe
 * itself loses. */
static void emulate(lk_model *model, lk_session *exact, const int32_t *tok, const char *text) {
    lk_recipe *recipe;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = CTX, .device = "emulated"};
    int n_vocab = lk_model_get_info(model).n_vocab;
    double differs = 0, lost = 0;
    if (lk_recipe_parse(&recipe, text, &err)) fail_msg("%s: %s", text, err.msg);
    lk_session *a = new_session(model, recipe, &in_ram), *b = new_session(model, recipe, &opts);
    lk_session *all[] = {a, b, exact};
    for (int i = 0; i < 3; i++) sync_text(all[i], tok, PROMPT);
    if (!recipe->eager) assert_same_logits(a, b, text); /* exact rows in RAM */
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 3; i++) eval(all[i], tok + PROMPT + step, 1);
        differs += distance(a, b, n_vocab);
        lost += distance(a, exact, n_vocab);
    }
    bool is_exact = strcmp(text, "f16") == 0;
    double energy = 0;
    const float *x = lk_session_logits(exact, -1);
    for (int i = 0; i < n_vocab; i++) energy += x[i] * (double)x[i];
    if (!(differs < (is_exact ? 1e-8 * energy * STEPS : 0.1 * lost)))
        fail_msg("%s: NMSE %.1e, the recipe's own %.1e", text, differs / energy / STEPS,
                 lost / energy / STEPS);
    assert_same_rows(a, b, text);
    check_plan(b, "emulated");
    lk_session_free(a);
    lk_session_free(b);
    lk_recipe_free(recipe);
}

static void emulate_all(lk_model *model, const char *const *text, size_t n) {
    lk_recipe *f16;
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 9);
    assert_int_equal(lk_recipe_parse(&f16, "f16", NULL), LK_OK);
    lk_session *exact = new_session(model, f16, &in_ram);
    for (size_t i = 0; i < n; i++) emulate(model, exact, tok, text[i]);
    lk_session_free(exact);
    lk_recipe_free(f16);
    lk_model_free(model);
}

static void test_emulated(void **state) {
    static const char *const texts[] = {
        "f16",       "best-4",
        "best-3",    "best-2",
        "trellis-2", "kivi-2",
        "selective", "atom-4",
        "h2o",       "sink 4: f16; keep 60 by replay: rot4; window 32: f16",
        "tova",      "lambda",
        "streaming", "eager; sink 4: f16; body: rot3; window 32: rot8",
    };
    emulate_all(open_preset("llama", CTX, 2), texts, sizeof texts / sizeof *texts);
}

/* Latents are projected, encoded and attended to on the card. */
static void test_emulated_latents(void **state) {
    static const char *const texts[] = {
        "palu",
        "palu-rot",
        "tale",
        "best-1.9",
        "sink 4: f16; body: k=rot4 v=latent50%+rot4; window 32: f16",
        "body: k=latent25%+rot3 v=latent50%+rot2(trellis); window 40: k=latent50%+int8 "
        "v=latent+rot4",
        "sink 4: f16; body: k=latent(pre)+rot4 v=rot3; window 20: f16",
        "keep 48 by h2o: k=latent50%(pre)+rot4 v=latent+rot4; window 16: f16",
        "keep 48 by newest: k=latent50%(pre)+rot4 v=latent+rot4; window 16: f16",
        "sink 4: f16; body: none; window 40: f16; absorb less",
        "keep 48 by h2o: rot4; window 16: f16; absorb less",
    };
    emulate_all(open_with_sidecar("llama", CTX, 2, 5), texts, sizeof texts / sizeof *texts);
}

/* A session that shares bases with another one has their bytes in its limit, too. */
static void test_shared_limit(void **state) {
    lk_model *model = open_with_sidecar("llama", CTX, 2, 5);
    lk_recipe *recipe;
    lk_session *a, *b;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = CTX, .device = "emulated"};
    assert_int_equal(lk_recipe_parse(&recipe, "palu-rot", NULL), LK_OK);
    a = new_session(model, recipe, &opts);
    uint64_t bytes = lk_session_get_stats(a).device_bytes;
    assert_true(a->cache->there_bytes > 0 && bytes > a->cache->there_bytes);
    opts.max_device_bytes = bytes - 1;
    assert_int_equal(lk_session_new(&b, model, recipe, &opts, &err), LK_E_NOMEM);
    opts.max_device_bytes = bytes;
    b = new_session(model, recipe, &opts);
    assert_int_equal(lk_session_get_stats(b).device_bytes, bytes);
    assert_int_equal(lk_ledger_bytes(&model->device_ledger, LK_FOR_WEIGHTS), a->cache->there_bytes);
    lk_session_free(a);
    lk_session_free(b);
    assert_int_equal(lk_ledger_bytes(&model->device_ledger, LK_FOR_WEIGHTS), 0);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Checkpoints do not hold the room in which a session projects rows to latents. */
static void test_checkpoints_project_nothing(void **state) {
    lk_model *model = open_with_sidecar("llama", CTX, 2, 5);
    lk_recipe *recipe;
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4, .device = "emulated"};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 9);
    assert_int_equal(lk_recipe_parse(&recipe, "palu-rot", NULL), LK_OK);
    lk_session *s = new_session(model, recipe, &opts);
    sync_text(s, tok, PROMPT);
    assert_true(s->checkpoints.n > 0);
    for (int side = 0; side < 2; side++) {
        assert_non_null(s->cache->projecting[side]);
        assert_null(s->checkpoints.at[0].cache->projecting[side]);
    }
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* What the card cannot do is refused by name. */
static void test_refusals(void **state) {
    static const struct {
        const char *recipe, *reason;
    } cases[] = {
        {"sink 4: f16; body: rot4; window 64: f16; read 20%", "read N%"},
    };
    lk_model *model = open_preset("llama", CTX, 1);
    lk_session_opts opts = {.n_ctx = CTX, .device = "emulated"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_recipe *recipe;
        lk_session *session;
        lk_err err = {0};
        if (lk_recipe_parse(&recipe, cases[i].recipe, &err)) fail_msg("%s", err.msg);
        assert_int_equal(lk_session_new(&session, model, recipe, &opts, &err), LK_E_UNSUPPORTED);
        if (!strstr(err.msg, cases[i].reason)) fail_msg("%s: %s", cases[i].recipe, err.msg);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* ---- a device that fails ---- */

enum command { UPLOAD, DOWNLOAD, COPY, CLEAR, MOVE, N_COMMAND };

static struct {
    const struct lk_device_functions *real;
    enum command command;
    int left; /* commands of this kind before the one that fails; negative: none fails */
} faults;

static bool fails(enum command command) {
    return command == faults.command && faults.left >= 0 && faults.left-- == 0;
}
static lk_status upload(struct lk_device *d, uint64_t to, const void *from, size_t n, lk_err *err) {
    return fails(UPLOAD) ? LK_E_IO : faults.real->upload(d, to, from, n, err);
}
static lk_status download(struct lk_device *d, void *to, uint64_t from, size_t n, lk_err *err) {
    return fails(DOWNLOAD) ? LK_E_IO : faults.real->download(d, to, from, n, err);
}
static lk_status copy(struct lk_device *d, uint64_t to, uint64_t from, size_t n, lk_err *err) {
    return fails(COPY) ? LK_E_IO : faults.real->copy(d, to, from, n, err);
}
static lk_status clear(struct lk_device *d, uint64_t to, size_t n, lk_err *err) {
    return fails(CLEAR) ? LK_E_IO : faults.real->clear(d, to, n, err);
}
static lk_status move(struct lk_device *d, const struct lk_device_move *m, const struct lk_move *h,
                      size_t n, lk_err *err) {
    return fails(MOVE) ? LK_E_IO : faults.real->move(d, m, h, n, err);
}

/* A prompt, a step, a copy that goes another way, a file, and the file again. Returns the first
 * status that is not 0. */
static lk_status use_session(lk_session *s, lk_session *other, const int32_t *tok,
                             const char *path) {
    lk_status status = lk_session_sync(s, tok, PROMPT, NULL, NULL);
    for (int i = 0; i < 40 && !status; i++)
        status = lk_session_eval(s, tok + PROMPT + i, 1, false, NULL);
    if (!status) status = lk_session_copy(other, s, NULL);
    if (!status) status = lk_session_eval(other, tok, 40, false, NULL);
    if (!status) status = lk_session_eval(s, tok + 40, 40, false, NULL);
    if (!status) status = lk_session_save(s, NULL, path, NULL);
    if (!status) status = lk_session_load(s, NULL, path, NULL);
    return status;
}

/* Whichever command fails, a call returns an error, and the session works afterwards. */
static void test_faults(void **state) {
    lk_model *model = open_preset("llama", CTX, 2);
    lk_recipe *recipe;
    int32_t tok[CTX];
    char path[] = "/tmp/lowkey-test-device-XXXXXX";
    close(mkstemp(path));
    random_tokens(tok, CTX, model, 11);
    assert_int_equal(lk_recipe_parse(&recipe, "h2o", NULL), LK_OK);
    lk_session *s = new_session(model, recipe, &on_device),
               *other = new_session(model, recipe, &on_device);
    struct lk_device_functions failing = *s->rows.device->call;
    faults.real = s->rows.device->call;
    failing.upload = upload, failing.download = download, failing.copy = copy;
    failing.clear = clear, failing.move = move;
    s->rows.device->call = &failing;
    int n_failed = 0;
    for (int c = 0; c < N_COMMAND; c++)
        for (int nth = 0, last = 0; !last; nth += 1 + nth / 2) {
            unlink(path);
            faults.command = (enum command)c, faults.left = nth;
            lk_status status = use_session(s, other, tok, path);
            last = faults.left >= 0; /* there were fewer commands */
            faults.left = -1;
            if ((status == LK_OK) != last)
                fail_msg("command %d, number %d: status %d", c, nth, status);
            n_failed += !last;
            if (!status) continue;
            lk_status again = use_session(s, other, tok, path);
            if (again) fail_msg("command %d, number %d: then status %d", c, nth, again);
        }
    assert_true(n_failed > 20);
    s->rows.device->call = faults.real;
    unlink(path);
    lk_session_free(s);
    lk_session_free(other);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_emulated),
        cmocka_unit_test(test_emulated_latents),
        cmocka_unit_test(test_shared_limit),
        cmocka_unit_test(test_checkpoints_project_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
