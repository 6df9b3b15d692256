/* Codec asym: per token, uniform levels with a scale and a zero point, 2 to 8 bits. It is the
 * quantizer of Palu (appendix A, Eq. 9), with a group size that of Atom (Zhao et al. 2023, section
 * 4.2).
 *
 *   y = H x, or y = x                        `hadamard`: rotated over the whole row (hadamard.h)
 *   scale = (max y - min y) / (2^bits - 1),  at least max |y| / LK_ASYM_MAX_ZERO
 *   zero = round(-min y / scale)
 *   code = clamp(round(y / scale) + zero, 0, 2^bits - 1),  y ~ scale * (code - zero)
 *
 * The bound of the scale keeps the zero point of a row far from zero small enough for f16, which
 * then holds the integer exactly. The paper has no bound, and divides by zero if all values are
 * equal.
 *
 * A group of channels is stored like a row of its own, so that kernels need not know of groups.
 * Without a group size the whole row is one group.
 *
 *   head:  | group 0 | group 1 | ... |
 *   group: | codes: lk_bitplanes_bytes(bits, channels), bitplanes.h |
 *          | scale: f16 [LK_TILE] | zero: f16 [LK_TILE] |
 *
 * Codes and scales are where rot has them (rot.h). Row-wise. */
#ifndef LK_CODEC_ASYM_H
#define LK_CODEC_ASYM_H

#include "codec/bitplanes.h"
#include "codec/ops.h"

/* Largest magnitude of a zero point that follows from the scale's bound. f16 holds integers up to
 * 2048. */
#define LK_ASYM_MAX_ZERO 1024.0f

extern const struct lk_coding_ops lk_asym_ops;

/* Channels of a group. */
static inline int lk_asym_width(const struct lk_codec *codec, int d_head) {
    return codec->group ? codec->group : d_head;
}

/* Bytes of a group of `width` channels, a multiple of 32. */
static inline size_t lk_asym_group_bytes(const struct lk_codec *codec, int width) {
    return lk_bitplanes_bytes(codec->bits, width) + 2 * sizeof(uint16_t) * LK_TILE;
}

/* The scales of a group of `width` channels [LK_TILE]. The zero points follow them. */
static inline const uint16_t *lk_asym_scales(const struct lk_codec *codec, const void *group,
                                             int width) {
    return (const uint16_t *)((const char *)group + lk_bitplanes_bytes(codec->bits, width));
}

#endif
