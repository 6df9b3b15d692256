/* Recipes that are eager, through whole sessions: compared with `f16` on the same model at full
 * rank, and with `f16` on a file whose W_K and W_V are replaced by up^T down W at lower ranks, by
 * lowkey and by libllama. */
#include "cache/project.h"
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "sidecar/sidecar_write.h"
#include "support_basis.h"
#include "support_model.h"
#include "support_oracle.h"
#include "test.h"

#include <unistd.h>

enum { PROMPT = 75, STEPS = 9, N = PROMPT + STEPS };
static const double limit = 1e-5; /* f16 rows are compared with f16 latents */

static char model_path[] = "/tmp/lowkey-eager-XXXXXX", sidecar_path[] = "/tmp/lowkey-eager-XXXXXX",
            replaced_path[] = "/tmp/lowkey-eager-XXXXXX";

/* ---- models, bases, sidecars ---- */

struct bases {
    struct lk_basis basis[16][2]; /* [layer][K, V] */
    int n_layer;
    enum lk_basis_side k_side;
};

static lk_model *open_file(const char *path, const char *sidecar) {
    lk_model *model = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 2, .no_mmap = true, .no_repack = true, .sidecar = sidecar};
    if (lk_model_open(&model, path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    return model;
}

/* Replace floats by numbers of another type. */
static void pack_matrix(struct lk_basis_matrix *x, enum lk_basis_type type, size_t n_row,
                        size_t n) {
    float *from = (float *)x->f32, *scale = calloc(n_row, sizeof *scale);
    void *to = malloc(n_row * n * sizeof *from);
    lk_basis_pack(type, from, n_row, n, to, scale);
    x->any = to;
    x->scale = type == LK_BASIS_Q8 ? scale : NULL;
    if (!x->scale) free(scale);
    free(from);
}

/* Random bases of every layer with two groups, or one if the model has few heads. share: of the
 * ranks; below 1, the second group's rank is lower. */
static struct bases make_bases(const lk_model *model, double share, bool mean,
                               enum lk_basis_type type) {
    const struct lk_hparams *hp = &model->net->hp;
    struct random r = {77};
    struct bases b = {.n_layer = hp->n_layer,
                      .k_side = hp->rope_mode >= 0 ? LK_BASIS_KPRE : LK_BASIS_K};
    int n_group = hp->n_head_kv >= 4 ? 2 : 1, width = hp->n_head_kv * hp->d_head / n_group;
    for (int i = 0; i < 2 * hp->n_layer; i++) {
        int rank = (int)(share * width) / 8 * 8;
        b.basis[i / 2][i % 2] = random_basis(&r, n_group, width, width, rank, true, mean);
        struct lk_basis *basis = &b.basis[i / 2][i % 2];
        basis->error = calloc((size_t)n_group * width, sizeof *basis->error);
        if (n_group == 2 && share < 1) ((int32_t *)basis->rank)[1] -= 8;
        basis->type = type;
        if (type == LK_BASIS_F32) continue;
        pack_matrix(&basis->down, type, (size_t)n_group * width, (size_t)width);
        pack_matrix(&basis->up, type, (size_t)n_group * width, (size_t)width);
    }
    return b;
}

/* Write a sidecar of the model with these bases to sidecar_path, and open the model with it. */
static lk_model *open_with_bases(const char *path, const struct bases *b) {
    lk_model *model = open_file(path, NULL);
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_sidecar_info info = {.method = "palu",
                                   .model = {.fingerprint = model->net->fingerprint,
                                             .n_layer = hp->n_layer,
                                             .n_head_kv = hp->n_head_kv,
                                             .d_head = hp->d_head}};
    struct lk_ledger ledger = {0};
    struct lk_sidecar_builder *builder;
    lk_err err = {0};
    assert_int_equal(lk_sidecar_builder_new(&builder, &info, &ledger, &err), LK_OK);
    for (int i = 0; i < 2 * b->n_layer; i++)
        if (lk_sidecar_builder_add_basis(builder, i / 2, i % 2 ? LK_BASIS_V : b->k_side,
                                         &b->basis[i / 2][i % 2], &err) != LK_OK)
            fail_msg("%s", err.msg);
    FILE *file = fopen(sidecar_path, "wb");
    assert_non_null(file);
    assert_int_equal(lk_sidecar_builder_write(builder, file, &err), LK_OK);
    assert_int_equal(fclose(file), 0);
    lk_sidecar_builder_free(builder);
    lk_model_free(model);
    return open_file(path, sidecar_path);
}

static void free_bases(struct bases *b) {
    for (int i = 0; i < 2 * b->n_layer; i++) {
        free((void *)b->basis[i / 2][i % 2].error);
        free((void *)b->basis[i / 2][i % 2].down.scale);
        free((void *)b->basis[i / 2][i % 2].up.scale);
        free_basis(&b->basis[i / 2][i % 2]);
    }
}

/* ---- the replaced model ---- */

struct edit {
    const lk_model *model;
    const struct bases *bases;
    float *mem[64]; /* new data of tensors, until the file is written */
    int n_mem;
};

/* Rows w [all rows][n_col] = the old ones, with rows [at, at + n_group * width) projected:
 * up^T down (w - mean) + mean, the mean only of a bias. */
static void project(float *w, int64_t at, int64_t n_col, const struct lk_basis *b, bool bias) {
    for (int g = 0; g < b->n_group; g++)
        for (int64_t c = 0; c < n_col; c++) {
            double z[1024], x[1024];
            float buf[1024], *col = w + (at + (int64_t)g * b->width) * n_col + c;
            const float *mean = bias && b->mean ? b->mean + (size_t)g * b->width : NULL;
            for (int i = 0; i < b->width; i++) x[i] = (double)col[i * n_col] - (mean ? mean[i] : 0);
            for (int j = 0; j < b->rank[g]; j++) {
                const float *down = lk_basis_row(b, LK_BASIS_DOWN, g, j, 0, b->width, buf);
                z[j] = 0;
                for (int i = 0; i < b->width; i++) z[j] += (double)down[i] * x[i];
            }
            for (int i = 0; i < b->width; i++) x[i] = mean ? mean[i] : 0;
            for (int j = 0; j < b->rank[g]; j++) {
                const float *up = lk_basis_row(b, LK_BASIS_UP, g, j, 0, b->width, buf);
                for (int i = 0; i < b->width; i++) x[i] += (double)up[i] * z[j];
            }
            for (int i = 0; i < b->width; i++) col[i * n_col] = (float)x[i];
        }
}

/* Give the file a changed copy of a tensor. sides: bit 0 for K, bit 1 for V, rows from `at` on. */
static void replace_tensor(struct gguf_context *gguf, struct edit *e, int layer, const char *name,
                           const struct ggml_tensor *t, int64_t at, int sides) {
    const struct lk_hparams *hp = &e->model->net->hp;
    char full[64];
    if (!t) return;
    bool bias = strstr(name, "bias") != NULL;
    int64_t n_col = bias ? 1 : t->ne[0], n_kv = (int64_t)hp->n_head_kv * hp->d_head;
    float *w = e->mem[e->n_mem++] = malloc(ggml_nbytes(t));
    memcpy(w, t->data, ggml_nbytes(t));
    for (int side = 0; side < 2; side++) {
        if (!(sides & 1 << side)) continue;
        project(w, at, n_col, &e->bases->basis[layer][side], bias);
        at += n_kv;
    }
    snprintf(full, sizeof full, "blk.%d.attn_%s", layer, name);
    gguf_set_tensor_data(gguf, full, w);
}

static void replace_weights(struct gguf_context *gguf, void *user) {
    struct edit *e = user;
    const struct lk_net *net = e->model->net;
    int64_t n_q = (int64_t)net->hp.n_head * net->hp.d_head;
    for (int i = 0; i < net->hp.n_layer; i++) {
        const struct lk_layer *l = &net->layer[i];
        replace_tensor(gguf, e, i, "qkv.weight", l->wqkv, n_q, 3);
        replace_tensor(gguf, e, i, "qkv.bias", l->bqkv, n_q, 3);
        replace_tensor(gguf, e, i, "k.weight", l->wk, 0, 1);
        replace_tensor(gguf, e, i, "k.bias", l->bk, 0, 1);
        replace_tensor(gguf, e, i, "v.weight", l->wv, 0, 2);
        replace_tensor(gguf, e, i, "v.bias", l->bv, 0, 2);
    }
}

static void write_replaced(const struct tiny_spec *spec, const lk_model *model,
                           const struct bases *bases) {
    struct edit e = {.model = model, .bases = bases};
    assert_true(tiny_gguf_write_edited(replaced_path, spec, replace_weights, &e));
    for (int i = 0; i < e.n_mem; i++) free(e.mem[i]);
}

/* ---- sessions ---- */

/* Logits of the last token of a prompt and of each of the following steps, [STEPS + 1][n_vocab],
 * owned by the caller. The last steps are made in a batch with a copy of the session. */
static float *run_session(lk_model *model, const char *text, const int32_t *tok) {
    lk_recipe *recipe;
    lk_session *s = open_session(model, text, N, &recipe), *fork;
    lk_session_opts opts = {.n_ctx = N};
    lk_batch *batch;
    lk_err err = {0};
    size_t n_vocab = (size_t)model->net->hp.n_vocab;
    float *logits = malloc((STEPS + 1) * n_vocab * sizeof *logits);
    if (lk_session_sync(s, tok, PROMPT, NULL, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    memcpy(logits, lk_session_logits(s, -1), n_vocab * sizeof *logits);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(lk_session_eval(s, tok + PROMPT + i, 1, false, &err), LK_OK);
        memcpy(logits + (i + 1) * n_vocab, lk_session_logits(s, -1), n_vocab * sizeof *logits);
    }
    assert_int_equal(lk_session_new(&fork, model, recipe, &opts, &err), LK_OK);
    assert_int_equal(lk_session_copy(fork, s, &err), LK_OK);
    assert_int_equal(lk_batch_new(&batch, model, &err), LK_OK);
    for (int i = 4; i < STEPS; i++) {
        lk_batch_entry item[2] = {{.session = s, .tok = tok + PROMPT + i, .n_tok = 1},
                                  {.session = fork, .tok = tok + PROMPT + i, .n_tok = 1}};
        assert_int_equal(lk_batch_eval(batch, item, 2, &err), LK_OK);
        const float *one = lk_session_logits(s, -1), *two = lk_session_logits(fork, -1);
        assert_memory_equal(one, two, n_vocab * sizeof *one);
        memcpy(logits + (i + 1) * n_vocab, one, n_vocab * sizeof *logits);
    }
    lk_batch_free(batch);
    lk_session_free(fork);
    lk_session_free(s);
    lk_recipe_free(recipe);
    return logits;
}

static void compare(const char *preset, const char *what, const float *logits, const float *ref,
                    size_t n_vocab) {
    for (int i = 0; i <= STEPS; i++) {
        double e = nmse(logits + i * n_vocab, ref + i * n_vocab, n_vocab);
        if (!(e <= limit)) fail_msg("%s, %s, logits %d: %g", preset, what, i, e);
    }
}

/* The prompt's last token and the steps, by libllama. */
static void compare_with_libllama(const char *preset, const float *logits, const int32_t *tok,
                                  size_t n_vocab) {
    struct oracle oracle;
    assert_true(
        oracle_open(&oracle, replaced_path, NULL, 256, GGML_TYPE_F32, GGML_TYPE_F32, false, 1));
    const float *all = oracle_eval(&oracle, tok, N, 0);
    assert_non_null(all);
    compare(preset, "libllama", logits, all + (PROMPT - 1) * n_vocab, n_vocab);
    oracle_close(&oracle, true);
}

/* Compare a preset's eager session. share: of the ranks; mean: of the bases, which a file without
 * biases cannot express at lower ranks. */
static void check_preset(const char *preset, double share, bool mean, enum lk_basis_type type) {
    const struct tiny_spec *spec = tiny_preset(preset);
    assert_true(tiny_gguf_write(model_path, spec));
    lk_model *plain = open_file(model_path, NULL), *replaced = NULL;
    size_t n_vocab = (size_t)plain->net->hp.n_vocab;
    int32_t tok[N];
    random_tokens(tok, N, plain, 3);
    struct bases bases = make_bases(plain, share, mean, type);
    lk_model *whole = open_with_bases(model_path, &bases);
    const char *eager = bases.k_side == LK_BASIS_KPRE ? "all: k=latent(pre) v=latent; eager"
                                                      : "all: k=latent v=latent; eager";
    float *logits = run_session(whole, eager, tok), *ref;
    if (share == 1) {
        ref = run_session(plain, "f16", tok);
    } else {
        write_replaced(spec, plain, &bases);
        replaced = open_file(replaced_path, NULL);
        ref = run_session(replaced, "f16", tok);
        compare_with_libllama(preset, logits, tok, n_vocab);
    }
    compare(preset, "eager", logits, ref, n_vocab);
    free(logits);
    free(ref);
    lk_model_free(replaced);
    lk_model_free(whole);
    lk_model_free(plain);
    free_bases(&bases);
}

static void test_full_rank(void **state) {
    check_preset("llama", 1, true, LK_BASIS_F32);
    check_preset("llama-mha", 1, true, LK_BASIS_F32);
    check_preset("llama3", 1, false, LK_BASIS_F32);
    check_preset("llama-96", 1, true, LK_BASIS_F32); /* q, k and v in one matrix */
    check_preset("llama-yarn", 1, true, LK_BASIS_F32);
    check_preset("qwen2", 1, true, LK_BASIS_F32);
    check_preset("qwen3", 1, true, LK_BASIS_F32);
    check_preset("gemma3", 1, true, LK_BASIS_F32);
    check_preset("falcon", 1, true, LK_BASIS_F32);
    check_preset("falcon-40b", 1, false, LK_BASIS_F32);
    check_preset("bloom", 1, true, LK_BASIS_F32);
    check_preset("gpt2", 1, true, LK_BASIS_F32);
}

static void test_low_rank(void **state) {
    check_preset("llama", 0.5, false, LK_BASIS_F32);
    check_preset("llama-mha", 0.4, true, LK_BASIS_F16);
    check_preset("llama-96", 0.5, false, LK_BASIS_Q8);
    check_preset("qwen2", 0.6, true, LK_BASIS_F16);
    check_preset("falcon", 0.5, false, LK_BASIS_Q8);
    check_preset("bloom", 0.5, true, LK_BASIS_F16);
    check_preset("gpt2-80", 0.7, true, LK_BASIS_Q8);
}

/* ---- codecs ---- */

struct seen {
    int n_call, n_wrong, n_staged;
};

/* Every complete tile must be encoded before attention, and the newest rows must be latents. */
static void count_staged(void *user, int layer, const struct lk_attn *attn) {
    (void)layer;
    struct seen *seen = user;
    const struct lk_kv *side[] = {attn->k, attn->v};
    seen->n_call++;
    for (int i = 0; i < 2; i++) {
        int newest = side[i]->n_level - 1;
        seen->n_staged += side[i]->count[newest].rows > 0;
        seen->n_wrong += side[i]->count[newest].rows != side[i]->n_tok % LK_TILE ||
                         !side[i]->level[newest].basis;
    }
}

static void test_rows_are_encoded_first(void **state) {
    assert_true(tiny_gguf_write(model_path, tiny_preset("llama")));
    lk_model *plain = open_file(model_path, NULL);
    struct bases bases = make_bases(plain, 0.5, false, LK_BASIS_Q8);
    lk_model *model = open_with_bases(model_path, &bases);
    lk_recipe *recipe;
    int32_t tok[N];
    lk_session *s = open_session(
        model, "eager; all: k=latent50%(pre)+rot3(nosigma) v=latent50%+rot3", N, &recipe);
    struct seen seen = {0};
    s->watch.on_attention = count_staged;
    s->watch.user = &seen;
    random_tokens(tok, N, model, 4);
    assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
    for (int i = PROMPT; i < N; i++)
        assert_int_equal(lk_session_eval(s, tok + i, 1, false, NULL), LK_OK);
    assert_int_equal(seen.n_call, (1 + STEPS) * model->net->hp.n_layer);
    assert_true(seen.n_staged > 0);
    assert_int_equal(seen.n_wrong, 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
    lk_model_free(plain);
    free_bases(&bases);
}

/* Encoding early must not drop rows of a sliding window that the first queries of a chunk see. */
static void test_sliding_window(void **state) {
    lk_model *model = open_preset("gemma3", 0, 1);
    lk_recipe *recipe[2];
    int32_t tok[N];
    random_tokens(tok, N, model, 5);
    lk_session *s[] = {open_session(model, "f16", N, &recipe[0]),
                       open_session(model, "body: rot8; eager", N, &recipe[1])};
    for (int at = 0; at < N; at += PROMPT / 2)
        for (int i = 0; i < 2; i++)
            assert_int_equal(lk_session_eval(s[i], tok + at,
                                             N - at < PROMPT / 2 ? N - at : PROMPT / 2, true, NULL),
                             LK_OK);
    double e = nmse(lk_session_logits(s[1], -1), lk_session_logits(s[0], -1),
                    (size_t)model->net->hp.n_vocab);
    if (!(e > 0 && e < 1e-3)) fail_msg("nmse %g", e);
    for (int i = 0; i < 2; i++) lk_session_free(s[i]);
    for (int i = 0; i < 2; i++) lk_recipe_free(recipe[i]);
    lk_model_free(model);
}

/* ---- with other parts of a recipe ---- */

/* Recipes that store nothing but latents. */
static const char *const combined[] = {
    "keep 24 by h2o: k=latent(pre) v=latent; window 16: k=latent(pre) v=latent; eager",
    "keep 24 by tova(apart): k=latent30%(pre) v=latent; window 16: k=latent(pre) v=latent; eager",
    "sink 4: k=latent(pre) v=latent; keep 24 by h2o(mean): k=latent(pre)+int8 v=latent+int8;"
    "window 16: k=latent(pre)+int8 v=latent+int8; eager",
    "sink 4(shift): k=latent(pre) v=latent; body: none; window 40: k=latent(pre) v=latent; eager",
    "body: none; window 40: k=latent(pre) v=latent; eager",
    "body: k=latent(pre) v=latent; layers 0: k=latent25%(pre) v=latent25%+int8; eager",
    "body: k=latent(pre)+int8 v=latent; layers last 1: keep 30 by random: k=latent(pre) v=latent;"
    "window 8: k=latent(pre) v=latent; eager",
};

/* On a file with replaced weights, projections change nothing: the same recipe gives the same
 * logits, if sessions on the original file attend to nothing but latents. */
static void test_combined(void **state) {
    const struct tiny_spec *spec = tiny_preset("llama-mha");
    assert_true(tiny_gguf_write(model_path, spec));
    lk_model *plain = open_file(model_path, NULL);
    struct bases bases = make_bases(plain, 0.5, true, LK_BASIS_F32);
    write_replaced(spec, plain, &bases);
    lk_model *whole = open_with_bases(model_path, &bases),
             *replaced = open_with_bases(replaced_path, &bases);
    size_t n_vocab = (size_t)plain->net->hp.n_vocab;
    int32_t tok[N];
    random_tokens(tok, N, plain, 8);
    for (size_t i = 0; i < sizeof combined / sizeof *combined; i++) {
        float *a = run_session(whole, combined[i], tok),
              *b = run_session(replaced, combined[i], tok);
        compare("llama-mha", combined[i], a, b, n_vocab);
        free(a);
        free(b);
    }
    lk_model_free(replaced);
    lk_model_free(whole);
    lk_model_free(plain);
    free_bases(&bases);
}

/* A saved session continues bit for bit. */
static void test_saved(void **state) {
    const char *text = "k=latent(pre)+int8 v=latent+rot4; eager", *path = replaced_path;
    assert_true(tiny_gguf_write(model_path, tiny_preset("llama-mha")));
    lk_model *plain = open_file(model_path, NULL);
    struct bases bases = make_bases(plain, 0.5, true, LK_BASIS_Q8);
    lk_model *model = open_with_bases(model_path, &bases);
    size_t bytes = (size_t)plain->net->hp.n_vocab * sizeof(float);
    int32_t tok[N];
    random_tokens(tok, N, plain, 9);
    lk_recipe *recipe[2];
    lk_session *s = open_session(model, text, N, &recipe[0]),
               *t = open_session(model, text, N, &recipe[1]);
    assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_save(s, NULL, path, NULL), LK_OK);
    assert_int_equal(lk_session_load(t, NULL, path, NULL), LK_OK);
    assert_int_equal(lk_session_eval(s, tok + PROMPT, STEPS, false, NULL), LK_OK);
    assert_int_equal(lk_session_eval(t, tok + PROMPT, STEPS, false, NULL), LK_OK);
    assert_memory_equal(lk_session_logits(s, -1), lk_session_logits(t, -1), bytes);
    lk_session_free(s);
    lk_session_free(t);
    for (int i = 0; i < 2; i++) lk_recipe_free(recipe[i]);
    lk_model_free(model);
    lk_model_free(plain);
    free_bases(&bases);
}

static void test_refused(void **state) {
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    assert_int_equal(lk_recipe_parse(&recipe, "sink 4: f16; eager", &err), LK_E_FORMAT);
    if (!strstr(err.msg, "no body")) fail_msg("%s", err.msg);
}

int main(void) {
    int fd[] = {mkstemp(model_path), mkstemp(sidecar_path), mkstemp(replaced_path)};
    for (int i = 0; i < 3; i++) {
        if (fd[i] < 0) return 1;
        close(fd[i]);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_rank),
                                       cmocka_unit_test(test_low_rank),
                                       cmocka_unit_test(test_rows_are_encoded_first),
                                       cmocka_unit_test(test_sliding_window),
                                       cmocka_unit_test(test_combined),
                                       cmocka_unit_test(test_saved),
                                       cmocka_unit_test(test_refused)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(model_path);
    unlink(sidecar_path);
    unlink(replaced_path);
    return failed;
}
