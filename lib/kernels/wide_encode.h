/* Rows into blocks and back: the shapes that are worth eight lanes. The others, and halves, are left to
 * codec/codec.h. */
#ifndef LK_KERNELS_WIDE_ENCODE_H
#define LK_KERNELS_WIDE_ENCODE_H

#include "kernels/wide_flat.h"
#include "kernels/wide_rot.h"

LK_ALWAYS_INLINE void lk_wide_encode(const struct lk_part *part, void *head, int row0, int n,
                                     const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    bool whole = n == LK_TILE;
    if (codec->coding == LK_ROT)
        lk_wide_encode_rot(part, head, row0, n, x, stride);
    else if (codec->coding == LK_KIVI && part->side == LK_K)
        lk_wide_encode_kivi_k(part, head, x, stride);
    else if (codec->coding == LK_KIVI && whole)
        lk_wide_encode_kivi_v(part, head, x, stride);
    else if (codec->coding == LK_INT8 && whole)
        lk_wide_encode_int8(part, head, x, stride);
    else
        lk_codec_encode(codec, part->side, part->d_head, part->block_rows, part->sigma, head, row0,
                        n, x, stride);
}

LK_ALWAYS_INLINE void lk_wide_decode(const struct lk_part *part, const void *head, int row0, int n,
                                     float *x, size_t stride) {
    if (part->codec->coding == LK_ROT && n == LK_TILE)
        lk_wide_decode_rot(part, head, x, stride);
    else
        lk_codec_decode(part->codec, part->side, part->d_head, part->block_rows, part->sigma, head,
                        row0, n, x, stride);
}

#endif
