/* Encoders and decoders for AVX2. Compiled with -ffp-contract=off, so that they write the same bits
 * as the codecs. */
#include "codec/f16.h"
#include "kernels/avx2.h"
#include "kernels/vec8_encode.h"

static void encode_f16(int d, uint16_t *out, int n, const float *x, size_t stride) {
    __m256 max = _mm256_set1_ps(LK_F16_MAX), min = _mm256_set1_ps(-LK_F16_MAX);
    for (int t = 0; t < n; t++, x += stride, out += d)
        for (int c = 0; c < d; c += LK_LANES) {
            __m256 v =
                _mm256_max_ps(min, _mm256_min_ps(max, _mm256_loadu_ps(x + c))); /* keeps NaN */
            _mm_storeu_si128((__m128i *)(out + c), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        }
}

static void decode_f16(int d, const uint16_t *in, int n, float *x, size_t stride) {
    for (int t = 0; t < n; t++, x += stride, in += d)
        for (int c = 0; c < d; c += LK_LANES)
            _mm256_storeu_ps(x + c, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + c))));
}

void lk_avx2_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride) {
    if (part->codec->coding != LK_F16) {
        lk_vec8_encode(part, head, row0, n, x, stride);
        return;
    }
    encode_f16(part->d_head, (uint16_t *)head + (size_t)row0 * part->d_head, n, x, stride);
}

void lk_avx2_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride) {
    if (part->codec->coding == LK_F16)
        decode_f16(part->d_head, lk_f16_row(head, part->d_head, row0), n, x, stride);
    else
        lk_vec8_decode(part, head, row0, n, x, stride);
}
