/* Helpers of the tests of statistics and bases: tiny random models, their texts, and the rows of
 * their first layer, computed by the family's graph. */
#ifndef LK_TEST_BASES_H
#define LK_TEST_BASES_H

#include "lowrank/compress.h"
#include "model/blocks.h"
#include "test.h"
#include "tiny_gguf.h"

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

static lk_compress *make(lk_model *model, const lk_compress_opts *opts) {
    lk_compress *c = NULL;
    lk_err err = {0};
    if (lk_compress_new(&c, model, opts, text, TOKENS, &err) != LK_OK ||
        lk_compress_calibrate(c, text, TOKENS, NULL, &err) != LK_OK ||
        lk_compress_fit(c, &err) != LK_OK)
        fail_msg("%s", err.msg);
    return c;
}

/* Element (i, j) of a symmetric matrix [d][d]; only its lower triangle is stored. */
static double symmetric_at(const double *m, int d, int i, int j) {
    return i >= j ? m[i * d + j] : m[j * d + i];
}

/* Compare m, whose rows were stored as f16, with the moments of rows x [n][n_group * width] by
 * three loops. */
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

#endif
