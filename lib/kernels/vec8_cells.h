/* Codes of a tile as bytes, packed into and unpacked from the planes of codec/bitplanes.h.
 *
 * Bytes are in one of two orders. Both have d_head cells of 8 words of 4 bytes. Lanes are tokens in
 * K's order and channels in V's order:
 *
 *   K's order: cell[(c / 4) * 4 + t / 8][t % 8], byte c % 4
 *   V's order: cell[(c / 8) * 8 + t / 4][c % 8], byte t % 4 */
#ifndef LK_KERNELS_VEC8_CELLS_H
#define LK_KERNELS_VEC8_CELLS_H

#include "codec/bitplanes.h"
#include "kernels/vec8.h"

/* Convert to the order of `side` from the other one, by transposing blocks of 4 tokens x 4
 * channels. */
LK_ALWAYS_INLINE void lk_vec8_reorder_cells(int d_head, const lk_u32x8 *from, lk_u32x8 *to,
                                            enum lk_side side) {
    for (int cq = 0; cq < d_head / 4; cq++)
        for (int tq = 0; tq < LK_TILE / 4; tq++) {
            size_t k = (size_t)(cq * 4 + tq / 2) * 32 + tq % 2 * 16,
                   v = (size_t)(cq / 2 * 8 + tq) * 32 + cq % 2 * 16;
            lk_u8x16 block;
            memcpy(&block, (const char *)from + (side == LK_V ? k : v), sizeof block);
            block = __builtin_shufflevector(block, block, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3,
                                            7, 11, 15);
            memcpy((char *)to + (side == LK_V ? v : k), &block, sizeof block);
        }
}

/* The lowest `width` bits of every byte. */
LK_ALWAYS_INLINE uint32_t lk_vec8_field_mask(int width) {
    return 0x01010101u * ((1u << width) - 1);
}

LK_ALWAYS_INLINE void lk_vec8_pack_cells(int bits, int d_head, const lk_u32x8 *cell, void *tile) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    char *out = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], per_byte = 8 / w;
        for (int j = 0; j < d_head / per_byte; j++, out += 32) {
            lk_u32x8 all = {0};
            for (int k = 0; k < per_byte; k++)
                all |= ((cell[j * per_byte + k] >> low) & lk_vec8_field_mask(w)) << (k * w);
            memcpy(out, &all, sizeof all);
        }
        low += w;
    }
}

LK_ALWAYS_INLINE void lk_vec8_unpack_cells(int bits, int d_head, const void *tile, lk_u32x8 *cell) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    const char *in = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], per_byte = 8 / w;
        for (int j = 0; j < d_head / per_byte; j++, in += 32) {
            lk_u32x8 all;
            memcpy(&all, in, sizeof all);
            for (int k = 0; k < per_byte; k++) {
                lk_u32x8 code = ((all >> (k * w)) & lk_vec8_field_mask(w)) << low;
                cell[j * per_byte + k] = p ? cell[j * per_byte + k] | code : code;
            }
        }
        low += w;
    }
}

#endif
