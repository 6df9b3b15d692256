/* OSCAR's sidecars of tiny random models: rotations are eigenvectors of the moments that they are
 * defined by, and values are weighted by their token's scores. */
#include "lowrank/statistics.h"
#include "test_bases.h"

#include <unistd.h>

static char folder[] = "/tmp/lowkey-oscar-XXXXXX";

/* Rows of `down` of group g are orthonormal eigenvectors of its moment, largest value first. */
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
