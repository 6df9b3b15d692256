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

/* Score and accumulate as in struct lk_kernels, by other kernels of the same table. Return false
 * and do nothing if the table's own kernels know the codec.
 *
 *   asym with groups   each group of channels is a row of its own, without groups (codec/asym.h)
 *   kvquant, kvarn     a tile is decoded to half floats */
bool lk_composed_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                       const struct lk_queries *q, float *s, size_t stride);
bool lk_composed_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                            const float *p, size_t stride, int n_q, float *acc);

/* Scores of rows of V, whose layout is made for sums: tiles are decoded to half floats. q: prepared
 * for f16 rows. Otherwise as in struct lk_kernels. */
void lk_score_values(const struct lk_kernels *kernels, const struct lk_rows *rows,
                     const struct lk_queries *q, float *s, size_t stride);

#endif
