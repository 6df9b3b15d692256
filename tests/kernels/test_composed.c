/* Kernels that are composed of others: long runs over several blocks, against the reference. */
#include "support_baselines.h"
#include "test_kernels.h"

enum { D = 64, MAX_ROWS = 1280, MAX_BLOCK = MAX_ROWS / LK_TILE, N_Q = 19 };

static _Alignas(64) unsigned char memory[MAX_ROWS * D * 4];
static float x[MAX_ROWS * D], q[N_Q * D], p[N_Q * MAX_ROWS], got[N_Q * MAX_ROWS],
    expect[N_Q * MAX_ROWS];

/* Encode MAX_ROWS rows into blocks that have `front` bytes before the head's part. */
static struct lk_rows encode(const struct lk_codec *codec, enum lk_side side, void **block,
                             size_t front) {
    int block_rows = lk_codec_block_rows(codec, side);
    size_t bytes = front + lk_codec_head_bytes(codec, side, D, block_rows);
    assert_true(MAX_ROWS / block_rows * bytes <= sizeof memory);
    for (int b = 0; b < MAX_ROWS / block_rows; b++) {
        block[b] = memory + b * bytes;
        lk_codec_encode(&(struct lk_part){codec, side, D, block_rows, NULL},
                        (char *)block[b] + front, 0, block_rows, x + (size_t)b * block_rows * D, D);
    }
    return (struct lk_rows){.codec = codec,
                            .block = block,
                            .offset = front,
                            .d_head = D,
                            .block_rows = block_rows,
                            .prefetch = {.block = block, .n_block = 1, .n_piece = 1}};
}

/* Squared error of rows [row0, row0 + n), relative to the squared result. */
static double error_of(const struct lk_kernels *kernels, struct lk_rows rows, enum lk_side side,
                       int row0, int n, int n_q) {
    static _Alignas(64) unsigned char mem[N_Q * D * 6];
    struct lk_kernels_state before;
    struct lk_queries queries;
    rows.block += row0 / rows.block_rows;
    rows.row0 = row0 % rows.block_rows;
    rows.n = n;
    lk_queries_prepare(&queries, q, n_q, D, mem);
    for (int i = 0; i < n_q * MAX_ROWS; i++) {
        p[i] = i % MAX_ROWS < n ? expf(-8 * (float)uniform()) : 0;
        got[i] = expect[i] = side == LK_V ? (float)i : 0;
    }
    lk_kernels_enter(kernels, &before);
    if (side == LK_K)
        lk_kernels_score(kernels, &rows, &queries, got, MAX_ROWS);
    else
        lk_kernels_accumulate(kernels, &rows, p, MAX_ROWS, n_q, got);
    lk_kernels_leave(kernels, &before);
    if (side == LK_K)
        lk_kernels_score(&lk_kernels_reference, &rows, &queries, expect, MAX_ROWS);
    else
        lk_kernels_accumulate(&lk_kernels_reference, &rows, p, MAX_ROWS, n_q, expect);
    for (int i = 0; side == LK_V && i < n_q * D; i++) got[i] -= (float)i, expect[i] -= (float)i;
    struct difference d =
        side == LK_K ? compare(got, expect, n_q, MAX_ROWS, n) : compare(got, expect, n_q, D, D);
    return d.error / d.all;
}

static void long_runs(void **state) {
    const struct lk_codec codecs[] = {{.coding = LK_ASYM, .bits = 2, .group = 32, .hadamard = true},
                                      {.coding = LK_ASYM, .bits = 4, .group = 64},
                                      {.coding = LK_ASYM, .bits = 6, .group = 32},
                                      {.coding = LK_ASYM, .bits = 3},
                                      baseline_codec("kvquant2"),
                                      baseline_codec("kvquant4"),
                                      baseline_codec("kvarn3")};
    static const int runs[][2] = {{0, 1}, {32, 31}, {96, 97}, {128, 512}, {64, 1153}, {0, 1280}};
    static void *block[MAX_BLOCK];
    for (int i = 0; i < MAX_ROWS * D; i++) x[i] = gaussian() + (i % D == 7 ? 3 : 0);
    for (int i = 0; i < N_Q * D; i++) q[i] = gaussian();
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        for (int side = LK_K; side <= LK_V; side++) {
            struct lk_rows rows = encode(&codecs[c], side, block, c % 2 ? 0 : 96);
            for (int k = 0; k < N_TABLE; k++) {
                const struct lk_kernels *kernels = lk_kernels_choose(tables[k]);
                if (!kernels) continue;
                for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++)
                    for (int n_q = 1; n_q <= N_Q; n_q += 6) {
                        double error = error_of(kernels, rows, side, runs[r][0], runs[r][1], n_q);
                        if (!(error < 1e-3))
                            fail_msg("%s: codec %zu, side %d, rows %d+%d, %d queries: %g",
                                     kernels->name, c, side, runs[r][0], runs[r][1], n_q, error);
                    }
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
