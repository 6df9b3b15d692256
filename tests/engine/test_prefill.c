/* An exact prefill that is cut short goes on bit for bit, after any chunk, for every kind of model
 * and recipe, and what it holds is dropped by everything else. */
#include "cache/cache.h"
#include "engine/prefill.h"
#include "engine/prefill_save.h"
#include "engine/prefill_state.h"
#include "engine/session_save.h"
#include "lowkey_serve.h"
#include "support.h"
#include "support_model.h"
#include "support_session.h"
#include "test.h"
#include "tiny_presets.h"

#include <unistd.h>

enum { CTX = 1400, LONG = 1200, MARK = 550, ANSWER = 20 };

/* Cancels the prefill after a number of chunks; 0: never. */
struct stop {
    int after, n_call;
    uint64_t done, total;
};

static bool count_chunk(void *user, uint64_t done, uint64_t total) {
    struct stop *stop = user;
    stop->done = done;
    stop->total = total;
    return ++stop->n_call != stop->after;
}

static lk_session *new_session(lk_model *model, const lk_recipe *recipe, struct stop *stop,
                               const char *device) {
    lk_session_opts opts = {
        .n_ctx = CTX, .n_checkpoint = 6, .progress = count_chunk, .user = stop, .device = device};
    lk_session *session = NULL;
    lk_err err = {0};
    if (lk_session_new(&session, model, recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(recipe), err.msg);
    return session;
}

static lk_status prefill(lk_session *s, const int32_t *tok, size_t n, size_t *n_reused) {
    const size_t mark[] = {MARK};
    return lk_session_sync_marked(s, tok, n, mark, 1, n_reused, NULL);
}

static void decode(lk_session *s, const int32_t *tok, int n) {
    for (int i = 0; i < n; i++)
        assert_int_equal(lk_session_eval(s, tok + i, 1, false, NULL), LK_OK);
}

/* Both hold the same: logits, rows, and checkpoints, which a text that branches at MARK uses. */
static void assert_same_sessions(lk_session *a, lk_session *b, const int32_t *tok,
                                 const char *what) {
    int32_t other[CTX];
    assert_same_logits(a, b, what);
    decode(a, tok, ANSWER);
    decode(b, tok, ANSWER);
    assert_same_logits(a, b, what);
    memcpy(other, tok, sizeof other);
    random_tokens(other + MARK, 60, a->model, 9);
    size_t n_a, n_b;
    assert_int_equal(a->checkpoints.n, b->checkpoints.n);
    assert_int_equal(prefill(a, other, MARK + 60, &n_a), LK_OK);
    assert_int_equal(prefill(b, other, MARK + 60, &n_b), LK_OK);
    assert_int_equal(n_a, n_b);
    assert_same_logits(a, b, what);
}

/* Through a file: the prefill is as it was. */
static lk_session *reload(lk_session *s, struct stop *stop) {
    char path[] = "/tmp/lowkey-prefill-XXXXXX";
    int fd = mkstemp(path);
    size_t n_done, n_loaded, n_file;
    uint64_t held = lk_session_get_stats(s).scratch_bytes;
    lk_err err = {0};
    assert_true(fd >= 0);
    close(fd);
    if (lk_session_save(s, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_session *loaded = new_session(s->model, (lk_recipe *)s->recipe, stop, NULL);
    if (lk_session_load(loaded, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(lk_session_suspended(loaded, &n_loaded), lk_session_suspended(s, &n_done));
    assert_int_equal(n_loaded, n_done);
    assert_int_equal(lk_session_file_suspended(path, &n_file, NULL), LK_OK);
    assert_int_equal(n_file, n_done);
    assert_int_equal(lk_session_n_tok(loaded), 0);
    assert_null(lk_session_logits(loaded, -1));
    assert_int_equal(loaded->checkpoints.n_planned, s->checkpoints.n_planned);
    assert_true(lk_session_get_stats(loaded).scratch_bytes <= held);
    unlink(path);
    lk_session_free(s);
    return loaded;
}

/* Cut short after each chunk in turn, and once after every chunk; every second time it goes through
 * a file. */
static void check_recipe(lk_model *model, const char *text, const char *device) {
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    struct stop none = {0};
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *whole = new_session(model, recipe, &none, device);
    assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
    int n_chunk = none.n_call;
    for (int after = 1; after <= n_chunk; after += case_runs(after) ? 1 : 3) {
        struct stop stop = {.after = after};
        size_t n_done, n_reused;
        lk_session *s = new_session(model, recipe, &stop, device);
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
        assert_int_equal(lk_session_n_tok(s), 0);
        assert_null(lk_session_logits(s, -1));
        assert_int_equal(lk_session_suspended(s, &n_done), LONG);
        assert_int_equal(n_done, stop.done * LONG / stop.total);
        assert_int_equal(lk_session_reusable(s, tok, LONG), n_done);
        if (!device && after % 4 != 3) s = reload(s, &stop);
        assert_int_equal(lk_session_reusable(s, tok, LONG), n_done);
        assert_int_equal(prefill(s, tok, LONG, &n_reused), LK_OK);
        assert_int_equal(n_reused, n_done);
        assert_int_equal(stop.n_call, n_chunk); /* nothing was computed twice */
        assert_int_equal(lk_session_suspended(s, NULL), 0);
        if (after > 1 && after < n_chunk) {
            assert_same_logits(s, whole, text);
        } else {
            lk_session *copy = new_session(model, recipe, &none, device);
            assert_int_equal(lk_session_copy(copy, whole, NULL), LK_OK);
            assert_same_sessions(s, copy, tok, text);
            lk_session_free(copy);
        }
        lk_session_free(s);
    }
    struct stop always = {0};
    lk_session *s = new_session(model, recipe, &always, device);
    lk_status status = LK_E_CANCELLED;
    for (int i = 0; i <= n_chunk && status == LK_E_CANCELLED; i++) {
        always.after = always.n_call + 1;
        status = prefill(s, tok, LONG, NULL);
        if (status == LK_E_CANCELLED && !device) s = reload(s, &always);
    }
    assert_int_equal(status, LK_OK);
    assert_int_equal(always.n_call, n_chunk);
    always.after = 0;
    assert_same_sessions(s, whole, tok, text);
    lk_session_free(s), lk_session_free(whole);
    lk_recipe_free(recipe);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

#define KEEPS "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16"
#define REPLAYS "sink 4: f16; keep 40 by replay: rot4; recent 64: int8; window 30: f16"

static void prefills_go_on(void **state) {
    static const struct {
        const char *model, *recipe, *device;
    } cases[] = {{"llama", "best-3", NULL},     {"llama", "best-3", "pretend"},
                 {"llama", KEEPS, NULL},        {"gemma3", "best-4", NULL},
                 {"gemma4", "best-3", NULL},    {"qwen35", "f16", NULL},
                 {"lfm2", KEEPS, NULL},         {"granitehybrid", "best-3", NULL},
                 {"deepseek2", "best-4", NULL}, {"llama", REPLAYS, NULL},
                 {"llama", REPLAYS, "pretend"}, {"gemma3", REPLAYS, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_model *model = open_preset(cases[i].model, CTX, 1);
        check_recipe(model, cases[i].recipe, cases[i].device);
        lk_model_free(model);
    }
}

/* A text that shares a part of the prompt: the prefill is completed if that is less work. */
static void other_texts(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX], other[CTX];
    struct stop stop = {0}, none = {0};
    size_t n, n_reused;
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, &stop, NULL),
               *whole = new_session(model, recipe, &none, NULL);
    assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
    int n_chunk = none.n_call;
    for (int longer = 0; longer < 2; longer++) {
        /* Most of the work was done: a text that differs after MARK, and one that goes on. */
        memcpy(other, tok, sizeof other);
        if (!longer) random_tokens(other + MARK, CTX - MARK, model, 5);
        lk_session_clear(s);
        stop = (struct stop){.after = n_chunk - 1};
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
        n = lk_session_reusable(s, other, LONG + 50);
        assert_true(n > (longer ? LONG : MARK) / 2 && n < (longer ? LONG : MARK));
        assert_int_equal(prefill(s, other, LONG + 50, &n_reused), LK_OK);
        assert_int_equal(n_reused, n);
        assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
        assert_int_equal(prefill(whole, other, LONG + 50, NULL), LK_OK);
        assert_same_logits(s, whole, "best-3");
        lk_session_clear(whole);
        assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
    }
    /* Little was done, or little is shared: the text is computed from its start. */
    for (int little = 0; little < 2; little++) {
        memcpy(other, tok, sizeof other);
        random_tokens(other + (little ? 100 : MARK), CTX - MARK, model, 5);
        lk_session_clear(s), lk_session_clear(whole);
        stop = (struct stop){.after = little ? n_chunk - 1 : 1};
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
        assert_int_equal(lk_session_reusable(s, other, LONG), 0);
        assert_int_equal(prefill(s, other, LONG, &n_reused), LK_OK);
        assert_int_equal(n_reused, 0);
        assert_int_equal(prefill(whole, other, LONG, NULL), LK_OK);
        assert_same_sessions(s, whole, other, "best-3");
    }
    lk_session_free(s), lk_session_free(whole);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static lk_status do_eval(lk_session *s, lk_session *other, const int32_t *tok) {
    (void)other;
    return lk_session_eval(s, tok, 7, false, NULL);
}
static lk_status do_reserve(lk_session *s, lk_session *other, const int32_t *tok) {
    (void)other, (void)tok;
    return lk_session_reserve(s, 50, NULL);
}
static lk_status do_clear(lk_session *s, lk_session *other, const int32_t *tok) {
    (void)other, (void)tok;
    lk_session_clear(s);
    return LK_OK;
}
static lk_status do_copy(lk_session *s, lk_session *other, const int32_t *tok) {
    (void)tok;
    return lk_session_copy(s, other, NULL);
}
static lk_status do_load(lk_session *s, lk_session *other, const int32_t *tok) {
    char path[] = "/tmp/lowkey-prefill-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    (void)tok;
    assert_int_equal(lk_session_save(other, NULL, path, NULL), LK_OK);
    lk_status status = lk_session_load(s, NULL, path, NULL);
    unlink(path);
    return status;
}
static lk_status do_embed(lk_session *s, lk_session *other, const int32_t *tok) {
    float *x = malloc(sizeof *x * (size_t)lk_model_get_info(s->model).n_embd);
    (void)other;
    lk_status status = lk_session_embed(s, tok, 30, LK_POOLING_MEAN, x, NULL);
    free(x);
    return status;
}
static lk_status do_group(lk_session *s, lk_session *other, const int32_t *tok) {
    lk_session *both[] = {s, other};
    return lk_prefill_all(both, 2, tok, 90, NULL);
}

/* Every other operation drops the prefill with all its memory, and does what it does with an empty
 * session. */
static void other_operations(void **state) {
    static lk_status (*const operation[])(lk_session *, lk_session *, const int32_t *) = {
        do_eval, do_reserve, do_clear, do_copy, do_load, do_embed, do_group};
    static const char *const models[] = {"llama", "qwen35"};
    for (int m = 0; m < 2; m++) {
        lk_model *model = open_preset(models[m], CTX, 1);
        lk_recipe *recipe = NULL;
        int32_t tok[CTX];
        assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
        random_tokens(tok, CTX, model, 3);
        for (size_t i = 0; i < sizeof operation / sizeof *operation; i++) {
            struct stop stop = {.after = 4}, none = {0};
            lk_session *s = new_session(model, recipe, &stop, NULL),
                       *empty = new_session(model, recipe, &none, NULL),
                       *other = new_session(model, recipe, &none, NULL);
            assert_int_equal(prefill(other, tok + 100, 200, NULL), LK_OK);
            assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
            uint64_t held = lk_session_get_stats(s).scratch_bytes;
            assert_true(held > LONG * sizeof(float) * (size_t)lk_model_get_info(model).n_embd);
            /* It is neither copied nor truncated, and stays. */
            assert_int_equal(lk_session_copy(empty, s, NULL), LK_OK);
            assert_int_equal(lk_session_n_tok(empty), 0);
            assert_int_equal(lk_session_truncate(s, 1, NULL), LK_E_ARG);
            assert_int_equal(lk_session_suspended(s, NULL), LONG);
            assert_int_equal(operation[i](s, other, tok), LK_OK);
            assert_int_equal(operation[i](empty, other, tok), LK_OK);
            assert_int_equal(lk_session_suspended(s, NULL), 0);
            assert_null(s->suspended);
            assert_int_equal(s->checkpoints.n_planned, 0);
            assert_int_equal(lk_session_n_tok(s), lk_session_n_tok(empty));
            if (lk_session_n_tok(s)) assert_same_logits(s, empty, models[m]);
            assert_true(lk_session_get_stats(s).scratch_bytes < held / 2 || i == 5);
            assert_int_equal(prefill(s, tok, LONG, NULL), LK_OK);
            assert_int_equal(prefill(empty, tok, LONG, NULL), LK_OK);
            assert_same_logits(s, empty, models[m]);
            lk_session_free(s), lk_session_free(empty), lk_session_free(other);
            assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
        }
        lk_recipe_free(recipe);
        lk_model_free(model);
    }
}

/* Memory that runs out when it goes on: the session is empty, and can be used again. */
static void memory_runs_out(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    struct stop none = {0};
    bool complete = false;
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *whole = new_session(model, recipe, &none, NULL);
    assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
    for (int nth = 1; !complete; nth += case_runs(nth) ? 1 : 4) {
        struct stop stop = {.after = 2};
        lk_session *s = new_session(model, recipe, &stop, NULL);
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
        atomic_store(&s->ledger.fail_at, nth);
        lk_status status = prefill(s, tok, LONG, NULL);
        complete = atomic_exchange(&s->ledger.fail_at, 0) > 0;
        assert_int_equal(status, complete ? LK_OK : LK_E_NOMEM);
        if (!complete) assert_int_equal(lk_session_n_tok(s) + lk_session_suspended(s, NULL), 0);
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_OK);
        assert_same_logits(s, whole, "best-3");
        lk_session_free(s);
        assert_true(nth < 10000);
    }
    lk_session_free(whole);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- files ---- */

/* Wrong prefills with correct checksums are refused, or do no harm; so does a lack of memory. */
static void wrong_files_are_refused(void **state) {
    static const char *const models[] = {"llama", "qwen35"};
    char path[] = "/tmp/lowkey-prefill-XXXXXX";
    close(mkstemp(path));
    for (int m = 0; m < 2; m++) {
        lk_model *model = open_preset(models[m], CTX, 1);
        lk_recipe *recipe = NULL;
        int32_t tok[CTX];
        struct stop stop = {.after = 5}, none = {0};
        struct lk_session_header header;
        struct lk_saved_prefill head;
        size_t size;
        assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
        random_tokens(tok, CTX, model, 3);
        lk_session *s = new_session(model, recipe, &stop, NULL),
                   *loaded = new_session(model, recipe, &none, NULL),
                   *whole = new_session(model, recipe, &none, NULL);
        assert_int_equal(prefill(s, tok, LONG, NULL), LK_E_CANCELLED);
        assert_int_equal(prefill(whole, tok, LONG, NULL), LK_OK);
        assert_int_equal(lk_session_save(s, NULL, path, NULL), LK_OK);
        uint8_t *file = read_file(path, &size), *edited = malloc(size + 8);
        memcpy(&header, file, sizeof header);
        size_t n_part = header.section[LK_SECTION_PREFILL].size, part = size - n_part;
        memcpy(&head, file + part, sizeof head);
        int n_layer = model->net->hp.n_layer;
        const struct {
            size_t at;
            int64_t value;
            const char *words;
        } wrong[] = {
            {part, LONG + 1, "another number of tokens"},
            {part + 8, LONG, "impossible step"},
            {part + 8, -1, "impossible step"},
            {part + 24, (int64_t)-1, "impossible step"},
            {part + 24, n_layer | 1ll << 32, "impossible step"},
            {part + 24, n_layer, "impossible step"},
            {part + 24, 0x200000000, "impossible step"},
            {part + 32, INT32_MAX, "planned checkpoints are truncated"},
            {part + 32, 0, "another size"},
            {part + sizeof head, 0x7f800000, "not finite"},
        };
        struct random r = {5};
        int n_refused = 0;
        const size_t n_wrong = sizeof wrong / sizeof *wrong;
        for (size_t i = 0; i < 120 + n_wrong; i++) {
            bool known = i < n_wrong, cut = i % 8 == 7;
            /* The head, the end, and anything in between. */
            size_t range = i % 3 == 0 ? sizeof head : n_part,
                   at = known ? wrong[i].at
                              : part + (size_t)random_int(&r, 0, (int)range / 4 - 2) * 4,
                   end = !known && cut ? at : size;
            int64_t value = known ? wrong[i].value : random_int(&r, -2, 1300);
            memcpy(edited, file, size);
            memcpy(edited + at, &value, known ? 8 : 4);
            memcpy(&header, file, sizeof header);
            header.section[LK_SECTION_PREFILL].size = end - part;
            memcpy(edited, &header, sizeof header);
            seal_session(edited, end);
            assert_true(write_file(path, edited, end));
            lk_err err = {0};
            lk_session_clear(loaded);
            lk_status status = lk_session_load(loaded, NULL, path, &err);
            if (known && (status != LK_E_FORMAT || !strstr(err.msg, wrong[i].words)))
                fail_msg("%zu: status %d, \"%s\"", i, status, err.msg);
            n_refused += status == LK_E_FORMAT;
            if (status == LK_E_FORMAT)
                assert_int_equal(lk_session_suspended(loaded, NULL) + lk_session_n_tok(loaded), 0);
            else if (i % 10 == 0)
                assert_int_equal(prefill(loaded, tok, LONG, NULL), LK_OK);
        }
        assert_true(n_refused > (int)n_wrong);
        lk_err err = {0};
        head.at = 1, head.is_prepared = 0; /* in a layer that was not begun */
        memcpy(edited, file, size);
        memcpy(edited + part, &head, sizeof head);
        seal_session(edited, size);
        assert_true(write_file(path, edited, size));
        assert_int_equal(lk_session_load(loaded, NULL, path, &err), LK_E_FORMAT);
        assert_non_null(strstr(err.msg, "impossible step"));
        assert_true(write_file(path, file, size));
        bool complete = false;
        for (int nth = 1; !complete; nth += case_runs(nth) ? 1 : 4) {
            lk_session_clear(loaded);
            atomic_store(&loaded->ledger.fail_at, nth);
            lk_status status = lk_session_load(loaded, NULL, path, NULL);
            complete = atomic_exchange(&loaded->ledger.fail_at, 0) > 0;
            assert_int_equal(status, complete ? LK_OK : LK_E_NOMEM);
            if (status)
                assert_int_equal(lk_session_suspended(loaded, NULL) + lk_session_n_tok(loaded), 0);
            if (complete || nth % 5 == 0) {
                assert_int_equal(prefill(loaded, tok, LONG, NULL), LK_OK);
                assert_same_logits(loaded, whole, models[m]);
            }
            assert_true(nth < 10000);
        }
        free(file), free(edited);
        lk_session_free(s), lk_session_free(loaded), lk_session_free(whole);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
        lk_recipe_free(recipe);
        lk_model_free(model);
    }
    unlink(path);
}

/* Rows that are made of another session's exact rows have the bits of an own prefill. */
static void prompts_are_recoded(void **state) {
    static const struct {
        const char *text;
        bool refused;
    } of_text[] = {{"f16", false},
                   {"best-4", false},
                   {"best-3", false},
                   {"best-2", false},
                   {"sink 4: int8; body: k=kivi4 v=rot3; window 96: rot8", false},
                   {"sink 4: f16; body: rot3; window 32: f16; absorb less", true},
                   {"sink 4: f16; body: rot3; keep 30% by h2o; window 32: f16", true},
                   {"sink 4: f16; body: k=kivi4 v=rot3(sigma); window 32: f16", true},
                   {"rot2(trellis)", true}, /* no sinks */
                   {"sink 8: f16; body: rot3; window 32: f16", true}};
    int n_done = 0, n_refused = 0;
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        lk_model *model = open_preset(spec->name, CTX, 2);
        int32_t tok[CTX];
        struct stop none = {0};
        random_tokens(tok, CTX, model, 5);
        lk_session *of[2];
        lk_recipe *recipe[2], *other;
        static const char *const source[] = {"f16",
                                             "sink 4: f16; body: rot2(trellis); window 32: f16"};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lk_recipe_parse(&recipe[i], source[i], NULL), LK_OK);
            of[i] = new_session(model, recipe[i], &none, NULL);
        }
        assert_int_equal(lk_prefill_all(of, 2, tok, LONG - 37, NULL), LK_OK);
        for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++) {
            lk_err err = {0};
            lk_session *s[2] = {0};
            lk_session_opts opts = {.n_ctx = CTX};
            if (!case_runs(i + (size_t)(spec - tiny_presets)) ||
                lk_recipe_parse(&other, of_text[i].text, NULL))
                continue;
            lk_status status = lk_session_new(&s[0], model, other, &opts, &err);
            if (!status) status = lk_session_new(&s[1], model, other, &opts, &err);
            if (status) { /* the model's heads cannot be stored like this */
                lk_session_free(s[0]);
                lk_recipe_free(other);
                continue;
            }
            status = lk_prefill_recode(s[0], of[0], of[1], &err);
            const struct lk_hparams *hp = &model->net->hp;
            bool short_window = hp->n_swa > 0 && hp->n_swa <= 96; /* nothing is quantized there */
            bool has_sigma = hp->d_rope == 0;
            if (!status ? of_text[i].refused && has_sigma : !of_text[i].refused && !short_window)
                fail_msg("%s: %s: %s", spec->name, of_text[i].text, err.msg);
            if (status) {
                assert_int_equal(status, LK_E_UNSUPPORTED);
                n_refused++;
            } else {
                assert_int_equal(lk_prefill_all(&s[1], 1, tok, LONG - 37, NULL), LK_OK);
                decode(s[0], tok, 3 + ANSWER);
                decode(s[1], tok, 3 + ANSWER);
                assert_same_logits(s[0], s[1], spec->name);
                n_done++;
            }
            lk_session_free(s[0]);
            lk_session_free(s[1]);
            lk_recipe_free(other);
        }
        for (int i = 0; i < 2; i++) {
            lk_session_free(of[i]);
            lk_recipe_free(recipe[i]);
        }
        lk_model_free(model);
    }
    print_message("%d sessions, %d refused\n", n_done, n_refused);
    assert_true(n_done > 0 && n_refused > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefills_go_on),          cmocka_unit_test(other_texts),
        cmocka_unit_test(other_operations),        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(wrong_files_are_refused), cmocka_unit_test(prompts_are_recoded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
