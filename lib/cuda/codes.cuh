/* Codes of a tile between shared memory and the planes of codec/bitplanes.h.
 *
 * In shared memory the codes of channels 4 i .. 4 i + 3 of a row are one word, in the row's column:
 * word(x, i, column). They take the place of floats that are no longer needed. */
#ifndef LK_CUDA_CODES_CUH
#define LK_CUDA_CODES_CUH

#include "cuda/rotate.cuh"

WF uint32_t load_word(const float *x, int i, int column) {
    return to_bits(x[i * TILE_STRIDE + column]);
}
WF void store_word(float *x, int i, int column, uint32_t word) {
    x[i * TILE_STRIDE + column] = from_bits(word);
}

/* The lowest `width` bits of every byte. */
WF uint32_t field_mask(int width) { return 0x01010101u * ((1u << width) - 1); }

/* The widest plane that `bits` still need. */
WF int plane_width(int bits) { return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }

WF size_t planes_bytes(int bits, int d) { return (size_t)4 * bits * d; }

/* Word `at` of a plane of `width` bits of rows of K: what the rows in `rows` (bit t: row t) have
 * there, from the codes' bit `low` on, and the bits of the word that are theirs. The codes of row t
 * are in column t if `column` is negative, else in that one. */
WF uint32_t k_word(const float *x, int at, int width, int low, uint32_t rows, int column,
                   uint32_t *mask) {
    int per_byte = 8 / width, token = at & 7;
    uint32_t word = 0;
    for (int s = 0; s < per_byte; s++) {
        int cell = (at >> 3) * per_byte + s, t = (cell & 3) * 8 + token;
        if (!(rows >> t & 1)) continue;
        word |= (load_word(x, cell >> 2, column < 0 ? t : column) >> low & field_mask(width))
                << (s * width);
        *mask |= field_mask(width) << (s * width);
    }
    return word;
}

/* The same for V, whose words hold one channel of four rows. */
WF uint32_t v_word(const float *x, int at, int width, int low, uint32_t rows, int column,
                   uint32_t *mask) {
    int per_byte = 8 / width;
    uint32_t word = 0, field = (1u << width) - 1;
    for (int s = 0; s < per_byte; s++) {
        int cell = (at >> 3) * per_byte + s, c = (cell >> 3) * 8 + (at & 7);
        for (int i = 0; i < 4; i++) {
            int t = (cell & 7) * 4 + i;
            if (!(rows >> t & 1)) continue;
            uint32_t code =
                load_word(x, c >> 2, column < 0 ? t : column) >> (8 * (c & 3) + low) & field;
            word |= code << (8 * i + s * width);
            *mask |= field << (8 * i + s * width);
        }
    }
    return word;
}

/* Pack the codes of rows `rows` of a tile of d channels, from channel 4 * first_word on. Other rows
 * keep their codes. */
CALLED void pack_codes(const float *x, int first_word, int side, int bits, int d, char *tile,
                       uint32_t rows, int column) {
    x += first_word * TILE_STRIDE;
    lanes([&](int lane) {
        uint32_t *plane = (uint32_t *)tile;
        for (int low = 0; low < bits;) {
            int width = plane_width(bits - low), n = width * d;
            for (int at = lane; at < n; at += 32) {
                uint32_t mask = 0;
                uint32_t word = side == LK_K ? k_word(x, at, width, low, rows, column, &mask)
                                             : v_word(x, at, width, low, rows, column, &mask);
                if (mask == 0xffffffffu)
                    plane[at] = word;
                else if (mask)
                    plane[at] = (plane[at] & ~mask) | word;
            }
            plane += n;
            low += width;
        }
    });
}

/* Codes of channels 4 i .. 4 i + 3 of row t of a tile of K. */
WF uint32_t unpack_k(const char *tile, int bits, int d, int t, int i) {
    const uint32_t *plane = (const uint32_t *)tile;
    uint32_t word = 0;
    for (int low = 0; low < bits;) {
        int width = plane_width(bits - low), per_byte = 8 / width, cell = i * 4 + t / 8;
        uint32_t packed = plane[cell / per_byte * 8 + t % 8];
        word |= (packed >> (cell % per_byte * width) & field_mask(width)) << low;
        plane += width * d;
        low += width;
    }
    return word;
}

/* The same of V. */
WF uint32_t unpack_v(const char *tile, int bits, int d, int t, int i) {
    const uint32_t *plane = (const uint32_t *)tile;
    uint32_t word = 0;
    for (int low = 0; low < bits;) {
        int width = plane_width(bits - low), per_byte = 8 / width, cell = i / 2 * 8 + t / 4;
        const uint32_t *packed = plane + cell / per_byte * 8 + i % 2 * 4;
        int shift = t % 4 * 8 + cell % per_byte * width;
        for (int j = 0; j < 4; j++)
            word |= (packed[j] >> shift & ((1u << width) - 1)) << (8 * j + low);
        plane += width * d;
        low += width;
    }
    return word;
}

WF uint32_t unpack_codes(int side, const char *tile, int bits, int d, int t, int i) {
    return side == LK_K ? unpack_k(tile, bits, d, t, i) : unpack_v(tile, bits, d, t, i);
}

/* The scale of a tile's mean, from the signs of its rows' scales (lk_rot_load_mean_scale). */
WF float load_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < TILE_ROWS; t++) bits |= (uint32_t)(scale[t] >> 15) << t;
    return from_bits(bits);
}

#endif
