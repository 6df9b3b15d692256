/* Context shift: compared with sessions whose rows were rotated again, and what it does to copies,
 * files, checkpoints and memory. */
#include "cache/cache.h"
#include "cache/move.h"
#include "engine/session_state.h"
#include "lowkey_shift.h"
#include "support.h"
#include "support_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CTX = 560, N_TOK = 420, N_KEEP = 40 };

static lk_model *open_exact(const char *preset) {
    struct tiny_spec spec = *tiny_preset(preset);
    lk_model_opts opts = {.n_threads = 1, .kernels = "reference"};
    if (spec.n_ctx < CTX) spec.n_ctx = CTX;
    return open_tiny(&spec, &opts);
}

static void eval(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_eval(s, tok, n, false, &err) != LK_OK) fail_msg("%s", err.msg);
}

static void prefill(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    if (lk_session_sync(s, tok, n, NULL, &err) != LK_OK) fail_msg("%s", err.msg);
}

/* Shift, and check what is reported. Returns the number of dropped tokens. */
static size_t shift(lk_session *s, size_t n_keep, size_t n_drop) {
    size_t n_kept = 0, n_dropped = 0, n_tok = lk_session_n_tok(s);
    int32_t before[CTX];
    lk_err err = {0};
    memcpy(before, lk_session_tokens(s), n_tok * sizeof *before);
    if (lk_session_shift(s, n_keep, n_drop, &n_kept, &n_dropped, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(s->recipe), err.msg);
    assert_true(n_dropped > 0 && n_kept + n_dropped < n_tok);
    assert_int_equal(lk_session_n_tok(s), n_tok - n_dropped);
    const int32_t *after = lk_session_tokens(s);
    assert_memory_equal(after, before, n_kept * sizeof *after);
    assert_memory_equal(after + n_kept, before + n_kept + n_dropped,
                        (n_tok - n_kept - n_dropped) * sizeof *after);
    return n_dropped;
}

/* ---- the reference ---- */

/* Rotate a row of K by n positions, which may be negative. */
static void turn_row(const struct lk_rope *rope, int64_t n, float *row) {
    for (int j = 0; j < rope->n_pair; j++) {
        double angle = rope->speed[j] * (double)n, c = cos(angle), s = sin(angle);
        float *a = row + lk_rope_first(rope, j), *b = row + lk_rope_second(rope, j);
        double x = *a, y = *b;
        *a = (float)(c * x - s * y);
        *b = (float)(s * x + c * y);
    }
}

/* Append to K or V of a layer of `to`, which holds exact rows, the rows of `from`: as if they were
 * the newest of n_tok tokens that follow each other without a gap, K rotated to these positions. */
static void append_rotated(struct lk_cache *to, const struct lk_cache *from, int layer,
                           enum lk_side side, int64_t n_tok) {
    const struct lk_kv *kv = &from->kv[layer][side];
    const struct lk_rope *rope = side == LK_K ? lk_cache_rope(&from->shape, layer) : NULL;
    size_t width = lk_kv_width(kv);
    int64_t n_missing = n_tok - (kv->n_tok - kv->first); /* left the window */
    float *x = calloc((size_t)n_tok * width, sizeof *x), *row = x + (size_t)n_missing * width;
    int64_t at = n_missing;
    for (int i = 0; i < kv->n_level; i++) {
        int64_t n = kv->count[i].rows;
        for (int head = 0; n > 0 && head < kv->n_head; head++) {
            float *of_head = row + (size_t)head * kv->d_head;
            lk_kv_read(&(struct lk_row_range){kv, i, 0, n}, head, from->kernels, of_head, width);
            for (int64_t r = 0; rope && r < n; r++)
                turn_row(rope, at + r - lk_kv_position(kv, i, r, head),
                         of_head + r * (int64_t)width);
        }
        row += (size_t)n * width;
        at += n;
    }
    assert_int_equal(at, n_tok);
    assert_int_equal(lk_cache_append(to, layer, side, x, n_tok, NULL), LK_OK);
    struct lk_kv *exact = &to->kv[layer][side];
    if (n_missing > 0) lk_move_drop(to, exact, 0, n_missing);
    exact->first += n_missing;
    free(x);
}

/* A session of exact rows that attends to what `s` attends to, at positions without a gap. */
static lk_session *rotated_copy(const lk_session *s, lk_recipe **exact) {
    lk_session *to = open_session(s->model, "f16", CTX, exact);
    int64_t n_tok = (int64_t)s->n_tok;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++) {
        lk_cache_prepare(to->cache, layer, layer + 1, n_tok, n_tok, NULL);
        for (int side = 0; side < 2; side++)
            append_rotated(to->cache, s->cache, layer, side, n_tok);
    }
    if (s->recurrent) memcpy(to->recurrent, s->recurrent, lk_recurrent_bytes(&s->model->net->hp));
    memcpy(to->tok, s->tok, s->n_tok * sizeof *s->tok);
    to->n_tok = s->n_tok;
    return to;
}

/* The next token's logits are those of rows that were rotated to positions without a gap. A recipe
 * that leaves rows out has other ones. */
static void check_next_token(lk_session *s, int32_t tok, const char *what) {
    lk_recipe *exact = NULL;
    lk_session *reference = rotated_copy(s, &exact);
    size_t n_vocab = (size_t)s->model->net->hp.n_vocab;
    eval(reference, &tok, 1);
    eval(s, &tok, 1);
    double error = nmse(lk_session_logits(s, -1), lk_session_logits(reference, -1), n_vocab);
    bool all = s->recipe->read == 0;
    if (all && !(error <= 1e-5))
        fail_msg("%s, %s: NMSE %.1e", what, lk_recipe_text(s->recipe), error);
    lk_session_free(reference);
    lk_recipe_free(exact);
}

/* Does a second shift find whole blocks in what the first one left? */
static bool has_small_blocks(const lk_session *s) {
    bool small = true;
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++)
        for (int i = 0; i < 2 && i < lk_cache_kv(s->cache, k)->n_level; i++)
            small &= lk_cache_kv(s->cache, k)->rule[i].block_rows <= 32;
    return small;
}

static void check_recipe(lk_model *model, const char *preset, const char *text) {
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 7);
    lk_session *s = open_session(model, text, CTX, &recipe);
    prefill(s, tok, N_TOK);
    if (!lk_session_shiftable(s, NULL)) {
        assert_int_equal(lk_session_shift(s, 0, 0, NULL, NULL, NULL), LK_E_UNSUPPORTED);
        assert_int_equal(lk_session_n_tok(s), N_TOK);
    } else {
        const int32_t *next = tok + N_TOK;
        check_next_token(s, next[0], preset); /* the reference itself */
        shift(s, N_KEEP, 0);
        check_next_token(s, next[1], preset);
        eval(s, next + 2, 70);
        check_next_token(s, next[72], preset);
        if (has_small_blocks(s)) assert_true(shift(s, N_KEEP, 32) >= 32);
        check_next_token(s, next[73], preset);
        for (int i = 0; i < 40; i += 8) eval(s, next + 74 + i, 8);
        check_next_token(s, next[114], preset);
    }
    lk_session_free(s);
    lk_recipe_free(recipe);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

/* Models with all kinds of positions, layers and rows. */
static void shifted_rows_are_those_of_rotated_ones(void **state) {
    (void)state;
    static const char *const models[] = {"llama",     "gemma3", "qwen2",   "bloom",  "falcon",
                                         "smollm3",   "phi3",   "granite", "gemma4", "gpt-oss",
                                         "deepseek2", "qwen35", "lfm2",    NULL};
    for (int m = 0; models[m]; m++) {
        lk_model *model = open_exact(models[m]);
        for (int i = m % 5; lk_recipe_preset(i).name; i += m ? 10 : 1)
            if (case_runs(i) && !lk_recipe_preset(i).sidecar)
                check_recipe(model, models[m], lk_recipe_preset(i).name);
        check_recipe(model, models[m], "f16");
        check_recipe(model, models[m], "best-3");
        lk_model_free(model);
    }
}

/* ---- what is refused ---- */

static void check_refusal(const char *preset, const char *text, size_t n_tok, size_t n_keep,
                          lk_status expected, const char *reason) {
    lk_model *model = open_preset(preset, CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[N_TOK];
    lk_err err = {0};
    random_tokens(tok, N_TOK, model, 7);
    lk_session *s = open_session(model, text, CTX, &recipe);
    prefill(s, tok, n_tok);
    assert_int_equal(lk_session_shift(s, n_keep, 0, NULL, NULL, &err), expected);
    if (!strstr(err.msg, reason)) fail_msg("%s", err.msg);
    assert_int_equal(lk_session_n_tok(s), n_tok);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

static void what_cannot_shift_says_why(void **state) {
    (void)state;
    check_refusal("llama", "streaming", 300, 0, LK_E_UNSUPPORTED, "evicts");
    check_refusal("gpt2", "f16", 200, 0, LK_E_UNSUPPORTED, "learned positions");
    check_refusal("mistral3", "f16", 300, 0, LK_E_UNSUPPORTED, "by the position");
    check_refusal("llama", "best-3", 300, 160, LK_E_UNSUPPORTED, "no whole block");
    check_refusal("llama", "f16", 20, 0, LK_E_UNSUPPORTED, "no whole block");
}

static void text_of_a_million_tokens_is_refused(void **state) {
    (void)state;
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model, 7);
    lk_session *s = open_session(model, "f16", CTX, &recipe);
    prefill(s, tok, N_TOK);
    shift(s, 0, 0);
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) {
        struct lk_kv *kv = lk_cache_kv(s->cache, k);
        int64_t more = LK_SHIFT_POSITIONS - CTX - kv->n_shifted - 31;
        kv->n_shifted += more;
        kv->first += more;
        kv->n_tok += more;
    }
    assert_int_equal(lk_session_shift(s, 0, 32, NULL, NULL, NULL), LK_E_FULL);
    eval(s, tok, 5);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- copies, files, memory, going back ---- */

/* Save s, and load it into a new session. */
static lk_session *reload(const lk_session *s) {
    char path[] = "/tmp/lowkey-shift-XXXXXX";
    lk_session *to = NULL;
    lk_session_opts opts = {.n_ctx = CTX};
    lk_err err = {0};
    close(mkstemp(path));
    if (lk_session_save(s, NULL, path, &err) != LK_OK ||
        lk_session_new(&to, s->model, s->recipe, &opts, &err) != LK_OK ||
        lk_session_load(to, NULL, path, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(s->recipe), err.msg);
    unlink(path);
    return to;
}

/* A copy made before a shift does not notice it; one made after it, and one from a file, go on as
 * the original. */
static void check_copies(lk_model *model, const char *text) {
    lk_recipe *recipe[4] = {0};
    lk_session *s[4]; /* shifted; a copy before; after; one that never had a copy */
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 9);
    for (int i = 0; i < 4; i++) s[i] = open_session(model, text, CTX, &recipe[i]);
    if (lk_session_shiftable(s[0], NULL)) {
        for (int i = 0; i < 4; i += 3) {
            prefill(s[i], tok, N_TOK);
            eval(s[i], tok, 3);
        }
        assert_int_equal(lk_session_copy(s[1], s[0], NULL), LK_OK);
        lk_session_stats full = lk_session_get_stats(s[3]), half;
        shift(s[3], N_KEEP, 0);
        half = lk_session_get_stats(s[3]);
        assert_true(half.cache_bytes <= full.cache_bytes); /* slabs are freed when they are empty */
        assert_true(half.cache_bytes - half.padding_bytes < full.cache_bytes - full.padding_bytes);
        lk_session_clear(s[3]); /* from the start again */
        prefill(s[3], tok, N_TOK);
        eval(s[3], tok, 3);
        shift(s[0], N_KEEP, 0);
        assert_int_equal(lk_session_copy(s[2], s[0], NULL), LK_OK);
        lk_session *loaded = reload(s[0]);
        for (int n = 0; n < 90; n += 30) {
            for (int i = 0; i < 4; i++) eval(s[i], tok + 100 + n, 30);
            eval(loaded, tok + 100 + n, 30);
            assert_same_logits(s[1], s[3], text);
            assert_same_logits(s[0], s[2], text);
            assert_same_logits(s[0], loaded, text);
        }
        if (has_small_blocks(s[0])) {
            shift(s[0], 0, 32);
            shift(loaded, 0, 32);
        }
        eval(s[0], tok, 40);
        eval(loaded, tok, 40);
        assert_same_logits(s[0], loaded, text);
        lk_session_free(loaded);
    }
    for (int i = 0; i < 4; i++) {
        lk_session_free(s[i]);
        lk_recipe_free(recipe[i]);
    }
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

static void copies_and_files_go_on(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "gemma3", "qwen35", NULL};
    lk_model *model = open_preset("deepseek2", CTX, 1); /* without sidecar, and sinks that shift */
    check_copies(model, "f16");
    check_copies(model, "best-3");
    check_copies(model, "best-4");
    lk_model_free(model);
    for (int m = 0; models[m]; m++) {
        model = open_with_sidecar(models[m], CTX, 1, 5);
        for (int i = m % 3; lk_recipe_preset(i).name; i += m ? 7 : 2)
            if (case_runs(i)) check_copies(model, lk_recipe_preset(i).name);
        lk_model_free(model);
    }
}

/* Checkpoints of the kept tokens stay, and a session can be cut back after a shift as before. */
static void check_going_back(lk_model *model, const char *text, bool exact) {
    lk_recipe *recipe = NULL;
    lk_session *s = NULL, *plain = NULL;
    int32_t tok[CTX], after[CTX];
    size_t reused = 0;
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4};
    random_tokens(tok, CTX, model, 3);
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_new(&plain, model, recipe, &opts, NULL), LK_OK);
    for (size_t n = 60; n <= N_TOK; n += 120) prefill(s, tok, n);
    prefill(plain, tok, 60);
    shift(s, 100, 0);
    assert_int_equal(s->checkpoints.n, 1);
    assert_int_equal(s->checkpoints.at[0].n_tok, 60);
    size_t n_tok = lk_session_n_tok(s);
    memcpy(after, lk_session_tokens(s), n_tok * sizeof *after);
    for (int i = 0; exact && i < 9; i++) eval(s, tok + i, 1); /* an answer, generated again */
    assert_int_equal(lk_session_sync(s, after, n_tok, &reused, NULL), LK_OK);
    assert_int_equal(reused, exact ? n_tok - 1 : n_tok);
    memcpy(after, tok, 60 * sizeof *after); /* another text after the kept tokens */
    random_tokens(after + 60, 50, model, 4);
    assert_int_equal(lk_session_sync(s, after, 110, &reused, NULL), LK_OK);
    assert_int_equal(reused, 60);
    assert_int_equal(lk_session_sync(plain, after, 110, NULL, NULL), LK_OK);
    for (int i = 0; i < 3; i++) {
        size_t n_vocab = (size_t)model->net->hp.n_vocab;
        assert_true(nmse(lk_session_logits(s, -1), lk_session_logits(plain, -1), n_vocab) <= 1e-5);
        if (!exact) assert_same_logits(s, plain, text);
        eval(s, tok + i, 1);
        eval(plain, tok + i, 1);
    }
    lk_session_free(s);
    lk_session_free(plain);
    lk_recipe_free(recipe);
}

static void sessions_go_back(void **state) {
    (void)state;
    lk_model *model = open_preset("llama", CTX, 1);
    check_going_back(model, "f16", true); /* within the kept rows, too */
    check_going_back(model, "best-3", false);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shifted_rows_are_those_of_rotated_ones),
        cmocka_unit_test(what_cannot_shift_says_why),
        cmocka_unit_test(text_of_a_million_tokens_is_refused),
        cmocka_unit_test(copies_and_files_go_on),
        cmocka_unit_test(sessions_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
