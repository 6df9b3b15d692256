/* Zero points of asym for the kernels of NEON. */
#include "kernels/neon.h"
#include "kernels/vec8_asym.h"

void lk_neon_add_score_offsets(const struct lk_rows *rows, const struct lk_queries *q, bool fine,
                               float *s, size_t stride) {
    lk_vec8_add_score_offsets(rows, q, fine, s, stride);
}

void lk_neon_add_sum_offsets(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                             float *acc) {
    lk_vec8_add_sum_offsets(rows, p, stride, n_q, acc);
}
