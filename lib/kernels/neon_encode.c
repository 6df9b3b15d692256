/* Encoders and decoders for NEON. Compiled with -ffp-contract=off, so that they write the same bits
 * as the codecs. */
#include "kernels/neon.h"
#include "kernels/vec8_encode.h"

void lk_neon_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride) {
    lk_vec8_encode(part, head, row0, n, x, stride);
}

void lk_neon_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride) {
    lk_vec8_decode(part, head, row0, n, x, stride);
}
