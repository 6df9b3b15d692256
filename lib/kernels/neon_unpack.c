#include "codec/cells.h"
#include "kernels/neon.h"

#include <string.h>

/* Or the codes of a plane into the low (h = 0) or high halves of 8 cells. plane: [width][32] bytes */
LK_ALWAYS_INLINE void add_plane(const uint8_t *plane, int width, int low, int h,
                                uint8x16_t cell[8]) {
    const uint8x16_t mask = vdupq_n_u8((uint8_t)(((1 << width) - 1) << low));
    LK_UNROLL
    for (int j = 0; j < 8; j++) {
        uint8x16_t packed = vld1q_u8(plane + j * width / 8 * 32 + h * 16);
        int right = j % (8 / width) * width - low;
        uint8x16_t code = right >= 0 ? packed >> right : packed << -right;
        if (low)
            cell[j] = vbslq_u8(mask, code, cell[j]);
        else
            cell[j] = right + width == 8 ? code : vandq_u8(code, mask);
    }
}

LK_ALWAYS_INLINE void unpack(int bits, int d_head, const uint8_t *tile, const uint8_t *table,
                             uint8_t *cells) {
    const uint8_t *plane2 = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    const uint8_t *plane1 = plane2 + (bits & 2 ? lk_cells_bytes(2, d_head) : 0);
    const uint8x16_t levels = table ? vld1q_u8(table) : vdupq_n_u8(0);
    for (int g = 0; g < d_head / 8; g++)
        for (int h = 0; h < 2; h++) {
            uint8x16_t cell[8];
            if (bits & 4) add_plane(tile + g * 4 * 32, 4, 0, h, cell);
            if (bits & 2) add_plane(plane2 + g * 2 * 32, 2, bits & 4, h, cell);
            if (bits & 1) add_plane(plane1 + g * 32, 1, bits & 6, h, cell);
            LK_UNROLL
            for (int j = 0; j < 8; j++)
                vst1q_u8(cells + (g * 8 + j) * 32 + h * 16,
                         table ? vqtbl1q_u8(levels, cell[j]) : cell[j]);
        }
}

const uint8_t *lk_neon_unpack(int bits, int d_head, const void *tile, const uint8_t *table,
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
