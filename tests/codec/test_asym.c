/* Codec asym against plain accounts of its formulas. What holds for every codec is in
 * test_codec.c. */
#include "codec/asym.h"
#include "codec/f16.h"
#include "codec/hadamard.h"
#include "coded_rows.h"
#include "test.h"

enum { D = 64 };

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
    for (int bits = 2; bits <= 8; bits++)
        for (int width = 0; width <= 32; width += 32) {
            struct lk_codec codec = {
                .coding = LK_ASYM, .bits = (uint8_t)bits, .group = (uint16_t)width};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asym_formula),
        cmocka_unit_test(zero_points_far_away),
        cmocka_unit_test(hadamard_helps_with_outliers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
