/* Rows of blocks to floats, with the bits of lib/codec. A lane decodes a row, so the rows of a tile
 * in shared memory may come from any blocks. */
#ifndef LK_CUDA_DECODE_CUH
#define LK_CUDA_DECODE_CUH

#include "codec/codec.h"
#include "cuda/codes.cuh"

/* Index of the level of a trellis code: 6 bits of the word of the lowest plane, from the code's
 * symbol on; of 3 bits, 4 of them and the code's highest bit (lk_trellis_levels). */
WF int trellis_index(const lk_device_packing &__restrict__ k, const char *tile, int t, int c,
                     int code) {
    int cell = k.side == LK_K ? c / 4 * 4 + t / 8 : c / 8 * 8 + t / 4;
    int word = k.side == LK_K ? t % 8 : c % 8, byte = k.side == LK_K ? c % 4 : t % 4;
    int width = k.bits == 3 ? 2 : k.bits, per_byte = 8 / width;
    int shift = (byte * per_byte + cell % per_byte) * width;
    uint32_t all = ((const uint32_t *)tile)[cell / per_byte * 8 + word];
    uint32_t rotated = shift ? all >> shift | all << (32 - shift) : all;
    return k.bits == 3 ? (int)((rotated & 15) | (uint32_t)(code >> 2) << 4) : (int)(rotated & 63);
}

/* Value of a code of rot, in units of the row's scale. */
WF float rot_value(const lk_device_packing &__restrict__ k, const char *tile, int t, int c,
                   int code) {
    if (k.trellis)
        return (float)((int)k.level[trellis_index(k, tile, t, c, code)] - 63); /* LK_TRELLIS_TOP */
    bool negative = code < k.half;
    int index = negative ? k.half - 1 - code : code - k.half;
    float magnitude = k.n_border ? k.magnitude[index] : (float)index + 0.5f;
    return negative ? -magnitude : magnitude;
}

WF void decode_rot(const lk_device_packing &__restrict__ k, const char *tile, int t, float *x) {
    const uint16_t *scale = (const uint16_t *)(tile + planes_bytes(k.bits, k.d));
    const int8_t *mean = (const int8_t *)(scale + TILE_ROWS);
    float row_scale = from_half(scale[t] & 0x7fff),
          mean_scale = k.mean ? load_mean_scale(scale) : 0;
    for (int c = 0; c < k.d; c += 4) {
        uint32_t word = unpack_codes(k.side, tile, k.bits, k.d, t, c / 4);
        for (int j = 0; j < 4; j++, word >>= 8) {
            float y = mul(row_scale, rot_value(k, tile, t, c + j, (int)(word & 255)));
            x[(c + j) * TILE_STRIDE] = k.mean ? add(y, mul(mean_scale, mean[c + j])) : y;
        }
    }
}

/* kivi: scales and minima per channel (K) or per row and group (V). */
WF void decode_kivi(const lk_device_packing &__restrict__ k, const char *head, int row, float *x) {
    int n_tile = k.side == LK_K ? k.group / TILE_ROWS : 1, t = row % TILE_ROWS;
    int n = k.side == LK_K ? k.d : k.d / k.group * TILE_ROWS;
    const char *tile = head + row / TILE_ROWS * planes_bytes(k.bits, k.d);
    const uint16_t *scale = (const uint16_t *)(head + n_tile * planes_bytes(k.bits, k.d));
    for (int c = 0; c < k.d; c += 4) {
        uint32_t word = unpack_codes(k.side, tile, k.bits, k.d, t, c / 4);
        for (int j = 0; j < 4; j++, word >>= 8) {
            int at = k.side == LK_K ? c + j : (c + j) / k.group * TILE_ROWS + t;
            float step = mul(from_half(scale[at]), (float)(word & 255));
            x[(c + j) * TILE_STRIDE] = add(step, from_half(scale[n + at]));
        }
    }
}

WF void decode_asym(const lk_device_packing &__restrict__ k, const char *group, int t, float *x) {
    size_t codes = planes_bytes(k.bits, k.group);
    for (int first = 0; first < k.d; first += k.group) {
        const uint16_t *scales = (const uint16_t *)(group + codes);
        float scale = from_half(scales[t]), zero = from_half(scales[TILE_ROWS + t]);
        for (int c = 0; c < k.group; c += 4) {
            uint32_t word = unpack_codes(k.side, group, k.bits, k.group, t, c / 4);
            for (int j = 0; j < 4; j++, word >>= 8)
                x[(first + c + j) * TILE_STRIDE] = mul(scale, sub((float)(word & 255), zero));
        }
        group += codes + 2 * sizeof(uint16_t) * TILE_ROWS;
    }
}

WF void decode_int8(const lk_device_packing &__restrict__ k, const char *tile, int t, float *x) {
    const uint16_t *scales = (const uint16_t *)(tile + planes_bytes(8, k.d));
    float scale = from_half(scales[t]);
    for (int c = 0; c < k.d; c += 4) {
        uint32_t word = unpack_codes(k.side, tile, 8, k.d, t, c / 4);
        for (int j = 0; j < 4; j++, word >>= 8)
            x[(c + j) * TILE_STRIDE] = mul(scale, (float)((int)(word & 255) - 128));
    }
}

/* Decode row `row` of a block's part at `head` into a column of the tile: the work of one lane,
 * after prepare_rotation. sigma: [d] or NULL */
CALLED void decode_row(const lk_device_packing &__restrict__ k, const tile_memory &m,
                       const char *head, int row, const float *sigma, int column) {
    float *x = m.x + column;
    if (k.coding == LK_ROT) decode_rot(k, head, row, x);
    if (k.coding == LK_KIVI) decode_kivi(k, head, row, x);
    if (k.coding == LK_ASYM) decode_asym(k, head, row, x);
    if (k.coding == LK_INT8) decode_int8(k, head, row, x);
    if (!k.rotates) return;
    multiply_hadamard(k, m, column, true);
    uint64_t signs = 0;
    for (int c = 0; c < k.d; c++) {
        if (c % 64 == 0) signs = rotation_signs(k.d, c / 64);
        float y = flip(x[c * TILE_STRIDE], signs, c);
        x[c * TILE_STRIDE] = sigma ? mul(y, sigma[c]) : y;
    }
}

#endif
