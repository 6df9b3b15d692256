/* Exported models, run by libllama and by lowkey, compared with the model and its sidecar. */
#include "lowrank/compress.h"
#include "support_model.h"
#include "support_oracle.h"
#include "support_session.h"
#include "support_sidecar.h"
#include "test.h"

#include "gguf.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/lowkey-export-XXXXXX";
static char model_path[64], bases_path[64], sidecar_path[64], out_path[64];

enum { TOKENS = 1600, N = 40 };
static int32_t text[TOKENS];

static lk_model *open_file(const char *path, const char *sidecar, bool f32) {
    lk_model *model = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 1,
                          .sidecar = sidecar,
                          .no_repack = true,
                          .weights = f32 ? LK_WEIGHTS_F32 : LK_WEIGHTS_AS_SHIPPED};
    if (lk_model_open(&model, path, &opts, &err) != LK_OK) fail_msg("%s: %s", path, err.msg);
    return model;
}

/* Write the tiny model and open it. */
static lk_model *open_model(const char *preset) {
    assert_true(tiny_gguf_write(model_path, tiny_preset(preset)));
    lk_model *model = open_file(model_path, NULL, false);
    random_tokens(text, TOKENS, model, 99);
    return model;
}

/* Write the sidecar of bases. */
static void compress(lk_model *model, lk_compress_opts opts) {
    lk_compress *c = NULL;
    lk_err err = {0};
    if (lk_compress_new(&c, model, &opts, text, TOKENS, &err) != LK_OK ||
        lk_compress_calibrate(c, text, TOKENS, NULL, &err) != LK_OK ||
        lk_compress_fit(c, &err) != LK_OK || lk_compress_write(c, bases_path, &err) != LK_OK)
        fail_msg("%s", err.msg);
    lk_compress_free(c);
}

static lk_export_result export_with(const char *sidecar, lk_export_opts opts) {
    lk_export_result result = {0};
    lk_err err = {0};
    if (lk_export(model_path, sidecar, &opts, out_path, &result, &err) != LK_OK)
        fail_msg("%s", err.msg);
    return result;
}

/* Logits [N][n_vocab] of a model in a file: free them. */
static float *logits_of(const char *path, const char *sidecar, const char *recipe_text, bool f32) {
    lk_model *model = open_file(path, sidecar, f32);
    lk_recipe *recipe;
    lk_err err = {0};
    lk_session *session = open_session(model, recipe_text, N, &recipe);
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    float *out = malloc(N * n_vocab * sizeof *out);
    if (lk_session_eval(session, text, N, true, &err) != LK_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < N; i++)
        memcpy(out + i * n_vocab, lk_session_logits(session, i), n_vocab * sizeof *out);
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
    return out;
}

/* Compare the exported file, run by both programs with a full cache, with the model that is opened
 * with its sidecar. max_ours: 0 means equal bits. */
static void check_logits(const char *what, const char *sidecar, const char *recipe, bool f32,
                         double max_llama, double max_ours) {
    struct oracle oracle;
    float *expected = logits_of(model_path, sidecar, recipe, f32),
          *plain = logits_of(model_path, NULL, "f16", f32),
          *ours = logits_of(out_path, NULL, "f16", f32);
    assert_true(oracle_open(&oracle, out_path, NULL, 64, GGML_TYPE_F32, GGML_TYPE_F32, false, 1));
    const float *llama = oracle_eval(&oracle, text, N, 0);
    assert_non_null(llama);
    size_t n = (size_t)N * oracle.n_vocab;
    double by_llama = nmse(llama, expected, n), by_us = nmse(ours, expected, n),
           change = nmse(plain, expected, n);
    if (by_llama > max_llama || by_us > max_ours || change < 20 * max_llama)
        fail_msg("%s: %g by libllama, %g by lowkey; the sidecar changes %g", what, by_llama, by_us,
                 change);
    oracle_close(&oracle, true);
    free(expected), free(plain), free(ours);
}

/* Keys, and all tensors but those that adapters change, are equal byte for byte. */
static void check_unchanged(int n_changed) {
    struct gguf_init_params params = {.no_alloc = true};
    struct gguf_context *a = gguf_init_from_file(model_path, params),
                        *b = gguf_init_from_file(out_path, params);
    size_t size;
    uint8_t *x = read_file(model_path, &size), *y = read_file(out_path, &size);
    assert_int_equal(gguf_get_n_kv(a), gguf_get_n_kv(b));
    assert_int_equal(gguf_get_n_tensors(a), gguf_get_n_tensors(b));
    /* Keys come first in both files, in the same order and form, after the same three counts. */
    size_t end = gguf_get_meta_size(a) < gguf_get_meta_size(b) ? gguf_get_meta_size(a)
                                                               : gguf_get_meta_size(b),
           same = 0;
    while (same < end && x[same] == y[same]) same++;
    for (int64_t i = 0; i < gguf_get_n_kv(a); i++) {
        const char *key = gguf_get_key(a, i);
        int64_t j = gguf_find_key(b, key);
        assert_true(j >= 0 && gguf_get_kv_type(a, i) == gguf_get_kv_type(b, j));
        if (gguf_get_kv_type(a, i) != GGUF_TYPE_STRING) continue;
        assert_string_equal(gguf_get_val_str(a, i), gguf_get_val_str(b, j));
    }
    const char *first = gguf_get_tensor_name(a, 0);
    bool keys_same = false;
    for (size_t i = 0; i + strlen(first) < same; i++)
        keys_same = keys_same || memcmp(x + i, first, strlen(first)) == 0;
    assert_true(keys_same);
    for (int64_t i = 0; i < gguf_get_n_tensors(a); i++) {
        const char *name = gguf_get_tensor_name(a, i);
        assert_string_equal(name, gguf_get_tensor_name(b, i));
        size_t bytes = gguf_get_tensor_size(a, i);
        bool equal = bytes == gguf_get_tensor_size(b, i) &&
                     memcmp(x + gguf_get_data_offset(a) + gguf_get_tensor_offset(a, i),
                            y + gguf_get_data_offset(b) + gguf_get_tensor_offset(b, i), bytes) == 0;
        bool may = strstr(name, ".attn_") && strstr(name, ".weight") && !strstr(name, "_norm");
        if (!equal && !may) fail_msg("%s has changed", name);
        n_changed -= !equal;
    }
    assert_int_equal(n_changed, 0);
    free(x), free(y);
    gguf_free(a), gguf_free(b);
}

/* ---- adapters ---- */

static void check_adapters(const char *preset, lk_export_numbers numbers, bool f32,
                           double max_llama, double max_ours) {
    lk_model *model = open_model(preset);
    assert_true(write_adapters(sidecar_path, model, NULL, 0.3f, 5));
    lk_export_result result = export_with(sidecar_path, (lk_export_opts){.numbers = numbers});
    check_logits(preset, sidecar_path, "f16", f32, max_llama, max_ours);
    check_unchanged((int)result.n_changed);
    assert_int_equal(result.n_head_kv, model->net->hp.n_head_kv);
    lk_model_free(model);
}

/* What lowkey computes with is written, so logits have the same bits. */
static void test_adapters(void **state) {
    check_adapters("llama", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("llama-mha", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("llama-96", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("llama-f16", LK_EXPORT_AUTO, false, 1e-4, 0);
    check_adapters("llama-q4_0", LK_EXPORT_AUTO, false, 1e-3, 0);
    check_adapters("qwen2-q4_1", LK_EXPORT_AUTO, false, 1e-3, 0);
    check_adapters("llama-q4_K", LK_EXPORT_AUTO, false, 1e-3, 0);
    check_adapters("qwen3", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("gemma3", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("falcon", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("bloom", LK_EXPORT_AUTO, false, 1e-5, 0);
    check_adapters("refact", LK_EXPORT_AUTO, false, 1e-5, 0);
}

/* Other numbers, compared with weights in f32 on our side. */
static void test_numbers(void **state) {
    check_adapters("llama-q4_0", LK_EXPORT_F32, true, 1e-3, 0);
    check_adapters("llama-q4_0", LK_EXPORT_F16, true, 1e-3, 1e-5);
    check_adapters("llama", LK_EXPORT_F16, true, 1e-4, 1e-5);
    check_adapters("qwen2-q4_1", LK_EXPORT_Q8_0, true, 4e-3, 2e-3);
    check_adapters("llama", LK_EXPORT_Q8_0, true, 4e-3, 2e-3);
}

/* ---- bases ---- */

static void check_bases(const char *preset, int group, bool adapters, lk_compress_numbers numbers,
                        lk_export_numbers to, double max_llama, double max_ours) {
    lk_model *model = open_model(preset);
    char what[64];
    snprintf(what, sizeof what, "%s, %d heads%s", preset, group, adapters ? ", adapters" : "");
    compress(model,
             (lk_compress_opts){.method = LK_METHOD_KVHEADS, .group = group, .numbers = numbers});
    if (adapters) assert_true(write_adapters(sidecar_path, model, bases_path, 0.3f, 6));
    const char *sidecar = adapters ? sidecar_path : bases_path;
    lk_export_result result = export_with(sidecar, (lk_export_opts){.numbers = to});
    assert_int_equal(result.n_head_kv, model->net->hp.n_head_kv / group);
    check_logits(what, sidecar, "all: k=latent v=latent; eager", true, max_llama, max_ours);
    lk_model *small = open_file(out_path, NULL, false);
    assert_int_equal(lk_model_get_info(small).n_head_kv, model->net->hp.n_head_kv / group);
    lk_model_free(small);
    lk_model_free(model);
}

/* Heads that are fused are what a cache of latents computes, up to rounding: latents are f16. */
static void test_bases(void **state) {
    check_bases("bloom", 3, false, LK_NUMBERS_F32, LK_EXPORT_F32, 1e-5, 1e-5);
    check_bases("bloom", 2, false, LK_NUMBERS_Q8, LK_EXPORT_F32, 1e-5, 1e-5);
    check_bases("bloom-96", 4, false, LK_NUMBERS_F16, LK_EXPORT_F16, 1e-5, 1e-5);
    check_bases("gpt2", 2, false, LK_NUMBERS_F32, LK_EXPORT_F32, 1e-5, 1e-5);
    check_bases("gpt2-80", 4, false, LK_NUMBERS_F32, LK_EXPORT_AUTO, 1e-5, 1e-5);
    check_bases("bloom", 3, true, LK_NUMBERS_F32, LK_EXPORT_F32, 1e-5, 1e-5);
    check_bases("refact-mha", 2, true, LK_NUMBERS_F32, LK_EXPORT_F32, 1e-5, 1e-5);
    check_bases("gpt2", 2, true, LK_NUMBERS_Q8, LK_EXPORT_Q8_0, 1e-3, 1e-3);
}

/* ---- what is refused ---- */

static void check_refused(const char *sidecar, lk_export_opts opts, lk_status expected,
                          const char *says) {
    lk_export_result result;
    lk_err err = {0};
    unlink(out_path);
    lk_status status = lk_export(model_path, sidecar, &opts, out_path, &result, &err);
    if (status != expected || !strstr(err.msg, says) || strchr(err.msg, '\n'))
        fail_msg("expected '%s', got %d: %s", says, status, err.msg);
    assert_int_equal(access(out_path, F_OK), -1);
}

static void test_refused(void **state) {
    const lk_export_opts plain = {0}, only = {.adapters_only = true},
                         q8 = {.numbers = LK_EXPORT_Q8_0};
    lk_model *model = open_model("llama");
    compress(model, (lk_compress_opts){.method = LK_METHOD_KVHEADS});
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "rotates its keys");
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "run the model with --sidecar");
    check_refused(bases_path, only, LK_E_ARG, "has no adapters");
    assert_true(write_adapters(sidecar_path, model, bases_path, 0.3f, 5));
    check_refused(sidecar_path, plain, LK_E_UNSUPPORTED, "give --adapters-only");
    assert_true(export_with(sidecar_path, only).n_changed > 0);
    check_logits("adapters of a model with bases", sidecar_path, "f16", false, 1e-5, 0);
    assert_true(write_sidecar(bases_path, model, 1));
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "LESS networks would be lost");
    lk_model_free(model);
    model = open_model("bloom");
    check_refused(sidecar_path, plain, LK_E_ARG, "another model");
    compress(model, (lk_compress_opts){.method = LK_METHOD_KVHEADS, .group = 3, .rank = 0.5});
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "one head's width");
    compress(model, (lk_compress_opts){.method = LK_METHOD_KVHEADS, .group = 3, .mean = true});
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "without a mean");
    compress(model, (lk_compress_opts){.method = LK_METHOD_TALE, .group = 3});
    check_refused(bases_path, plain, LK_E_UNSUPPORTED, "--method kvheads");
    lk_model_free(model);
    struct tiny_spec odd = *tiny_preset("llama");
    odd.n_embd = 200;
    assert_true(tiny_gguf_write(model_path, &odd));
    model = open_file(model_path, NULL, false);
    assert_true(write_adapters(sidecar_path, model, NULL, 0.3f, 5));
    check_refused(sidecar_path, q8, LK_E_UNSUPPORTED, "--type f16");
    lk_model_free(model);
}

/* ---- damage ---- */

static void test_damaged(void **state) {
    const lk_export_opts plain = {0};
    lk_model *model = open_model("llama");
    size_t size, size_model;
    assert_true(write_adapters(sidecar_path, model, NULL, 2000, 5));
    check_refused(sidecar_path, plain, LK_E_FORMAT, "too large");
    assert_true(write_adapters(sidecar_path, model, NULL, 0.3f, 5));
    uint8_t *data = read_file(sidecar_path, &size), *whole = read_file(model_path, &size_model);
    for (size_t n = 0; n < size; n = n < 64 ? n + 7 : n * 2) {
        lk_err err = {0};
        lk_export_result result;
        assert_true(write_file(sidecar_path, data, n));
        assert_int_not_equal(lk_export(model_path, sidecar_path, &plain, out_path, &result, &err),
                             LK_OK);
        assert_int_equal(access(out_path, F_OK), -1);
    }
    check_refused("/nowhere/sidecar", plain, LK_E_IO, "/nowhere/sidecar");
    assert_true(write_file(sidecar_path, data, size));
    assert_true(write_file(model_path, whole, size_model - 100));
    check_refused(sidecar_path, plain, LK_E_FORMAT, "");
    free(data), free(whole);
    lk_model_free(model);
}

static bool cancel(void *user, uint64_t done, uint64_t total) {
    int *n = user;
    assert_true(done <= total);
    return ++*n < 5;
}

/* Try to write to `path`, and check that it still holds `kept`, or that nothing is there. */
static void check_not_written(const char *path, lk_export_opts opts, lk_status expected,
                              const char *says, const char *kept) {
    lk_export_result result;
    lk_err err = {0};
    char temporary[100];
    size_t size = 0;
    lk_status status = lk_export(model_path, sidecar_path, &opts, path, &result, &err);
    if (status != expected || !strstr(err.msg, says)) fail_msg("%s: %d: %s", path, status, err.msg);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    assert_int_equal(access(temporary, F_OK), -1);
    uint8_t *data = kept ? read_file(path, &size) : NULL;
    if (kept) assert_true(size == strlen(kept) && memcmp(data, kept, size) == 0);
    free(data);
}

/* A file that cannot be written, or not to its end, does not appear, and does not replace one. */
static void test_unwritable(void **state) {
    lk_export_opts plain = {0};
    int n = 0;
    struct rlimit limit, old;
    lk_model *model = open_model("llama");
    assert_true(write_adapters(sidecar_path, model, NULL, 0.3f, 5));
    lk_model_free(model);
    check_not_written("/nowhere/out", plain, LK_E_IO, "/nowhere/out", NULL);
    check_not_written(folder, plain, LK_E_IO, "not a regular file", NULL);
    check_not_written(model_path, plain, LK_E_ARG, "another file", NULL);
    check_not_written(sidecar_path, plain, LK_E_ARG, "another file", NULL);
    assert_true(write_file(out_path, (const uint8_t *)"old", 3));
    plain.progress = cancel, plain.user = &n;
    check_not_written(out_path, plain, LK_E_CANCELLED, "cancelled", "old");
    plain.progress = NULL;
    signal(SIGXFSZ, SIG_IGN); /* the write fails, as on a full disk */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t max = 1000; max <= 1000000; max *= 10) {
        limit = (struct rlimit){max, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        check_not_written(out_path, plain, LK_E_IO, "free disk space", "old");
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    export_with(sidecar_path, plain);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model", folder);
    snprintf(bases_path, sizeof bases_path, "%s/bases", folder);
    snprintf(sidecar_path, sizeof sidecar_path, "%s/sidecar", folder);
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bases),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),  cmocka_unit_test(test_unwritable),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(model_path), unlink(bases_path), unlink(sidecar_path), unlink(out_path);
    rmdir(folder);
    return failed;
}
