/* Trellis-coded levels: against an exhaustive search of the state, and against the packed words. */
#include "codec/bitplanes.h"
#include "codec/rot.h"
#include "test.h"

static double cost_of(const struct lk_trellis *t, const float *value, const uint8_t *index) {
    double sum = 0;
    for (int p = 0; p < t->n_symbol; p++) {
        double error = value[p] - (t->table[index[p]] - LK_TRELLIS_TOP / 2);
        sum += error * error;
    }
    return sum;
}

/* The least cost of a word, by the Viterbi algorithm for every state at which it can be cut. */
static double least_cost(const struct lk_trellis *t, const float *value) {
    double least = INFINITY;
    for (int cut = 0; cut < t->n_state; cut++) {
        double cost[LK_TRELLIS_MAX_STATES], next[LK_TRELLIS_MAX_STATES];
        for (int i = 0; i < t->n_state; i++) cost[i] = i == cut ? 0 : INFINITY;
        for (int p = t->n_symbol - 1; p >= 0; p--) {
            for (int i = 0; i < t->n_state; i++) next[i] = INFINITY;
            for (int i = 0; i < t->n_index; i++) {
                double error = value[p] - (t->table[i] - LK_TRELLIS_TOP / 2);
                double sum = cost[lk_trellis_next_state(t, i)] + error * error;
                int own = lk_trellis_own_state(t, i);
                if (sum < next[own]) next[own] = sum;
            }
            memcpy(cost, next, sizeof cost);
        }
        if (cost[cut] < least) least = cost[cut];
    }
    return least;
}

/* Values with a few that are far outside of the levels. */
static void words_are_nearly_optimal(void **state) {
    for (int bits = 1; bits <= 4; bits++) {
        struct lk_trellis t = lk_trellis(bits);
        struct random r = {(uint64_t)bits};
        double sum = 0, least = 0;
        for (int i = 0; i < 300; i++) {
            float value[LK_TRELLIS_MAX_SYMBOLS];
            uint8_t index[LK_TRELLIS_MAX_SYMBOLS];
            for (int p = 0; p < t.n_symbol; p++)
                value[p] = random_gauss(&r) / t.unit * (random_int(&r, 1, 50) == 1 ? 9 : 1);
            lk_trellis_encode(&t, value, index);
            for (int p = 0; p < t.n_symbol; p++) /* the word is a path around the trellis */
                assert_int_equal(lk_trellis_next_state(&t, index[p]),
                                 lk_trellis_own_state(&t, index[(p + 1) % t.n_symbol]));
            double one = cost_of(&t, value, index), best = least_cost(&t, value);
            assert_true(one >= best * (1 - 1e-4));
            sum += one;
            least += best;
        }
        assert_true(sum < 1.01 * least);
    }
}

/* Levels are found by rotating the packed words, as the kernels do. */
static void levels_are_in_the_words(void **state) {
    enum { D = 40 };
    for (int bits = 1; bits <= 4; bits++)
        for (int side = LK_K; side <= LK_V; side++) {
            struct lk_trellis t = lk_trellis(bits);
            struct random r = {(uint64_t)bits};
            int width = bits == 3 ? 2 : bits, per_byte = 8 / width;
            uint8_t tile[LK_TILE / 8 * 4 * D], cell[LK_TILE * D], level[LK_TILE * D];
            for (int row = 0; row < LK_TILE; row++) {
                uint8_t code[D];
                for (int c = 0; c < D; c++) {
                    code[c] = (uint8_t)random_int(&r, 0, (1 << bits) - 1);
                    cell[lk_bitplanes_index(side, row, c)] = code[c];
                }
                lk_bitplanes_pack_row(side, bits, D, tile, row, code);
            }
            lk_trellis_levels(&t, D, cell, level);
            for (int i = 0; i < LK_TILE * D; i++) {
                int at = i / 32, byte = i % 32, place = byte % 4 * 8 + at % per_byte * width;
                uint32_t word;
                memcpy(&word, tile + at / per_byte * 32 + byte / 4 * 4, sizeof word);
                uint32_t index = place ? word >> place | word << (32 - place) : word;
                if (bits == 3) {
                    const uint8_t *plane = tile + lk_bitplanes_bytes(2, D);
                    index = (index & 15) | (plane[at / 8 * 32 + byte] >> at % 8 & 1u) << 4;
                }
                assert_int_equal(level[i], t.table[index & 63]);
            }
        }
}

/* Error relative to the power of Gaussian rows of d channels. */
static double error_of(struct lk_codec codec, enum lk_side side, int d) {
    enum { MAX_D = 128 };
    static float x[LK_TILE * MAX_D], y[LK_TILE * MAX_D];
    static _Alignas(32) unsigned char head[LK_TILE * MAX_D];
    struct lk_part part = {&codec, side, d, LK_TILE, NULL};
    struct random r = {7};
    double error = 0, power = 0, product = 0;
    for (int i = 0; i < 30; i++) {
        for (int k = 0; k < LK_TILE * d; k++) x[k] = random_gauss(&r);
        lk_codec_encode(&part, head, 0, LK_TILE, x, (size_t)d);
        lk_codec_decode(&part, head, 0, LK_TILE, y, (size_t)d);
        for (int k = 0; k < LK_TILE * d; k++) {
            error += (x[k] - y[k]) * (x[k] - y[k]);
            power += x[k] * x[k];
            product += x[k] * y[k];
        }
    }
    assert_true(fabs(product / power - 1) < 2e-3); /* unbiased */
    return error / power;
}

static void loses_less_than_lloyd_max(void **state) {
    static const double limit[2][5] = {{0, 0.82, 0.82, 0.89, 0.98}, {0, 0.82, 0.82, 0.86, 0.92}};
    for (int wide = 0; wide < 2; wide++)
        for (int side = LK_K; side <= LK_V; side++)
            for (int bits = 1; bits <= 4; bits++) {
                struct lk_codec lloyd = {.coding = LK_ROT,
                                         .bits = (uint8_t)bits,
                                         .lloyd = lk_codec_default_lloyd(bits)},
                                trellis = lloyd;
                trellis.lloyd = false;
                trellis.trellis = true;
                int d = wide ? 128 : 64;
                double scalar = error_of(lloyd, side, d), error = error_of(trellis, side, d),
                       ratio = error / scalar;
                print_message("%c, %d channels, %d bits: Lloyd-Max %.4f, trellis %.4f, %.3f\n",
                              side == LK_K ? 'K' : 'V', d, bits, scalar, error, ratio);
                if (ratio > limit[wide][bits])
                    fail_msg("%d bits, %d channels: error is %.3f of Lloyd-Max's", bits, d, ratio);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_nearly_optimal),
        cmocka_unit_test(levels_are_in_the_words),
        cmocka_unit_test(loses_less_than_lloyd_max),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
