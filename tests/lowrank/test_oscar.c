/* OSCAR's sidecars of tiny random models: rotations are eigenvectors of the moments that they are
 * defined by, and values are weighted by their token's scores. */
#include "lowrank/collect.h"
#include "lowrank/compress.h"
#include "model/blocks.h"
#include "support.h"
#include "tiny_gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/lowkey-oscar-XXXXXX";
static char model_path[64];

enum { TOKENS = 1600 };
static int32_t text[TOKENS];

static lk_model *open_model(const char *preset) {
    const struct tiny_spec *spec = tiny_preset(preset);
    assert_non_null(spec);
    assert_true(tiny_gguf_write(model_path, spec));
    lk_model *model = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 1, .no_repack = true};
    if (lk_model_open(&model, model_path, &opts, &err) != LK_OK)
        fail_msg("%s: %s", preset, err.msg);
    struct random r = {99};
    int n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < TOKENS; i++) text[i] = random_int(&r, 0, n_vocab - 1);
    return model;
}

static void assert_empty(const struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(ledger, i), 0);
}

static void check_moments(const char *what, const struct lk_moments *m, const float *x, int n,
                          int stride_parts, int share) {
    int w = m->width, n_part = m->n_group * share;
    double error = 0, power = 0;
    assert_int_equal(n_part, stride_parts);
    assert_int_equal(m->n, (uint64_t)n * share);
    for (int g = 0; g < m->n_group; g++)
        for (int a = 0; a < w; a++)
            for (int b = 0; b <= a; b++) {
                double sum = 0, is = m->second[((size_t)g * w + a) * w + b];
                for (int t = 0; t < n; t++)
                    for (int s = 0; s < share; s++) {
                        const float *row = x + ((size_t)t * n_part + g * share + s) * w;
                        sum += (double)row[a] * row[b];
                    }
                error += (is - sum) * (is - sum);
                power += sum * sum;
            }
    if (!(error < 1e-6 * power)) fail_msg("%s: %g", what, error / power);
}

/* The first layer's rows of a window's first n tokens, from the family's graph. */
struct layer_rows {
    float *q, *k, *v, *before; /* [n][heads][d_head]; before: K before RoPE */
};

static float *copy_rows(const struct ggml_tensor *t) {
    size_t n_row = (size_t)t->ne[0], n = n_row * (size_t)(t->ne[1] * t->ne[2]);
    float *out = malloc(n * sizeof *out);
    for (int64_t i = 0; i < t->ne[1] * t->ne[2]; i++)
        memcpy(out + (size_t)i * n_row,
               (char *)t->data + i / t->ne[1] * (int64_t)t->nb[2] +
                   i % t->ne[1] * (int64_t)t->nb[1],
               n_row * sizeof *out);
    return out;
}

static void read_layer_rows(lk_model *model, int n, struct layer_rows *rows) {
    const struct lk_net *net = model->net;
    struct lk_ledger ledger = {0};
    struct lk_graph g = {0};
    lk_err err = {0};
    assert_int_equal(lk_graph_begin(&g, 2 * LK_LAYER_NODES, &ledger, &err), LK_OK);
    g.tok = ggml_new_tensor_1d(g.ctx, GGML_TYPE_I32, n);
    g.pos = ggml_new_tensor_1d(g.ctx, GGML_TYPE_I32, n);
    ggml_set_input(g.tok);
    ggml_set_input(g.pos);
    struct lk_qkv p =
        net->family->pre(net, g.ctx, 0, net->family->embed(net, g.ctx, g.tok, g.pos), g.pos);
    struct ggml_tensor *before = p.k->op == GGML_OP_ROPE ? p.k->src[0] : p.k;
    struct ggml_tensor *out[] = {p.q, p.k, p.v, before};
    for (int i = 0; i < 4; i++) {
        ggml_set_output(out[i]);
        ggml_build_forward_expand(g.graph, out[i]);
    }
    assert_int_equal(lk_graph_finish(&g, &ledger, &err), LK_OK);
    int32_t begin = lk_vocab_bos(model->vocab);
    memcpy(g.tok->data, text, n * sizeof *text);
    if (begin >= 0) ((int32_t *)g.tok->data)[0] = begin;
    lk_graph_set_positions(&g, 0, 0, n);
    assert_int_equal(lk_graph_run(&g, model, &err), LK_OK);
    *rows = (struct layer_rows){copy_rows(p.q), copy_rows(p.k), copy_rows(p.v), copy_rows(before)};
    lk_graph_free(&g, &ledger);
    assert_empty(&ledger);
}

static void free_layer_rows(struct layer_rows *rows) {
    free(rows->q);
    free(rows->k);
    free(rows->v);
    free(rows->before);
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

/* Element of a symmetric matrix [d][d] of which the lower triangle is stored. */
static double symmetric_at(const double *m, int d, int i, int j) {
    return i >= j ? m[i * d + j] : m[j * d + i];
}

/* Rows of `down` of group g are orthonormal eigenvectors of its moment, the largest values first.
 */
static void check_eigenvectors(const struct lk_basis *b, const struct lk_moments *m, int g) {
    int d = b->width;
    const float *down = b->down.f32 + (size_t)g * d * d;
    const double *second = m->second + (size_t)g * d * d;
    double largest = 0, last = INFINITY;
    for (int j = 0; j < d; j++) {
        double value = 0, error = 0;
        for (int i = 0; i <= j; i++) {
            double dot = 0;
            for (int c = 0; c < d; c++) dot += (double)down[i * d + c] * down[j * d + c];
            assert_true(fabs(dot - (i == j)) < 1e-5);
        }
        double *product = calloc((size_t)d, sizeof *product);
        for (int i = 0; i < d; i++) {
            for (int c = 0; c < d; c++)
                product[i] += symmetric_at(second, d, i, c) * down[j * d + c];
            value += product[i] * down[j * d + i];
        }
        if (j == 0) largest = value;
        for (int i = 0; i < d; i++) error += pow(product[i] - value * down[j * d + i], 2);
        free(product);
        assert_true(sqrt(error) < 1e-5 * largest);
        assert_true(value <= last + 1e-6 * largest);
        last = value;
    }
}

/* OSCAR: one rotation for each KV head. K's are eigenvectors of the queries' moment, in the order
 * of their eigenvalues, and V's of the weighted values'. */
static void test_oscar(void **state) {
    (void)state;
    static const char *const presets[] = {"llama", "qwen3", "gpt2"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        lk_model *model = open_model(presets[i]);
        lk_compress_opts opts = {.method = LK_METHOD_OSCAR, .n_ctx = 128};
        lk_compress *c = make(model, &opts);
        for (int side = LK_BASIS_K; side <= LK_BASIS_V; side++) {
            const struct lk_basis *b = lk_compress_layer(c, 1, side);
            if (side == LK_BASIS_KPRE) {
                assert_int_equal(b->n_group, 0);
                continue;
            }
            const struct lk_moments *m =
                side == LK_BASIS_K ? &c->statistics->query[1] : &c->statistics->side[side][1];
            int d = model->net->hp.d_head;
            assert_int_equal(b->n_group, model->net->hp.n_head_kv);
            assert_int_equal(b->width, d);
            assert_int_equal(b->rank[0], d);
            assert_ptr_equal(b->down.f32, b->up.f32);
            for (int g = 0; g < b->n_group; g++) check_eigenvectors(b, m, g);
        }
        lk_compress_free(c);
        lk_model_free(model);
    }
}

/* V's weight is the mean square of the scores of all queries so far: here of one chunk, in plain
 * loops over rows and queries. */
static void test_scored_values(void **state) {
    (void)state;
    enum { N = 96, SKIP = 5 };
    lk_model *model = open_model("llama");
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_ledger ledger = {0};
    struct lk_statistics *s = NULL;
    struct lk_statistics_opts opts = {
        .group = {1, 0, 1}, .queries = true, .scored = true, .n_ctx = N, .n_skip = SKIP};
    struct layer_rows r;
    lk_err err = {0};
    assert_int_equal(lk_statistics_new(&s, model, &opts, text, TOKENS, &ledger, &err), LK_OK);
    assert_int_equal(lk_statistics_collect(s, model, text, N, NULL, NULL, NULL, &err), LK_OK);
    read_layer_rows(model, N, &r);
    int d = hp->d_head, n_kv = hp->n_head_kv, share = hp->n_head / n_kv;
    for (int t = SKIP; t < N; t++)
        for (int head = 0; head < n_kv; head++) {
            const float *k = r.k + ((size_t)t * n_kv + head) * d;
            double square = 0;
            for (int u = SKIP; u < N; u++)
                for (int h = head * share; h < (head + 1) * share; h++) {
                    double score = 0;
                    for (int c = 0; c < d; c++)
                        score += (double)k[c] * r.q[((size_t)u * hp->n_head + h) * d + c];
                    square += score * score / ((N - SKIP) * share);
                }
            float *v = r.v + ((size_t)t * n_kv + head) * d;
            for (int c = 0; c < d; c++) v[c] *= (float)sqrt(square);
        }
    check_moments("weighted V", &s->side[LK_BASIS_V][0], r.v + (size_t)SKIP * n_kv * d, N - SKIP,
                  n_kv, 1);
    free_layer_rows(&r);
    lk_statistics_free(s);
    lk_model_free(model);
    assert_empty(&ledger);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oscar),
                                       cmocka_unit_test(test_scored_values)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(model_path);
    rmdir(folder);
    return failed;
}
