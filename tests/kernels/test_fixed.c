/* Exact rows of a prompt in fixed point (kernels/avx512_f16.c) against the reference, which
 * multiplies floats. */
#include "codec/f16.h"
#include "test_kernels.h"

enum { MAX_Q = 131, ROWS = 160, MAX_D = 256 };

static const struct lk_codec half = {.coding = LK_F16, .bits = 16};
static uint16_t row_of[ROWS * MAX_D]; /* [row][d] */
static void *block = row_of;
static struct lk_rows rows;
static float query[MAX_Q * MAX_D], weight[MAX_Q * ROWS]; /* [n_q][d], [n_q][ROWS] */
static float got[MAX_Q * MAX_D], expect[MAX_Q * MAX_D];  /* [n_q][ROWS] scores or [n_q][d] sums */

static bool has_fixed_point(const struct lk_kernels *kernels) {
    return kernels &&
           (strncmp(kernels->name, "avx512", 6) == 0 || strcmp(kernels->name, "amx") == 0);
}

static void set_half(int row, int c, float x) {
    row_of[row * rows.d_head + c] = lk_f32_to_f16_ieee(x);
}

/* n rows around a mean; what follows them is NaN. */
static void set_up(int d, int n) {
    rows = (struct lk_rows){.codec = &half,
                            .block = &block,
                            .d_head = d,
                            .block_rows = ROWS,
                            .n = n,
                            .aligned = true,
                            .prefetch = {.block = &block, .n_block = 1, .n_piece = 1}};
    float mean[MAX_D];
    for (int c = 0; c < d; c++) mean[c] = gaussian();
    memset(row_of, 0xff, sizeof row_of);
    for (int t = 0; t < n; t++)
        for (int c = 0; c < d; c++) set_half(t, c, gaussian() + mean[c]);
    for (int i = 0; i < MAX_Q * MAX_D; i++) query[i] = gaussian();
    for (int i = 0; i < MAX_Q * ROWS; i++)
        weight[i] = i % ROWS < n ? expf(-8 * (float)uniform()) : 0;
}

/* The results of n_q queries by the kernels and by the reference. */
static void run(const struct lk_kernels *kernels, enum lk_side side, int n_q) {
    struct lk_queries queries = {.n_q = n_q, .d_head = rows.d_head, .q = query};
    struct lk_kernels_state before;
    memset(got, 0, sizeof got);
    memset(expect, 0, sizeof expect);
    lk_kernels_enter(kernels, &before);
    if (side == LK_K)
        lk_kernels_score(kernels, &rows, &queries, got, ROWS);
    else
        lk_kernels_accumulate(kernels, &rows, weight, ROWS, n_q, got);
    lk_kernels_leave(kernels, &before);
    if (side == LK_K)
        lk_kernels_score(&lk_kernels_reference, &rows, &queries, expect, ROWS);
    else
        lk_kernels_accumulate(&lk_kernels_reference, &rows, weight, ROWS, n_q, expect);
}

/* Numbers are within 1/11584 of their row's maximum, uniformly distributed: a squared error of
 * (max / rms)^2 / (5792^2 * 12) = 2e-8 for a maximum of 3 rms, of both factors. Weights are
 * dithered, which doubles it. The limits are 1.25 times the mean errors: one bit less of either
 * factor is more. */
static void has_its_error(void **state) {
    static const int widths[] = {2, 8, 40, 64, 66, 96, 128, 130, 200, 256},
                     numbers[] = {1, 10, 33, 64, 127, 128, 131},
                     lengths[] = {1, 31, 32, 33, 64, 95, 160};
    static const double limit[] = {[LK_K] = 4.5e-8, [LK_V] = 1.05e-8};
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!has_fixed_point(kernels)) continue;
        for (int side = LK_K; side <= LK_V; side++) {
            double sum = 0;
            int n_case = 0;
            for (int a = 0; a < 10; a++)
                for (int b = 0; b < 7; b++) {
                    int n_q = numbers[(a + b) % 7], n = lengths[b], d = widths[a];
                    set_up(d, n);
                    run(kernels, side, n_q);
                    int width = side == LK_K ? ROWS : d;
                    struct difference found =
                        compare(got, expect, n_q, width, side == LK_K ? n : d);
                    double nmse = found.error / found.all;
                    if (!(nmse < 16 * limit[side]))
                        fail_msg("%s: %d queries, %d rows, %d channels: %g", kernels->name, n_q, n,
                                 d, nmse);
                    if (n < LK_TILE || d < 40) continue; /* a single row has no error */
                    sum += nmse, n_case++;
                }
            assert_true(sum <= limit[side] * n_case);
        }
    }
}

/* A channel with a large bias does not make the others coarse. */
static void ignores_a_bias(void **state) {
    enum { D = 64, N_Q = 40 };
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        double error[2];
        if (!has_fixed_point(kernels)) continue;
        for (int biased = 0; biased < 2; biased++) {
            random_state = 5;
            set_up(D, ROWS);
            for (int t = 0; t < ROWS && biased; t++) set_half(t, 3, 300 + (float)(t % 2));
            run(kernels, LK_K, N_Q);
            error[biased] = compare(got, expect, N_Q, ROWS, ROWS).error;
        }
        assert_true(error[1] < 2 * error[0]);
    }
}

/* A query, key or weight that is not finite makes its own results NaN or infinite, and no others. A
 * value makes all sums so: its token's step is not finite. */
static void keeps_nan_apart(void **state) {
    enum { D = 72, N_Q = 35, N = 70, BAD = 33 }; /* BAD: a query, row or channel */
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3 * N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k / 3]);
        if (!has_fixed_point(kernels)) continue;
        float bad = values[k % 3];
        for (int what = 0; what < 4; what++) { /* a query, a key, a weight, a value */
            enum lk_side side = what < 2 ? LK_K : LK_V;
            set_up(D, N);
            if (what == 0) query[BAD * D + 7] = bad;
            if (what == 1) set_half(BAD, 7, bad);
            if (what == 2) weight[BAD * ROWS + 7] = bad;
            if (what == 3) set_half(7, BAD, bad);
            run(kernels, side, N_Q);
            int width = side == LK_K ? ROWS : D, n = side == LK_K ? N : D;
            for (int i = 0; i < N_Q; i++)
                for (int j = 0; j < n; j++) {
                    bool is_bad = what == 1 ? j == BAD : what == 3 || i == BAD;
                    float x = got[i * width + j], y = expect[i * width + j];
                    assert_true(is_bad ? !isfinite(x) : fabsf(x - y) < 3e-2f * (1 + fabsf(y)));
                }
        }
    }
}

/* Many small weights next to a large one, each less than half a step: their sum counts. */
static void counts_small_weights(void **state) {
    enum { D = 64, N_Q = 32, N = 64 };
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!has_fixed_point(kernels)) continue;
        set_up(D, N);
        for (int i = 0; i < N_Q; i++)
            for (int t = 0; t < N; t++) weight[i * ROWS + t] = t == i ? 1 : 5e-5f;
        for (int t = 0; t < N; t++)
            for (int c = 0; c < D; c++) set_half(t, c, 1);
        run(kernels, LK_V, N_Q);
        for (int i = 0; i < N_Q; i++)
            assert_true(fabsf(got[i * D] - expect[i * D]) < 0.1f * (N - 1) * 5e-5f);
    }
}

/* All codes at their maximum: the largest sums of integers. */
static void has_room(void **state) {
    enum { D = 256, N_Q = 33, N = 64 };
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
        if (!has_fixed_point(kernels)) continue;
        for (int side = LK_K; side <= LK_V; side++) {
            set_up(D, N);
            for (int i = 0; i < N_Q * D; i++) query[i] = i / D % 2 ? -3 : 3;
            for (int i = 0; i < N_Q * ROWS; i++) weight[i] = i % ROWS < N;
            for (int t = 0; t < N; t++) /* keys have a mean of 0 */
                for (int c = 0; c < D; c++) set_half(t, c, side == LK_K && t % 2 ? -7 : 7);
            run(kernels, side, N_Q);
            int width = side == LK_K ? ROWS : D;
            struct difference found = compare(got, expect, N_Q, width, side == LK_K ? N : D);
            assert_true(found.all > 0 && found.error < 1e-8 * found.all);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_its_error),   cmocka_unit_test(ignores_a_bias),
        cmocka_unit_test(keeps_nan_apart), cmocka_unit_test(counts_small_weights),
        cmocka_unit_test(has_room),
    };
    bool any = false;
    for (int k = 0; k < N_TABLE; k++) any |= has_fixed_point(lk_kernels_choose(tables[k]));
    if (!any) {
        puts("skipped: this CPU has no AVX-512 VNNI");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
