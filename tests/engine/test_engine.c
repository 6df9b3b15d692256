/* The engine against libllama on tiny random models, and the documented behavior of sessions. */
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "support_baselines.h"
#include "support_model.h"
#include "support_oracle.h"
#include "test.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* ---- count all allocations of the process ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_COUNT = 0 };
static _Atomic long n_malloc;
#elif defined(__has_feature)
enum { CAN_COUNT = 0 };
static _Atomic long n_malloc;
#else
enum { CAN_COUNT = 1 };
static _Atomic long n_malloc;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *ptr, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
void *malloc(size_t size) {
    n_malloc++;
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
    n_malloc++;
    return __libc_calloc(n, size);
}
void *realloc(void *ptr, size_t size) {
    n_malloc++;
    return __libc_realloc(ptr, size);
}
void *aligned_alloc(size_t align, size_t size) {
    n_malloc++;
    return __libc_memalign(align, size);
}
int posix_memalign(void **ptr, size_t align, size_t size) {
    n_malloc++;
    *ptr = __libc_memalign(align, size);
    return *ptr ? 0 : 12;
}
#endif

/* ---- models and sessions ---- */

/* The model file that libllama reads. */
static char path[] = "/tmp/lowkey-engine-XXXXXX";

static int vocab_of(const lk_model *model) { return lk_model_get_info(model).n_vocab; }

/* Evaluate tok in steps of varying size. out: all logits, [n][n_vocab]. */
static void eval_all(lk_session *session, const int32_t *tok, int n, int n_vocab, float *out) {
    static const int sizes[] = {1, 7, 32, 2, 19, 1, 1, 64};
    lk_err err = {0};
    for (int at = 0, turn = 0; at < n; turn++) {
        int step = sizes[turn % 8] < n - at ? sizes[turn % 8] : n - at;
        if (lk_session_eval(session, tok + at, step, true, &err) != LK_OK) fail_msg("%s", err.msg);
        for (int i = 0; i < step; i++)
            memcpy(out + (size_t)(at + i) * n_vocab, lk_session_logits(session, i),
                   n_vocab * sizeof *out);
        at += step;
    }
}

/* ---- tests ---- */

static void test_f16_is_libllamas(void **state) {
    enum { N = 90 };
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        if (spec->type != GGML_TYPE_F32) continue;
        lk_model_opts opts = {.n_threads = 2, .n_ctx = 256};
        lk_model *model = open_tiny(spec, &opts);
        int n_vocab = vocab_of(model), n = spec->n_ctx > 0 && spec->n_ctx < N ? spec->n_ctx : N;
        int32_t tok[N];
        random_tokens(tok, n, model, 3);
        struct oracle oracle;
        assert_true(tiny_gguf_write(path, spec) &&
                    oracle_open(&oracle, path, NULL, 256, GGML_TYPE_F16, GGML_TYPE_F16, false, 1));
        const float *ref = oracle_eval(&oracle, tok, n, 0);
        assert_non_null(ref);
        float *ours = malloc((size_t)n * n_vocab * sizeof *ours);
        lk_recipe *recipe;
        lk_session *session = open_session(model, "f16", n, &recipe);
        eval_all(session, tok, n, n_vocab, ours);
        double stepped = nmse(ours, ref, (size_t)n * n_vocab);
        lk_session_free(session);
        lk_recipe_free(recipe);
        session = open_session(model, "f16", n, &recipe);
        assert_int_equal(lk_session_sync(session, tok, n, NULL, NULL), LK_OK);
        double prefilled =
            nmse(lk_session_logits(session, -1), ref + (size_t)(n - 1) * n_vocab, n_vocab);
        print_message("%-24s nmse %.2g stepped, %.2g prefilled\n", spec->name, stepped, prefilled);
        if (!(stepped <= 1e-5 && prefilled <= 1e-5))
            fail_msg("%s: nmse %g stepped, %g prefilled", spec->name, stepped, prefilled);
        free(ours);
        lk_session_free(session);
        lk_recipe_free(recipe);
        oracle_close(&oracle, true);
        lk_model_free(model);
    }
}

static const char *mixed = "sink 4: f16; body: k=rot4 v=rot4; window 32: f16";

static void test_prompt_then_steps(void **state) {
    enum { N = 700 };
    lk_model *model = open_preset("llama", 1024, 2);
    int n_vocab = vocab_of(model);
    int32_t tok[N];
    random_tokens(tok, N, model, 4);
    lk_recipe *recipe, *f16;
    lk_session *a = open_session(model, mixed, N, &recipe),
               *b = open_session(model, "f16", N, &f16);
    assert_int_equal(lk_session_sync(a, tok, 600, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(b, tok, 600, NULL, NULL), LK_OK);
    /* Prefill is exact; compression shows from the next token on. */
    assert_true(nmse(lk_session_logits(a, -1), lk_session_logits(b, -1), n_vocab) < 1e-9);
    for (int i = 600; i < N; i++) {
        assert_int_equal(lk_session_eval(a, tok + i, 1, false, NULL), LK_OK);
        assert_int_equal(lk_session_eval(b, tok + i, 1, false, NULL), LK_OK);
        double e = nmse(lk_session_logits(a, -1), lk_session_logits(b, -1), n_vocab);
        if (!(e < 0.04)) /* rot4 has at most 0.029, rot3 0.137 */
            fail_msg("token %d: nmse %g", i, e);
    }
    lk_session_stats sa = lk_session_get_stats(a), sb = lk_session_get_stats(b);
    assert_true(sa.bits_per_value < 8 && sb.bits_per_value > 15.9 && sb.bits_per_value < 17);
    assert_int_equal(sa.f16_bytes, sb.f16_bytes);
    assert_int_equal(sa.cache_bytes, lk_ledger_bytes(&a->ledger, LK_FOR_CACHE) +
                                         lk_ledger_bytes(&a->rows.ledger, LK_FOR_CACHE));
    lk_session_free(a), lk_session_free(b);
    lk_recipe_free(recipe), lk_recipe_free(f16);
    lk_model_free(model);
}

/* Allocations that ggml makes by itself for each graph, even for an empty one. */
static long ggml_allocations(lk_model *model) {
    struct lk_graph graph = {0};
    struct lk_ledger ledger = {0};
    assert_int_equal(lk_graph_begin(&graph, 4, &ledger, NULL), LK_OK);
    assert_int_equal(lk_graph_run(&graph, model, NULL), LK_OK);
    long before = n_malloc;
    assert_int_equal(lk_graph_run(&graph, model, NULL), LK_OK);
    long n = n_malloc - before;
    lk_graph_free(&graph, &ledger);
    return n;
}

static void test_decode_allocates_nothing(void **state) {
    if (!CAN_COUNT) skip();
    enum { PROMPT = 300, STEPS = 200 };
    lk_model *model = open_preset("llama", 1024, 2);
    int32_t tok[PROMPT + STEPS];
    random_tokens(tok, PROMPT + STEPS, model, 5);
    long by_ggml = ggml_allocations(model);
    assert_true(by_ggml <= 2);
    static const char *recipes[] = {"f16",       "selective",  "kivi-2", "kivi-4", "best-4",
                                    "best-3",    "best-2",     "lambda", "hqq-2",  "atom-4",
                                    "kvquant-3", "kvarn-k4v2", NULL};
    for (int i = 0; recipes[i]; i++) {
        lk_recipe *recipe;
        lk_session *session = open_session(model, recipes[i], PROMPT + STEPS, &recipe);
        assert_int_equal(lk_session_sync(session, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_eval(session, tok + PROMPT, 1, false, NULL),
                         LK_OK); /* builds the graph */
        assert_int_equal(lk_session_reserve(session, STEPS, NULL), LK_OK);
        long before = n_malloc;
        uint64_t entered = session->ledger.n_alloc;
        for (int t = 1; t < STEPS; t++)
            assert_int_equal(lk_session_eval(session, tok + PROMPT + t, 1, false, NULL), LK_OK);
        before += by_ggml * (STEPS - 1);
        if (n_malloc != before || session->ledger.n_alloc != entered)
            fail_msg("%s: %ld allocations in %d steps, %d of them the ledger's", recipes[i],
                     n_malloc - before, STEPS - 1, (int)(session->ledger.n_alloc - entered));
        lk_session_free(session);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Whichever allocation fails, there is an error with a message, and the session stays usable. */
static void test_failed_allocations(void **state) {
    enum { N = 260 };
    lk_model *model = open_preset("llama", 512, 1);
    int32_t tok[N];
    random_tokens(tok, N, model, 6);
    lk_recipe *recipe;
    lk_session *session = open_session(model, mixed, N, &recipe);
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        lk_err err = {0};
        atomic_store(&session->ledger.fail_at, nth);
        lk_status status = lk_session_sync(session, tok, N - 40, NULL, &err);
        for (int i = N - 40; status == LK_OK && i < N; i++)
            status = lk_session_eval(session, tok + i, 1, false, &err);
        bool reached = atomic_load(&session->ledger.fail_at) <= 0;
        atomic_store(&session->ledger.fail_at, 0);
        if (!reached) break;
        n_failed++;
        if (status != LK_E_NOMEM || !err.msg[0])
            fail_msg("allocation %d: status %d, \"%s\"", nth, status, err.msg);
        if (lk_session_sync(session, tok, 20, NULL, &err) != LK_OK)
            fail_msg("after allocation %d: %s", nth, err.msg);
        lk_session_clear(session);
    }
    assert_true(n_failed > 15);
    lk_session *none = NULL;
    lk_err err = {0};
    atomic_store(&model->ledger.fail_at, 1);
    assert_int_equal(lk_session_new(&none, model, recipe, NULL, &err), LK_E_NOMEM);
    assert_true(!none && err.msg[0]);
    for (uint64_t limit = 1000; limit < 40u << 20; limit += limit / 5) {
        lk_session *small = NULL;
        lk_session_opts opts = {.n_ctx = N, .max_bytes = limit};
        lk_err err = {0};
        lk_status status = lk_session_new(&small, model, recipe, &opts, &err);
        if (status == LK_OK) status = lk_session_sync(small, tok, N, NULL, &err);
        assert_true(status == LK_OK || (status == LK_E_NOMEM && err.msg[0]));
        lk_session_free(small);
    }
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Chunked prefill uses smaller chunks if memory runs out. */
static void test_small_chunks(void **state) {
    enum { N = 700 };
    lk_model *model = open_preset("llama", 1024, 1);
    int32_t tok[N];
    random_tokens(tok, N, model, 7);
    lk_recipe *recipe;
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    float *logits = malloc(vocab_of(model) * sizeof *logits);
    uint64_t free_size = 0;
    for (int limited = 0; limited < 2; limited++) {
        lk_session *session;
        lk_session_opts opts = {
            .n_ctx = N, .chunked_prefill = true, .max_bytes = limited ? free_size * 2 / 3 : 0};
        lk_err err = {0};
        assert_int_equal(lk_session_new(&session, model, recipe, &opts, NULL), LK_OK);
        if (lk_session_sync(session, tok, N, NULL, &err) != LK_OK) fail_msg("%s", err.msg);
        lk_session_stats stats = lk_session_get_stats(session);
        if (!limited) {
            free_size = stats.cache_bytes + stats.scratch_bytes;
            memcpy(logits, lk_session_logits(session, -1), vocab_of(model) * sizeof *logits);
        } else {
            assert_true(session->rows.device || /* which has a limit of its own */
                        stats.cache_bytes + stats.scratch_bytes <= opts.max_bytes);
            assert_true(nmse(lk_session_logits(session, -1), logits, vocab_of(model)) < 1e-9);
        }
        lk_session_free(session);
    }
    free(logits);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static void test_sessions_are_independent(void **state) {
    enum { N = 150, SESSIONS = 3 };
    lk_model *model = open_preset("qwen2", 0, 2);
    int n_vocab = vocab_of(model);
    static const char *recipes[SESSIONS] = {"f16", "best-3", "selective"};
    int32_t tok[SESSIONS][N];
    lk_recipe *recipe[SESSIONS];
    lk_session *session[SESSIONS];
    float *alone[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        random_tokens(tok[i], N, model, 10 + i);
        session[i] = open_session(model, recipes[i], N, &recipe[i]);
        alone[i] = malloc((size_t)N * n_vocab * sizeof(float));
        for (int t = 0; t < N; t++) {
            assert_int_equal(lk_session_eval(session[i], tok[i] + t, 1, false, NULL), LK_OK);
            memcpy(alone[i] + (size_t)t * n_vocab, lk_session_logits(session[i], -1),
                   n_vocab * sizeof(float));
        }
        lk_session_clear(session[i]);
    }
    for (int t = 0; t < N; t++)
        for (int i = 0; i < SESSIONS; i++) {
            assert_int_equal(lk_session_eval(session[i], tok[i] + t, 1, false, NULL), LK_OK);
            assert_memory_equal(alone[i] + (size_t)t * n_vocab, lk_session_logits(session[i], -1),
                                n_vocab * sizeof(float));
        }
    for (int i = 0; i < SESSIONS; i++) {
        lk_session_free(session[i]);
        lk_recipe_free(recipe[i]);
        free(alone[i]);
    }
    lk_model_free(model);
}

static void test_sync_keeps_common_prefix(void **state) {
    enum { N = 200 };
    lk_model *model = open_preset("llama", 0, 1);
    int n_vocab = vocab_of(model);
    int32_t tok[N];
    size_t kept;
    random_tokens(tok, N, model, 8);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", N, &recipe);
    assert_int_equal(lk_session_sync(s, tok, 100, &kept, NULL), LK_OK);
    assert_int_equal(kept, 0);
    assert_int_equal(lk_session_sync(s, tok, 150, &kept, NULL), LK_OK);
    assert_int_equal(kept, 100);
    tok[120] = (tok[120] + 1) % n_vocab;
    assert_int_equal(lk_session_sync(s, tok, 150, &kept, NULL), LK_OK);
    assert_int_equal(kept, 120);
    assert_int_equal(lk_session_n_tok(s), 150);
    assert_int_equal(lk_session_sync(s, tok, 150, &kept, NULL), LK_OK);
    assert_int_equal(kept, 150);
    float *again = malloc(n_vocab * sizeof *again);
    memcpy(again, lk_session_logits(s, -1), n_vocab * sizeof *again);
    lk_session_clear(s);
    assert_int_equal(lk_session_sync(s, tok, 150, NULL, NULL), LK_OK);
    assert_true(nmse(again, lk_session_logits(s, -1), n_vocab) < 1e-5);
    lk_session_clear(s); /* a shorter text has logits of its own */
    assert_int_equal(lk_session_sync(s, tok, 110, NULL, NULL), LK_OK);
    memcpy(again, lk_session_logits(s, -1), n_vocab * sizeof *again);
    assert_int_equal(lk_session_sync(s, tok, 150, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 110, &kept, NULL), LK_OK);
    assert_int_equal(kept, 109);
    assert_non_null(lk_session_logits(s, -1));
    assert_true(nmse(again, lk_session_logits(s, -1), n_vocab) < 1e-5);
    free(again);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The logits always belong to the session's last token, or there are none. */
static void test_failures_leave_no_wrong_logits(void **state) {
    enum { BEFORE = 100, N = 190 };
    lk_model *model = open_preset("llama", 0, 1);
    int n_vocab = vocab_of(model);
    size_t row = n_vocab * sizeof(float), kept = 77;
    int32_t tok[N], other[N];
    random_tokens(tok, N, model, 12);
    random_tokens(other, N, model, 13);
    memcpy(other, tok, BEFORE * sizeof *tok);
    lk_recipe *recipe, *again;
    lk_session *s = open_session(model, "f16", N, &recipe),
               *plain = open_session(model, "f16", N, &again);
    assert_int_equal(lk_session_sync(plain, tok, BEFORE, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 150, NULL, NULL), LK_OK);
    s->ledger.limit = 1;
    assert_int_equal(lk_session_sync(s, other, N, &kept, NULL), LK_E_NOMEM);
    s->ledger.limit = 0;
    assert_int_equal(kept, 77);
    assert_int_equal(lk_session_n_tok(s), BEFORE);
    assert_null(lk_session_logits(s, -1));
    assert_int_equal(lk_session_sync(s, tok, BEFORE, &kept, NULL), LK_OK);
    assert_int_equal(kept, BEFORE - 1);
    assert_true(nmse(lk_session_logits(s, -1), lk_session_logits(plain, -1), n_vocab) < 1e-5);

    float *here = malloc(row); /* a step that cannot start changes nothing */
    memcpy(here, lk_session_logits(s, -1), row);
    s->ledger.limit = 1;
    assert_int_equal(lk_session_eval(s, tok + BEFORE, 60, true, NULL), LK_E_NOMEM);
    s->ledger.limit = 0;
    assert_int_equal(lk_session_n_tok(s), BEFORE);
    assert_memory_equal(lk_session_logits(s, -1), here, row);
    lk_release(&model->ledger, LK_FOR_SCRATCH, model->work, model->work_size);
    model->work = NULL;
    model->work_size = 0;
    lk_session *none = NULL;
    model->ledger.limit = 1;
    assert_int_equal(lk_session_eval(s, tok + BEFORE, 60, true, NULL), LK_E_NOMEM);
    assert_int_equal(lk_session_new(&none, model, recipe, NULL, NULL), LK_E_NOMEM);
    model->ledger.limit = 0;
    assert_int_equal(lk_session_n_tok(s), BEFORE);
    assert_memory_equal(lk_session_logits(s, -1), here, row);
    assert_int_equal(lk_session_eval(s, tok + BEFORE, 60, true, NULL), LK_OK);
    assert_non_null(lk_session_logits(s, 0));
    free(here);
    lk_session_free(s), lk_session_free(plain);
    lk_recipe_free(recipe), lk_recipe_free(again);
    lk_model_free(model);
}

/* The statistics of a level come from a layer that has it. */
static void test_levels_of_some_layers(void **state) {
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[90];
    random_tokens(tok, 90, model, 14);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "body: rot3(nosigma); layers first 1: f16", 90, &recipe);
    assert_true(lk_model_get_info(model).n_layer > 1);
    assert_int_equal(lk_session_sync(s, tok, 90, NULL, NULL), LK_OK);
    lk_level_stats body, newest, none;
    lk_plan plan;
    assert_true(lk_session_get_level(s, 0, &body) && lk_session_get_level(s, 1, &newest) &&
                !lk_session_get_level(s, 2, &none));
    assert_string_equal(body.k_codec, "rot3(nosigma)");
    assert_string_equal(newest.v_codec, "f16");
    assert_int_equal(body.k_rows + newest.k_rows, 90);
    assert_true(newest.k_rows > 0);
    lk_session_opts opts = {.n_ctx = -1};
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_E_ARG);
    opts.n_ctx = INT32_MAX;
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan, NULL), LK_E_ARG);
    assert_int_equal(lk_plan_make(model, recipe, NULL, &plan, NULL), LK_OK);
    assert_int_equal(plan.n_tok, lk_model_get_info(model).n_ctx_train);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static bool stop_half_way(void *user, uint64_t done, uint64_t total) { return done * 2 < total; }

/* Linux gives a signal that is blocked here to any thread that does not block it, which would end
 * the program. */
static void test_threads_take_no_signals(void **state) {
    lk_model_opts opts = {.n_threads = 3};
    lk_model *model = open_tiny(&tiny_presets[0], &opts);
    sigset_t stop, before;
    int taken = 0;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &stop, &before), 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_int_equal(sigwait(&stop, &taken), 0);
    assert_int_equal(taken, SIGTERM);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    lk_model_free(model);
}

static void test_misuse(void **state) {
    lk_model *model = open_preset("gpt2", 0, 1);
    int n_vocab = vocab_of(model), trained = lk_model_get_info(model).n_ctx_train;
    int32_t tok[64] = {0};
    lk_recipe *recipe;
    lk_err err = {0};
    lk_session *s = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    lk_session_opts opts = {.n_ctx = trained + 1};
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, &err),
                     LK_E_ARG); /* beyond the learned positions */
    opts.n_ctx = -1;
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, &err), LK_E_ARG);
    opts.n_ctx = 40;
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, &err), LK_OK);
    assert_null(lk_session_logits(s, -1));
    assert_int_equal(lk_session_sync(s, tok, 0, NULL, &err), LK_E_ARG);
    assert_int_equal(lk_session_sync(s, tok, 41, NULL, &err), LK_E_FULL);
    tok[3] = n_vocab;
    assert_int_equal(lk_session_sync(s, tok, 10, NULL, &err), LK_E_ARG);
    tok[3] = -1;
    assert_int_equal(lk_session_eval(s, tok, 10, false, &err), LK_E_ARG);
    tok[3] = 1;
    assert_int_equal(lk_session_eval(s, tok, LK_EVAL_MAX + 1, false, &err), LK_E_ARG);
    assert_int_equal(lk_session_eval(s, tok, 40, false, &err), LK_OK);
    assert_int_equal(lk_session_eval(s, tok, 1, false, &err), LK_E_FULL);
    assert_int_equal(lk_session_n_tok(s), 40);
    lk_session_free(s);
    opts.progress = stop_half_way;
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, &err), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 40, NULL, &err), LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(s), 0);
    assert_int_equal(lk_session_eval(s, tok, 20, false, &err), LK_OK);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    register_baselines();
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_is_libllamas),
        cmocka_unit_test(test_prompt_then_steps),
        cmocka_unit_test(test_decode_allocates_nothing),
        cmocka_unit_test(test_failed_allocations),
        cmocka_unit_test(test_small_chunks),
        cmocka_unit_test(test_sessions_are_independent),
        cmocka_unit_test(test_sync_keeps_common_prefix),
        cmocka_unit_test(test_failures_leave_no_wrong_logits),
        cmocka_unit_test(test_levels_of_some_layers),
        cmocka_unit_test(test_threads_take_no_signals),
        cmocka_unit_test(test_misuse),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
