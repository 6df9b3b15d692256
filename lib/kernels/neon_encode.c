/* Rows into blocks and back. Compiled without contraction of a * b + c, so that codes are the same bits
 * as the reference's. */
#include "kernels/neon.h"
#include "kernels/wide_encode.h"

void lk_neon_encode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, void *head, int row0, int n, const float *x,
                    size_t stride) {
    struct lk_part part = {codec, side, d_head, block_rows, sigma};
    lk_wide_encode(&part, head, row0, n, x, stride);
}

void lk_neon_decode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                    const float *sigma, const void *head, int row0, int n, float *x,
                    size_t stride) {
    struct lk_part part = {codec, side, d_head, block_rows, sigma};
    lk_wide_decode(&part, head, row0, n, x, stride);
}
