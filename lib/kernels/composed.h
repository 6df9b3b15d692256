/* Kernels of codecs that are composed from those of other codecs, for every table. */
#ifndef LK_KERNELS_COMPOSED_H
#define LK_KERNELS_COMPOSED_H

#include "kernels/kernels.h"

/* Whether codes of a row have one scale, and levels that are evenly or symmetrically spaced:
 * kernels multiply them as integers. */
static inline bool lk_is_per_token(const struct lk_codec *codec) {
    return codec->coding == LK_ROT || codec->coding == LK_INT8 ||
           (codec->coding == LK_ASYM && codec->group == 0);
}

/* Whether these are codes of up to 4 bits in rot's place: rot, and asym without groups. */
static inline bool lk_is_lowbit(const struct lk_codec *codec) {
    return lk_is_per_token(codec) && codec->bits <= 4;
}

/* The same, if each code has its own level. */
static inline bool lk_is_plain_lowbit(const struct lk_codec *codec) {
    return lk_is_lowbit(codec) && !codec->trellis;
}

/* Kernels by other kernels of the same table.
 *
 *   asym     without groups: those of rot and the table's add_*_offsets. With groups: each group of
 *            channels is a row of its own (codec/asym.h)
 *   decoded  for codecs without kernels: a tile is decoded to half floats */
lk_score_fn lk_asym_score, lk_decoded_score;
lk_accumulate_fn lk_asym_accumulate, lk_decoded_accumulate;

/* Their places in a table. */
#define LK_COMPOSED_CODINGS                                                                        \
    [LK_ASYM] = {lk_asym_score, lk_asym_score, lk_asym_accumulate, lk_asym_accumulate},            \
    [LK_ADDED] = LK_DECODED
#define LK_DECODED                                                                                 \
    { lk_decoded_score, lk_decoded_score, lk_decoded_accumulate, lk_decoded_accumulate }

/* Scores of rows of V, whose layout is made for sums: tiles are decoded to half floats. q: prepared
 * for f16 rows. Otherwise as in struct lk_kernels. */
void lk_score_values(const struct lk_kernels *kernels, const struct lk_rows *rows,
                     const struct lk_queries *q, float *s, size_t stride);

#endif
