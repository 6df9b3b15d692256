#include "kernels/neon.h"
#include "kernels/wide_turned.h"

void lk_neon_score_turned(const float *k, int d, const struct lk_rope_table *turns, const float *q,
                          int n_q, float *s, size_t stride) {
    lk_wide_score_turned(k, d, turns, q, n_q, s, stride);
}
