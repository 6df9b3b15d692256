/* Sessions on disk: a loaded session continues bit-identically, damaged files are rejected, and a
 * save that is killed leaves a complete file. */
#define _DEFAULT_SOURCE /* usleep */
#include "base/atomic_file.h"
#include "engine/session_save.h"
#include "engine/session_state.h"
#include "support_baselines.h"
#include "support_model.h"
#include "support_session.h"
#include "test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CTX = 700, MAX_VOCAB = 4096 };

static char path[] = "/tmp/lowkey-save-XXXXXX", temporary[sizeof path + 4];

/* A session with its recipe. */
struct holder {
    lk_recipe *recipe;
    lk_session *session;
};

static struct holder open_holder(lk_model *model, const char *text) {
    struct holder h;
    h.session = open_session(model, text, CTX, &h.recipe);
    return h;
}

static void close_holder(struct holder h) {
    lk_session_free(h.session);
    lk_recipe_free(h.recipe);
}

static void save(const lk_session *session, const lk_sampler *sampler) {
    lk_err err = {0};
    if (lk_session_save(session, sampler, path, &err) != LK_OK) fail_msg("%s", err.msg);
}

static void load(lk_session *session, lk_sampler *sampler) {
    lk_err err = {0};
    if (lk_session_load(session, sampler, path, &err) != LK_OK) fail_msg("%s", err.msg);
}

static void assert_continues_equally(const lk_session *a, const lk_session *b, const char *where,
                                     int step) {
    size_t n = (size_t)a->model->net->hp.n_vocab * sizeof(float);
    const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
    if (!x != !y || (x && memcmp(x, y, n) != 0))
        fail_msg("%s: logits differ %d tokens after loading", where, step);
}

/* Save a, load it into a new session, save that, compare the files, and continue both. */
static void round_trip(lk_model *model, struct holder a, const char *text, int n_more) {
    struct holder b = {0};
    lk_err err = {0};
    save(a.session, NULL);
    size_t n_first, n_second;
    uint8_t *first = read_file(path, &n_first);
    if (lk_session_file_recipe(&b.recipe, path, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    assert_string_equal(lk_recipe_text(b.recipe), text);
    assert_int_equal(lk_session_new(&b.session, model, b.recipe, &a.session->opts, NULL), LK_OK);
    load(b.session, NULL);
    assert_int_equal(lk_session_n_tok(b.session), lk_session_n_tok(a.session));
    assert_continues_equally(a.session, b.session, text, 0);
    assert_int_equal(lk_session_get_stats(b.session).cache_bytes,
                     lk_ledger_bytes(&b.session->ledger, LK_FOR_CACHE) +
                         lk_ledger_bytes(&b.session->rows.ledger, LK_FOR_CACHE));
    save(b.session, NULL);
    uint8_t *second = read_file(path, &n_second);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    free(first), free(second);
    struct holder c = open_holder(model, text); /* a copy is equivalent to a file */
    if (lk_session_copy(c.session, a.session, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    assert_continues_equally(a.session, c.session, text, 0);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, n_more);
    for (int i = 0; i < n_more && lk_session_n_tok(a.session) < CTX; i++) {
        assert_int_equal(lk_session_eval(a.session, tok + i, 1, false, NULL), LK_OK);
        assert_int_equal(lk_session_eval(b.session, tok + i, 1, false, NULL), LK_OK);
        assert_continues_equally(a.session, b.session, text, i + 1);
        if (i > 3) continue;
        assert_int_equal(lk_session_eval(c.session, tok + i, 1, false, NULL), LK_OK);
        assert_continues_equally(a.session, c.session, text, i + 1);
    }
    close_holder(b), close_holder(c);
}

static const char *const recipes[] = {
    "f16",
    "selective",
    "kivi-2",
    "kivi-4",
    "best-4",
    "best-3",
    "best-2",
    "int8",
    "sink 4: f16; body: k=rot4 v=rot4; recent 10%: k=rot6 v=int8; window 32: f16",
    "body: k=rot2(nomean,nosigma) v=rot1(mean); layers first 1: k=f16 v=f16; window 64: f16",
    "hqq-4",
    "sink 1: f16; body: k=kvquant3 v=asym4(g32); window 20: asym8(hadamard)",
    "sink 4: f16; body: k=kvarn4 v=kvarn2; window 20: f16"};

static void test_round_trips(void **state) {
    static const char *const presets[] = {"llama",
                                          "gemma3",
                                          "qwen2",
                                          "qwen35",
                                          "qwen35moe",
                                          "deepseek2",
                                          "gpt-oss",
                                          "gemma2",
                                          "gemma4",
                                          "gemma4-moe",
                                          "lfm2",
                                          "lfm2moe",
                                          "granitehybrid",
                                          "granitehybrid-moe",
                                          NULL};
    static const int lengths[] = {0, 1, 3, 31, 32, 33, 64, 255, 257, 300, 512};
    for (int p = 0; presets[p]; p++) {
        lk_model *model = open_preset(presets[p], CTX, 1);
        int32_t tok[CTX];
        random_tokens(tok, CTX, model, 1);
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                if ((p && (i + n + p) % 7) || !case_runs(i + n)) continue; /* not all pairs */
                struct holder h = open_holder(model, recipes[i]);
                if (lengths[n] && n % 2)
                    assert_int_equal(lk_session_sync(h.session, tok, lengths[n], NULL, NULL),
                                     LK_OK);
                /* The other lengths are evaluated in chunks. */
                for (int at = 0, turn = 0; n % 2 == 0 && at < lengths[n]; turn++) {
                    int chunk = turn % 3 == 1 ? 45 : 7;
                    if (chunk > lengths[n] - at) chunk = lengths[n] - at;
                    assert_int_equal(lk_session_eval(h.session, tok + at, chunk, false, NULL),
                                     LK_OK);
                    at += chunk;
                }
                round_trip(model, h, recipes[i], n % 4 == 3 ? 70 : 2);
                close_holder(h);
            }
        }
        lk_model_free(model);
    }
}

/* Sessions that were cut back can be saved and loaded. */
static void test_after_truncation(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 2);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct holder h = open_holder(model, recipes[i]);
        assert_int_equal(lk_session_sync(h.session, tok, 330, NULL, NULL), LK_OK);
        tok[325]++;
        assert_int_equal(lk_session_sync(h.session, tok, 328, NULL, NULL), LK_OK);
        round_trip(model, h, recipes[i], 40);
        close_holder(h);
    }
    lk_model_free(model);
}

static void test_sampler_continues(void **state) {
    lk_model *model = open_preset("llama-spm", CTX, 1);
    lk_sampler_opts opts[3] = {lk_sampler_chat(), lk_sampler_chat(), lk_sampler_chat()};
    opts[0].temperature = 50, opts[0].top_p = 1, opts[0].min_p = 0, opts[0].repeat_penalty = 1.3f,
    opts[0].seed = 7;
    opts[1].temperature = 0;
    opts[2].seed = UINT32_MAX; /* for this value libllama draws a seed */
    opts[2].grammar = "root ::= [a-z ]*";
    opts[0].bias = &(lk_logit_bias){7, -100}, opts[0].n_bias = 1, opts[0].ignore_eos = true;
    for (int i = 0; i < 3; i++) {
        struct holder a = open_holder(model, "best-3"), b = open_holder(model, "best-3");
        lk_sampler *sampler, *again, *other;
        lk_err err = {0};
        int32_t tok = 5, same, third;
        assert_int_equal(lk_sampler_new(&sampler, model, &opts[i], NULL), LK_OK);
        assert_int_equal(lk_sampler_new(&again, model, &opts[i], NULL), LK_OK);
        assert_int_equal(lk_session_eval(a.session, &tok, 1, false, NULL), LK_OK);
        for (int t = 0; t < 50; t++) {
            if (lk_sampler_next(sampler, a.session, -1, &tok, &err) != LK_OK)
                fail_msg("%s", err.msg);
            assert_int_equal(lk_session_eval(a.session, &tok, 1, false, NULL), LK_OK);
        }
        save(a.session, sampler);
        load(b.session, again);
        opts[i].top_k++;
        assert_int_equal(lk_sampler_new(&other, model, &opts[i], NULL), LK_OK);
        load(b.session, other); /* other options: not changed */
        if (lk_sampler_next(other, b.session, -1, &third, &err) != LK_OK) fail_msg("%s", err.msg);
        for (int t = 0; t < 100; t++) {
            if (lk_sampler_next(sampler, a.session, -1, &tok, &err) != LK_OK ||
                lk_sampler_next(again, b.session, -1, &same, &err) != LK_OK)
                fail_msg("%s", err.msg);
            if (tok != same) fail_msg("options %d: token %d of %d differs", i, t, tok);
            assert_int_equal(lk_session_eval(a.session, &tok, 1, false, NULL), LK_OK);
            assert_int_equal(lk_session_eval(b.session, &tok, 1, false, NULL), LK_OK);
        }
        lk_sampler_free(sampler), lk_sampler_free(again), lk_sampler_free(other);
        close_holder(a), close_holder(b);
    }
    lk_model_free(model);
}

/* ---- files that are rejected ---- */

/* A session of 300 tokens on disk, and one of 40 tokens that a failed load must not change. */
struct fixture {
    lk_model *model;
    struct holder saved, current;
    uint8_t *file;
    size_t size;
};

static struct fixture open_fixture(void) {
    struct fixture v = {.model = open_preset("llama", CTX, 1)};
    int32_t tok[300];
    random_tokens(tok, 300, v.model, 3);
    v.saved = open_holder(v.model, "best-3");
    v.current = open_holder(v.model, "best-3");
    assert_int_equal(lk_session_sync(v.saved.session, tok, 300, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(v.current.session, tok + 100, 40, NULL, NULL), LK_OK);
    save(v.saved.session, NULL);
    v.file = read_file(path, &v.size);
    return v;
}

static void close_fixture(struct fixture *v) {
    free(v->file);
    close_holder(v->saved);
    close_holder(v->current);
    lk_model_free(v->model);
}

/* Loading the file fails with this status and changes nothing. */
static void assert_rejected(struct fixture *v, lk_status status, const char *what) {
    lk_err err = {0};
    float before[MAX_VOCAB];
    size_t n = (size_t)lk_model_get_info(v->model).n_vocab * sizeof(float);
    assert_true(n <= sizeof before);
    memcpy(before, lk_session_logits(v->current.session, -1), n);
    lk_status got = lk_session_load(v->current.session, NULL, path, &err);
    if (got != status || !err.msg[0]) fail_msg("%s: status %d, \"%s\"", what, got, err.msg);
    assert_int_equal(lk_session_n_tok(v->current.session), 40);
    assert_memory_equal(before, lk_session_logits(v->current.session, -1), n);
}

static void test_damage_is_rejected(void **state) {
    struct fixture v = open_fixture();
    struct random r = {5};
    char what[64];
    for (size_t i = 0; i < 600; i++) {
        size_t at =
            i < sizeof(struct lk_session_header) ? i : (size_t)random_int(&r, 0, (int)v.size - 1);
        uint8_t bit = (uint8_t)(1 << random_int(&r, 0, 7));
        v.file[at] ^= bit;
        assert_true(write_file(path, v.file, v.size));
        v.file[at] ^= bit;
        snprintf(what, sizeof what, "byte %zu", at);
        assert_rejected(&v, LK_E_FORMAT, what);
    }
    for (int i = 0; i < 100; i++) {
        size_t size = i < 10 ? (size_t)i * 30 : (size_t)random_int(&r, 0, (int)v.size - 1);
        assert_true(write_file(path, v.file, size));
        snprintf(what, sizeof what, "cut to %zu", size);
        assert_rejected(&v, LK_E_FORMAT, what);
    }
    uint8_t *longer = calloc(1, v.size + 1);
    memcpy(longer, v.file, v.size);
    assert_true(write_file(path, longer, v.size + 1));
    assert_rejected(&v, LK_E_FORMAT, "one extra byte");
    free(longer);
    close_fixture(&v);
}

/* Files with correct checksums but wrong counts: each is rejected, or is a state that a session can
 * continue from. */
static void test_wrong_counts_do_no_harm(void **state) {
    struct fixture v = open_fixture();
    struct lk_session_header header;
    struct random r = {6};
    memcpy(&header, v.file, sizeof header);
    size_t counts =
        v.size - header.section[LK_SECTION_ROWS].size - header.section[LK_SECTION_COUNTS].size;
    enum { N = 1000 };
    int n_rejected = 0;
    uint8_t *file = malloc(v.size);
    struct holder h = open_holder(v.model, "best-3");
    for (int i = 0; i < N; i++) {
        static const int64_t values[] = {0,   1,       -1,        31,        32,        33,
                                         300, 1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
        memcpy(file, v.file, v.size);
        size_t at =
            counts +
            (size_t)random_int(&r, 0, (int)header.section[LK_SECTION_COUNTS].size / 4 - 2) * 4;
        int64_t value = values[random_int(&r, 0, 11)];
        memcpy(file + at, &value, random_int(&r, 0, 1) ? 4 : 8);
        seal_session(file, v.size);
        assert_true(write_file(path, file, v.size));
        lk_err err = {0};
        lk_status status = lk_session_load(h.session, NULL, path, &err);
        if (status == LK_E_FORMAT) {
            n_rejected++;
            continue;
        }
        assert_int_equal(status, LK_OK);
        int32_t tok[80] = {0};
        assert_int_equal(lk_session_eval(h.session, tok, 80, false, NULL), LK_OK);
    }
    print_message("%d of %d rejected\n", n_rejected, N);
    assert_in_range(n_rejected, 2 * N / 3, N);
    free(file);
    close_holder(h);
    close_fixture(&v);
}

/* Files with correct checksums and a token that the model does not have. */
static void test_foreign_tokens_are_rejected(void **state) {
    struct fixture v = open_fixture();
    struct lk_session_header header;
    memcpy(&header, v.file, sizeof header);
    int32_t n_vocab = lk_model_get_info(v.model).n_vocab;
    const int32_t foreign[] = {-1, INT32_MIN, n_vocab, n_vocab + 1, INT32_MAX};
    uint8_t *tok = v.file + sizeof header + header.section[LK_SECTION_RECIPE].size + 200 * 4;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        memcpy(tok, &foreign[i], 4);
        seal_session(v.file, v.size);
        assert_true(write_file(path, v.file, v.size));
        assert_rejected(&v, LK_E_FORMAT, "a foreign token");
    }
    memcpy(tok, &(int32_t){n_vocab - 1}, 4);
    seal_session(v.file, v.size);
    assert_true(write_file(path, v.file, v.size));
    load(v.current.session, NULL);
    close_fixture(&v);
}

static void test_mismatch_is_rejected(void **state) {
    struct fixture v = open_fixture();
    struct holder other = open_holder(v.model, "best-2");
    lk_err err = {0};
    assert_int_equal(lk_session_load(other.session, NULL, path, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "another recipe"));
    assert_int_equal(lk_session_copy(other.session, v.saved.session, &err), LK_E_ARG);
    v.current.session->opts.n_ctx = 299;
    assert_rejected(&v, LK_E_FULL, "a small context");
    v.current.session->opts.n_ctx = CTX;
    v.model->net->fingerprint++;
    assert_rejected(&v, LK_E_FORMAT, "another model");
    v.model->net->fingerprint--;
    assert_int_equal(lk_session_load(v.current.session, NULL, "/nonexistent/file", &err), LK_E_IO);
    assert_int_equal(lk_session_load(v.current.session, NULL, "/tmp", &err), LK_E_IO);
    load(v.current.session, NULL);
    assert_int_equal(lk_session_n_tok(v.current.session), 300);
    close_holder(other);
    close_fixture(&v);
}

/* Recipes that differ only in which rows they evict, how they attend to them, or how latents are
 * encoded. */
static void test_similar_recipes_are_rejected(void **state) {
    static const char *const pairs[][2] = {
        {"keep 128 by h2o: f16; window 128: f16", "keep 128 by random: f16; window 128: f16"},
        {"keep 128 by h2o: f16; window 128: f16", "keep 128 by h2o(mean): f16; window 128: f16"},
        {"keep 128 by h2o: f16; window 128: f16", "keep 64 by h2o: f16; window 128: f16"},
        {"keep 10% by h2o: f16; window 128: f16",
         "keep 10% of context by h2o: f16; window 128: f16"},
        {"body: none; window 128: f16", "keep 128 by newest: f16; window 128: f16"},
        {"sink 4(shift): f16; body: none; window 124: f16",
         "sink 4: f16; body: none; window 124: f16"},
        {"body: none; window 128: f16; absorb less", "body: none; window 128: f16"},
        {"k=f16 v=latent50%+rot3(nomean,nosigma)", "k=f16 v=latent50%+rot3(nomean,sigma)"},
        {"v=f16 k=latent50%(pre)+rot3(nomean,sigma)", "v=f16 k=latent50%+rot3(nomean,sigma)"},
        {"v=f16 k=latent50%(pre)+rot3(nomean,nosigma,lloyd)",
         "v=f16 k=latent50%(pre)+rot3(nomean,nosigma,uniform)"},
    };
    lk_model *model = open_with_sidecar("llama", CTX, 1, 5);
    int32_t tok[300];
    random_tokens(tok, 300, model, 9);
    for (size_t i = 0; i < 2 * sizeof pairs / sizeof *pairs; i++) {
        lk_err err = {0};
        struct holder from = open_holder(model, pairs[i / 2][i % 2]),
                      to = open_holder(model, pairs[i / 2][1 - i % 2]);
        if (lk_session_sync(from.session, tok, 300, NULL, &err) != LK_OK) fail_msg("%s", err.msg);
        if (lk_session_copy(to.session, from.session, &err) != LK_E_ARG)
            fail_msg("%s was copied to a similar recipe", pairs[i / 2][i % 2]);
        save(from.session, NULL);
        assert_int_equal(lk_session_load(to.session, NULL, path, &err), LK_E_FORMAT);
        assert_non_null(strstr(err.msg, "another recipe"));
        assert_int_equal(lk_session_n_tok(to.session), 0);
        close_holder(from), close_holder(to);
    }
    lk_model_free(model);
}

static void test_load_without_memory(void **state) {
    struct fixture v = open_fixture();
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        struct holder h = open_holder(v.model, "best-3");
        lk_err err = {0};
        int32_t tok[2] = {1, 2};
        atomic_store(&h.session->ledger.fail_at, nth);
        lk_status status = lk_session_load(h.session, NULL, path, &err);
        bool reached = atomic_load(&h.session->ledger.fail_at) <= 0;
        atomic_store(&h.session->ledger.fail_at, 0);
        if (reached) {
            n_failed++;
            assert_int_equal(status, LK_E_NOMEM);
            assert_int_equal(lk_session_n_tok(h.session), 0);
            assert_int_equal(lk_session_eval(h.session, tok, 2, false, &err), LK_OK);
        }
        close_holder(h);
        if (!reached) break;
    }
    assert_true(n_failed > 5);
    close_fixture(&v);
}

/* ---- saving ---- */

static void assert_file_unchanged(struct fixture *v) {
    size_t size;
    uint8_t *file = read_file(path, &size);
    assert_int_equal(size, v->size);
    assert_memory_equal(file, v->file, size);
    free(file);
}

static void test_failed_saves_change_nothing(void **state) {
    struct fixture v = open_fixture();
    lk_err err = {0};
    struct rlimit limit, small;
    assert_int_equal(lk_session_save(v.current.session, NULL, "/nonexistent/file", &err), LK_E_IO);
    assert_int_equal(lk_session_save(v.current.session, NULL, "/tmp", &err), LK_E_IO);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t size = 0; size < v.size; size += v.size / 5) { /* like a full disk */
        small = (struct rlimit){size, limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        lk_status status = lk_session_save(v.saved.session, NULL, path, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, LK_E_IO);
        assert_true(access(temporary, F_OK) != 0);
        assert_file_unchanged(&v);
    }
    struct lk_atomic_file f; /* another writer of the same file */
    assert_int_equal(lk_atomic_file_open(&f, path, &err), LK_OK);
    assert_int_equal(lk_session_save(v.saved.session, NULL, path, &err), LK_E_IO);
    assert_int_equal(lk_atomic_file_close(&f, LK_E_CANCELLED, &err), LK_E_CANCELLED);
    assert_file_unchanged(&v);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 077, 0); /* private to the owner */
    close_fixture(&v);
}

/* kill -9 while two states are saved alternately: the file holds one of the two. */
static void test_killed_saves(void **state) {
    enum { TIMES = 200 };
    struct fixture v = open_fixture();
    struct random r = {8};
    int n_each[2] = {0};
    for (int i = 0; i < TIMES; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (;;) {
                lk_session_save(v.current.session, NULL, path, NULL);
                lk_session_save(v.saved.session, NULL, path, NULL);
            }
        }
        usleep((useconds_t)random_int(
            &r, 0, 4000 * (1 + i / 40))); /* longer each time: a save may be slow */
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        struct holder h = open_holder(v.model, "best-3");
        load(h.session, NULL);
        bool first = lk_session_n_tok(h.session) == 40;
        if (!first) assert_int_equal(lk_session_n_tok(h.session), 300);
        assert_continues_equally(h.session, first ? v.current.session : v.saved.session,
                                 "a killed save", 0);
        n_each[first]++;
        close_holder(h);
    }
    print_message("%d processes killed: %d left the first state, %d the second\n", TIMES, n_each[0],
                  n_each[1]);
    assert_true(n_each[0] > 0 && n_each[1] > 0);
    save(v.saved.session, NULL); /* leftovers of the last kill do no harm */
    assert_true(access(temporary, F_OK) != 0);
    close_fixture(&v);
}

/* LongRoPE rotates keys differently in contexts beyond the original one. The longest context that a
 * model was opened for decides, its sessions keep to it, and the others' files are rejected. */
static void test_long_rope(void **state) {
    enum { ORIGINAL = 512 }; /* of the preset */
    int32_t tok[8];
    lk_err err = {0};
    struct holder h[2];
    lk_model *model[2];
    for (int is_long = 0; is_long < 2; is_long++) {
        lk_model_opts opts = {.n_threads = 1, .n_ctx = is_long ? 0 : ORIGINAL};
        model[is_long] = open_tiny(tiny_preset("phi3-short"), &opts);
        h[is_long].session = open_session(model[is_long], "f16", ORIGINAL, &h[is_long].recipe);
        random_tokens(tok, 8, model[is_long], 4);
        assert_int_equal(lk_session_sync(h[is_long].session, tok, 8, NULL, NULL), LK_OK);
    }
    int n_vocab = model[0]->net->hp.n_vocab;
    assert_true(nmse(lk_session_logits(h[0].session, -1), lk_session_logits(h[1].session, -1),
                     n_vocab) > 1e-3);
    save(h[0].session, NULL);
    load(h[0].session, NULL);
    assert_int_equal(lk_session_load(h[1].session, NULL, path, &err), LK_E_FORMAT);
    lk_session *beyond = NULL;
    lk_session_opts opts = {.n_ctx = ORIGINAL + 1};
    assert_int_equal(lk_session_new(&beyond, model[0], h[0].recipe, &opts, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "LongRoPE"));
    assert_int_equal(lk_session_new(&beyond, model[1], h[1].recipe, &opts, &err), LK_OK);
    lk_session_free(beyond);
    for (int i = 0; i < 2; i++) {
        close_holder(h[i]);
        lk_model_free(model[i]);
    }
}

int main(void) {
    register_baselines();
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    unlink(path); /* the first save creates it */
    snprintf(temporary, sizeof temporary, "%s.new", path);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_after_truncation),
        cmocka_unit_test(test_sampler_continues),
        cmocka_unit_test(test_damage_is_rejected),
        cmocka_unit_test(test_wrong_counts_do_no_harm),
        cmocka_unit_test(test_foreign_tokens_are_rejected),
        cmocka_unit_test(test_mismatch_is_rejected),
        cmocka_unit_test(test_similar_recipes_are_rejected),
        cmocka_unit_test(test_load_without_memory),
        cmocka_unit_test(test_failed_saves_change_nothing),
        cmocka_unit_test(test_killed_saves),
        cmocka_unit_test(test_long_rope),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(temporary);
    return failed;
}
