#include <immintrin.h>
#include <string.h>

#include "codec/cells.h"
#include "kern/avx2.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- unpacking ------------------------------------------------------------------------------ */

/* The j-th code of `width` bits of each byte of v, moved to bits [low, low + width). Shifts act on
 * 16-bit lanes; what crosses from the other byte is masked away. */
INLINE __m256i field(__m256i v, int j, int width, int low) {
    int right = j * width - low;
    __m256i mask = _mm256_set1_epi8((char)(((1 << width) - 1) << low));
    if (right > 0) v = _mm256_srli_epi16(v, right);
    if (right < 0) v = _mm256_slli_epi16(v, -right);
    return _mm256_and_si256(v, mask);
}

/* Or the codes of a plane into 8 cells. plane: [width][32] bytes */
INLINE void add_plane(const uint8_t *plane, int width, int low, __m256i cell[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m256i packed = _mm256_loadu_si256((const __m256i *)(plane + j * width / 8 * 32));
        __m256i code = field(packed, j % (8 / width), width, low);
        cell[j] = low ? _mm256_or_si256(cell[j], code) : code;
    }
}

INLINE void unpack(int bits, int d_head, const uint8_t *tile, const uint8_t *table, uint8_t *cells) {
    const uint8_t *plane2 = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    const uint8_t *plane1 = plane2 + (bits & 2 ? lk_cells_bytes(2, d_head) : 0);
    __m256i levels = _mm256_setzero_si256();
    if (table) levels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    for (int g = 0; g < d_head / 8; g++) {
        __m256i cell[8];
        if (bits & 4) add_plane(tile + g * 4 * 32, 4, 0, cell);
        if (bits & 2) add_plane(plane2 + g * 2 * 32, 2, bits & 4, cell);
        if (bits & 1) add_plane(plane1 + g * 32, 1, bits & 6, cell);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            if (table) cell[j] = _mm256_shuffle_epi8(levels, cell[j]);
            _mm256_store_si256((__m256i *)(cells + (g * 8 + j) * 32), cell[j]);
        }
    }
}

const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table, uint8_t *cells) {
    uint8_t levels[16] = {0};
    if (table) {
        memcpy(levels, table, (size_t)1 << bits);
        if (bits == 2) unpack(2, d_head, tile, levels, cells);
        if (bits == 3) unpack(3, d_head, tile, levels, cells);
        if (bits == 4) unpack(4, d_head, tile, levels, cells);
        return cells;
    }
    switch (bits) {
    case 1: unpack(1, d_head, tile, NULL, cells); return cells;
    case 2: unpack(2, d_head, tile, NULL, cells); return cells;
    case 3: unpack(3, d_head, tile, NULL, cells); return cells;
    case 4: unpack(4, d_head, tile, NULL, cells); return cells;
    case 5: unpack(5, d_head, tile, NULL, cells); return cells;
    case 6: unpack(6, d_head, tile, NULL, cells); return cells;
    case 7: unpack(7, d_head, tile, NULL, cells); return cells;
    default: return tile;
    }
}

/* ---- K, 8 bits ------------------------------------------------------------------------------ */

INLINE __m256i broadcast4(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

/* Tokens 16 h .. 16 h + 15. maddubs leaves sums of two products in 16 bits: `most` channel quads fit. */
INLINE void dot_k8(const uint8_t *cells, int d_head, int most, const int8_t *q8, int pad, int n, int h,
                   int32_t dot[][LK_TILE]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[LK_AVX2_QUERIES][2];
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4;) {
        int end = quad + most < d_head / 4 ? quad + most : d_head / 4;
        __m256i part[LK_AVX2_QUERIES][2];
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) part[i][0] = part[i][1] = _mm256_setzero_si256();
        for (; quad < end; quad++) {
            const __m256i *cell = (const __m256i *)(cells + (quad * 4 + h * 2) * 32);
            __m256i a = _mm256_loadu_si256(cell), b = _mm256_loadu_si256(cell + 1);
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) {
                __m256i q = broadcast4(q8 + i * pad + quad * 4);
                part[i][0] = _mm256_add_epi16(part[i][0], _mm256_maddubs_epi16(a, q));
                part[i][1] = _mm256_add_epi16(part[i][1], _mm256_maddubs_epi16(b, q));
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(part[i][0], ones));
            sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(part[i][1], ones));
        }
    }
    for (int i = 0; i < n; i++) {
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16), sum[i][0]);
        _mm256_storeu_si256((__m256i *)(dot[i] + h * 16 + 8), sum[i][1]);
    }
}

void lk_avx2_dot_k8(const uint8_t *cells, int d_head, int top, const int8_t *q8, int pad, int n, int32_t dot[][LK_TILE]) {
    int most = 32767 / (top * 127 * 2);
    for (int h = 0; h < 2; h++) {
        if (n == 1) dot_k8(cells, d_head, most, q8, pad, 1, h, dot);
        if (n == 2) dot_k8(cells, d_head, most, q8, pad, 2, h, dot);
        if (n == 3) dot_k8(cells, d_head, most, q8, pad, 3, h, dot);
        if (n == 4) dot_k8(cells, d_head, most, q8, pad, 4, h, dot);
    }
}

/* ---- K, 16 bits ----------------------------------------------------------------------------- */

INLINE __m256i widen(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)); }

/* Tokens 8 o .. 8 o + 7. 255 * 32767 * 256 channels fit into 32 bits. */
INLINE void dot_k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n, int o, int32_t dot[][LK_TILE]) {
    __m256i sum[LK_AVX2_QUERIES][2]; /* 4 tokens each, two partial sums per token */
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < d_head / 4; quad++) {
        const uint8_t *cell = cells + (quad * 4 + o) * 32;
        __m256i a = widen(cell), b = widen(cell + 16);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            int64_t q;
            memcpy(&q, q16 + i * pad + quad * 4, sizeof q);
            __m256i four = _mm256_set1_epi64x(q);
            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(a, four));
            sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(b, four));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        __m256i both = _mm256_hadd_epi32(sum[i][0], sum[i][1]); /* t0 t1 t4 t5 | t2 t3 t6 t7 */
        _mm256_storeu_si256((__m256i *)(dot[i] + o * 8), _mm256_permute4x64_epi64(both, 0xd8));
    }
}

void lk_avx2_dot_k16(const uint8_t *cells, int d_head, const int16_t *q16, int pad, int n, int32_t dot[][LK_TILE]) {
    for (int o = 0; o < LK_TILE / 8; o++) {
        if (n == 1) dot_k16(cells, d_head, q16, pad, 1, o, dot);
        if (n == 2) dot_k16(cells, d_head, q16, pad, 2, o, dot);
        if (n == 3) dot_k16(cells, d_head, q16, pad, 3, o, dot);
        if (n == 4) dot_k16(cells, d_head, q16, pad, 4, o, dot);
    }
}

INLINE void dot_mean(const int8_t *code, int d_head, const int16_t *q16, int pad, int n, int32_t out[LK_AVX2_QUERIES]) {
    __m128i sum[LK_AVX2_QUERIES];
#pragma GCC unroll 4
    for (int i = 0; i < LK_AVX2_QUERIES; i++) sum[i] = _mm_setzero_si128();
    for (int c = 0; c < d_head; c += 8) {
        __m128i mean = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(code + c)));
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            __m128i q = _mm_loadu_si128((const __m128i *)(q16 + i * pad + c));
            sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(mean, q));
        }
    }
    __m128i four = _mm_hadd_epi32(_mm_hadd_epi32(sum[0], sum[1]), _mm_hadd_epi32(sum[2], sum[3]));
    _mm_storeu_si128((__m128i *)out, four);
}

void lk_avx2_dot_mean(const int8_t *code, int d_head, const int16_t *q16, int pad, int n, int32_t sum[LK_AVX2_QUERIES]) {
    if (n == 1) dot_mean(code, d_head, q16, pad, 1, sum);
    if (n == 2) dot_mean(code, d_head, q16, pad, 2, sum);
    if (n == 3) dot_mean(code, d_head, q16, pad, 3, sum);
    if (n == 4) dot_mean(code, d_head, q16, pad, 4, sum);
}

/* ---- V -------------------------------------------------------------------------------------- */

/* `octets` (1 or 2) times 8 channels from c on; n queries. */
INLINE void dot_v16(const uint8_t *cells, int c, int octets, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    const uint8_t *cell = cells + c * LK_TILE;
    __m256i sum[LK_AVX2_QUERIES][2];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int pair = 0; pair < LK_TILE / 2; pair++) {
        __m256i a = widen(cell + pair * 16), b = octets == 2 ? widen(cell + 8 * LK_TILE + pair * 16) : a;
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            __m256i p = broadcast4(&p16[i][pair * 2]);
            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(a, p));
            if (octets == 2) sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(b, p));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        _mm256_storeu_si256((__m256i *)(dot[i] + c), sum[i][0]);
        if (octets == 2) _mm256_storeu_si256((__m256i *)(dot[i] + c + 8), sum[i][1]);
    }
}

INLINE void dot_v16_all(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    int c = 0;
    for (; c + 16 <= n_channel; c += 16) dot_v16(cells, c, 2, p16, n, dot);
    if (c < n_channel) dot_v16(cells, c, 1, p16, n, dot);
}

void lk_avx2_dot_v16(const uint8_t *cells, int n_channel, int16_t p16[][LK_TILE], int n, int32_t dot[][LK_MAX_D_HEAD]) {
    if (n == 1) dot_v16_all(cells, n_channel, p16, 1, dot);
    if (n == 2) dot_v16_all(cells, n_channel, p16, 2, dot);
    if (n == 3) dot_v16_all(cells, n_channel, p16, 3, dot);
    if (n == 4) dot_v16_all(cells, n_channel, p16, 4, dot);
}
