#include "kernels/neon.h"
#include "kernels/wide_offsets.h"

void lk_neon_add_offsets(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                         int first, int n, float *y) {
    lk_wide_add_offsets(x, n_tok, n_in, offset, n_out, first, n, y);
}
