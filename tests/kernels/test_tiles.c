/* score_tiles of every table against the reference, over widths, bits and numbers of queries. */
#include "codec/rot.h"
#include "test_kernels.h"

enum { MAX_TILES = 19, MAX_Q = 13, MAX_D = 1024, STRIDE = MAX_TILES + 3 };

static void agrees_with_the_reference(void **state) {
    static const int widths[] = {8, 16, 40, 64, 80, 96, 120, 128, 200, 256, 584, MAX_D};
    static _Alignas(64) unsigned char head[MAX_TILES][MAX_D * 40], mem[MAX_Q * MAX_D * 6];
    static float x[LK_TILE * MAX_D], q[MAX_Q * MAX_D];
    for (int i = 0; i < 120; i++) {
        struct lk_codec codec = {.coding = LK_ROT, .bits = 1 + i % 8, .mean = true};
        int d = widths[i % 12], n_tile = 1 + (int)(uniform() * MAX_TILES),
            n_q = 1 + (int)(uniform() * MAX_Q);
        void *block[MAX_TILES];
        codec.lloyd = lk_codec_default_lloyd(codec.bits);
        assert_true(lk_codec_head_bytes(&codec, LK_K, d, LK_TILE) <= sizeof head[0]);
        for (int t = 0; t < n_tile; t++) {
            float level = gaussian();
            for (int k = 0; k < LK_TILE * d; k++) x[k] = gaussian() + level;
            lk_codec_encode(&(struct lk_part){&codec, LK_K, d, LK_TILE, NULL}, head[t], 0, LK_TILE,
                            x, d);
            block[t] = head[t];
        }
        struct lk_rows rows = {.codec = &codec,
                               .block = block,
                               .d_head = d,
                               .block_rows = LK_TILE,
                               .n = n_tile * LK_TILE};
        struct lk_queries queries;
        float spread[MAX_Q], got[MAX_Q * STRIDE], expect[MAX_Q * STRIDE];
        for (int k = 0; k < n_q * d; k++) q[k] = gaussian();
        for (int k = 0; k < n_q; k++) spread[k] = 10 * (float)uniform();
        lk_queries_prepare(&queries, q, n_q, d, mem);
        lk_kernels_reference.score_tiles(&rows, &queries, spread, expect, STRIDE);
        for (int table = 0; table < N_TABLE; table++) {
            const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
            if (!kernels) continue;
            struct lk_kernels_state before;
            lk_kernels_enter(kernels, &before);
            kernels->score_tiles(&rows, &queries, spread, got, STRIDE);
            lk_kernels_leave(kernels, &before);
            /* Queries of 16 bits are within 1.6e-5 of their maximum. That is an error of about 5e-5
             * of |q| |mean| / sqrt(d), the deviation of products of unrelated vectors. */
            for (int k = 0; k < n_q; k++)
                for (int t = 0; t < n_tile; t++) {
                    double e = expect[k * STRIDE + t], g = got[k * STRIDE + t];
                    if (!(fabs(g - e) <= 3e-4 * (1 + fabs(e)) * sqrt(d)))
                        fail_msg("%s, %d bits, %d channels: %g instead of %g", kernels->name,
                                 codec.bits, d, g, e);
                }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
