/* The codecs of papers and of their baselines, asym, HQQ and KVQuant, against plain accounts of
 * their formulas. What holds for every codec is in test_codec.c. */
#include "codec/asym.h"
#include "codec/hadamard.h"
#include "codec/half.h"
#include "codec/kvquant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { D = 64, MAX_ROWS = LK_KVQUANT_ROWS };

static uint64_t random_state = 1;

static double uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) / 9007199254740992.0;
}

static float gaussian(void) {
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static float x[MAX_ROWS * LK_MAX_D_HEAD], got[MAX_ROWS * LK_MAX_D_HEAD];
static unsigned char head[4 * MAX_ROWS * LK_MAX_D_HEAD];

/* Rows with an offset per channel, as K has them. */
static void draw_rows(int n, int d) {
    float offset[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++) offset[c] = 2 * gaussian();
    for (int i = 0; i < n * d; i++) x[i] = gaussian() + offset[i % d];
}

static void round_trip(const struct lk_codec *codec, enum lk_side side, int n, int d) {
    struct lk_part part = {codec, side, d, lk_codec_block_rows(codec, side), NULL};
    lk_codec_encode(&part, head, 0, n, x, (size_t)d);
    lk_codec_decode(&part, head, 0, n, got, (size_t)d);
}

static double squared_error(int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += pow((double)got[i] - x[i], 2);
    return sum;
}

/* ---- asym ---- */

/* Palu, Eq. 9, for the value `at` of y [n]. */
static float expected_asym(const float *y, int n, int at, int bits) {
    float lo = y[0], hi = y[0], top = (float)((1 << bits) - 1);
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, y[i]);
        hi = fmaxf(hi, y[i]);
    }
    float s = lk_f16_to_f32(lk_f32_to_f16((hi - lo) / top)), inverse = 1 / s;
    float z = roundf(-lo * inverse);
    return s * (fminf(fmaxf(roundf(y[at] * inverse) + z, 0), top) - z);
}

static void asym_formula(void **state) {
    (void)state;
    static const int widths[] = {32, 64, 96, 128, 256}, groups[] = {0, 32, 64, 128};
    for (int k = 0; k < 5 * 4 * 7 * 2; k++) {
        int d = widths[k % 5], group = groups[k / 5 % 4], bits = 2 + k / 20 % 7;
        struct lk_codec codec = {.coding = LK_ASYM,
                                 .bits = (uint8_t)bits,
                                 .group = (uint16_t)group,
                                 .hadamard = k >= 140};
        if (lk_codec_reject_reason(&codec, LK_K, d)) continue;
        draw_rows(LK_TILE, d);
        round_trip(&codec, k % 2 ? LK_K : LK_V, LK_TILE, d);
        int width = group ? group : d;
        for (int t = 0; t < LK_TILE; t++) {
            float y[LK_MAX_D_HEAD], expect[LK_MAX_D_HEAD];
            memcpy(y, x + t * d, d * sizeof *y);
            if (codec.hadamard) lk_rotate(y, d);
            for (int c = 0; c < d; c++)
                expect[c] = expected_asym(y + c / width * width, width, c % width, bits);
            if (codec.hadamard) lk_unrotate(expect, d);
            for (int c = 0; c < d; c++) assert_true(fabsf(got[t * d + c] - expect[c]) < 1e-5f);
        }
    }
}

/* Rows far from zero and rows of equal values. The scale is bounded from below, so the error is at
 * most that of half a step of max / 1024, and of the scale's rounding to f16. */
static void zero_points_far_away(void **state) {
    (void)state;
    for (int bits = 2; bits <= 8; bits++)
        for (int hqq = 0; hqq < 2; hqq++) {
            struct lk_codec codec = {.coding = LK_ASYM, .bits = (uint8_t)bits, .hqq = hqq};
            for (int t = 0; t < LK_TILE; t++)
                for (int c = 0; c < D; c++)
                    x[t * D + c] =
                        (t % 2 ? -1.0f : 1.0f) * (300.0f + (t < 8 ? 0 : 0.01f * gaussian()));
            round_trip(&codec, LK_K, LK_TILE, D);
            for (int i = 0; i < LK_TILE * D; i++) assert_true(fabsf(got[i] - x[i]) < 0.4f);
        }
}

/* One large channel takes the range of a row. The rotation spreads it: Palu, Table 7. */
static void hadamard_helps_with_outliers(void **state) {
    (void)state;
    double error[2];
    for (int i = 0; i < LK_TILE * 96; i++) x[i] = gaussian() * (i % 96 == 0 ? 40 : 1);
    for (int hadamard = 0; hadamard < 2; hadamard++) {
        struct lk_codec codec = {.coding = LK_ASYM, .bits = 3, .hadamard = hadamard};
        round_trip(&codec, LK_V, LK_TILE, 96);
        error[hadamard] = squared_error(LK_TILE * 96);
    }
    print_message("asym3(hadamard): squared error %.0f %% of asym3's\n", 100 * error[1] / error[0]);
    assert_true(error[1] < 0.5 * error[0]);
}

/* ---- HQQ ---- */

/* The sum of |error|^p, p = 0.7, which HQQ minimizes, gets smaller on rows whose many small
 * differences from an offset do not lie on a level. A zero point may lie between integers. */
static void hqq_solves_its_problem(void **state) {
    (void)state;
    for (int bits = 2; bits <= 4; bits += 2) {
        double sum[2] = {0, 0}, mean_error[2] = {0, 0};
        int between = 0;
        for (int i = 0; i < LK_TILE * D; i++) x[i] = 0.4f * (float)(i / D) + powf(gaussian(), 3);
        for (int hqq = 0; hqq < 2; hqq++) {
            struct lk_codec codec = {
                .coding = LK_ASYM, .bits = (uint8_t)bits, .hqq = hqq, .group = 64};
            round_trip(&codec, LK_V, LK_TILE, D);
            for (int i = 0; i < LK_TILE * D; i++) {
                sum[hqq] += pow(fabs((double)got[i] - x[i]), 0.7);
                mean_error[hqq] += fabs((double)got[i] - x[i]);
            }
            const uint16_t *scale = lk_asym_scales(&codec, head, D);
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
    (void)state;
    for (int side = LK_K; side <= LK_V; side++)
        for (int d = 8; d <= 256; d *= 2) {
            struct lk_codec codec = {.coding = LK_KVQUANT, .bits = 4};
            int n_out = lk_kvquant_outliers(side, d), n_vector = lk_kvquant_vectors(side, d),
                length = lk_kvquant_length(side, d);
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
 * the error is below that of KIVI's even levels. */
static void kvquant_levels_fit(void **state) {
    (void)state;
    for (int side = LK_K; side <= LK_V; side++)
        for (int bits = 2; bits <= 4; bits += 2) {
            struct lk_codec codec = {.coding = LK_KVQUANT, .bits = (uint8_t)bits};
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
    (void)state;
    for (int side = LK_K; side <= LK_V; side++) {
        struct lk_codec codec = {.coding = LK_KVQUANT, .bits = 2};
        struct lk_part part = {&codec, side, D, LK_KVQUANT_ROWS, NULL};
        memset(head, 0xff, lk_codec_head_bytes(&codec, side, D, LK_KVQUANT_ROWS));
        for (int i = 0; i <= MAX_ROWS * D; i++) got[i] = 77;
        lk_codec_decode(&part, head, 0, MAX_ROWS, got, D);
        assert_true(got[MAX_ROWS * D] == 77);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asym_formula),
        cmocka_unit_test(zero_points_far_away),
        cmocka_unit_test(hadamard_helps_with_outliers),
        cmocka_unit_test(hqq_solves_its_problem),
        cmocka_unit_test(kvquant_outliers_are_exact),
        cmocka_unit_test(kvquant_levels_fit),
        cmocka_unit_test(kvquant_indices_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
