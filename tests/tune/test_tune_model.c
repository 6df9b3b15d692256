/* The loss that `lowkey tune` estimates: the errors of its codecs come from real rows. */
#include "codec/codec.h"
#include "test.h"
#include "tune/tune_model.h"

/* Squared error of Gaussian rows of d channels, relative to their power. */
static double error_of(const struct lk_codec *codec, int d) {
    enum { MAX_D = 128, TILES = 30 };
    static float x[LK_TILE * MAX_D], y[LK_TILE * MAX_D];
    static _Alignas(32) unsigned char head[2 * LK_TILE * MAX_D];
    struct lk_part part = {codec, LK_V, d, LK_TILE, NULL};
    struct random r = {11};
    double error = 0, power = 0;
    for (int tile = 0; tile < TILES; tile++) {
        for (int i = 0; i < LK_TILE * d; i++) x[i] = random_gauss(&r);
        lk_codec_encode(&part, head, 0, LK_TILE, x, (size_t)d);
        lk_codec_decode(&part, head, 0, LK_TILE, y, (size_t)d);
        for (int i = 0; i < LK_TILE * d; i++) {
            error += (x[i] - y[i]) * (x[i] - y[i]);
            power += x[i] * x[i];
        }
    }
    return error / power;
}

/* The estimate is for all sizes of heads, so errors of 64 and of 128 channels are on both sides of
 * it, up to 3 %. */
static void distortions_are_measured(void **state) {
    for (int i = 0; i < LK_TUNE_N_BITS; i++)
        for (int trellis = 0; trellis < 2; trellis++) {
            int bits = lk_tune_bits_at[i];
            struct lk_codec codec = {.coding = LK_ROT,
                                     .bits = (uint8_t)bits,
                                     .lloyd = !trellis && lk_codec_default_lloyd(bits),
                                     .trellis = trellis && bits <= 4};
            double estimate =
                lk_tune_distortion(bits, trellis ? LK_TUNE_TRELLIS : LK_TUNE_NO_TRELLIS);
            double low = error_of(&codec, 64), high = error_of(&codec, 128);
            if (high < low) {
                double other = low;
                low = high;
                high = other;
            }
            print_message("%d bits%s: %.6f and %.6f, estimate %.6f\n", bits,
                          codec.trellis ? ", trellis" : "", low, high, estimate);
            assert_true(estimate > 0.97 * low && estimate < 1.03 * high);
        }
}

/* What is measured at some bits stays, the rest follows the errors. */
static void losses_follow_distortions(void **state) {
    const uint8_t bits[] = {2, 4};
    const double probe[2][LK_TUNE_MAX_PROBE] = {{0.5, 0.02}, {0.3, 0.03}};
    double kl[2][LK_TUNE_N_BITS];
    lk_tune_fill_kl(kl, bits, 2, probe, LK_TUNE_TRELLIS);
    for (int side = 0; side < 2; side++) {
        assert_true(fabs(kl[side][1] - probe[side][0]) < 1e-12);
        assert_true(fabs(kl[side][3] - probe[side][1]) < 1e-12);
        for (int i = 0; i + 1 < LK_TUNE_N_BITS; i++) assert_true(kl[side][i] > kl[side][i + 1]);
        double below =
                   lk_tune_distortion(1, LK_TUNE_TRELLIS) / lk_tune_distortion(2, LK_TUNE_TRELLIS),
               above =
                   lk_tune_distortion(6, LK_TUNE_TRELLIS) / lk_tune_distortion(4, LK_TUNE_TRELLIS);
        assert_true(fabs(kl[side][0] / (probe[side][0] * below) - 1) < 1e-9);
        assert_true(fabs(kl[side][5] / (probe[side][1] * above) - 1) < 1e-9);
    }
    double plain[2][LK_TUNE_N_BITS];
    lk_tune_fill_kl(plain, bits, 2, probe, LK_TUNE_NO_TRELLIS);
    for (int i = 0; i < LK_TUNE_N_BITS; i++)
        assert_true(lk_tune_bits_at[i] > 4 ? plain[0][i] == kl[0][i] : plain[0][i] > kl[0][i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distortions_are_measured),
        cmocka_unit_test(losses_follow_distortions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
