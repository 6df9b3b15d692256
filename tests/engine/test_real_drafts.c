/* Drafts on a real model: the choices are the same as in decoding one by one, except between
 * tokens whose logits are equal but for rounding. The model must be there; otherwise the tests are
 * skipped. */
#include "lowkey_draft.h"
#include "test.h"

#include <unistd.h>

enum { PROMPT = 700, N = 64, CTX = 1024 };

static const char smollm[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
static const char *const recipes[] = {"f16", "best-4", "best-3", "best-2"};

static lk_model *open_model(const char *name, lk_weights weights) {
    const char *dir = getenv("LOWKEY_MODELS"), *cache = getenv("LOWKEY_CACHE"),
               *home = getenv("HOME");
    char path[1024];
    lk_model *model = NULL;
    lk_err err = {0};
    if (dir)
        snprintf(path, sizeof path, "%s/%s", dir, name);
    else if (cache)
        snprintf(path, sizeof path, "%s/models/%s", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/lowkey/models/%s", home ? home : ".", name);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s does not exist; run scripts/fetch-model\n", path);
        skip();
    }
    lk_model_opts opts = {.n_threads = 2, .weights = weights};
    if (lk_model_open(&model, path, &opts, &err)) fail_msg("%s", err.msg);
    return model;
}

/* A session that holds the first tokens of drafts.txt, a text with repetitions. Errors with weights
 * as shipped depend on the text, so it stays as it is. */
static lk_session *open_session(lk_model *model, const char *text, lk_recipe **recipe) {
    lk_session *s = NULL;
    lk_err err = {0};
    static char words[1 << 16];
    int32_t *tok;
    size_t n;
    FILE *f = fopen(LOWKEY_SOURCE "/tests/engine/drafts.txt", "rb");
    assert_non_null(f);
    n = fread(words, 1, sizeof words, f);
    fclose(f);
    assert_int_equal(lk_tokenize(model, words, n, LK_TOKENIZE_BEGIN, 0, &tok, &n, &err), LK_OK);
    assert_true(n >= PROMPT);
    assert_int_equal(lk_recipe_parse(recipe, text, NULL), LK_OK);
    assert_int_equal(lk_session_new(&s, model, *recipe, &(lk_session_opts){.n_ctx = CTX}, NULL),
                     LK_OK);
    if (lk_session_sync(s, tok, PROMPT, NULL, &err)) fail_msg("%s", err.msg);
    lk_tokens_free(tok);
    return s;
}

/* A copy, which saves the time of another prefill. */
static lk_session *copy_session(lk_model *model, const lk_recipe *recipe, lk_session *from) {
    lk_session *s = NULL;
    assert_int_equal(lk_session_new(&s, model, recipe, &(lk_session_opts){.n_ctx = CTX}, NULL),
                     LK_OK);
    assert_int_equal(lk_session_copy(s, from, NULL), LK_OK);
    return s;
}

static int32_t best_of(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Greedy decoding one by one: N tokens, and the logits [N][n_vocab] that chose them. */
static void decode_plainly(lk_session *s, size_t n_vocab, int32_t *tok, float *logits) {
    for (int i = 0; i < N; i++) {
        memcpy(logits + (size_t)i * n_vocab, lk_session_logits(s, -1), n_vocab * sizeof *logits);
        tok[i] = best_of(lk_session_logits(s, -1), n_vocab);
        assert_int_equal(lk_session_eval(s, &tok[i], 1, false, NULL), LK_OK);
    }
}

/* Two tokens whose logits differ by less are a tie. */
static const double max_tie = 0.25;

/* Passes of random sizes with right drafts, and wrong ones after them. The weights as shipped round
 * activations to 8 bits, in another way for one row than for several. With f32 weights nothing but
 * the order of sums differs, and, in lossy caches, rarely a code: one of few bits matters more. */
static void compare_logits(lk_weights weights, const double *max_error, int max_ties) {
    lk_model *model = open_model(smollm, weights);
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    float *logits = malloc(N * n_vocab * sizeof *logits);
    for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[k], &recipe),
                   *plain_session = copy_session(model, recipe, s);
        int32_t tok[N], pass[LK_DRAFT_MAX];
        struct random r = {k};
        double worst = 0, widest = 0;
        int n_tie = 0, at = 0;
        decode_plainly(plain_session, n_vocab, tok, logits);
        lk_session_free(plain_session);
        while (at + 1 < N) {
            size_t n = lk_session_draftable(s, (size_t)random_int(&r, 1, LK_DRAFT_MAX), NULL);
            int n_right = random_int(&r, 1, (int)n);
            if (n_right > N - 1 - at) n_right = N - 1 - at;
            for (size_t i = 0; i < n; i++)
                pass[i] = (int)i < n_right ? tok[at + (int)i] : random_int(&r, 0, 40000);
            assert_int_equal(lk_session_eval(s, pass, n, true, NULL), LK_OK);
            for (int i = 0; i < n_right; i++) {
                const float *plain = logits + (size_t)(at + i + 1) * n_vocab,
                            *ours = lk_session_logits(s, i);
                double e = nmse(ours, plain, n_vocab);
                int32_t best = best_of(ours, n_vocab), other = tok[at + i + 1];
                if (e > worst) worst = e;
                if (best == other) continue;
                double gap = (double)(plain[other] - plain[best]);
                if (gap > widest) widest = gap;
                n_tie++;
            }
            size_t held = PROMPT + (size_t)(at += n_right);
            assert_int_equal(lk_session_truncate(s, held, NULL), LK_OK);
        }
        print_message("%-7s NMSE of logits at most %.1e; %d of %d choices are ties, gap at most "
                      "%.3f\n",
                      recipes[k], worst, n_tie, N, widest);
        if (!(worst < max_error[k] && widest < max_tie && n_tie <= max_ties))
            fail_msg("%s", recipes[k]);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    free(logits);
    lk_model_free(model);
}

static void test_logits(void **state) {
    compare_logits(LK_WEIGHTS_AS_SHIPPED, (double[]){0.02, 0.02, 0.02, 0.2}, N / 20);
}

static void test_logits_of_f32(void **state) {
    compare_logits(LK_WEIGHTS_F32, (double[]){1e-5, 5e-4, 5e-3, 0.1}, 0);
}

/* Decode N tokens greedily with a drafter. Every pass is reported to take a second. */
static lk_draft_stats decode_with_drafts(lk_model *model, lk_session *s, int32_t *tok) {
    lk_drafter *drafter = NULL;
    lk_sampler *sampler = NULL;
    int32_t pass[LK_DRAFT_MAX], next;
    lk_err err = {0};
    if (lk_drafter_new(&drafter, s, &err)) fail_msg("%s", err.msg);
    assert_int_equal(lk_sampler_new(&sampler, model, NULL, NULL), LK_OK);
    assert_int_equal(lk_sampler_next(sampler, s, -1, &pass[0], NULL), LK_OK);
    for (int n_tok = 0; n_tok < N;) {
        size_t n = lk_drafter_next(drafter, pass, LK_DRAFT_MAX, 0), n_kept = 0;
        if (lk_session_eval(s, pass, n, true, &err)) fail_msg("%s", err.msg);
        do {
            tok[n_tok++] = pass[n_kept++];
            assert_int_equal(lk_sampler_next(sampler, s, (int32_t)n_kept - 1, &next, NULL), LK_OK);
        } while (n_kept < n && next == pass[n_kept] && n_tok < N);
        assert_int_equal(lk_session_truncate(s, lk_session_n_tok(s) - (n - n_kept), NULL), LK_OK);
        lk_drafter_report(drafter, n, n_kept, 0, 1);
        pass[0] = next;
    }
    lk_draft_stats stats = lk_drafter_get_stats(drafter);
    lk_drafter_free(drafter);
    lk_sampler_free(sampler);
    return stats;
}

/* Greedy texts: with f32 weights, see above, all tokens are the same with drafts. */
static void test_texts(void **state) {
    lk_model *model = open_model(smollm, LK_WEIGHTS_F32);
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    float *logits = malloc(N * n_vocab * sizeof *logits);
    for (size_t k = 0; k < 2; k++) {
        lk_recipe *recipe;
        lk_session *prompt = open_session(model, recipes[k], &recipe),
                   *s = copy_session(model, recipe, prompt);
        int32_t plain[N], ours[N];
        decode_plainly(s, n_vocab, plain, logits);
        lk_session_free(s);
        s = copy_session(model, recipe, prompt);
        lk_draft_stats stats = decode_with_drafts(model, s, ours);
        int same = 0;
        while (same < N && ours[same] == plain[same]) same++;
        print_message("%-7s %d of %d drafts were right\n", recipes[k], (int)stats.n_accepted,
                      (int)stats.n_drafted);
        assert_int_equal(same, N);
        assert_true(stats.n_accepted > 5);
        lk_session_free(s);
        lk_session_free(prompt);
        lk_recipe_free(recipe);
    }
    free(logits);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_logits_of_f32),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
