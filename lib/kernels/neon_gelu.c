#include "kernels/neon.h"
#include "kernels/wide_gelu.h"

void lk_neon_gelu_layer(const float *x, const uint16_t *w, int n_in, int n_out, float *y) {
    lk_wide_gelu_layer(x, w, n_in, n_out, y);
}
