/* Offsets of quantised weights (kern.h: add_offsets). A column of lanes holds as many outputs; an offset is brought to a float
 * once for up to LK_OFFSET_TOKENS tokens. */
#ifndef LK_KERNELS_WIDE_OFFSETS_H
#define LK_KERNELS_WIDE_OFFSETS_H

#include "kernels/kernels.h"
#include "kernels/wide.h"

enum {
    LK_OFFSET_TOKENS = 4,
    LK_OFFSET_BLOCKS = 64,
    LK_OFFSET_SUMS = 8
}; /* in registers: tokens times columns */

LK_ALWAYS_INLINE float lk_sum8(lk_f32x8 v) {
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    return v[0] + v[1];
}

/* s[b] = sum of x [32 n] over its block b. */
LK_ALWAYS_INLINE void lk_block_sums(const float *x, int n, float *s) {
    for (int b = 0; b < n; b++, x += LK_OFFSET_BLOCK) {
        s[b] = lk_sum8((lk_load8(x) + lk_load8(x + LK_LANES)) +
                       (lk_load8(x + 2 * LK_LANES) + lk_load8(x + 3 * LK_LANES)));
    }
}

/* 8 n outputs of n_tok tokens; n_tok and n are constant where this is inlined. offset: those of the first block. */
LK_ALWAYS_INLINE void lk_offset_columns(float s[][LK_OFFSET_BLOCKS], int n_tok, int n_block,
                                        const uint16_t *offset, float *y, int n_out, int n) {
    lk_f32x8 sum[LK_OFFSET_SUMS];
    LK_WIDE_LOOP
    for (int i = 0; i < n_tok * n; i++)
        sum[i] = lk_load8(y + (size_t)(i / n) * n_out + LK_LANES * (i % n));
    for (int b = 0; b < n_block; b++, offset += LK_OFFSET_TILE) {
        lk_f32x8 c[LK_OFFSET_SUMS];
        LK_WIDE_LOOP
        for (int v = 0; v < n; v++) c[v] = lk_load_halves8(offset + LK_LANES * v);
        LK_WIDE_LOOP
        for (int i = 0; i < n_tok * n; i++) sum[i] += s[i / n][b] * c[i % n];
    }
    LK_WIDE_LOOP
    for (int i = 0; i < n_tok * n; i++)
        lk_store8(y + (size_t)(i / n) * n_out + LK_LANES * (i % n), sum[i]);
}

/* n <= LK_OFFSET_TILE outputs of a tile. */
LK_ALWAYS_INLINE void lk_offset_tile(float s[][LK_OFFSET_BLOCKS], int n_tok, int n_block,
                                     const uint16_t *offset, int n, float *y, int n_out) {
    int o = 0;
    const int wide = n_tok == 1 ? 4 : 2;
    for (; o + wide * LK_LANES <= n; o += wide * LK_LANES)
        lk_offset_columns(s, n_tok, n_block, offset + o, y + o, n_out, wide);
    for (; o + LK_LANES <= n; o += LK_LANES)
        lk_offset_columns(s, n_tok, n_block, offset + o, y + o, n_out, 1);
    for (; o < n; o++)
        for (int t = 0; t < n_tok; t++)
            for (int b = 0; b < n_block; b++)
                y[(size_t)t * n_out + o] +=
                    s[t][b] * lk_load_half(offset + (size_t)b * LK_OFFSET_TILE + o);
}

/* Blocks [b, b + n_block) for some tokens. */
LK_ALWAYS_INLINE void lk_offset_part(const float *x, int n_tok, int n_in, const uint16_t *offset,
                                     int b, int n_block, int n_out, int n, float *y) {
    float s[LK_OFFSET_TOKENS][LK_OFFSET_BLOCKS];
    for (int t = 0; t < n_tok; t++)
        lk_block_sums(x + (size_t)t * n_in + (size_t)b * LK_OFFSET_BLOCK, n_block, s[t]);
    offset += (size_t)b * LK_OFFSET_TILE;
    for (int o = 0; o < n;
         o += LK_OFFSET_TILE, offset += (size_t)n_in / LK_OFFSET_BLOCK * LK_OFFSET_TILE) {
        lk_offset_tile(s, n_tok, n_block, offset, n - o < LK_OFFSET_TILE ? n - o : LK_OFFSET_TILE,
                       y + o, n_out);
    }
}

LK_ALWAYS_INLINE void lk_wide_add_offsets(const float *x, int n_tok, int n_in,
                                          const uint16_t *offset, int n_out, int first, int n,
                                          float *y) {
    offset += (size_t)first * (n_in / LK_OFFSET_BLOCK);
    for (int t = 0, some; t < n_tok;
         t += some, x += (size_t)some * n_in, y += (size_t)some * n_out) {
        some = n_tok - t < LK_OFFSET_TOKENS ? 1 : LK_OFFSET_TOKENS;
        for (int b = 0, n_block = n_in / LK_OFFSET_BLOCK; b < n_block; b += LK_OFFSET_BLOCKS) {
            int part = n_block - b < LK_OFFSET_BLOCKS ? n_block - b : LK_OFFSET_BLOCKS;
            if (some == 1)
                lk_offset_part(x, 1, n_in, offset, b, part, n_out, n, y + first);
            else
                lk_offset_part(x, LK_OFFSET_TOKENS, n_in, offset, b, part, n_out, n, y + first);
        }
    }
}

#endif
