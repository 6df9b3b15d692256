#include "kernels/avx512_weights.h"

LK_ALWAYS_INLINE void weigh_all(const float *p, size_t stride, int n, const __m512 scale[2],
                                bool fine, struct lk_avx512_weights *out) {
    uint8_t(*byte)[2 * LK_TILE] = out->byte;
    float *step = out->step;
    for (; n >= 4; n -= 4, p += 4 * stride, byte += 4, step += 4)
        lk_avx512_weigh_few(p, stride, 4, scale, fine, byte, step);
    if (n == 3) lk_avx512_weigh_few(p, stride, 3, scale, fine, byte, step);
    if (n == 2) lk_avx512_weigh_few(p, stride, 2, scale, fine, byte, step);
    if (n == 1) lk_avx512_weigh_few(p, stride, 1, scale, fine, byte, step);
}

void lk_avx512_weigh(const float *p, size_t stride, int n, const __m512 scale[2], bool fine,
                     struct lk_avx512_weights *out) {
    if (fine)
        weigh_all(p, stride, n, scale, true, out);
    else
        weigh_all(p, stride, n, scale, false, out);
}
