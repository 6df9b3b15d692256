/* Kernels on plain floats: softmax, RoPE scores and GELU layers of every table against the
 * reference, and combinations of prepared vectors. */
#include "codec/f16.h"
#include "kernels/recurrence.h"
#include "test_kernels.h"

enum { STRIDE = LK_TILE + 5 };

static void softmax_parts(void **state) {
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!kernels) continue;
        for (int n = 1; n < 70; n++) {
            float s[80], a[80], b[80];
            for (int i = 0; i < 80; i++) s[i] = 30 * gaussian();
            assert_true(kernels->max(s, n) == lk_kernels_reference.max(s, n));
            memcpy(a, s, sizeof a);
            memcpy(b, s, sizeof b);
            float max = 0.3f * kernels->max(s, n);
            float sum = kernels->exp_sum(a, n, 0.3f, max),
                  expect = lk_kernels_reference.exp_sum(b, n, 0.3f, max);
            assert_true(fabsf(sum - expect) <= 1e-5f * expect);
            /* The exponent itself is rounded: |x| 2^-24 and a few ulp. */
            for (int i = 0; i < n; i++) assert_true(fabsf(a[i] - b[i]) <= 1e-5f * b[i] + 2e-38f);
            assert_memory_equal(a + n, s + n, (80 - n) * sizeof(float));
        }
        float far[9] = {0, -1e3f, -1e30f, -INFINITY, -87, -88, -100, -200, 0};
        assert_true(fabsf(kernels->exp_sum(far, 9, 1, 0) - 2) < 1e-6f);
        assert_true(far[0] == 1 && far[1] == 0 && far[2] == 0 && far[3] == 0 && far[8] == 1);
    }
}

/* All widths, numbers of pairs and numbers of queries, NULL, which rotates nothing, a mean, and
 * channels that are left out. Nothing is written after the LK_TILE scores of a query. */
static void rope_scores(void **state) {
    enum { D = 96, Q = 9, FOLD = 4, Q_STRIDE = D + 3, BASIS_STRIDE = LK_TILE + 8 };
    static float k[D * LK_TILE], q[Q * Q_STRIDE], mean[D], cos_sin[D / 2][2][LK_TILE],
        fold[Q * FOLD * LK_TILE], offset[Q * FOLD], basis[FOLD * BASIS_STRIDE], got[Q * STRIDE],
        expect[Q * STRIDE];
    for (int i = 0; i < D * LK_TILE; i++) k[i] = gaussian();
    for (int i = 0; i < Q * Q_STRIDE; i++) q[i] = gaussian();
    for (int i = 0; i < D; i++) mean[i] = gaussian();
    for (int i = 0; i < Q * FOLD * LK_TILE; i++) fold[i] = gaussian();
    for (int i = 0; i < Q * FOLD; i++) offset[i] = gaussian();
    for (int i = 0; i < FOLD * BASIS_STRIDE; i++) basis[i] = gaussian();
    for (int j = 0; j < D / 2; j++)
        for (int t = 0; t < LK_TILE; t++)
            cos_sin[j][0][t] = 1.2f * cosf(0.1f * j * t),
            cos_sin[j][1][t] = 1.2f * sinf(0.1f * j * t);
    for (int i_table = 0; i_table < N_TABLE; i_table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[i_table]);
        for (int d = 0; kernels && d <= D; d += 8)
            for (int n_pair = -1; n_pair <= d / 2; n_pair += 3)
                for (int n_q = 1; n_q <= Q; n_q++) {
                    struct lk_rope_table table = {.n_pair = n_pair, .cos_sin = cos_sin};
                    struct lk_rope_keys keys = {.k = k,
                                                .mean = n_q % 3 ? NULL : mean,
                                                .d = d,
                                                .rope = n_pair < 0 ? NULL : &table,
                                                .n_fold = (n_q + d) % (FOLD + 1),
                                                .fold = fold,
                                                .offset = offset,
                                                .basis = basis,
                                                .basis_stride = BASIS_STRIDE};
                    for (int i = 0; i < Q * STRIDE; i++) got[i] = expect[i] = 1e30f;
                    kernels->score_rope(&keys, q, Q_STRIDE, n_q, got, STRIDE);
                    lk_kernels_reference.score_rope(&keys, q, Q_STRIDE, n_q, expect, STRIDE);
                    struct difference difference = compare(got, expect, n_q, STRIDE, LK_TILE);
                    if (!(difference.error <= 1e-12 * difference.all))
                        fail_msg("%s, %d channels, %d pairs, %d queries", kernels->name, d, n_pair,
                                 n_q);
                    for (int i = 0; i < Q * STRIDE; i++)
                        if (i >= n_q * STRIDE || i % STRIDE >= LK_TILE)
                            assert_true(got[i] == 1e30f);
                }
    }
    /* One pair by hand, channels 2 and 3, and one function: row 3. */
    struct lk_rope_table whole = {.n_pair = 4, .cos_sin = cos_sin};
    struct lk_rope_keys keys = {.k = k,
                                .mean = mean,
                                .d = 8,
                                .rope = &whole,
                                .n_fold = 1,
                                .fold = fold,
                                .offset = offset,
                                .basis = basis};
    float one[8] = {0, 0, 2, -1, 0, 0, 0, 0}, x = k[2 * LK_TILE + 3] + mean[2],
          y = k[3 * LK_TILE + 3] + mean[3], c = cos_sin[1][0][3], s = cos_sin[1][1][3];
    lk_kernels_reference.score_rope(&keys, one, 8, 1, expect, STRIDE);
    assert_true(fabsf(expect[3] - (2 * (c * x - s * y) - (s * x + c * y)) -
                      basis[3] * (fold[3] + offset[0])) < 1e-5f);
}

/* Combinations of prepared vectors: all numbers of vectors, of combinations and of numbers of a
 * vector. Weights and results are rounded to 8 bits, so errors are small compared with the terms of
 * a sum, which may cancel. Nothing is written after the results, and
 * numbers after the last one are 0. */
static void combined_queries(void **state) {
    enum { N = 21, RANK = 131, PAD = 160, IN = 70 };
    static int8_t in8[IN * PAD], out8[N * PAD + 1];
    static float in_scale[IN], w[N * IN], scale[N + 1], got[N * RANK], expect[N * RANK];
    static int32_t in_sum[IN], sum[N + 1];
    for (int table = 0; table < N_TABLE; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        for (int rank = 1; kernels && rank <= RANK; rank += 13)
            for (int n_in = 0; n_in <= IN; n_in += 1 + n_in / 3)
                for (int n = 1; n <= N; n += 1 + n / 5) {
                    struct lk_queries in = {.n_q = n_in,
                                            .d_head = rank,
                                            .q8 = in8,
                                            .scale8 = in_scale,
                                            .sum8 = in_sum},
                                      out = {.n_q = n,
                                             .d_head = rank,
                                             .q8 = out8,
                                             .scale8 = scale,
                                             .sum8 = sum};
                    int pad = lk_queries_pad(rank);
                    float row[RANK];
                    double terms = 0;
                    memset(expect, 0, sizeof expect);
                    for (int i = 0; i < n * n_in; i++) w[i] = gaussian();
                    for (int j = 0; j < n_in; j++) {
                        for (int c = 0; c < rank; c++) row[c] = (1 + j % 3) * gaussian();
                        lk_queries_set8(&in, j, row);
                        for (int i = 0; i < n; i++)
                            for (int c = 0; c < rank; c++) {
                                float term = w[i * n_in + j] * in_scale[j] * in8[j * pad + c];
                                expect[i * rank + c] += term;
                                terms += term * term;
                            }
                    }
                    memset(out8, 77, sizeof out8);
                    scale[n] = 5, sum[n] = 5;
                    kernels->combine_queries(&in, w, n, &out);
                    assert_true(out8[n * pad] == 77 && scale[n] == 5 && sum[n] == 5);
                    for (int i = 0; i < n; i++) {
                        int32_t total = 0;
                        for (int c = 0; c < pad; c++) {
                            total += out8[i * pad + c];
                            if (c >= rank) assert_int_equal(out8[i * pad + c], 0);
                            if (c < rank) got[i * rank + c] = scale[i] * out8[i * pad + c];
                        }
                        assert_int_equal(total, sum[i]);
                    }
                    struct difference difference = compare(got, expect, 1, 0, n * rank);
                    /* Weights may be rounded to 8 bits. The sum of few squared errors varies. */
                    double limit = 2e-4 * (1 + 4.0 / (n * rank));
                    if (!(difference.error <= limit * (difference.all + terms)))
                        fail_msg("%s, %d vectors of %d, %d combinations: %g", kernels->name, n_in,
                                 rank, n, difference.error / (difference.all + terms));
                }
        if (!kernels) continue;
        /* A vector that is not finite makes its combinations NaN. */
        struct lk_queries in = {.n_q = 5, .d_head = 8, .q8 = in8, .scale8 = in_scale},
                          out = {.n_q = 2, .d_head = 8, .q8 = out8, .scale8 = scale, .sum8 = sum};
        in_scale[3] = NAN;
        kernels->combine_queries(&in, w, 2, &out);
        assert_true(isnan(scale[0]) && isnan(scale[1]));
    }
}

/* Steps of the gated delta rule, several in a row, for all sizes of heads. */
static void delta_steps(void **state) {
    enum { MAX = LK_MAX_D_STATE, STEPS = 5 };
    static float got[2][MAX * MAX], expect[MAX * MAX];
    float q[MAX], k[MAX], v[MAX], out[2][MAX];
    for (int table = 0; table < N_TABLE; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        for (int d = 16; kernels && d <= MAX; d += 16) {
            for (int i = 0; i < d * d; i++) got[0][i] = expect[i] = gaussian();
            for (int step = 0, at = 0; step < STEPS; step++) {
                for (int i = 0; i < d; i++) {
                    q[i] = gaussian() / sqrtf((float)d), k[i] = gaussian() / sqrtf((float)d);
                    v[i] = gaussian();
                }
                float decay = 1 / (1 + expf(gaussian())), beta = 1 / (1 + expf(gaussian()));
                int to = step % 2 ? !at : at; /* in place, and from one state to another */
                kernels->delta_step(got[at], got[to], d, q, k, v, decay, beta, out[0]);
                at = to;
                lk_kernels_reference.delta_step(expect, expect, d, q, k, v, decay, beta, out[1]);
                double error = 0;
                for (int i = 0; i < d; i++) error = fmax(error, fabs(out[0][i] - out[1][i]));
                for (int i = 0; i < d * d; i++) error = fmax(error, fabs(got[at][i] - expect[i]));
                if (!(error <= 1e-5)) fail_msg("%s, %d channels: %g", kernels->name, d, error);
            }
        }
    }
}

/* Steps of a state space model, several in a row, for states of all shapes. */
static void scan_steps(void **state) {
    enum { MAX = LK_MAX_D_STATE, STEPS = 5 };
    static float got[2][MAX * MAX], expect[MAX * MAX];
    float q[MAX], k[MAX], v[MAX], out[2][MAX];
    for (int table = 0; table < N_TABLE; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        for (int d = 16; kernels && d <= MAX; d += 16) {
            int n = 1 + (37 * d) % MAX;
            for (int i = 0; i < n * d; i++) got[0][i] = expect[i] = gaussian();
            for (int step = 0, at = 0; step < STEPS; step++) {
                for (int i = 0; i < n; i++) q[i] = gaussian() / sqrtf((float)n), k[i] = gaussian();
                for (int i = 0; i < d; i++) v[i] = gaussian();
                float decay = 1 / (1 + expf(gaussian())), beta = logf(1 + expf(gaussian()));
                int to = step % 2 ? !at : at; /* in place, and from one state to another */
                kernels->scan_step(got[at], got[to], n, d, q, k, v, decay, beta, out[0]);
                at = to;
                lk_kernels_reference.scan_step(expect, expect, n, d, q, k, v, decay, beta, out[1]);
                double error = 0;
                for (int i = 0; i < d; i++) error = fmax(error, fabs(out[0][i] - out[1][i]));
                for (int i = 0; i < n * d; i++) error = fmax(error, fabs(got[at][i] - expect[i]));
                if (!(error <= 1e-5))
                    fail_msg("%s, %d by %d channels: %g", kernels->name, n, d, error);
            }
        }
    }
}

/* MLP layers of all widths, with values of all magnitudes. Nothing is written after the outputs. */
static void gelu_layers(void **state) {
    enum { MAX = 131 };
    static uint16_t w[MAX * MAX];
    static float x[MAX], got[MAX + 1], expect[MAX + 1];
    for (int i = 0; i < MAX * MAX; i++) w[i] = lk_f32_to_f16(gaussian());
    for (int table = 0; table < N_TABLE; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        for (int n_in = 1; kernels && n_in <= MAX; n_in += 1 + n_in / 2)
            for (int n_out = 1; n_out <= MAX; n_out++) {
                for (int i = 0; i < n_in; i++) x[i] = gaussian() / sqrtf((float)n_in);
                got[n_out] = 7;
                kernels->gelu_layer(x, w, n_in, n_out, got);
                lk_kernels_reference.gelu_layer(x, w, n_in, n_out, expect);
                struct difference difference = compare(got, expect, 1, MAX, n_out);
                if (!(difference.error <= 1e-12 * n_out)) /* sums have magnitude 1 */
                    fail_msg("%s, %d to %d", kernels->name, n_in, n_out);
                assert_true(got[n_out] == 7);
            }
        for (int n = 1; kernels && n <= 9; n += 8) { /* one weight per output */
            const float size[] = {0, 1, -1, 3, -3, 30, -30, 1e4f, -1e4f, 1e15f, -1e15f},
                        gelu[] = {0, 0.841192f, -0.158808f, 2.996363f, -0.003637f, 30,
                                  0, 1e4f,      0,          1e15f,     0};
            for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
                for (int o = 0; o < n; o++) w[o] = lk_f32_to_f16(1);
                kernels->gelu_layer(&size[i], w, 1, n, got);
                for (int o = 0; o < n; o++)
                    assert_true(fabsf(got[o] - gelu[i]) <= 1e-6f * fmaxf(1, fabsf(gelu[i])));
            }
        }
        float nan = NAN;
        if (kernels) kernels->gelu_layer(&nan, w, 1, 9, got);
        if (kernels) assert_true(isnan(got[0]) && isnan(got[8]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_parts),    cmocka_unit_test(rope_scores),
        cmocka_unit_test(combined_queries), cmocka_unit_test(gelu_layers),
        cmocka_unit_test(delta_steps),      cmocka_unit_test(scan_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
