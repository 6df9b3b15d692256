/* Unpacks codes of a tile and quantizes weights of values, for the integer kernels of AVX2. */
#include "codec/bitplanes.h"
#include "kernels/avx2_vec.h"

/* Move code j of every byte of v to bits [low, low + width). Codes are `width` bits wide. Shifts
 * act on 16-bit lanes; the mask removes bits that came from the neighboring byte. */
LK_ALWAYS_INLINE __m256i extract_field(__m256i v, int j, int width, int low) {
    int right = j * width - low;
    __m256i mask = _mm256_set1_epi8((char)(((1 << width) - 1) << low));
    if (right > 0) v = _mm256_srli_epi16(v, right);
    if (right < 0) v = _mm256_slli_epi16(v, -right);
    return _mm256_and_si256(v, mask);
}

/* Add the codes of a plane to 8 cells, from bit `low` on. plane: [width][32] bytes */
LK_ALWAYS_INLINE void add_plane(const uint8_t *plane, int width, int low, __m256i cell[8]) {
    LK_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i packed = _mm256_loadu_si256((const __m256i *)(plane + j * width / 8 * 32));
        __m256i code = extract_field(packed, j % (8 / width), width, low);
        cell[j] = low ? _mm256_or_si256(cell[j], code) : code;
    }
}

LK_ALWAYS_INLINE void unpack_planes(int bits, int d_head, const uint8_t *tile,
                                    const uint8_t *levels, uint8_t *cells) {
    const uint8_t *plane2 = tile + (bits & 4 ? lk_bitplanes_bytes(4, d_head) : 0);
    const uint8_t *plane1 = plane2 + (bits & 2 ? lk_bitplanes_bytes(2, d_head) : 0);
    __m256i table = _mm256_setzero_si256();
    if (levels) table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)levels));
    for (int g = 0; g < d_head / 8; g++) {
        __m256i cell[8];
        if (bits & 4) add_plane(tile + g * 4 * 32, 4, 0, cell);
        if (bits & 2) add_plane(plane2 + g * 2 * 32, 2, bits & 4, cell);
        if (bits & 1) add_plane(plane1 + g * 32, 1, bits & 6, cell);
        LK_UNROLL
        for (int j = 0; j < 8; j++) {
            if (levels) cell[j] = _mm256_shuffle_epi8(table, cell[j]);
            _mm256_store_si256((__m256i *)(cells + (g * 8 + j) * 32), cell[j]);
        }
    }
}

const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells) {
    return lk_unpack_tile(bits, d_head, tile, table, cells, unpack_planes);
}

/* Rotate 32-bit lanes to the right by n, a constant. */
LK_ALWAYS_INLINE __m256i rotate_right(__m256i v, int n) {
    if (n % 32 == 0) return v;
    return _mm256_or_si256(_mm256_srli_epi32(v, n), _mm256_slli_epi32(v, 32 - n));
}

/* Levels of the lowest six bits of every byte. quarter: four tables of 16 */
LK_ALWAYS_INLINE __m256i lookup_quarters(const __m256i quarter[4], __m256i index) {
    __m256i low = _mm256_and_si256(index, _mm256_set1_epi8(15));
    __m256i bit4 = _mm256_slli_epi16(index, 3), bit5 = _mm256_slli_epi16(index, 2);
    __m256i lower = _mm256_blendv_epi8(_mm256_shuffle_epi8(quarter[0], low),
                                       _mm256_shuffle_epi8(quarter[1], low), bit4);
    __m256i upper = _mm256_blendv_epi8(_mm256_shuffle_epi8(quarter[2], low),
                                       _mm256_shuffle_epi8(quarter[3], low), bit4);
    return _mm256_blendv_epi8(lower, upper, bit5);
}

/* bits is a constant. 8 cells at a time: one 32-byte row of a plane per bit of the codes. */
LK_ALWAYS_INLINE void unpack_trellis(int bits, int d_head, const uint8_t *tile,
                                     const __m256i quarter[4], uint8_t *cells) {
    int width = bits == 3 ? 2 : bits, per_byte = 8 / width;
    const uint8_t *plane1 = tile + lk_bitplanes_bytes(2, d_head); /* of 3 bits */
    for (int g = 0; g < d_head / 8; g++) {
        LK_UNROLL
        for (int j = 0; j < 8; j++) {
            const uint8_t *row = tile + (g * width + j / per_byte) * 32;
            __m256i index =
                rotate_right(_mm256_loadu_si256((const __m256i *)row), j % per_byte * width);
            if (bits == 3) {
                __m256i one = _mm256_loadu_si256((const __m256i *)(plane1 + g * 32));
                __m256i high = _mm256_set1_epi8(0x30);
                index = _mm256_or_si256(_mm256_andnot_si256(high, index),
                                        _mm256_and_si256(high, rotate_right(one, (j + 28) % 32)));
            }
            _mm256_store_si256((__m256i *)(cells + (g * 8 + j) * 32),
                               lookup_quarters(quarter, index));
        }
    }
}

const uint8_t *lk_avx2_unpack_trellis(int bits, int d_head, const void *tile, const uint8_t *table,
                                      uint8_t *cells) {
    __m256i quarter[4];
    for (int i = 0; i < 4; i++)
        quarter[i] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table + 16 * i)));
    switch (bits) {
    case 1: unpack_trellis(1, d_head, tile, quarter, cells); break;
    case 2: unpack_trellis(2, d_head, tile, quarter, cells); break;
    case 3: unpack_trellis(3, d_head, tile, quarter, cells); break;
    default: unpack_trellis(4, d_head, tile, quarter, cells);
    }
    return cells;
}

float lk_avx2_quantize_weights(const float *p, const float *scale, int16_t *p16, int32_t *sum) {
    __m256 weight[4], max = _mm256_setzero_ps();
    for (int j = 0; j < 4; j++) {
        weight[j] = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * j), _mm256_loadu_ps(scale + 8 * j));
        max = _mm256_max_ps(max, weight[j]);
    }
    float step = hmax_f32x8(max) / LK_MAX_X16;
    __m256 inverse = _mm256_set1_ps(step > LK_MIN_STEP ? 1 / step : 0);
    __m256i sum32 = _mm256_setzero_si256();
    for (int j = 0; j < 4; j += 2) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(weight[j], inverse));
        __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(weight[j + 1], inverse));
        __m256i both =
            /* packs works within 128-bit halves */
            _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        _mm256_storeu_si256((__m256i *)(p16 + 8 * j), both);
        sum32 = _mm256_add_epi32(sum32, _mm256_add_epi32(a, b));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum32), _mm256_extracti128_si256(sum32, 1));
    four = _mm_hadd_epi32(four, four);
    *sum = _mm_cvtsi128_si32(_mm_hadd_epi32(four, four));
    return step;
}

float lk_avx2_dot_f32(const float *a, const float *b, int n) {
    __m256 sum = _mm256_setzero_ps();
    for (int c = 0; c < n; c += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + c), _mm256_loadu_ps(b + c), sum);
    return hsum_f32x8(sum);
}
