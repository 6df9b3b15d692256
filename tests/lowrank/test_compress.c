/* Statistics and sidecars of tiny random models: rows compared with the model's own graph, resumed
 * statistics, contents of sidecars, and rejected options and texts. */
#include "lowkey_serve.h"
#include "lowrank/fisher.h"
#include "lowrank/moments.h"
#include "lowrank/rank.h"
#include "lowrank/statistics.h"
#include "sidecar/sidecar.h"
#include "test_bases.h"

#include <unistd.h>

static char folder[] = "/tmp/lowkey-compress-XXXXXX";
static char sidecar_path[64], stats_path[64];

/* ---- undoing RoPE ---- */

/* ggml's angles are floats: at position 1000 their spacing is about 6e-5, near the start much
 * less. */
static void check_rotation(lk_model *model, const char *preset, int layer, int first,
                           double limit) {
    enum { N = 40, HEADS = 2 };
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_ledger ledger = {0};
    struct lk_graph g = {0};
    struct random r = {5};
    lk_err err = {0};
    size_t n = (size_t)hp->d_head * HEADS * N;
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(&r);
    assert_int_equal(lk_graph_begin(&g, 16, &ledger, &err), LK_OK);
    g.x_in = ggml_new_tensor_3d(g.ctx, GGML_TYPE_F32, hp->d_head, HEADS, N);
    g.pos = ggml_new_tensor_1d(g.ctx, GGML_TYPE_I32, N);
    ggml_set_input(g.x_in);
    ggml_set_input(g.pos);
    g.x_out = lk_apply_rope(model->net, g.ctx, layer, g.x_in, g.pos);
    ggml_set_output(g.x_out);
    ggml_build_forward_expand(g.graph, g.x_out);
    assert_int_equal(lk_graph_finish(&g, &ledger, &err), LK_OK);
    memcpy(g.x_in->data, x, n * sizeof *x);
    lk_graph_set_positions(&g, 0, (size_t)first, N);
    assert_int_equal(lk_graph_run(&g, model, &err), LK_OK);
    float *turned = g.x_out->data;
    assert_true(nmse(turned, x, n) > 0.1);
    const struct lk_rope *rope = &model->rope[hp->n_swa > 0 && hp->is_swa[layer]];
    for (int head = 0; head < HEADS; head++)
        lk_rope_unrotate(rope, first, N, turned + (size_t)head * hp->d_head,
                         (size_t)HEADS * hp->d_head);
    double error = nmse(turned, x, n);
    if (!(error < limit)) fail_msg("%s, layer %d, position %d: %g", preset, layer, first, error);
    lk_graph_free(&g, &ledger);
    free(x);
    assert_empty(&ledger);
}

static void test_rotation(void **state) {
    const char *const preset[] = {"llama", "llama3",     "llama-96", "llama-yarn",
                                  "qwen2", "gemma3-cap", "falcon"};
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++) {
        lk_model *model = open_model(preset[i]);
        for (int layer = 0; layer < model->net->hp.n_layer; layer += 5) {
            check_rotation(model, preset[i], layer, 3, 1e-11);
            check_rotation(model, preset[i], layer, 1000, 1e-9);
        }
        lk_model_free(model);
    }
}

/* ---- statistics ---- */

/* Compare the first layer's moments of one window with rows from the family's graph. */
static void check_first_layer(const char *preset, bool pre, int group) {
    enum { N = 96 };
    lk_model *model = open_model(preset);
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_ledger ledger = {0};
    struct layer_rows rows;
    lk_err err = {0};
    struct lk_statistics_opts opts = {
        .group = {group, pre ? group : 0, group}, .queries = true, .n_ctx = N, .n_skip = 5};
    struct lk_statistics *s = NULL;
    if (lk_statistics_new(&s, model, &opts, text, TOKENS, &ledger, &err) != LK_OK)
        fail_msg("%s: %s", preset, err.msg);
    assert_int_equal(lk_statistics_collect(s, model, text, N, NULL, NULL, NULL, &err), LK_OK);
    assert_int_equal(s->n_tok, N);

    read_layer_rows(model, N, &rows);
    int kv = hp->n_head_kv * hp->d_head, q = hp->n_head * hp->d_head, n = N - opts.n_skip;
    check_moments("K", &s->side[LK_BASIS_K][0], rows.k + opts.n_skip * kv, n, hp->n_head_kv / group,
                  1);
    check_moments("V", &s->side[LK_BASIS_V][0], rows.v + opts.n_skip * kv, n, hp->n_head_kv / group,
                  1);
    check_moments("Q", &s->query[0], rows.q + opts.n_skip * q, n, hp->n_head,
                  hp->n_head / hp->n_head_kv);
    if (pre)
        check_moments("K before RoPE", &s->side[LK_BASIS_KPRE][0], rows.before + opts.n_skip * kv,
                      n, hp->n_head_kv / group, 1);
    free_layer_rows(&rows);
    lk_statistics_free(s);
    lk_model_free(model);
    assert_empty(&ledger);
}

static void test_first_layer(void **state) {
    check_first_layer("llama", true, 2);
    check_first_layer("llama-mha", true, 1);
    check_first_layer("qwen2", true, 1);
    check_first_layer("gemma3-cap", true, 2);
    check_first_layer("falcon", true, 1);
    check_first_layer("bloom", false, 3);
    check_first_layer("gpt2", false, 4);
}

static bool cancel_late(void *user, uint64_t done, uint64_t total) {
    (void)total;
    return done < *(uint64_t *)user;
}

static bool same_moments(const struct lk_statistics *a, const struct lk_statistics *b) {
    for (int layer = 0; layer < a->n_layer; layer++)
        for (int side = 0; side < LK_N_BASIS; side++) {
            const struct lk_moments *x = a->side[side] ? &a->side[side][layer] : NULL,
                                    *y = x ? &b->side[side][layer] : NULL;
            if (x && (x->n != y->n ||
                      memcmp(x->sum, y->sum,
                             (size_t)x->n_group * x->width * (x->width + 1) * sizeof(double)) != 0))
                return false;
        }
    return a->n_tok == b->n_tok;
}

/* Saved between windows, loaded and finished: bit-identical. Damaged and foreign files are
 * rejected. */
static void test_resume(void **state) {
    lk_model *model = open_model("llama");
    struct lk_ledger ledger = {0};
    struct lk_statistics *whole, *part, *again;
    struct lk_statistics_opts opts = {.group = {2, 1, 2}, .n_ctx = 200};
    uint64_t stop = 700;
    lk_err err = {0};
    assert_int_equal(lk_statistics_new(&whole, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_new(&part, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_new(&again, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_collect(whole, model, text, TOKENS, NULL, NULL, NULL, &err),
                     LK_OK);
    assert_int_equal(whole->side[LK_BASIS_V][1].n, TOKENS);
    assert_int_equal(lk_statistics_collect(part, model, text, 600, NULL, NULL, NULL, &err), LK_OK);
    assert_int_equal(lk_statistics_save(part, stats_path, &err), LK_OK);
    assert_int_equal(
        lk_statistics_collect(part, model, text, TOKENS, stats_path, cancel_late, &stop, &err),
        LK_E_CANCELLED);
    assert_int_equal(lk_statistics_load(again, stats_path, &err), LK_OK);
    assert_int_equal(again->n_tok, 600);
    assert_int_equal(
        lk_statistics_collect(again, model, text, TOKENS, stats_path, NULL, NULL, &err), LK_OK);
    assert_true(same_moments(whole, again));
    assert_int_equal(lk_statistics_load(part, stats_path, &err),
                     LK_OK); /* it was also saved at the end */
    assert_int_equal(part->n_tok, TOKENS);
    assert_true(same_moments(whole, part));

    /* A file that claims more tokens than the text has, or none, with a right checksum. */
    for (int i = 0; i < 2; i++) {
        part->n_tok = i ? TOKENS + 1 : 0;
        assert_int_equal(lk_statistics_save(part, stats_path, &err), LK_OK);
        assert_int_equal(lk_statistics_load(again, stats_path, &err), LK_E_FORMAT);
    }
    part->n_tok = TOKENS;
    assert_int_equal(lk_statistics_save(part, stats_path, &err), LK_OK);

    /* A text that differs in its last token; another window size. */
    struct lk_statistics *other;
    text[TOKENS - 1] ^= 1;
    assert_int_equal(lk_statistics_new(&other, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_load(other, stats_path, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "another model, text or options"));
    lk_statistics_free(other);
    text[TOKENS - 1] ^= 1;
    opts.n_ctx = 100;
    assert_int_equal(lk_statistics_new(&other, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_load(other, stats_path, &err), LK_E_ARG);
    lk_statistics_free(other);

    FILE *f = fopen(stats_path, "r+b");
    fseek(f, 5000, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 5000, SEEK_SET);
    fputc(byte ^ 4, f);
    fclose(f);
    assert_int_equal(lk_statistics_load(again, stats_path, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "damaged"));
    assert_int_equal(truncate(stats_path, 3000), 0);
    assert_int_equal(lk_statistics_load(again, stats_path, &err), LK_E_FORMAT);
    unlink(stats_path);
    assert_int_equal(lk_statistics_load(again, stats_path, &err),
                     LK_OK); /* no file: nothing to load */
    lk_statistics_free(whole);
    lk_statistics_free(part);
    lk_statistics_free(again);
    lk_model_free(model);
    assert_empty(&ledger);
}

/* ---- weights ---- */

/* Rows of a matrix by ggml's own conversion. */
static float *matrix(const struct ggml_tensor *w) {
    float *x = malloc(ggml_nelements(w) * sizeof *x);
    for (int64_t i = 0; i < w->ne[1]; i++) {
        const char *row = (const char *)w->data + i * w->nb[1];
        if (w->type == GGML_TYPE_F32)
            memcpy(x + i * w->ne[0], row, w->ne[0] * sizeof *x);
        else
            ggml_get_type_traits(w->type)->to_float(row, x + i * w->ne[0], w->ne[0]);
    }
    return x;
}

static void check_weights(const char *preset, int group) {
    lk_model *model = open_model(preset);
    const struct lk_hparams *hp = &model->net->hp;
    const struct lk_layer *l = &model->net->layer[1];
    struct lk_ledger ledger = {0};
    struct lk_moments m, o;
    lk_err err = {0};
    int w = group * hp->d_head, n_kv = hp->n_head_kv * hp->d_head,
        share = hp->n_head / hp->n_head_kv;
    assert_int_equal(lk_moments_new(&m, hp->n_head_kv / group, w, &ledger, &err), LK_OK);
    assert_int_equal(lk_weight_moments(&m, model->net, 1, LK_BASIS_V, &ledger, &err), LK_OK);
    float *v = matrix(l->wqkv ? l->wqkv : l->wv),
          *first = l->wqkv ? v + (size_t)(hp->n_head * hp->d_head + n_kv) * hp->n_embd : v,
          *wo = matrix(l->wo);
    for (int i = 0; i < n_kv; i += 7)
        for (int j = i / w * w; j <= i; j += 5) {
            double sum = 0, is = m.second[((size_t)(i / w) * w + i % w) * w + j % w];
            for (int c = 0; c < hp->n_embd; c++)
                sum +=
                    (double)first[(size_t)i * hp->n_embd + c] * first[(size_t)j * hp->n_embd + c];
            assert_true(fabs(is - sum) <= 1e-9 * (1 + fabs(sum)));
        }
    assert_int_equal(lk_moments_new(&o, hp->n_head_kv, hp->d_head, &ledger, &err), LK_OK);
    assert_int_equal(lk_output_moments(&o, model->net, 1, &ledger, &err), LK_OK);
    for (int head = 0; head < hp->n_head_kv; head++)
        for (int i = 0; i < hp->d_head; i += 3)
            for (int j = 0; j <= i; j += 11) {
                double sum = 0, is = o.second[((size_t)head * hp->d_head + i) * hp->d_head + j];
                for (int row = 0; row < hp->n_embd; row++)
                    for (int s = 0; s < share; s++) {
                        const float *x = wo + (size_t)row * hp->n_head * hp->d_head +
                                         (head * share + s) * hp->d_head;
                        sum += (double)x[i] * x[j];
                    }
                assert_true(fabs(is - sum) <= 1e-9 * (1 + fabs(sum)));
            }
    lk_moments_free(&m, &ledger);
    lk_moments_free(&o, &ledger);
    free(v);
    free(wo);
    lk_model_free(model);
    assert_empty(&ledger);
}

static void test_weights(void **state) {
    check_weights("llama", 2);
    check_weights("llama-96", 1); /* q, k, v in one matrix */
    check_weights("llama-q4_K", 2);
    check_weights("bloom", 3);
}

/* ---- sidecars ---- */

/* up^T down of all components is the identity; errors never increase and end at 0. */
static void check_basis(const struct lk_basis *b, bool whole) {
    for (int g = 0; g < b->n_group; g++) {
        const float *down = b->down.f32 + (size_t)g * b->n_comp * b->width,
                    *up = b->up.f32 + (size_t)g * b->n_comp * b->width,
                    *error = b->error + (size_t)g * b->n_comp;
        for (int j = 1; j < b->n_comp; j++) assert_true(error[j] <= error[j - 1] + 1e-6f);
        assert_true(error[0] <= 1 && (!whole || error[b->n_comp - 1] < 1e-5f));
        for (int i = 0; whole && i < b->width; i += 9)
            for (int c = 0; c < b->width; c++) {
                double sum = 0;
                for (int j = 0; j < b->n_comp; j++)
                    sum += (double)up[j * b->width + i] * down[j * b->width + c];
                assert_true(fabs(sum - (i == c)) < 1e-3);
            }
    }
}

static struct lk_sidecar *write_and_open(const lk_compress *c, const lk_model *model,
                                         struct lk_ledger *ledger) {
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_sidecar_model of = {model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head};
    struct lk_sidecar *s = NULL;
    lk_err err = {0};
    assert_int_equal(lk_compress_write(c, sidecar_path, &err), LK_OK);
    if (lk_sidecar_open(&s, sidecar_path, &of, ledger, &err) != LK_OK) fail_msg("%s", err.msg);
    return s;
}

static void check_method(const char *preset, lk_compress_opts opts, int k_groups, int pre_groups,
                         int v_groups, int v_rank) {
    lk_model *model = open_model(preset);
    struct lk_ledger ledger = {0};
    opts.numbers = LK_NUMBERS_F32;
    lk_compress *c = make(model, &opts);
    struct lk_sidecar *s = write_and_open(c, model, &ledger);
    const int groups[LK_N_BASIS] = {k_groups, pre_groups, v_groups};
    const char *name;
    assert_true(lk_compress_name(LK_COMPRESS_METHOD, opts.method, &name));
    assert_string_equal(s->info.method, name);
    assert_true(lk_compress_name(LK_COMPRESS_SVD, opts.svd, &name));
    assert_non_null(strstr(s->info.options, name));
    assert_int_equal(s->info.calibration_tokens, TOKENS);
    for (int side = 0; side < LK_N_BASIS; side++)
        for (int layer = 0; layer < model->net->hp.n_layer; layer++) {
            const struct lk_basis *b = &s->basis[side][layer];
            assert_int_equal(b->n_group, groups[side]);
            if (b->n_group) check_basis(b, b->n_comp == b->width && opts.svd != LK_SVD_MEAN_POOL);
            assert_true(!b->n_group || (b->mean != NULL) == opts.mean);
            if (opts.truncate && b->n_group) assert_int_equal(b->n_comp, b->rank[0]);
        }
    if (opts.ranks == LK_RANK_UNIFORM) assert_int_equal(s->basis[LK_BASIS_V][0].rank[0], v_rank);
    lk_sidecar_close(s);
    lk_compress_free(c);
    lk_model_free(model);
    assert_empty(&ledger);
}

static void test_methods(void **state) {
    check_method("llama", (lk_compress_opts){.method = LK_METHOD_PALU}, 1, 1, 1, 64);
    check_method("llama-mha", (lk_compress_opts){.method = LK_METHOD_PALU, .group = 2, .rank = 0.3},
                 2, 2, 2, 48);
    check_method("llama",
                 (lk_compress_opts){.method = LK_METHOD_PALU,
                                    .group = 1,
                                    .rank = 0.25,
                                    .svd = LK_SVD_OUTPUT,
                                    .truncate = true},
                 2, 2, 2, 16);
    check_method("llama",
                 (lk_compress_opts){.method = LK_METHOD_PALU, .svd = LK_SVD_PLAIN, .n_ctx = 256}, 0,
                 1, 1, 64);
    check_method("bloom",
                 (lk_compress_opts){.method = LK_METHOD_PALU, .group = -1, .ranks = LK_RANK_ENERGY},
                 1, 0, 1, 0);
    check_method("gpt2", (lk_compress_opts){.method = LK_METHOD_TALE, .mean = true}, 0, 0, 1, 128);
    check_method("llama", (lk_compress_opts){.method = LK_METHOD_OSCAR}, 2, 0, 2, 64);
    check_method("qwen3", (lk_compress_opts){.method = LK_METHOD_KVHEADS}, 1, 0, 1, 128);
    check_method("bloom", (lk_compress_opts){.method = LK_METHOD_KVHEADS, .truncate = true}, 3, 0,
                 3, 64);
    check_method("llama-mha",
                 (lk_compress_opts){.method = LK_METHOD_KVHEADS, .svd = LK_SVD_MEAN_POOL}, 2, 0, 2,
                 80);
    check_method("llama-mha",
                 (lk_compress_opts){.method = LK_METHOD_KVHEADS, .group = 4, .svd = LK_SVD_PLAIN},
                 0, 1, 1, 80);
}

/* Logits of the text's first n tokens with a recipe. */
static float *logits_of(lk_model *model, const char *kv, int n) {
    lk_recipe *recipe;
    lk_session *session;
    lk_err err = {0};
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    float *out = malloc(n_vocab * sizeof *out);
    assert_int_equal(lk_recipe_parse(&recipe, kv, NULL), LK_OK);
    if (lk_session_new(&session, model, recipe, NULL, &err) ||
        lk_session_sync(session, text, n, NULL, &err) ||
        lk_session_eval(session, text, 1, false, &err))
        fail_msg("%s: %s", kv, err.msg);
    memcpy(out, lk_session_logits(session, -1), n_vocab * sizeof *out);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return out;
}

/* Sidecars of all types give the same predictions, up to rounding. Only what sessions read is in
 * memory, once for all of them. */
static void test_numbers(void **state) {
    static const double limit[] = {
        [LK_NUMBERS_Q8] = 1e-2, [LK_NUMBERS_F16] = 1e-5, [LK_NUMBERS_F32] = 1e-5};
    uint64_t file_bytes[3];
    for (int numbers = 0; numbers < 3; numbers++) {
        lk_model *model = open_model("llama-mha"), *with = NULL;
        lk_compress_opts opts = {
            .method = LK_METHOD_PALU, .group = 2, .numbers = numbers, .mean = true};
        lk_compress *c = make(model, &opts);
        lk_err err = {0};
        assert_int_equal(lk_compress_write(c, sidecar_path, &err), LK_OK);
        lk_model_opts open = {.n_threads = 1, .sidecar = sidecar_path};
        if (lk_model_open(&with, model_path, &open, &err)) fail_msg("%s", err.msg);
        uint64_t empty = lk_model_get_info(with).sidecar_bytes;
        file_bytes[numbers] = lk_model_get_info(with).sidecar_file_bytes;
        assert_true(empty < file_bytes[numbers] / 4);

        float *full = logits_of(with, "f16", 200),
              *latents = logits_of(with, "k=latent100%(pre) v=latent100%", 200);
        double e = nmse(latents, full, (size_t)lk_model_get_info(with).n_vocab);
        if (!(e < limit[numbers])) fail_msg("numbers %d: %g", numbers, e);
        free(full), free(latents);
        assert_int_equal(lk_model_get_info(with).sidecar_bytes, empty);

        lk_recipe *recipe;
        lk_session *session[2];
        lk_plan plan;
        lk_session_opts size = {.n_ctx = 64};
        assert_int_equal(lk_recipe_parse(&recipe,
                                         "k=latent25%(pre)+rot3(nomean,nosigma) v=latent50%+rot3",
                                         NULL),
                         LK_OK);
        assert_int_equal(lk_plan_make(with, recipe, &size, &plan, NULL), LK_OK);
        assert_true(plan.sidecar_bytes > empty && plan.derived_bytes == 0);
        assert_int_equal(lk_plan_bytes(&plan, 3), plan.sidecar_bytes + 3 * plan.cache_bytes);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lk_session_new(&session[i], with, recipe, NULL, NULL), LK_OK);
            assert_int_equal(lk_model_get_info(with).sidecar_bytes, plan.sidecar_bytes);
            assert_int_equal(lk_session_get_stats(session[i]).sidecar_bytes, plan.sidecar_bytes);
        }
        for (int i = 0; i < 2; i++) lk_session_free(session[i]);
        assert_int_equal(lk_model_get_info(with).sidecar_bytes, empty);
        lk_recipe_free(recipe);
        lk_model_free(with);
        lk_compress_free(c);
        lk_model_free(model);
    }
    assert_true(file_bytes[LK_NUMBERS_Q8] < 0.7 * (double)file_bytes[LK_NUMBERS_F16] &&
                file_bytes[LK_NUMBERS_F16] < 0.7 * (double)file_bytes[LK_NUMBERS_F32]);
}

/* Shares of singular values: their squares are what each component lowers the error by. */
static void test_singular_values(void **state) {
    lk_model *model = open_model("llama-mha");
    lk_compress_opts opts = {.method = LK_METHOD_PALU, .group = 2, .numbers = LK_NUMBERS_F32};
    lk_compress *c = make(model, &opts);
    lk_compress_basis basis;
    for (int layer = 0; layer < model->net->hp.n_layer; layer++)
        for (int i = 0; lk_compress_get_basis(c, layer, i, &basis); i++) {
            const struct lk_basis *b = lk_compress_layer(c, layer, i);
            const double *power = c->layer[i][layer].power;
            double all = 0, quarter = 0, half = 0;
            for (int g = 0; g < b->n_group; g++)
                for (int j = 0; j < b->width; j++) {
                    const float *error = b->error + (size_t)g * b->width + j;
                    double value = sqrt(power[g] * ((j ? error[-1] : 1.0) - error[0]));
                    all += value;
                    quarter += j < b->width / 4 ? value : 0;
                    half += j < b->width / 2 ? value : 0;
                }
            assert_true(b->n_group == 2 && quarter < 0.7 * half && half < 0.9 * all);
            assert_true(fabs(basis.singular_quarter - quarter / all) < 1e-4);
            assert_true(fabs(basis.singular_half - half / all) < 1e-4);
        }
    lk_compress_free(c);
    opts.svd = LK_SVD_OUTPUT; /* components of the rows as they are read */
    c = make(model, &opts);
    assert_true(lk_compress_get_basis(c, 0, LK_BASIS_V, &basis) && basis.singular_half == 0);
    lk_compress_free(c);
    lk_model_free(model);
}

static bool fail_if_text_is_read(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)total;
    return done > TOKENS; /* the units of fitting follow those of the text */
}

/* Statistics collected for one basis serve every other one of the same groups. */
static void test_kept_statistics(void **state) {
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_PALU, .n_ctx = 200},
                     other = {.method = LK_METHOD_PALU,
                              .svd = LK_SVD_OUTPUT,
                              .n_ctx = 200,
                              .mean = true,
                              .progress = fail_if_text_is_read};
    lk_compress *first, *kept, *fresh;
    lk_err err = {0};
    assert_int_equal(lk_compress_new(&first, model, &opts, text, TOKENS, &err), LK_OK);
    assert_int_equal(lk_compress_calibrate(first, text, TOKENS, stats_path, &err), LK_OK);
    lk_compress_free(first);
    assert_int_equal(lk_compress_new(&kept, model, &other, text, TOKENS, &err), LK_OK);
    if (lk_compress_calibrate(kept, text, TOKENS, stats_path, &err) != LK_OK ||
        lk_compress_fit(kept, &err) != LK_OK)
        fail_msg("%s", err.msg);
    unlink(stats_path);
    other.progress = NULL;
    fresh = make(model, &other);
    for (int side = 0; side < LK_N_BASIS; side++) {
        const struct lk_basis *a = lk_compress_layer(kept, 1, side),
                              *b = lk_compress_layer(fresh, 1, side);
        assert_memory_equal(a->down.f32, b->down.f32,
                            (size_t)a->n_group * a->n_comp * a->width * sizeof *a->down.f32);
    }
    lk_compress_free(kept);
    lk_compress_free(fresh);
    lk_model_free(model);
}

/* Plain SVD gives the same basis with and without a text. */
static void test_plain_without_text(void **state) {
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_TALE, .svd = LK_SVD_PLAIN, .n_skip = -1};
    lk_compress *with = make(model, &opts), *without = NULL;
    lk_err err = {0};
    assert_int_equal(lk_compress_new(&without, model, &opts, NULL, 0, &err), LK_OK);
    assert_int_equal(lk_compress_calibrate(without, NULL, 0, NULL, &err), LK_OK);
    assert_int_equal(lk_compress_fit(without, &err), LK_OK);
    const struct lk_basis *a = lk_compress_layer(with, 1, LK_BASIS_V),
                          *b = lk_compress_layer(without, 1, LK_BASIS_V);
    for (int j = 0; j < 20; j++) { /* equal up to the scale of the latents */
        double aa = 0, bb = 0, ab = 0;
        for (int c = 0; c < a->width; c++) {
            float x = a->down.f32[j * a->width + c], y = b->down.f32[j * a->width + c];
            aa += x * x;
            bb += y * y;
            ab += x * y;
        }
        assert_true(fabs(ab) > 0.9999 * sqrt(aa * bb));
    }
    lk_compress_free(with);
    lk_compress_free(without);
    lk_model_free(model);
}

/* tr (I - P)^T G (I - P) M of head 0, for the projection P of basis b. */
static double metric_error(const struct lk_basis *b, const struct lk_moments *metric,
                           const struct lk_moments *rows) {
    int d = rows->width;
    double error = 0, *p = calloc((size_t)d * d, sizeof *p);
    for (int i = 0; i < d; i++)
        for (int c = 0; c < d; c++) {
            p[i * d + c] = i == c;
            for (int j = 0; j < b->rank[0]; j++)
                p[i * d + c] -= (double)b->up.f32[j * d + i] * b->down.f32[j * d + c];
        }
    for (int i = 0; i < d; i++)
        for (int k = 0; k < d; k++) {
            double gp = 0, pm = 0;
            for (int c = 0; c < d; c++) {
                gp += symmetric_at(metric->second, d, i, c) * p[c * d + k];
                pm += p[i * d + c] * symmetric_at(rows->second, d, k, c);
            }
            error += gp * pm;
        }
    free(p);
    return error;
}

/* The error of the scores is smallest with the metric of the queries that read a head. */
static void test_query_metric(void **state) {
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_PALU, .rank = 0.5, .group = 1, .n_ctx = 256};
    lk_compress *whitened = make(model, &opts);
    opts.svd = LK_SVD_OUTPUT;
    lk_compress *output = make(model, &opts);
    const struct lk_statistics *s = output->statistics;
    for (int side = LK_BASIS_K; side <= LK_BASIS_KPRE; side++) {
        double error[2];
        for (int way = 0; way < 2; way++)
            error[way] = metric_error(lk_compress_layer(way ? output : whitened, 1, side),
                                      &s->query[1], &s->side[side][1]);
        assert_true(error[1] < error[0] && error[1] > 0);
    }
    lk_compress_free(whitened);
    lk_compress_free(output);
    lk_model_free(model);
}

/* The error in the residual stream is smallest with the metric that measures it. */
static void test_output_metric(void **state) {
    lk_model *model = open_model("llama");
    struct lk_ledger ledger = {0};
    struct lk_moments o, rows;
    lk_err err = {0};
    lk_compress_opts opts = {.method = LK_METHOD_KVHEADS, .rank = 0.5, .group = 1};
    lk_compress *whitened = make(model, &opts);
    opts.svd = LK_SVD_OUTPUT;
    lk_compress *output = make(model, &opts);
    struct lk_statistics_opts want = {.group = {0, 0, 1}, .n_ctx = 256};
    struct lk_statistics *s;
    assert_int_equal(lk_statistics_new(&s, model, &want, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_collect(s, model, text, TOKENS, NULL, NULL, NULL, &err), LK_OK);
    int d = model->net->hp.d_head;
    assert_int_equal(lk_moments_new(&o, model->net->hp.n_head_kv, d, &ledger, &err), LK_OK);
    assert_int_equal(lk_output_moments(&o, model->net, 1, &ledger, &err), LK_OK);
    rows = s->side[LK_BASIS_V][1];
    double error[2];
    for (int way = 0; way < 2; way++)
        error[way] =
            metric_error(lk_compress_layer(way ? output : whitened, 1, LK_BASIS_V), &o, &rows);
    assert_true(error[1] < error[0] && error[1] > 0);
    lk_moments_free(&o, &ledger);
    lk_statistics_free(s);
    lk_compress_free(whitened);
    lk_compress_free(output);
    lk_model_free(model);
    assert_empty(&ledger);
}

/* ---- ranks by Fisher information ---- */

static int sum_of_ranks(const lk_compress *c, const lk_model *model, enum lk_basis_side side) {
    int sum = 0;
    for (int layer = 0; layer < model->net->hp.n_layer; layer++) {
        const struct lk_basis *b = lk_compress_layer(c, layer, side);
        for (int g = 0; g < b->n_group; g++) {
            assert_true(b->rank[g] % 8 == 0 && b->rank[g] > 0);
            sum += b->rank[g];
        }
    }
    return sum;
}

static void test_fisher_ranks(void **state) {
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_PALU,
                             .group = 1,
                             .ranks = LK_RANK_FISHER,
                             .fisher_tokens = 200,
                             .fisher_ctx = 32};
    lk_compress *c = make(model, &opts);
    assert_int_equal(sum_of_ranks(c, model, LK_BASIS_KPRE) + sum_of_ranks(c, model, LK_BASIS_V),
                     2 * 2 * 2 * 32);
    for (int layer = 0; layer < 2; layer++) {
        const struct lk_basis *k = lk_compress_layer(c, layer, LK_BASIS_K),
                              *pre = lk_compress_layer(c, layer, LK_BASIS_KPRE);
        assert_memory_equal(k->rank, pre->rank, 2 * sizeof *k->rank);
    }
    lk_compress_free(c);
    lk_model_free(model);
}

/* Each group has the rank that the score of its own side, layer and head gives it. */
static void test_ranks_follow_their_own_scores(void **state) {
    enum { N_LAYER = 2, N_HEAD = 2, N = 2 * N_LAYER * N_HEAD };
    lk_model *model = open_model("llama");
    lk_compress_opts opts = {.method = LK_METHOD_PALU,
                             .group = 1,
                             .ranks = LK_RANK_FISHER,
                             .fisher_tokens = 200,
                             .fisher_ctx = 32};
    lk_compress *c = make(model, &opts);
    struct lk_ledger ledger = {0};
    struct lk_fisher fisher;
    struct lk_fisher_text t = {.tok = text, .n_tok = 200, .n_ctx = 32};
    struct lk_rank_item item[N];
    assert_int_equal(lk_fisher_new(&fisher, model, &ledger, NULL), LK_OK);
    assert_int_equal(lk_fisher_add(&fisher, model, &t, NULL, NULL), LK_OK);
    for (int i = 0; i < N; i++) {
        enum lk_side side = i < N / 2 ? LK_K : LK_V;
        int layer = i / N_HEAD % N_LAYER, head = i % N_HEAD;
        item[i] = (struct lk_rank_item){.width = lk_compress_layer(c, layer, LK_BASIS_V)->width,
                                        .score = lk_fisher_score(&fisher, layer, side, head, 1)};
    }
    lk_rank_by_score(item, N, 0.5, 8);
    for (int i = 0; i < N; i++) {
        enum lk_basis_side side = i < N / 2 ? LK_BASIS_KPRE : LK_BASIS_V;
        const struct lk_basis *basis = lk_compress_layer(c, i / N_HEAD % N_LAYER, side);
        assert_int_equal(basis->rank[i % N_HEAD], item[i].rank);
    }
    lk_fisher_free(&fisher);
    lk_compress_free(c);
    lk_model_free(model);
}

static void test_refused(void **state) {
    static const struct {
        const char *preset;
        lk_compress_opts opts;
        size_t n_tok;
        lk_status status;
        const char *words;
    } cases[] = {
        {"llama",
         {.method = LK_METHOD_PALU},
         300,
         LK_E_ARG,
         "the text has 300 tokens; calibrating this model needs at least 512"},
        {"llama", {.method = LK_METHOD_PALU}, 0, LK_E_ARG, "the text has 0 tokens"},
        {"llama",
         {.method = LK_METHOD_PALU, .group = 3},
         TOKENS,
         LK_E_ARG,
         "groups of 3 heads do not divide the model's 2 KV heads"},
        {"llama", {.method = LK_METHOD_PALU, .rank = 1.5}, TOKENS, LK_E_ARG, "a rank of 150%"},
        {"llama",
         {.method = LK_METHOD_PALU, .n_ctx = 257},
         TOKENS,
         LK_E_ARG,
         "between 2 and 256 tokens"},
        {"llama",
         {.method = LK_METHOD_PALU, .svd = LK_SVD_MEAN_POOL, .rank = 0.25},
         TOKENS,
         LK_E_ARG,
         "remove --rank"},
        {"llama",
         {.method = LK_METHOD_TALE, .n_ctx = 64, .n_skip = 64},
         TOKENS,
         LK_E_ARG,
         "cannot skip 64 tokens"},
        {"falcon", {.method = LK_METHOD_KVHEADS}, TOKENS, LK_E_ARG, "one KV head"},
        {"llama",
         {.method = LK_METHOD_OSCAR, .svd = LK_SVD_OUTPUT},
         TOKENS,
         LK_E_ARG,
         "remove --svd, --mean and --equalize"},
        {"llama",
         {.method = LK_METHOD_TALE, .svd = LK_SVD_PLAIN, .mean = true},
         0,
         LK_E_ARG,
         "the mean needs a text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lk_model *model = open_model(cases[i].preset);
        lk_compress *c = NULL;
        lk_err err = {0};
        lk_status status = lk_compress_new(&c, model, &cases[i].opts, text, cases[i].n_tok, &err);
        if (status != cases[i].status || !strstr(err.msg, cases[i].words))
            fail_msg("%zu: %s \"%s\"", i, lk_status_name(status), err.msg);
        assert_null(c);
        assert_int_equal(lk_compress_check(model, &cases[i].opts, cases[i].n_tok, &err),
                         cases[i].status);
        lk_model_free(model);
    }
    /* Normalized keys are not a product with a matrix; this is detected when they are fitted. */
    lk_model *model = open_model("qwen3");
    lk_compress_opts opts = {.method = LK_METHOD_PALU, .svd = LK_SVD_PLAIN};
    lk_compress *c = NULL;
    lk_err err = {0};
    assert_int_equal(lk_compress_new(&c, model, &opts, NULL, 0, &err), LK_OK);
    assert_int_equal(lk_compress_fit(c, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "normalizes its keys"));
    lk_compress_free(c);
    /* A text that was not evaluated. */
    opts.svd = LK_SVD_WHITENED;
    assert_int_equal(lk_compress_new(&c, model, &opts, text, TOKENS, &err), LK_OK);
    assert_int_equal(lk_compress_fit(c, &err), LK_E_ARG);
    lk_compress_free(c);
    lk_model_free(model);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    snprintf(sidecar_path, sizeof sidecar_path, "%s/model.lk.gguf", folder);
    snprintf(stats_path, sizeof stats_path, "%s/stats", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_first_layer),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_plain_without_text),
        cmocka_unit_test(test_query_metric),
        cmocka_unit_test(test_output_metric),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fisher_ranks),
        cmocka_unit_test(test_ranks_follow_their_own_scores),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_singular_values),
        cmocka_unit_test(test_kept_statistics),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(model_path);
    unlink(sidecar_path);
    unlink(stats_path);
    rmdir(folder);
    return failed;
}
