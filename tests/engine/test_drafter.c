/* Drafters: the index of n-grams against a plain search, the number of drafts, and that decoding
 * with drafts chooses what decoding one by one chooses. */
#include "engine/drafter.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 600 };

/* ---- the index ---- */

/* The plain account of lk_ngram_index_find. */
static int find_plainly(const int32_t *tok, size_t n_tok, int32_t next, int32_t *out, size_t max) {
    int32_t text[CTX + LK_DRAFT_MAX + 1];
    memcpy(text, tok, n_tok * sizeof *tok);
    text[n_tok] = next;
    for (int n = LK_NGRAM_MAX; n >= LK_NGRAM_MIN; n--)
        for (size_t end = n_tok; end-- > 0 && end + 1 >= (size_t)n;) {
            /* the n-gram ends at `end`, and another token of the text follows it */
            if (end + 1 >= n_tok || n_tok + 1 < (size_t)n) continue;
            if (memcmp(text + end + 1 - n, text + n_tok + 1 - n, (size_t)n * sizeof *text) != 0)
                continue;
            for (size_t i = 0; i < max; i++) text[n_tok + 1 + i] = text[end + 1 + i];
            memcpy(out, text + n_tok + 1, max * sizeof *out);
            for (; n < LK_NGRAM_MATCH && (size_t)n <= end; n++)
                if (text[end - n] != text[n_tok - n]) break;
            return n;
        }
    return 0;
}

static void test_index_is_a_search(void **state) {
    struct lk_ledger ledger = {0};
    struct random r = {7};
    int n_found[LK_NGRAM_MATCH + 1] = {0};
    for (int round = 0; round < 200; round++) {
        struct lk_ngram_index index;
        int32_t tok[CTX], ours[LK_DRAFT_MAX], theirs[LK_DRAFT_MAX];
        int alphabet = random_int(&r, 1, 40);
        assert_true(lk_ngram_index_init(&index, CTX, &ledger));
        assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), lk_ngram_index_bytes(CTX));
        for (size_t n = 0; n < CTX;) {
            size_t more = (size_t)random_int(&r, 1, 30);
            size_t from = random_int(&r, 0, 2) ? n : (size_t)random_int(&r, 0, (int)n);
            for (; more > 0 && n < CTX; more--, n++) /* new tokens, or a copy of earlier ones */
                tok[n] = from < n ? tok[from++] : random_int(&r, 0, alphabet) << 7;
            if (random_int(&r, 0, 30) == 0) lk_ngram_index_clear(&index);
            lk_ngram_index_extend(&index, tok, n);
            int32_t next = from < n ? tok[from] : random_int(&r, 0, alphabet) << 7;
            size_t max = (size_t)random_int(&r, 1, LK_DRAFT_MAX);
            int found = lk_ngram_index_find(&index, tok, next, ours, max);
            assert_int_equal(found, find_plainly(tok, n, next, theirs, max));
            if (found) assert_memory_equal(ours, theirs, max * sizeof *ours);
            n_found[found]++;
        }
        lk_ngram_index_free(&index, &ledger);
    }
    for (int n = LK_NGRAM_MIN; n <= LK_NGRAM_MATCH; n++) assert_true(n_found[n] > 10);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 0);
}

static void test_index_without_memory(void **state) {
    for (int fail = 1; fail <= LK_N_NGRAM; fail++) {
        struct lk_ledger ledger = {.fail_at = fail};
        struct lk_ngram_index index;
        assert_false(lk_ngram_index_init(&index, CTX, &ledger));
        assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 0);
    }
}

/* ---- the number of drafts ---- */

/* Tokens per second, in units of those without drafts, on a machine on which a pass of n tokens
 * takes 1 + slope (n - 1) seconds and drafts are right with probability p. */
static double simulate(double slope, double p, size_t n_other, size_t *last) {
    struct lk_draft_pace pace = {0};
    struct random r = {11};
    double seconds = 0, n_tok = 0;
    for (int i = 0; i < 2000; i++) {
        size_t n = lk_draft_pace_choose(&pace, 2, LK_DRAFT_MAX - 1, n_other), n_right = 0;
        double t = 1 + slope * (double)(n + n_other);
        while (n_right < n && random_uniform(&r) < p) n_right++;
        lk_draft_pace_measure(&pace, n + 1 + n_other, t);
        if (n)
            lk_draft_pace_judge(&pace, 2, n, n_right);
        else /* as a drafter does */
            lk_draft_pace_judge(&pace, 2, 1, random_uniform(&r) < p);
        seconds += t;
        n_tok += 1 + (double)n_right;
        *last = n;
    }
    double speed = n_tok / seconds * (1 + slope * (double)n_other);
    print_message("slope %g, right %g, others %zu: %.3f, passes of %zu\n", slope, p, n_other, speed,
                  *last + 1);
    return speed;
}

static void test_pace_finds_what_pays(void **state) {
    size_t last;
    assert_true(simulate(0.02, 0.97, 0, &last) > 6 && last >= 15);
    assert_true(simulate(0.3, 0.9, 0, &last) > 1.5);
    assert_true(simulate(1, 0.9, 0, &last) > 0.97); /* a pass saves nothing */
    assert_true(simulate(0.1, 0, 0, &last) > 0.97); /* no draft is right */
    assert_true(simulate(0.1, 0.3, 0, &last) > 1.05);
    for (size_t n_other = 1; n_other < 12; n_other++)
        assert_true(simulate(0.01, 0.9, n_other, &last) > 1.2);
    simulate(0.1, 1, 3, &last); /* 1.3 s without drafts; other answers wait for 1.95 s at most */
    assert_true(last > 0 && 1 + 0.1 * (double)(last + 3) <= 1.5 * 1.3);
}

/* Larger passes are supposed to take longer before they are measured: wrong drafts do not pay. */
static void test_pace_supposes_larger_passes_slower(void **state) {
    struct lk_draft_pace pace = {0};
    for (int i = 0; i < 4; i++) lk_draft_pace_judge(&pace, 2, 1, 0);
    lk_draft_pace_measure(&pace, 1, 1);
    assert_int_equal(lk_draft_pace_choose(&pace, 2, 3, 0), 0);
}

/* ---- decoding ---- */

struct text {
    int32_t tok[CTX];
    size_t n;
    lk_draft_stats stats;
};

/* Decode n tokens after the session's. Every pass is reported to take one second, so that
 * drafts are always worth a try. */
static void decode(lk_session *s, lk_sampler *sampler, lk_drafter *drafter, size_t n,
                   struct text *out) {
    int32_t pass[LK_DRAFT_MAX], tok;
    lk_err err = {0};
    out->n = 0;
    if (lk_sampler_next(sampler, s, -1, &pass[0], &err) != LK_OK) fail_msg("%s", err.msg);
    while (out->n < n) {
        size_t n_pass = drafter ? lk_drafter_next(drafter, pass, LK_DRAFT_MAX, 0) : 1, n_kept = 0;
        if (lk_session_eval(s, pass, n_pass, true, &err) != LK_OK) fail_msg("%s", err.msg);
        do {
            out->tok[out->n++] = pass[n_kept++];
            if (lk_sampler_next(sampler, s, (int32_t)n_kept - 1, &tok, &err) != LK_OK)
                fail_msg("%s", err.msg);
        } while (n_kept < n_pass && tok == pass[n_kept] && out->n < n);
        size_t n_held = lk_session_n_tok(s) - (n_pass - n_kept);
        if (lk_session_truncate(s, n_held, &err) != LK_OK) fail_msg("%s", err.msg);
        if (drafter) lk_drafter_report(drafter, n_pass, n_kept, 0, 1);
        pass[0] = tok;
    }
    if (drafter) out->stats = lk_drafter_get_stats(drafter);
}

static const lk_sampler_opts samplers[] = {
    {0},
    {.temperature = 0.7f, .seed = 3},
    {.temperature = 2, .top_k = 3, .seed = 4, .repeat_penalty = 1.1f},
    {.temperature = 1.5f, .top_p = 0.8f, .seed = 5, .presence_penalty = 0.2f},
    {.temperature = 1, .seed = 6, .grammar = "root ::= [a-z ]+", .ignore_eos = true},
};

/* The same seeds give the same tokens with drafts and without. */
static void test_same_tokens(void **state) {
    const char *preset = *state;
    static const char *const recipes[] = {"f16", "best-4", "best-2", "selective",
                                          "sink 4: f16; body: rot4; window 8: f16; read 50%"};
    enum { N = 300, PROMPT = 40 };
    lk_model *model = open_preset(preset, CTX, 2);
    bool has_texts = tiny_preset(preset)->tokenizer != TINY_NO_VOCAB; /* for grammars */
    lk_draft_stats all = {0};
    uint64_t n_case = 0;
    for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++)
        for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
            struct text text[2];
            if ((samplers[i].grammar && !has_texts) || !case_runs(k + i)) continue;
            n_case++;
            for (int drafts = 0; drafts < 2; drafts++) {
                lk_recipe *recipe;
                lk_session *s = open_session(model, recipes[k], CTX, &recipe);
                lk_sampler *sampler;
                lk_drafter *drafter = NULL;
                int32_t prompt[PROMPT];
                lk_err err = {0};
                random_tokens(prompt, PROMPT, model, k);
                assert_int_equal(lk_session_sync(s, prompt, PROMPT, NULL, NULL), LK_OK);
                if (lk_sampler_new(&sampler, model, &samplers[i], &err)) fail_msg("%s", err.msg);
                if (drafts) assert_int_equal(lk_drafter_new(&drafter, s, NULL), LK_OK);
                decode(s, sampler, drafter, N, &text[drafts]);
                assert_int_equal(lk_session_n_tok(s), PROMPT + N);
                lk_drafter_free(drafter);
                lk_sampler_free(sampler);
                lk_session_free(s);
                lk_recipe_free(recipe);
            }
            for (int t = 0; t < N; t++)
                if (text[0].tok[t] != text[1].tok[t])
                    fail_msg("%s, %s, sampler %zu: token %d differs", preset, recipes[k], i, t);
            all.n_drafted += text[1].stats.n_drafted;
            all.n_accepted += text[1].stats.n_accepted;
        }
    print_message("%d drafts, %d right\n", (int)all.n_drafted, (int)all.n_accepted);
    /* Both kinds were met: drafts that were right, and drafts that were not. */
    assert_true(all.n_accepted > 20 * n_case);
    assert_true(all.n_drafted > all.n_accepted + 4 * n_case);
    lk_model_free(model);
}

/* A model, and a temperature at which many tokens are probable. */
struct hot_model {
    const char *preset;
    float temperature;
};

/* Pearson's chi-square of the tokens that follow a prompt with drafts, against their
 * probabilities. Drafts are what the session says about its first tokens, so most are wrong. */
static void test_distribution(void **state) {
    enum { N = 6000, PROMPT = 30, V = 320 };
    const struct hot_model *hot = *state;
    lk_model *model = open_preset(hot->preset, CTX, 2);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "best-4", CTX, &recipe), *from;
    lk_sampler *first, *sampler;
    int32_t prompt[PROMPT], pass[3];
    int count[V] = {0}, n_sample = 0;
    lk_session_opts opts = {.n_ctx = CTX};
    lk_sampler_opts sampling = {.temperature = hot->temperature, .seed = 1};
    random_tokens(prompt, PROMPT, model, 1);
    assert_int_equal(lk_session_new(&from, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(from, prompt, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_sampler_new(&first, model, &sampling, NULL), LK_OK);
    lk_token_logprob top[2];
    assert_int_equal(lk_session_logprobs(from, -1, 0, NULL, top, 2, NULL), LK_OK);
    /* The distribution of the token after prompt and top[0], at this temperature. */
    assert_int_equal(lk_session_copy(s, from, NULL), LK_OK);
    assert_int_equal(lk_session_eval(s, &top[0].tok, 1, false, NULL), LK_OK);
    double p[V], sum = 0;
    for (int t = 0; t < V; t++) p[t] = exp((double)lk_session_logits(s, -1)[t] / hot->temperature);
    for (int t = 0; t < V; t++) sum += p[t];
    for (int i = 0; i < N; i++) {
        assert_int_equal(lk_sampler_copy(&sampler, first, (uint32_t)i + 100, NULL), LK_OK);
        assert_int_equal(lk_session_copy(s, from, NULL), LK_OK);
        pass[0] = top[0].tok, pass[1] = i % V, pass[2] = top[1].tok;
        assert_int_equal(lk_session_eval(s, pass, 3, true, NULL), LK_OK);
        int32_t tok;
        assert_int_equal(lk_sampler_next(sampler, s, 0, &tok, NULL), LK_OK);
        count[tok]++, n_sample++;
        assert_int_equal(lk_session_truncate(s, PROMPT + 1 + (tok == pass[1]), NULL), LK_OK);
        lk_sampler_free(sampler);
    }
    double chi2 = 0, rest = n_sample, p_rest = 1;
    int n_bin = 0;
    for (int t = 0; t < V; t++) {
        double expected = p[t] / sum * n_sample;
        if (expected < 10) continue;
        chi2 += (count[t] - expected) * (count[t] - expected) / expected;
        rest -= count[t], p_rest -= p[t] / sum, n_bin++;
    }
    if (p_rest * n_sample >= 10)
        chi2 += (rest - p_rest * n_sample) * (rest - p_rest * n_sample) / (p_rest * n_sample);
    print_message("chi-square %.1f with about %d degrees of freedom\n", chi2, n_bin);
    assert_true(n_bin > 20 && chi2 < n_bin + 4 * sqrt(2.0 * n_bin));
    lk_sampler_free(first);
    lk_session_free(from);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- limits ---- */

static void test_refusals(void **state) {
    static const struct {
        const char *recipe;
        bool drafts;
    } cases[] = {{"f16", true},
                 {"best-4", true},
                 {"best-3", true},
                 {"best-2", true},
                 {"selective", true},
                 {"atom-4", true},
                 {"rot4; read 25%", true},
                 {"trellis-2", true},
                 {"h2o", false},
                 {"tova", false},
                 {"streaming", false},
                 {"kivi-4", false},
                 {"keep 64 by newest: rot4; window 32: f16", true}};
    lk_model *model = open_preset("llama", CTX, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, cases[i].recipe, CTX, &recipe);
        lk_drafter *drafter = NULL;
        int32_t tok[CTX];
        lk_err err = {0};
        const char *why;
        random_tokens(tok, CTX, model, 3);
        lk_status status = lk_drafter_new(&drafter, s, &err);
        if (status != (cases[i].drafts ? LK_OK : LK_E_UNSUPPORTED))
            fail_msg("%s: %s", cases[i].recipe, err.msg);
        assert_int_equal(lk_session_sync(s, tok, 400, NULL, NULL), LK_OK);
        size_t n = lk_session_draftable(s, 2, &why);
        assert_int_equal(why == NULL, cases[i].drafts);
        for (int k = 0; n == 1 && k < 3; k++) { /* rows are about to age */
            assert_int_equal(lk_session_eval(s, tok + 400 + k, 1, false, NULL), LK_OK);
            n = lk_session_draftable(s, 2, NULL);
        }
        assert_int_equal(n, cases[i].drafts ? 2 : 1);
        lk_drafter_free(drafter);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_drafter_free(NULL);
    lk_model_free(model);
}

/* A checkpoint shares blocks with the session: drafts that are dropped do not touch them, and a
 * checkpoint of tokens that are gone is dropped. */
static void test_checkpoints(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe;
    lk_session *s = NULL, *plain;
    int32_t tok[CTX];
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab, n_reused;
    random_tokens(tok, CTX, model, 3);
    plain = open_session(model, "best-4", CTX, &recipe);
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4};
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(plain, tok, 300, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, 300, NULL, NULL), LK_OK);
    for (size_t n = 300; n < 500; n++) {
        assert_int_equal(lk_session_eval(plain, tok + n, 1, false, NULL), LK_OK);
        size_t fits = lk_session_draftable(s, 4, NULL);
        assert_int_equal(lk_session_eval(s, tok + n, fits, true, NULL), LK_OK);
        assert_int_equal(lk_session_truncate(s, n + 1, NULL), LK_OK);
    }
    assert_true(nmse(lk_session_logits(s, -1), lk_session_logits(plain, -1), n_vocab) < 1e-3);
    tok[400] ^= 1; /* back to the checkpoint */
    assert_int_equal(lk_session_sync(s, tok, 420, &n_reused, NULL), LK_OK);
    assert_int_equal(n_reused, 300);
    assert_int_equal(lk_session_sync(plain, tok, 300, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(plain, tok, 420, NULL, NULL), LK_OK); /* as one chunk, too */
    assert_true(nmse(lk_session_logits(s, -1), lk_session_logits(plain, -1), n_vocab) < 1e-3);
    assert_int_equal(lk_session_truncate(s, 419, NULL), LK_OK); /* a checkpoint is at 420 */
    assert_int_equal(lk_session_sync(s, tok, 420, &n_reused, NULL), LK_OK);
    assert_int_equal(n_reused, 419);
    lk_session_free(s);
    lk_session_free(plain);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static void test_truncate(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "best-4", CTX, &recipe);
    int32_t tok[CTX];
    lk_err err = {0};
    random_tokens(tok, CTX, model, 3);
    assert_int_equal(lk_session_truncate(s, 1, &err), LK_E_ARG);
    assert_int_equal(lk_session_sync(s, tok, 400, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_truncate(s, 401, &err), LK_E_ARG);
    assert_int_equal(lk_session_truncate(s, 0, &err), LK_E_ARG);
    assert_int_equal(lk_session_truncate(s, 400, &err), LK_OK);
    assert_non_null(lk_session_logits(s, -1));
    assert_int_equal(lk_session_truncate(s, 200, &err), LK_E_UNSUPPORTED);
    assert_int_equal(lk_session_n_tok(s), 400);
    assert_int_equal(lk_session_truncate(s, 399, &err), LK_OK); /* in the newest level */
    assert_null(lk_session_logits(s, -1));
    assert_int_equal(lk_session_n_tok(s), 399);
    assert_memory_equal(lk_session_tokens(s), tok, 399 * sizeof *tok);
    lk_session_free(s);
    lk_recipe_free(recipe);

    /* The context ends before the pass does. */
    s = open_session(model, "f16", 20, &recipe);
    assert_int_equal(lk_session_sync(s, tok, 17, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_draftable(s, 10, NULL), 3);
    assert_int_equal(lk_session_eval(s, tok, 3, true, NULL), LK_OK);
    assert_int_equal(lk_session_draftable(s, 10, NULL), 1);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* After lk_session_reserve, passes allocate nothing once each size was there. Dropped drafts do not
 * use the reservation up: all its tokens can be decoded. */
static void test_passes_allocate_nothing(void **state) {
    static const char *const recipes[] = {"f16", "best-4", "best-2", "selective"};
    lk_model *model = open_preset(*state, CTX, 2);
    for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[k], CTX, &recipe);
        int32_t tok[CTX + LK_DRAFT_MAX];
        struct random r = {k};
        random_tokens(tok, CTX + LK_DRAFT_MAX, model, 5);
        assert_int_equal(lk_session_sync(s, tok, 300, NULL, NULL), LK_OK);
        for (size_t n = LK_DRAFT_MAX; n > 0; n--) { /* scratch memory for each size */
            size_t held = lk_session_n_tok(s), fits = lk_session_draftable(s, n, NULL);
            while (fits < n) {
                assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_OK);
                fits = lk_session_draftable(s, n, NULL), held = lk_session_n_tok(s);
            }
            assert_int_equal(lk_session_eval(s, tok, n, true, NULL), LK_OK);
            assert_int_equal(lk_session_truncate(s, held + 1, NULL), LK_OK);
        }
        assert_int_equal(lk_session_reserve(s, 200, NULL), LK_OK);
        uint64_t before = atomic_load(&s->ledger.n_alloc);
        for (size_t end = lk_session_n_tok(s) + 200; lk_session_n_tok(s) < end;) {
            size_t held = lk_session_n_tok(s), max = end - held;
            if (max > LK_DRAFT_MAX) max = LK_DRAFT_MAX;
            size_t n = lk_session_draftable(s, (size_t)random_int(&r, 1, (int)max), NULL);
            assert_int_equal(lk_session_eval(s, tok + held, n, true, NULL), LK_OK);
            assert_int_equal(lk_session_truncate(s, held + (size_t)random_int(&r, 1, (int)n), NULL),
                             LK_OK);
            if (atomic_load(&s->ledger.n_alloc) != before)
                fail_msg("%s allocates at token %zu", recipes[k], held);
        }
        assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_OK);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* ---- a text that changes ---- */

static void test_lookup_follows_the_text(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", CTX, &recipe);
    lk_drafter *drafter;
    int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, b[] = {1, 2, 3, 9, 9, 5, 6, 1, 2};
    int32_t pass[LK_DRAFT_MAX] = {3};
    assert_int_equal(lk_drafter_new(&drafter, s, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, a, sizeof a / sizeof *a, NULL, NULL), LK_OK);
    lk_drafter_report(drafter, 1, 1, 0, 1);
    assert_true(lk_drafter_next(drafter, pass, 8, 0) >= 4);
    assert_memory_equal(pass, ((int32_t[]){3, 4, 5, 6}), 4 * sizeof *pass);
    assert_int_equal(lk_session_sync(s, b, sizeof b / sizeof *b, NULL, NULL), LK_OK);
    assert_true(lk_drafter_next(drafter, pass, 8, 0) >= 4);
    assert_memory_equal(pass, ((int32_t[]){3, 9, 9, 5}), 4 * sizeof *pass);
    pass[0] = 200; /* never occurred */
    assert_int_equal(lk_drafter_next(drafter, pass, 8, 0), 1);
    lk_drafter_free(drafter);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    struct hot_model hot[] = {{"llama-mha", 3}, {"qwen35", 12}, {"lfm2", 3}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_is_a_search),
        cmocka_unit_test(test_index_without_memory),
        cmocka_unit_test(test_pace_finds_what_pays),
        cmocka_unit_test(test_pace_supposes_larger_passes_slower),
        cmocka_unit_test_prestate(test_same_tokens, (void *)"llama-spm"),
        cmocka_unit_test_prestate(test_same_tokens, (void *)"qwen35"),
        cmocka_unit_test_prestate(test_same_tokens, (void *)"qwen35moe"),
        cmocka_unit_test_prestate(test_same_tokens, (void *)"qwen3next"),
        cmocka_unit_test_prestate(test_same_tokens, (void *)"lfm2"),
        cmocka_unit_test_prestate(test_distribution, &hot[0]),
        cmocka_unit_test_prestate(test_distribution, &hot[1]),
        cmocka_unit_test_prestate(test_distribution, &hot[2]),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test_prestate(test_passes_allocate_nothing, (void *)"llama"),
        cmocka_unit_test_prestate(test_passes_allocate_nothing, (void *)"qwen35"),
        cmocka_unit_test_prestate(test_passes_allocate_nothing, (void *)"lfm2"),
        cmocka_unit_test(test_lookup_follows_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
