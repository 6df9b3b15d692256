/* Encoding and decoding: every table of kernels writes and reads the same bits as the codecs. */
#include "support_baselines.h"
#include "test_kernels.h"

enum {
    MAX_ROWS = 128,
    WIDEST = 256, /* channels */
    STRIDE = WIDEST + 5,
    BYTES = 4 * MAX_ROWS * WIDEST,
    GUARD = 64
};

static float x[MAX_ROWS * STRIDE], sigma[WIDEST];

/* n_row rows with an offset per channel and a random scale each, some of them zero. wild: add
 * extreme values. */
static void draw_rows(int n_row, int d, bool wild) {
    static const float odd[] = {0,    -0.0f,  1e-40f, -1e-30f,  7e-8f,     65504,
                                1e6f, -1e30f, 3e38f,  INFINITY, -INFINITY, NAN};
    float offset[WIDEST];
    for (int c = 0; c < d; c++) {
        offset[c] = gaussian();
        sigma[c] = expf(gaussian());
    }
    for (int t = 0; t < n_row; t++) {
        float length = t % 9 == 5 ? 0 : expf(gaussian());
        for (int c = 0; c < d; c++) {
            x[t * STRIDE + c] = length * (gaussian() + offset[c]);
            if (wild && uniform() < 0.02) x[t * STRIDE + c] = odd[(int)(uniform() * 12)];
        }
    }
}

/* A table of this machine's, unless an earlier one encodes and decodes with the same functions:
 * NULL. */
static const struct lk_kernels *distinct_table(int k) {
    const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
    for (int i = 0; kernels && i < k; i++) {
        const struct lk_kernels *earlier = lk_kernels_choose(tables[i]);
        if (earlier && earlier->encode == kernels->encode && earlier->decode == kernels->decode)
            return NULL;
    }
    return kernels;
}

/* Rows row0 to row0 + n of a block: every table writes what the codec writes, and reads it. */
static void check(const struct lk_codec *codec, enum lk_side side, int d, int row0, int n,
                  bool wild) {
    static _Alignas(32) unsigned char expect[BYTES + GUARD], got[BYTES + GUARD];
    static float decoded[MAX_ROWS * STRIDE], got_rows[MAX_ROWS * STRIDE];
    int rows = lk_codec_block_rows(codec, side);
    const float *s = codec->sigma ? sigma : NULL;
    struct lk_part part = {codec, side, d, rows, s};
    size_t bytes = lk_codec_head_bytes(codec, side, d, rows);
    assert_true(bytes <= BYTES);
    memset(expect, 0xa5, bytes + GUARD);
    lk_codec_encode(&part, expect, row0, n, x, STRIDE);
    for (int i = 0; i < n * STRIDE; i++) decoded[i] = 77;
    if (!wild) lk_codec_decode(&part, expect, row0, n, decoded, STRIDE);
    char name[32];
    lk_codec_print(codec, side, name, sizeof name);
    for (int k = 0; k < N_TABLE; k++) {
        const struct lk_kernels *kernels = distinct_table(k);
        if (!kernels) continue;
        memset(got, 0xa5, bytes + GUARD);
        kernels->encode(&part, got, row0, n, x, STRIDE);
        for (size_t i = 0; i < bytes + GUARD; i++)
            if (got[i] != expect[i])
                fail_msg("%s %s %c d_head %d rows %d+%d: byte %zu of %zu is %02x, not %02x",
                         kernels->name, name, side == LK_K ? 'K' : 'V', d, row0, n, i, bytes,
                         got[i], expect[i]);
        if (wild) continue; /* a NaN in f16 is not equal to itself */
        for (int i = 0; i < n * STRIDE; i++) got_rows[i] = 77;
        for (int t = row0; t < row0 + n; t += LK_TILE) /* as attention does */
            kernels->decode(&part, expect, t, row0 + n - t < LK_TILE ? row0 + n - t : LK_TILE,
                            got_rows + (size_t)(t - row0) * STRIDE, STRIDE);
        for (int i = 0; i < n * STRIDE; i++)
            if (decoded[i] != got_rows[i])
                fail_msg("%s %s %c d_head %d rows %d+%d: row %d channel %d is %g, not %g",
                         kernels->name, name, side == LK_K ? 'K' : 'V', d, row0, n, i / STRIDE,
                         i % STRIDE, got_rows[i], decoded[i]);
    }
}

static void check_codec(struct lk_codec codec) {
    static const int d_heads[] = {8, 16, 40, 64, 80, 96, 128, WIDEST};
    static const int parts[][2] = {{0, 1}, {7, 1}, {5, 9}, {31, 1}, {0, 31}, {8, 24}};
    for (int side = LK_K; side <= LK_V; side++)
        for (int k = 0; k < 8; k++) {
            int d = d_heads[k], rows = lk_codec_block_rows(&codec, side);
            if (lk_codec_reject_reason(&codec, side, d)) continue;
            draw_rows(rows < LK_TILE ? LK_TILE : rows, d, k % 2);
            check(&codec, side, d, 0, rows, k % 2);
            for (int i = 0; i < 6 && lk_codec_row_wise(&codec, side); i++)
                if (case_runs((size_t)(codec.bits + k + i)))
                    check(&codec, side, d, parts[i][0], parts[i][1], k % 2);
        }
}

static void all_tables_write_same_bits(void **state) {
    int n_table = 0;
    for (int i = 0; i < N_TABLE; i++) n_table += lk_kernels_choose(tables[i]) != NULL;
    if (n_table == 0) skip();
    check_codec((struct lk_codec){.coding = LK_F16, .bits = 16});
    check_codec((struct lk_codec){.coding = LK_INT8, .bits = 8});
    for (int bits = 2; bits <= 4; bits += 2)
        for (int group = 32; group <= 128; group *= 2)
            check_codec((struct lk_codec){.coding = LK_KIVI, .bits = bits, .group = group});
    for (int bits = 2; bits <= 8; bits++)
        for (int flags = 0; flags < 4; flags++)
            check_codec((struct lk_codec){.coding = LK_ASYM,
                                          .bits = bits,
                                          .group = flags & 2 ? 32 : 0,
                                          .hadamard = flags & 1});
    check_codec(baseline_codec("nf4"));
    check_codec(baseline_codec("kvquant3"));
    for (int bits = 1; bits <= 8; bits++)
        for (int flags = 0; flags < 8; flags++)
            check_codec((struct lk_codec){.coding = LK_ROT,
                                          .bits = bits,
                                          .mean = flags & 1,
                                          .sigma = flags & 2,
                                          .lloyd = flags & 4 && bits <= 4});
    for (int bits = 1; bits <= 4; bits++)
        for (int flags = 0; flags < 4; flags++)
            check_codec((struct lk_codec){.coding = LK_ROT,
                                          .bits = bits,
                                          .mean = flags & 1,
                                          .sigma = flags & 2,
                                          .trellis = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_tables_write_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
