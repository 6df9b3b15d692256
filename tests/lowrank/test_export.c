/* Exported models with fewer KV heads, run by libllama and by lowkey, compared with the originals
 * whose keys and values are projected. */
#include "lowrank/compress.h"
#include "support.h"
#include "support_model.h"
#include "support_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char model_path[] = "/tmp/lowkey-export-XXXXXX", small_path[] = "/tmp/lowkey-export-XXXXXX";

enum { TOKENS = 1600 };
static int32_t text[TOKENS];

/* Weights are in memory, not mapped, so that they can be changed. */
static lk_model *open_model(const char *preset) {
    lk_model *model = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 1, .no_mmap = true, .no_repack = true};
    assert_true(tiny_gguf_write(model_path, tiny_preset(preset)));
    if (lk_model_open(&model, model_path, &opts, &err) != LK_OK)
        fail_msg("%s: %s", preset, err.msg);
    random_tokens(text, TOKENS, model, 99);
    return model;
}

static lk_compress *make(lk_model *model, const lk_compress_opts *opts) {
    lk_compress *c = NULL;
    lk_err err = {0};
    if (lk_compress_new(&c, model, opts, text, TOKENS, &err) != LK_OK ||
        lk_compress_calibrate(c, text, TOKENS, NULL, &err) != LK_OK ||
        lk_compress_fit(c, &err) != LK_OK)
        fail_msg("%s", err.msg);
    return c;
}

/* Apply up^T down of the first d components in place to rows [at, at + width) of a matrix with n
 * columns. */
static void project_rows(float *w, int64_t at, int64_t n, const struct lk_basis *b, int g, int d) {
    float *old = malloc((size_t)b->width * n * sizeof *old), *row = w + at * n;
    memcpy(old, row, (size_t)b->width * n * sizeof *old);
    memset(row, 0, (size_t)b->width * n * sizeof *row);
    for (int a = 0; a < b->width; a++)
        for (int c = 0; c < b->width; c++) {
            double p = 0;
            for (int j = 0; j < d; j++)
                p += (double)b->up.f32[((size_t)g * b->n_comp + j) * b->width + a] *
                     b->down.f32[((size_t)g * b->n_comp + j) * b->width + c];
            for (int64_t i = 0; i < n; i++) row[a * n + i] += (float)p * old[c * n + i];
        }
    free(old);
}

/* The exported model compared with the original whose K and V projections are modified in place. */
static void check_export(const char *preset, int group) {
    enum { N = 40 };
    lk_model *model = open_model(preset), *small = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 1, .no_mmap = true, .no_repack = true};
    lk_compress_opts want = {.method = LK_METHOD_KVHEADS, .group = group};
    lk_compress *c = make(model, &want);
    const struct lk_hparams *hp = &model->net->hp;
    if (lk_compress_export(c, model_path, small_path, &err) != LK_OK)
        fail_msg("%s: %s", preset, err.msg);
    int n_q = hp->n_head * hp->d_head, n_kv = hp->n_head_kv * hp->d_head;
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_basis *b = lk_compress_layer(c, layer, side ? LK_BASIS_V : LK_BASIS_K);
            for (int g = 0; g < b->n_group; g++) {
                int64_t at = n_q + (side ? n_kv : 0) + (int64_t)g * b->width;
                project_rows(model->net->layer[layer].wqkv->data, at, hp->n_embd, b, g, hp->d_head);
                project_rows(model->net->layer[layer].bqkv->data, at, 1, b, g, hp->d_head);
            }
        }
    lk_recipe *recipe;
    lk_session *session, *fewer;
    struct oracle oracle;
    assert_int_equal(lk_model_open(&small, small_path, &opts, &err), LK_OK);
    assert_int_equal(lk_model_get_info(small).n_head_kv, hp->n_head_kv / group);
    assert_int_equal(lk_recipe_parse(&recipe, "f16", &err), LK_OK);
    assert_int_equal(lk_session_new(&session, model, recipe, NULL, &err), LK_OK);
    assert_int_equal(lk_session_new(&fewer, small, recipe, NULL, &err), LK_OK);
    assert_int_equal(lk_session_eval(session, text, N, true, &err), LK_OK);
    assert_int_equal(lk_session_eval(fewer, text, N, true, &err), LK_OK);
    assert_true(oracle_open(&oracle, small_path, NULL, 64, GGML_TYPE_F32, GGML_TYPE_F32, false, 1));
    const float *other = oracle_eval(&oracle, text, N, 0);
    for (int i = 0; i < N; i++) {
        const float *logits = lk_session_logits(session, i);
        double by_llama = nmse(other + (size_t)i * hp->n_vocab, logits, hp->n_vocab),
               by_us = nmse(lk_session_logits(fewer, i), logits, hp->n_vocab);
        if (!(by_llama < 1e-4 && by_us < 1e-4))
            fail_msg("%s, token %d: %g by libllama, %g by lowkey", preset, i, by_llama, by_us);
    }
    oracle_close(&oracle, true);
    lk_session_free(session);
    lk_session_free(fewer);
    lk_recipe_free(recipe);
    lk_compress_free(c);
    lk_model_free(model);
    lk_model_free(small);
}

static void test_export(void **state) {
    (void)state;
    check_export("bloom", 1);
    check_export("bloom", 3);
    check_export("gpt2", 2);
    check_export("gpt2-80", 4);
}

static void test_refused(void **state) {
    (void)state;
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_KVHEADS};
    lk_compress *c = make(model, &opts);
    lk_err err = {0};
    assert_int_equal(lk_compress_export(c, model_path, small_path, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "rotate their keys"));
    lk_compress_free(c);
    lk_model_free(model);
    model = open_model("bloom");
    opts.rank = 0.5;
    opts.group = 3;
    c = make(model, &opts);
    assert_int_equal(lk_compress_export(c, model_path, small_path, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "one head's width"));
    lk_compress_free(c);
    lk_model_free(model);
}

/* What cannot be exported is rejected before anything is computed. */
static void test_refused_before(void **state) {
    (void)state;
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_KVHEADS, .for_export = true};
    lk_err err = {0};
    assert_int_equal(lk_compress_check(model, &opts, SIZE_MAX, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "rotate their keys"));
    lk_model_free(model);
    model = open_model("bloom");
    opts.group = 3;
    if (lk_compress_check(model, &opts, SIZE_MAX, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_compress_opts bad[3] = {opts, opts, opts};
    bad[0].rank = 0.5, bad[1].mean = true, bad[2].method = LK_METHOD_TALE;
    for (int i = 0; i < 3; i++) {
        lk_compress *c = NULL;
        assert_int_equal(lk_compress_check(model, &bad[i], SIZE_MAX, &err), LK_E_ARG);
        assert_non_null(strstr(err.msg, i ? "use --method kvheads" : "one head's width"));
        assert_int_equal(lk_compress_new(&c, model, &bad[i], text, TOKENS, &err), LK_E_ARG);
    }
    lk_model_free(model);
}

int main(void) {
    int a = mkstemp(model_path), b = mkstemp(small_path);
    if (a < 0 || b < 0) return 1;
    close(a);
    close(b);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_export),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_refused_before)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(model_path);
    unlink(small_path);
    return failed;
}
