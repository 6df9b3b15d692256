/* Packing one row of codes at a time. The kernels pack whole tiles; this is their reference. */
#include "codec/bitplanes.h"

/* Byte and shift of a code in a plane of `width` bits. */
static inline int plane_byte(int width, int index) {
    int cell = index / 32, per_byte = 8 / width;
    return cell / per_byte * 32 + index % 32;
}

static inline int plane_shift(int width, int index) { return index / 32 % (8 / width) * width; }

void lk_bitplanes_pack_row(enum lk_side side, int bits, int d_head, void *tile, int t,
                           const uint8_t *code) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    uint8_t *plane = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], mask = (1 << w) - 1;
        for (int c = 0; c < d_head; c++) {
            int index = lk_bitplanes_index(side, t, c), shift = plane_shift(w, index);
            uint8_t *byte = plane + plane_byte(w, index);
            *byte = (uint8_t)((*byte & ~(mask << shift)) | ((code[c] >> low & mask) << shift));
        }
        plane += lk_bitplanes_bytes(w, d_head);
        low += w;
    }
}

void lk_bitplanes_unpack_row(enum lk_side side, int bits, int d_head, const void *tile, int t,
                             uint8_t *code) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    const uint8_t *plane = tile;
    for (int c = 0; c < d_head; c++) code[c] = 0;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], mask = (1 << w) - 1;
        for (int c = 0; c < d_head; c++) {
            int index = lk_bitplanes_index(side, t, c), shift = plane_shift(w, index);
            code[c] |= (uint8_t)((plane[plane_byte(w, index)] >> shift & mask) << low);
        }
        plane += lk_bitplanes_bytes(w, d_head);
        low += w;
    }
}
