#include "codec/cells.h"

/* Place of (token, channel) in a tile's order of codes: cell * 32 + byte. */
static inline int place(enum lk_side side, int t, int c) {
    if (side == LK_K) return ((c / 4) * 4 + t / 8) * 32 + t % 8 * 4 + c % 4;
    return ((c / 8) * 8 + t / 4) * 32 + c % 8 * 4 + t % 4;
}

/* Where a plane of `width` bits keeps the code at a place. */
static inline int plane_byte(int width, int at) {
    int cell = at / 32, per_byte = 8 / width;
    return cell / per_byte * 32 + at % 32;
}

static inline int plane_shift(int width, int at) { return at / 32 % (8 / width) * width; }

void lk_cells_put(enum lk_side side, int bits, int d_head, void *tile, int t, const uint8_t *code) {
    int width[LK_MAX_PLANES], n_plane = lk_cells_planes(bits, width), low = 0;
    uint8_t *plane = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], mask = (1 << w) - 1;
        for (int c = 0; c < d_head; c++) {
            int at = place(side, t, c), shift = plane_shift(w, at);
            uint8_t *byte = plane + plane_byte(w, at);
            *byte = (uint8_t)((*byte & ~(mask << shift)) | ((code[c] >> low & mask) << shift));
        }
        plane += lk_cells_bytes(w, d_head);
        low += w;
    }
}

void lk_cells_get(enum lk_side side, int bits, int d_head, const void *tile, int t, uint8_t *code) {
    int width[LK_MAX_PLANES], n_plane = lk_cells_planes(bits, width), low = 0;
    const uint8_t *plane = tile;
    for (int c = 0; c < d_head; c++) code[c] = 0;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], mask = (1 << w) - 1;
        for (int c = 0; c < d_head; c++) {
            int at = place(side, t, c);
            code[c] |= (uint8_t)((plane[plane_byte(w, at)] >> plane_shift(w, at) & mask) << low);
        }
        plane += lk_cells_bytes(w, d_head);
        low += w;
    }
}
