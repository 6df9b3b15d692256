/* Every preset, and recipes of every kind, save, load, fork and run in a batch: the sessions that
 * follow continue bit-identically. Files with wrong positions, scores or states do no harm, and
 * another sidecar is refused. */
#include "engine/batch.h"
#include "engine/session_save.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "support_session.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 512, PROMPT = 331, N_SINGLE = 20, N_MORE = 40 };

static char path[] = "/tmp/lowkey-save-recipes-XXXXXX";

/* Recipes of kinds that no preset has. */
static const char *const more_recipes[] = {
    "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16",
    "sink 4: f16; keep 64 by h2o(mean): f16; window 32: f16; absorb less",
    "keep 40 by tova(apart): rot8; window 16: f16; absorb less",
    "sink 4: f16; body: none; window 60: f16; absorb less",
    "keep 10% by tova: int8; window 16: f16; absorb less",
    "keep 20% by replay: rot4; window 16: f16",
    "sink 2: f16; keep 25% by random: f16; window 16: f16",
    "keep 40 by h2o: k=f16 v=rot4; window 64: k=f16 v=rot8", /* only V is encoded at once */
    "keep 40 by newest: k=rot4 v=f16; window 32: k=rot8 v=f16",
    "body: latent50%+rot3; window 64: f16",
    "sink 2: f16; body: k=latent50%(pre)+rot3 v=rot4; recent 32: k=latent50%(pre) v=f16; eager",
    "sink 2: f16; keep 40 by h2o: latent50%+int8; window 30: latent50%; absorb less; eager",
    "sink 4: f16; body: k=latent(pre)+kivi4 v=latent; recent 32: k=latent100%(pre) v=latent100%",
    "sink 4: f16; body: k=rot3 v=rot2; recent 64: rot4; window 32: f16; read 20%",
    "body: k=rot4 v=rot3; heads 0: k=rot2 v=rot3(trellis); window 32: f16",
    NULL};

static const char *recipe_text(size_t i) {
    size_t n = 0;
    lk_preset preset;
    while (lk_recipe_preset(n, &preset)) n++;
    if (i >= n) return more_recipes[i - n];
    lk_recipe_preset(i, &preset);
    return preset.name;
}

static bool is_possible(const lk_model *model, const lk_recipe *recipe) {
    const struct lk_hparams *hp = &model->net->hp;
    if (model->net->pos_embd && recipe->level[0].shift) return false;
    if (hp->alibi_max_bias > 0 && recipe->read > 0) return false;
    return !recipe->absorbs || (hp->n_swa == 0 && hp->alibi_max_bias == 0);
}

static lk_session *new_session(lk_model *model, const lk_recipe *recipe) {
    lk_session_opts opts = {.n_ctx = CTX};
    lk_session *session = NULL;
    lk_err err = {0};
    if (lk_session_new(&session, model, recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(recipe), err.msg);
    return session;
}

static void eval(lk_session *session, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_eval(session, tok, n, false, &err) != LK_OK) fail_msg("%s", err.msg);
}

static void load(lk_session *session) {
    lk_err err = {0};
    if (lk_session_load(session, NULL, path, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(session->recipe), err.msg);
}

/* A prompt, then single steps. */
static lk_session *run_session(lk_model *model, const lk_recipe *recipe, const int32_t *tok) {
    lk_session *session = new_session(model, recipe);
    lk_err err = {0};
    if (lk_session_sync(session, tok, PROMPT, NULL, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(recipe), err.msg);
    for (int i = 0; i < N_SINGLE; i++) eval(session, tok + PROMPT + i, 1);
    return session;
}

/* One step of two sessions in one pass. */
static void eval_pair(lk_batch *batch, lk_session *const session[2], const int32_t *tok) {
    lk_batch_entry item[2];
    for (int i = 0; i < 2; i++)
        item[i] = (lk_batch_entry){.session = session[i], .tok = tok, .n_tok = 1};
    assert_int_equal(lk_batch_eval(batch, item, 2, NULL), LK_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(item[i].err.code, LK_OK);
}

/* Saving what was loaded gives the same file. */
static void assert_same_file(const lk_session *a, const lk_session *b) {
    uint8_t *file[2];
    size_t size[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lk_session_save(i ? b : a, NULL, path, NULL), LK_OK);
        file[i] = read_file(path, &size[i]);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(file[0], file[1], size[0]);
    free(file[0]), free(file[1]);
}

static void check_recipe(lk_model *model, const char *text) {
    enum { ORIGINAL, LOADED, FORK, FORK_OF_LOADED, LOADED_OVER, N_SESSION };
    lk_recipe *recipe;
    lk_batch *batch;
    lk_session *s[N_SESSION];
    lk_err err = {0};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    if (lk_recipe_parse(&recipe, text, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    if (!is_possible(model, recipe)) {
        lk_recipe_free(recipe);
        return;
    }
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    s[ORIGINAL] = run_session(model, recipe, tok);
    if (lk_session_save(s[ORIGINAL], NULL, path, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    for (int i = 1; i < N_SESSION; i++) s[i] = new_session(model, recipe);
    load(s[LOADED]);
    assert_same_file(s[ORIGINAL], s[LOADED]);
    assert_int_equal(lk_session_get_stats(s[LOADED]).cache_bytes,
                     lk_ledger_bytes(&s[LOADED]->ledger, LK_FOR_CACHE) +
                         lk_ledger_bytes(&s[LOADED]->rows.ledger, LK_FOR_CACHE));
    assert_int_equal(lk_session_sync(s[LOADED_OVER], tok + 9, 300, NULL, NULL), LK_OK);
    load(s[LOADED_OVER]); /* what it held is gone */
    assert_int_equal(lk_session_copy(s[FORK], s[ORIGINAL], NULL), LK_OK);
    assert_int_equal(lk_session_copy(s[FORK_OF_LOADED], s[LOADED], NULL), LK_OK);
    for (int i = 0; i < N_MORE; i++) {
        const int32_t *next = tok + PROMPT + N_SINGLE + i;
        for (int k = 0; k < N_SESSION; k++) eval(s[k], next, 1);
        for (int k = 1; k < N_SESSION; k++) assert_same_logits(s[0], s[k], "single steps");
    }
    /* The same sessions, two in one pass; then parts of a prompt. */
    for (int i = 0; i < 8; i++) {
        const int32_t *next = tok + PROMPT + N_SINGLE + N_MORE + i;
        eval_pair(batch, s, next), eval_pair(batch, s + 2, next);
        assert_same_logits(s[0], s[1], "batch"), assert_same_logits(s[0], s[2], "batch");
        assert_same_logits(s[0], s[3], "batch");
    }
    for (int k = 0; k < 4; k++) eval(s[k], tok, 45);
    for (int k = 1; k < 4; k++) assert_same_logits(s[0], s[k], "a chunk");
    for (int k = 0; k < N_SESSION; k++) lk_session_free(s[k]);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    lk_batch_free(batch);
    lk_recipe_free(recipe);
}

static void test_every_recipe(void **state) {
    static const char *const models[] = {"llama", "qwen2",   "gemma3-cap", "bloom",
                                         "gpt2",  "gpt-oss", "smollm3",    NULL};
    for (int m = 0; models[m]; m++) {
        lk_model *model = open_with_sidecar(models[m], CTX, 1, 5);
        for (size_t i = 0; recipe_text(i); i++)
            if (case_runs(i) && (m == 0 || (i + m) % 4 == 0)) check_recipe(model, recipe_text(i));
        lk_model_free(model);
    }
}

/* ---- damaged files ---- */

/* A saved session, and one that files are loaded into. */
struct fixture {
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    uint8_t *file;
    size_t size;
};

static struct fixture open_fixture(const char *text) {
    struct fixture f = {.model = open_with_sidecar("llama", CTX, 1, 5)};
    int32_t tok[CTX];
    random_tokens(tok, CTX, f.model, 3);
    assert_int_equal(lk_recipe_parse(&f.recipe, text, NULL), LK_OK);
    f.session = run_session(f.model, f.recipe, tok);
    assert_int_equal(lk_session_save(f.session, NULL, path, NULL), LK_OK);
    f.file = read_file(path, &f.size);
    return f;
}

static void close_fixture(struct fixture *f) {
    free(f->file);
    lk_session_free(f->session);
    lk_recipe_free(f->recipe);
    lk_model_free(f->model);
}

static struct lk_session_header header_of(const struct fixture *f) {
    struct lk_session_header header;
    memcpy(&header, f->file, sizeof header);
    return header;
}

static size_t section_at(const struct lk_session_header *header, enum lk_section section) {
    size_t at = sizeof *header;
    for (int i = 0; i < (int)section; i++) at += header->section[i].size;
    return at;
}

/* Write the file with n bytes at `at` replaced, and correct checksums, and load it. */
static lk_status load_edited(const struct fixture *f, size_t at, const void *value, size_t n,
                             lk_err *err) {
    uint8_t *file = malloc(f->size);
    memcpy(file, f->file, f->size);
    memcpy(file + at, value, n);
    seal_session(file, f->size);
    assert_true(write_file(path, file, f->size));
    free(file);
    *err = (lk_err){0};
    return lk_session_load(f->session, NULL, path, err);
}

static void expect_rejected(const struct fixture *f, size_t at, const void *value, size_t n,
                            const char *words) {
    lk_err err;
    lk_status status = load_edited(f, at, value, n, &err);
    if (status != LK_E_FORMAT || !strstr(err.msg, words))
        fail_msg("%s: status %d, \"%s\", expected \"%s\"", lk_recipe_text(f->recipe), status,
                 err.msg, words);
    assert_int_equal(lk_session_n_tok(f->session), PROMPT + N_SINGLE);
}

static void test_replaced_weights_are_rejected(void **state) {
    struct fixture f = open_fixture("best-3");
    uint64_t both = 3;
    expect_rejected(&f, offsetof(struct lk_session_header, weights), &both, sizeof both,
                    "the tag papers-2026-11");
    close_fixture(&f);
}

/* Positions and scores follow the rows of each layer, so the last layer's are at the end. */
static void test_wrong_positions_are_rejected(void **state) {
    enum { SINKS = 4, KEPT = 40 };
    struct fixture f = open_fixture("sink 4: f16; keep 40 by h2o: rot4; window 32: f16");
    const struct lk_evict *evict = &f.session->cache->evict[f.model->net->hp.n_layer - 1];
    int64_t n = evict->n, n_head = evict->n_head;
    size_t bytes = (size_t)(n * n_head) * 4, pos = f.size - 2 * bytes, score = f.size - bytes;
    int32_t held = evict->pos[SINKS * n_head], newest = PROMPT + N_SINGLE - 1;
    const struct {
        int64_t row;
        int32_t value;
    } wrong[] = {{0, 1},          {SINKS - 1, newest}, {SINKS, 0},
                 {SINKS, -1},     {SINKS, INT32_MIN},  {SINKS, INT32_MAX},
                 {SINKS, newest}, {SINKS + 1, held},   {SINKS + KEPT, newest},
                 {n - 1, held},   {n - 1, newest + 1}, {SINKS + KEPT - 1, 3}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_rejected(&f, pos + (size_t)(wrong[i].row * n_head) * 4, &wrong[i].value, 4,
                        "its positions are impossible");
    static const float scores[] = {-1, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++)
        expect_rejected(&f,
                        score + (size_t)random_int(&(struct random){(uint64_t)i + 1}, 0, 50) * 4,
                        &scores[i], 4, "its scores are invalid");
    lk_err err;
    float larger = 1e6f;
    assert_int_equal(load_edited(&f, score + 40, &larger, 4, &err), LK_OK);
    close_fixture(&f);
}

static void test_wrong_numbers_are_rejected(void **state) {
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    struct fixture f = open_fixture("sink 4: f16; body: none; window 60: f16; absorb less");
    struct lk_session_header header = header_of(&f);
    size_t states = section_at(&header, LK_SECTION_STATES);
    size_t n = header.section[LK_SECTION_STATES].size / 4, row = f.model->net->hp.d_head + 1;
    for (int i = 0; i < 3; i++) {
        expect_rejected(&f, states, &wrong[i], 4, "its states");
        expect_rejected(&f, states + (n - 1) * 4, &wrong[i], 4, "its states");
    }
    float negative = -0.5f;
    expect_rejected(&f, states + (row - 1) * 4, &negative, 4, "its states");
    close_fixture(&f);
    f = open_fixture("best-1.9"); /* the statistics of K's latents come first, sigma before q */
    header = header_of(&f);
    size_t rows = section_at(&header, LK_SECTION_ROWS);
    for (int i = 0; i < 3; i++) expect_rejected(&f, rows, &wrong[i], 4, "channel statistics");
    float zero = 0;
    expect_rejected(&f, rows, &zero, 4, "channel statistics");
    expect_rejected(&f, rows, &negative, 4, "channel statistics");
    close_fixture(&f);
}

/* Any edits of the parts that are read as numbers, with correct checksums: the file is rejected, or
 * the session can continue. */
static void test_edits_do_no_harm(void **state) {
    static const char *const recipes[] = {
        "sink 4: f16; keep 40 by h2o: rot4; window 32: f16; absorb less",
        "keep 10% by tova: int8; window 16: f16; absorb less", "best-1.9", "tale"};
    struct random r = {11};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct fixture f = open_fixture(recipes[i]);
        struct lk_session_header header = header_of(&f);
        int n_rejected = 0, n_edit = 400;
        for (int edit = 0; edit < n_edit; edit++) {
            static const enum lk_section sections[] = {LK_SECTION_STATES, LK_SECTION_COUNTS,
                                                       LK_SECTION_ROWS};
            enum lk_section section = sections[random_int(&r, 0, 2)];
            size_t size = header.section[section].size;
            if (size < 8) continue;
            size_t at =
                section_at(&header, section) + (size_t)random_int(&r, 0, (int)size / 4 - 1) / 1 * 4;
            uint32_t value =
                random_int(&r, 0, 1) ? random_u32(&r) : (uint32_t)random_int(&r, 0, 400);
            lk_err err;
            lk_status status = load_edited(&f, at, &value, 4, &err);
            int32_t tok[40] = {0};
            n_rejected += status == LK_E_FORMAT;
            if (status == LK_E_FORMAT) continue;
            assert_int_equal(status, LK_OK);
            eval(f.session, tok, 40);
        }
        print_message("%s: %d of %d rejected\n", recipes[i], n_rejected, n_edit);
        assert_true(n_rejected > n_edit / 8);
        close_fixture(&f);
    }
}

/* Each byte range damaged, without correct checksums. */
static void test_damage_is_rejected(void **state) {
    struct fixture f = open_fixture("keep 16 by h2o: f16; window 16: f16; absorb less");
    for (size_t at = 0; at < f.size; at += f.size / 300 + 1) {
        size_t n = f.size - at < 16 ? f.size - at : 16;
        uint8_t *file = malloc(f.size);
        memcpy(file, f.file, f.size);
        for (size_t i = 0; i < n; i++) file[at + i] ^= 0x5a;
        assert_true(write_file(path, file, f.size));
        free(file);
        lk_err err = {0};
        if (lk_session_load(f.session, NULL, path, &err) != LK_E_FORMAT)
            fail_msg("bytes from %zu on are damaged, but the file was loaded", at);
        assert_int_equal(lk_session_n_tok(f.session), PROMPT + N_SINGLE);
    }
    close_fixture(&f);
}

static void test_load_without_memory(void **state) {
    struct fixture f = open_fixture("keep 16 by h2o: f16; window 16: f16; absorb less");
    int n_failed = 0;
    for (int nth = 1, reached = 1; reached; nth++) {
        lk_session *session = new_session(f.model, f.recipe);
        lk_err err = {0};
        int32_t tok[2] = {1, 2};
        atomic_store(&session->ledger.fail_at, nth);
        lk_status status = lk_session_load(session, NULL, path, &err);
        reached = atomic_load(&session->ledger.fail_at) <= 0;
        atomic_store(&session->ledger.fail_at, 0);
        assert_int_equal(status, reached ? LK_E_NOMEM : LK_OK);
        if (reached) {
            n_failed++;
            assert_int_equal(lk_session_n_tok(session), 0);
            eval(session, tok, 2);
        }
        lk_session_free(session);
    }
    assert_true(n_failed > 5);
    close_fixture(&f);
}

/* ---- sidecars ---- */

static void expect_load(lk_model *model, const char *text, const char *words) {
    lk_recipe *recipe;
    lk_session *session = open_session(model, text, CTX, &recipe);
    lk_err err = {0};
    lk_status status = lk_session_load(session, NULL, path, &err);
    if (status != (words ? LK_E_FORMAT : LK_OK) || (words && !strstr(err.msg, words)))
        fail_msg("%s: status %d, \"%s\", expected \"%s\"", text, status, err.msg,
                 words ? words : "success");
    if (words) assert_int_equal(lk_session_n_tok(session), 0);
    lk_session_free(session);
    lk_recipe_free(recipe);
}

static void test_sidecars_are_compared(void **state) {
    static const char *const needy[] = {"best-1.9", "body: none; window 60: f16; absorb less",
                                        NULL};
    static const char policy[] = "body: none; window 60: f16";
    lk_model *model = open_with_sidecar("llama", CTX, 1, 5),
             *other = open_with_sidecar("llama", CTX, 1, 6), *none = open_preset("llama", CTX, 1);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 4);
    for (int i = 0; needy[i]; i++) {
        lk_recipe *recipe;
        lk_session *session = open_session(model, needy[i], CTX, &recipe);
        assert_int_equal(lk_session_sync(session, tok, 300, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
        expect_load(model, needy[i], NULL);
        expect_load(other, needy[i], "saved with another sidecar; pass that one as --sidecar");
        expect_load(none, "best-3", "another recipe");
        if (i) expect_load(none, needy[i], "pass --sidecar FILE");
        if (i) expect_load(model, policy, "another recipe");
        lk_session_free(session);
        lk_recipe_free(recipe);
    }
    /* Other recipes do not depend on the sidecar. */
    static const char *const plain[] = {"best-3", policy, NULL};
    for (int i = 0; plain[i]; i++) {
        lk_recipe *recipe;
        lk_session *session = open_session(model, plain[i], CTX, &recipe);
        assert_int_equal(lk_session_sync(session, tok, 300, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
        expect_load(other, plain[i], NULL);
        expect_load(none, plain[i], NULL);
        if (i) expect_load(model, needy[1], "another recipe");
        lk_session_free(session);
        lk_recipe_free(recipe);
    }
    lk_model_free(model), lk_model_free(other), lk_model_free(none);
}

/* The same bytes, but of other heads. */
static void test_heads_are_compared(void **state) {
    static const char *const text[] = {"body: rot4; heads 0: rot3; window 32: f16",
                                       "body: rot4; heads 1: rot3; window 32: f16"};
    lk_model *model = open_preset("llama", CTX, 1);
    assert_true(model->net->hp.n_head_kv > 1);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 5);
    lk_recipe *recipe;
    lk_session *session = open_session(model, text[0], CTX, &recipe);
    assert_int_equal(lk_session_sync(session, tok, 300, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
    expect_load(model, text[0], NULL);
    expect_load(model, text[1], "another recipe");
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_recipe),
        cmocka_unit_test(test_replaced_weights_are_rejected),
        cmocka_unit_test(test_wrong_positions_are_rejected),
        cmocka_unit_test(test_wrong_numbers_are_rejected),
        cmocka_unit_test(test_edits_do_no_harm),
        cmocka_unit_test(test_damage_is_rejected),
        cmocka_unit_test(test_load_without_memory),
        cmocka_unit_test(test_sidecars_are_compared),
        cmocka_unit_test(test_heads_are_compared),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
