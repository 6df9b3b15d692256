/* The codecs of other projects against plain accounts of their formulas, and the seam that adds
 * them. What holds for every codec is in tests/codec/test_codec.c. */
#include "baselines/baselines.h"
#include "codec/asym.h"
#include "codec/f16.h"
#include "codec/hadamard.h"
#include "coded_rows.h"
#include "support_baselines.h"
#include "test.h"

enum { D = 64 };
_Static_assert((int)LK_KVQUANT_ROWS == (int)MAX_ROWS, "a block of KVQuant is drawn at once");

/* The named codec with other bits. */
static struct lk_codec with_bits(const char *word, int bits) {
    struct lk_codec codec = baseline_codec(word);
    codec.bits = (uint8_t)bits;
    return codec;
}

/* ---- HQQ ---- */

/* The sum of |error|^p, p = 0.7, which HQQ minimizes, gets smaller on rows whose many small
 * differences from an offset do not lie on a level. A zero point may lie between integers. */
static void hqq_solves_its_problem(void **state) {
    for (int bits = 2; bits <= 4; bits += 2) {
        double sum[2] = {0, 0}, mean_error[2] = {0, 0};
        int between = 0;
        for (int i = 0; i < LK_TILE * D; i++) x[i] = 0.4f * (float)(i / D) + powf(gaussian(), 3);
        for (int hqq = 0; hqq < 2; hqq++) {
            struct lk_codec asym = {.coding = LK_ASYM, .bits = (uint8_t)bits, .group = 64},
                            codec = hqq ? with_bits("hqq4", bits) : asym;
            round_trip(&codec, LK_V, LK_TILE, D);
            for (int i = 0; i < LK_TILE * D; i++) {
                sum[hqq] += pow(fabs((double)got[i] - x[i]), 0.7);
                mean_error[hqq] += fabs((double)got[i] - x[i]);
            }
            const uint16_t *scale = lk_asym_scales(&asym, head, D);
            for (int t = 0; hqq && t < LK_TILE; t++) {
                float zero = lk_f16_to_f32(scale[LK_TILE + t]);
                between += zero != roundf(zero);
            }
        }
        print_message("hqq%d: sum of |error|^0.7 %.1f %%, mean |error| %.1f %% of asym's\n", bits,
                      100 * sum[1] / sum[0], 100 * mean_error[1] / mean_error[0]);
        assert_true(sum[1] < 0.9 * sum[0] && mean_error[1] < mean_error[0]);
        assert_true(between > LK_TILE / 2);
    }
}

/* ---- KVQuant ---- */

/* Values that are far from all others of their channel (K) or token (V) come back as f16, and leave
 * the range to the others. */
static void kvquant_outliers_are_exact(void **state) {
    for (int side = LK_K; side <= LK_V; side++)
        for (int d = 8; d <= 256; d *= 2) {
            struct lk_codec codec = with_bits("kvquant4", 4);
            int n_vector = side == LK_K ? d : MAX_ROWS, length = side == LK_K ? MAX_ROWS : d,
                n_out = length > 150 ? (length + 50) / 100 : 1;
            static bool outlier[MAX_ROWS * LK_MAX_D_HEAD];
            assert_true(n_out * 50 <= length || n_out == 1);
            memset(outlier, 0, sizeof outlier);
            for (int i = 0; i < MAX_ROWS * d; i++) x[i] = (float)uniform() - 0.5f;
            for (int v = 0; v < n_vector; v++)
                for (int k = 0; k < n_out; k++) {
                    int i = (v * 7 + k * 5) % length, at = side == LK_K ? i * d + v : v * d + i;
                    x[at] = (v + k) % 2 ? 300.0f + (float)v : -700.0f;
                    outlier[at] = true;
                }
            round_trip(&codec, side, MAX_ROWS, d);
            for (int i = 0; i < MAX_ROWS * d; i++) {
                if (outlier[i])
                    assert_true(got[i] == x[i]);
                else
                    assert_true(fabsf(got[i] - x[i]) < 0.08f);
            }
        }
}

/* k-means puts the levels where the values are, and outliers leave the range: on Gaussian values
 * the error is less than with KIVI's even levels. */
static void kvquant_levels_fit(void **state) {
    for (int side = LK_K; side <= LK_V; side++)
        for (int bits = 2; bits <= 4; bits += 2) {
            struct lk_codec codec = with_bits("kvquant4", bits);
            struct lk_codec even = {.coding = LK_KIVI, .bits = (uint8_t)bits, .group = 128};
            enum { WIDE = 128 };
            double own, others;
            draw_rows(MAX_ROWS, WIDE);
            round_trip(&codec, side, MAX_ROWS, WIDE);
            own = squared_error(MAX_ROWS * WIDE);
            struct lk_part part = {&even, side, WIDE, lk_codec_block_rows(&even, side), NULL};
            for (int t = 0; t < MAX_ROWS; t += part.block_rows) {
                lk_codec_encode(&part, head, 0, part.block_rows, x + t * WIDE, WIDE);
                lk_codec_decode(&part, head, 0, part.block_rows, got + t * WIDE, WIDE);
            }
            others = squared_error(MAX_ROWS * WIDE);
            print_message("%c kvquant%d: squared error %.0f %% of even levels'\n",
                          side == LK_K ? 'K' : 'V', bits, 100 * own / others);
            assert_true(own < 0.8 * others);
        }
}

/* A damaged file may have any index: rows are decoded within their bounds. */
static void kvquant_indices_are_bounded(void **state) {
    for (int side = LK_K; side <= LK_V; side++) {
        struct lk_codec codec = with_bits("kvquant4", 2);
        struct lk_part part = {&codec, side, D, LK_KVQUANT_ROWS, NULL};
        memset(head, 0xff, lk_codec_head_bytes(&codec, side, D, LK_KVQUANT_ROWS));
        for (int i = 0; i <= MAX_ROWS * D; i++) got[i] = 77;
        lk_codec_decode(&part, head, 0, MAX_ROWS, got, D);
        assert_true(got[MAX_ROWS * D] == 77);
    }
}

/* ---- KVarN ---- */

static double line_deviation(const double *m, int n, int step) {
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += m[i * step];
    for (int i = 0; i < n; i++) square += pow(m[i * step] - sum / n, 2);
    return sqrt(square / (n - 1));
}

/* z [n_vector][length] = y / (across along); the imbalance of kvarn.c. */
static double plain_imbalance(const double *y, const double *log_across, const double *log_along,
                              int n_vector, int length, double *z) {
    double lo[2] = {INFINITY, INFINITY}, hi[2] = {0, 0};
    for (int v = 0; v < n_vector; v++)
        for (int i = 0; i < length; i++)
            z[v * length + i] = y[v * length + i] / exp(log_across[i]) / exp(log_along[v]);
    for (int axis = 0; axis < 2; axis++)
        for (int k = 0; k < (axis ? n_vector : length); k++) {
            double s = axis ? line_deviation(z + k * length, length, 1)
                            : line_deviation(z + k, n_vector, length);
            lo[axis] = fmin(lo[axis], s);
            hi[axis] = fmax(hi[axis], s);
        }
    return hi[0] / fmax(lo[0], 1e-8) + hi[1] / fmax(lo[1], 1e-8);
}

static double clamped(double x, double lo, double hi) { return fmin(fmax(x, lo), hi); }

/* The rows x [MAX_ROWS][d] as kvarn.c defines what is stored of them, in double precision and
 * without rounding of scales. Returns the squared error. */
static double plain_kvarn(enum lk_side side, int bits, int d) {
    static double y[MAX_ROWS * 256], z[MAX_ROWS * 256];
    double across[256] = {0}, along[256] = {0}, best[256] = {0}, sum = 0, square = 0, error = 0;
    int n_vector = side == LK_K ? d : MAX_ROWS, length = side == LK_K ? MAX_ROWS : d,
        n = MAX_ROWS * d;
    for (int t = 0; t < MAX_ROWS; t++) {
        float row[256];
        memcpy(row, x + t * d, d * sizeof *row);
        lk_rotate(row, d);
        for (int c = 0; c < d; c++) y[side == LK_K ? c * length + t : t * length + c] = row[c];
    }
    for (int i = 0; i < n; i++) sum += y[i];
    for (int i = 0; i < n; i++) square += pow(y[i] - sum / n, 2);
    double all = sqrt(square / n);
    for (int i = 0; i < n; i++) y[i] /= all;
    double least = plain_imbalance(y, across, along, n_vector, length, z);
    for (int step = 0; step < LK_KVARN_STEPS; step++) {
        for (int i = 0; i < length; i++)
            across[i] = clamped(
                across[i] + log(clamped(line_deviation(z + i, n_vector, length), 1e-3, 1e3)), -0.3,
                10);
        plain_imbalance(y, across, along, n_vector, length, z);
        for (int v = 0; v < n_vector; v++)
            along[v] = clamped(
                along[v] + log(clamped(line_deviation(z + v * length, length, 1), 1e-3, 1e3)), -0.3,
                10);
        double left = plain_imbalance(y, across, along, n_vector, length, z);
        if (left > least) continue;
        least = left;
        memcpy(best, across, sizeof best);
    }
    for (int v = 0; v < n_vector; v++) {
        double lo = INFINITY, hi = -INFINITY, levels = (1 << bits) - 1;
        for (int i = 0; i < length; i++) {
            z[v * length + i] = y[v * length + i] / exp(best[i]);
            lo = fmin(lo, z[v * length + i]);
            hi = fmax(hi, z[v * length + i]);
        }
        for (int i = 0; i < length; i++) {
            double code = round((z[v * length + i] - lo) / (hi - lo) * levels);
            double value = (lo + code * (hi - lo) / levels) * exp(best[i]);
            error += pow((value - y[v * length + i]) * all, 2);
        }
    }
    return error;
}

/* The same error as the plain account, up to the rounding of scales to f16 and near ties. */
static void kvarn_formula(void **state) {
    static const int widths[] = {8, 24, 64, 80, 128};
    for (int side = LK_K; side <= LK_V; side++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
            for (int bits = 2; bits <= 8; bits++) {
                struct lk_codec codec = with_bits("kvarn4", bits);
                int d = widths[k];
                draw_rows(MAX_ROWS, d);
                for (int i = 0; i < MAX_ROWS * d; i++)
                    x[i] *= expf(sinf((float)(i / d)) + cosf((float)(i % d)));
                round_trip(&codec, side, MAX_ROWS, d);
                double ratio = squared_error(MAX_ROWS * d) / plain_kvarn(side, bits, d);
                if (!(fabs(ratio - 1) < (bits < 7 ? 0.02 : 0.15)))
                    fail_msg("side %d, kvarn%d, %d channels: %g", side, bits, d, ratio);
            }
}

/* Small tokens keep a small error next to large ones: what the normalization is for. */
static void kvarn_normalizes_tokens(void **state) {
    double relative[2] = {0, 0};
    struct lk_codec codec[] = {with_bits("kvarn4", 4),
                               {.coding = LK_KIVI, .bits = 4, .group = 128}};
    for (int i = 0; i < MAX_ROWS * D; i++) x[i] = gaussian() * (i / D % 8 == 0 ? 20 : 1);
    for (int k = 0; k < 2; k++) {
        round_trip(&codec[k], LK_K, MAX_ROWS, D);
        for (int t = 0; t < MAX_ROWS; t++) {
            double error = 0, power = 0;
            for (int c = 0; c < D; c++) {
                error += pow((double)got[t * D + c] - x[t * D + c], 2);
                power += pow(x[t * D + c], 2);
            }
            relative[k] += error / power / MAX_ROWS;
        }
    }
    print_message("kvarn4: relative error of a token %.3f, kivi4 %.3f\n", relative[0], relative[1]);
    assert_true(relative[0] < 0.1 && relative[0] < 0.1 * relative[1]);
}

/* NaN counts as 0 and infinities as large numbers, as in all codecs, and equal rows stay equal. */
static void kvarn_edges(void **state) {
    static unsigned char other[sizeof head];
    for (int side = LK_K; side <= LK_V; side++) {
        struct lk_codec codec = with_bits("kvarn4", 3);
        struct lk_part part = {&codec, side, D, MAX_ROWS, NULL};
        size_t bytes = lk_codec_head_bytes(&codec, side, D, MAX_ROWS);
        draw_rows(MAX_ROWS, D);
        x[7] = NAN, x[300] = INFINITY, x[D * 100] = -INFINITY;
        round_trip(&codec, side, MAX_ROWS, D);
        for (int i = 0; i < MAX_ROWS * D; i++) assert_true(isfinite(got[i]));
        memcpy(other, head, bytes);
        x[7] = 0, x[300] = 1e9f, x[D * 100] = -1e9f;
        round_trip(&codec, side, MAX_ROWS, D);
        assert_memory_equal(head, other, bytes);

        for (int i = 0; i < MAX_ROWS * D; i++) x[i] = 0.5f + (float)(i % D);
        round_trip(&codec, side, MAX_ROWS, D);
        for (int i = D; side == LK_K && i < MAX_ROWS * D; i++)
            assert_true(fabsf(got[i] - x[i]) < 0.1f);
        for (int i = D; i < MAX_ROWS * D; i++) assert_true(got[i] == got[i % D]);

        /* of any row */
        draw_rows(MAX_ROWS, D);
        round_trip(&codec, side, MAX_ROWS, D);
        for (int t = 0; t < MAX_ROWS; t += 9) {
            float row[D];
            lk_codec_decode(&part, head, t, 1, row, D);
            assert_memory_equal(row, got + t * D, sizeof row);
        }
        memset(head, 0xff, bytes); /* a damaged file */
        got[MAX_ROWS * D] = 77;
        lk_codec_decode(&part, head, 0, MAX_ROWS, got, D);
        assert_true(got[MAX_ROWS * D] == 77);
        assert_non_null(lk_codec_reject_reason(&codec, side, LK_KVARN_MAX_D_HEAD + 8));
        assert_null(lk_codec_reject_reason(&codec, side, LK_KVARN_MAX_D_HEAD));
    }
}

/* ---- OSCAR ---- */

/* As if rotated values beyond the percentile of the row's magnitudes had been clamped before they
 * are stored as asym. */
static void oscar_clips_rotated_rows(void **state) {
    static unsigned char clamped_head[sizeof head];
    struct lk_codec codec = baseline_codec("oscar2"), plain = {.coding = LK_ASYM, .bits = 2};
    struct lk_part part = {&plain, LK_V, 41 * 8, LK_TILE, NULL};
    int d = part.d_head;
    codec.group = 90; /* clip90 */
    draw_rows(LK_TILE, d);
    round_trip(&codec, LK_V, LK_TILE, d);
    for (int t = 0; t < LK_TILE; t++) {
        float *y = x + t * d, sorted[LK_MAX_D_HEAD];
        lk_rotate(y, d);
        for (int c = 0; c < d; c++) sorted[c] = fabsf(y[c]);
        for (int i = 0; i < d; i++) /* selection */
            for (int k = i + 1; k < d; k++)
                if (sorted[k] < sorted[i]) {
                    float least = sorted[k];
                    sorted[k] = sorted[i];
                    sorted[i] = least;
                }
        float at = 0.9f * (float)(d - 1), limit = sorted[(int)at];
        limit += (at - (float)(int)at) * (sorted[(int)at + 1] - limit);
        for (int c = 0; c < d; c++) y[c] = fminf(fmaxf(y[c], -limit), limit);
    }
    lk_codec_encode(&part, clamped_head, 0, LK_TILE, x, (size_t)d);
    assert_memory_equal(head, clamped_head, lk_codec_head_bytes(&plain, LK_V, d, LK_TILE));
    for (int i = 0; i < LK_TILE * D; i++) x[i] = 0;
    round_trip(&codec, LK_K, LK_TILE, D);
    for (int i = 0; i < LK_TILE * D; i++) assert_true(got[i] == 0);
}

/* ---- NF4 ---- */

/* Values on the levels come back exactly. Gaussian rows have the error of the published
 * levels. */
static void nf4_levels(void **state) {
    static const float level[] = {-1.0f, -0.3949175f, 0.0f, 0.1609302f, 0.7229568f, 1.0f};
    struct lk_codec codec = baseline_codec("nf4");
    for (int i = 0; i < LK_TILE * 96; i++)
        x[i] = i % 96 == 3 || i % 96 == 70 ? -8.0f : 8 * level[i * 7 / 3 % 6];
    round_trip(&codec, LK_K, LK_TILE, 96);
    for (int i = 0; i < LK_TILE * 96; i++) assert_true(fabsf(got[i] - x[i]) <= 1e-5f);

    for (int i = 0; i < LK_TILE * D; i++) x[i] = gaussian();
    round_trip(&codec, LK_V, LK_TILE, D);
    double error = squared_error(LK_TILE * D) / (LK_TILE * D);
    print_message("nf4: squared error of a Gaussian %.4f\n", error);
    assert_true(error < 0.0115);

    for (int i = 0; i < LK_TILE * D; i++) x[i] = i % 5 ? NAN : -INFINITY;
    x[0] = 1;
    round_trip(&codec, LK_V, LK_TILE, D);
    for (int i = 0; i < LK_TILE * D; i++) assert_true(isfinite(got[i]));
    assert_int_equal(lk_codec_head_bytes(&codec, LK_K, 64, LK_TILE), LK_TILE * (32 + 2));
}

/* ---- registering ---- */

static bool parse_none(const char *word, lk_codec_param *param) {
    (void)word, (void)param;
    return false;
}

static void registering(void **state) {
    static lk_codec_ops ops[2 * LK_CODEC_MAX_ADDED];
    lk_err err;
    struct lk_codec codec;
    register_baselines();
    assert_int_equal(lk_baselines_register(&err), LK_OK); /* again */
    ops[0] = lk_nf4_ops;
    assert_int_equal(lk_codec_register(&ops[0], &err), LK_E_ARG); /* the same word */
    assert_non_null(strstr(err.msg, "another one is called 'nf4'"));
    ops[0].decode = NULL;
    assert_int_equal(lk_codec_register(&ops[0], &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "lacks"));
    ops[0] = lk_kvarn_ops;
    ops[0].block_rows = 48;
    assert_int_equal(lk_codec_register(&ops[0], &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "48 rows"));
    ops[0] = lk_nf4_ops;
    ops[0].parse = parse_none;
    assert_int_equal(lk_codec_register(&ops[0], &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "its own example"));
    assert_false(lk_added_parse("nf5", &codec));
    assert_true(lk_added_parse("nf4", &codec));
    assert_true(lk_added_codec(codec.added) == &lk_nf4_ops);
    assert_null(lk_added_codec(5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hqq_solves_its_problem),
        cmocka_unit_test(kvquant_outliers_are_exact),
        cmocka_unit_test(kvquant_levels_fit),
        cmocka_unit_test(kvquant_indices_are_bounded),
        cmocka_unit_test(kvarn_formula),
        cmocka_unit_test(kvarn_normalizes_tokens),
        cmocka_unit_test(kvarn_edges),
        cmocka_unit_test(oscar_clips_rotated_rows),
        cmocka_unit_test(nf4_levels),
        cmocka_unit_test(registering),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
