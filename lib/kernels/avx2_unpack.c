#include "codec/cells.h"
#include "kernels/avx2.h"

#include <immintrin.h>
#include <string.h>

/* The j-th code of `width` bits of each byte of v, moved to bits [low, low + width). Shifts act on
 * 16-bit lanes; what crosses from the other byte is masked away. */
LK_ALWAYS_INLINE __m256i field(__m256i v, int j, int width, int low) {
    int right = j * width - low;
    __m256i mask = _mm256_set1_epi8((char)(((1 << width) - 1) << low));
    if (right > 0) v = _mm256_srli_epi16(v, right);
    if (right < 0) v = _mm256_slli_epi16(v, -right);
    return _mm256_and_si256(v, mask);
}

/* Or the codes of a plane into 8 cells. plane: [width][32] bytes */
LK_ALWAYS_INLINE void add_plane(const uint8_t *plane, int width, int low, __m256i cell[8]) {
    LK_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i packed = _mm256_loadu_si256((const __m256i *)(plane + j * width / 8 * 32));
        __m256i code = field(packed, j % (8 / width), width, low);
        cell[j] = low ? _mm256_or_si256(cell[j], code) : code;
    }
}

LK_ALWAYS_INLINE void unpack(int bits, int d_head, const uint8_t *tile, const uint8_t *table,
                             uint8_t *cells) {
    const uint8_t *plane2 = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    const uint8_t *plane1 = plane2 + (bits & 2 ? lk_cells_bytes(2, d_head) : 0);
    __m256i levels = _mm256_setzero_si256();
    if (table) levels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    for (int g = 0; g < d_head / 8; g++) {
        __m256i cell[8];
        if (bits & 4) add_plane(tile + g * 4 * 32, 4, 0, cell);
        if (bits & 2) add_plane(plane2 + g * 2 * 32, 2, bits & 4, cell);
        if (bits & 1) add_plane(plane1 + g * 32, 1, bits & 6, cell);
        LK_UNROLL
        for (int j = 0; j < 8; j++) {
            if (table) cell[j] = _mm256_shuffle_epi8(levels, cell[j]);
            _mm256_store_si256((__m256i *)(cells + (g * 8 + j) * 32), cell[j]);
        }
    }
}

const uint8_t *lk_avx2_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
                              uint8_t *cells) {
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
