/* Offsets of weights (kernels.h: add_offsets): every table against the reference, over odd
 * sizes. */
#include "codec/f16.h"
#include "kernels/kernels.h"
#include "test.h"

enum {
    MAX_TOK = 9,
    MAX_IN = 70 * LK_OFFSET_BLOCK,
    MAX_OUT = 3 * LK_OFFSET_TILE + 7,
    MAX_OFFSETS = MAX_IN / LK_OFFSET_BLOCK * 4 * LK_OFFSET_TILE
};

static float x[MAX_TOK * MAX_IN], y[MAX_TOK * MAX_OUT + 1], expect[MAX_TOK * MAX_OUT];
static uint16_t offset[MAX_OFFSETS];
static uint32_t state = 1;

static float uniform(void) { /* -1 to 1 */
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) / (1 << 23) - 1;
}

static void check(const struct lk_kernels *kernels, int n_tok, int n_in, int n_out, int first,
                  int n) {
    for (int i = 0; i < n_tok * n_in; i++) x[i] = uniform();
    for (int i = 0; i < n_tok * n_out; i++) y[i] = expect[i] = uniform();
    y[n_tok * n_out] = 7;
    for (size_t i = 0; i < MAX_OFFSETS; i++)
        /* NaN: padding after the last output must not be read. */
        offset[i] = 0x7e00;
    for (int b = 0; b < n_in / LK_OFFSET_BLOCK; b++)
        for (int o = 0; o < n_out; o++)
            offset[lk_offset_index(n_in, b, o)] = lk_f32_to_f16(uniform());
    assert_true(lk_offset_count(n_in, n_out) <= MAX_OFFSETS);
    kernels->add_offsets(x, n_tok, n_in, offset, n_out, first, n, y);
    for (int t = 0; t < n_tok; t++)
        for (int o = first; o < first + n; o++) {
            double sum = expect[t * n_out + o];
            for (int i = 0; i < n_in; i++)
                sum += (double)x[t * n_in + i] *
                       lk_f16_to_f32(offset[lk_offset_index(n_in, i / LK_OFFSET_BLOCK, o)]);
            expect[t * n_out + o] = (float)sum;
        }
    double limit =
        /* rounding of floats in sums as large as sqrt(n_in) / 3 */
        1e-6 * sqrt(n_in);
    for (int i = 0; i < n_tok * n_out; i++)
        if (!(fabs((double)y[i] - expect[i]) <= limit))
            fail_msg("%s, %d tokens, %d to %d, [%d, %d): %g, not %g", kernels->name, n_tok, n_in,
                     n_out, first, first + n, y[i], expect[i]);
    assert_true(y[n_tok * n_out] == 7);
}

static void tables_agree(void **unused) {
    static const char *const tables[] = {"reference",  "avx2", "avxvnni", "avx512",
                                         "avx512vbmi", "amx",  "neon",    "neon-i8mm"};
    static const int blocks[] = {1, 2, 18, 63, 64, 65, 70},
                     outputs[] = {1, 7, 8, 9, 16, 31, 32, 33, 56, 64, 65, 100, MAX_OUT};
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        for (int n_tok = 1; kernels && n_tok <= MAX_TOK; n_tok++)
            for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
                for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {
                    int n_in = blocks[b] * LK_OFFSET_BLOCK, n_out = outputs[o];
                    check(kernels, n_tok, n_in, n_out, 0, n_out);
                    if (n_out > LK_OFFSET_TILE)
                        check(kernels, n_tok, n_in, n_out, LK_OFFSET_TILE, n_out - LK_OFFSET_TILE);
                    if (n_out > 2 * LK_OFFSET_TILE)
                        check(kernels, n_tok, n_in, n_out, LK_OFFSET_TILE, LK_OFFSET_TILE);
                }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
