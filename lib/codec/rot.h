/* Codec rot: rotated codes of 1 to 8 bits, with one unbiased scale per token and head.
 *
 *   y = H ((x - mean) / sigma)             rotated by hadamard.h; mean and sigma are optional
 *   code = nearest entry to y / rms(y)     in a codebook for a unit Gaussian, which y nearly is
 *   scale = <y, y> / <entry, y>            so that <y^, y> = <y, y> for y^ = scale * entry
 *
 * An MSE-optimal scale would shrink every row. Attention sums many rows, so that bias would not
 * average out. The error of the unbiased scale is orthogonal to the row.
 *
 *   head: | codes: lk_bitplanes_bytes(bits, d_head), bitplanes.h |
 *         | scale: f16 [LK_TILE] | mean: i8 [d_head] |
 *
 * With `trellis` the levels are those of trellis-coded quantization (below), which chooses the
 * codes of several rows together: y is then divided by a scale that is known before them.
 *
 * Scales are never negative. If there is a mean, bit t of its f32 scale is stored in the sign bit
 * of token t's scale: four separate bytes would be padded to 32. The mean is taken over the rotated
 * rows and rounded as stored, so its rounding error stays in the rows and is quantized with them.
 * Without a mean there are no bytes for it, and the codec is row-wise. */
#ifndef LK_CODEC_ROT_H
#define LK_CODEC_ROT_H

#include "codec/bitplanes.h"
#include "codec/codec.h"
#include "codec/ops.h"

extern const struct lk_coding_ops lk_rot_ops;

/* A codebook. Code i stands for (table[i] - top / 2) * unit * rms of the row. */
struct lk_rot_codebook {
    const uint8_t *table; /* [1 << bits], NULL for the uniform codebook: table[code] = code.
                             Trellis: [LK_TRELLIS_LEVELS], by index instead of by code */
    int top;              /* largest entry */
    float unit;
};

struct lk_rot_codebook lk_rot_codebook(const struct lk_codec *codec);

/* The same codebook, prepared for the search (without a trellis). It is symmetric: code half + k
 * stands for magnitude[k], and code half - 1 - k for -magnitude[k], times the row's step. k is the
 * number of borders below the value. The uniform codebook has no borders: k is the number of whole
 * steps, and the magnitude is k + 0.5. The step of a row is the best of n_trial multiples of a
 * guess. The guess is the largest value divided by `reach` for fine codes, and rms times `unit` for
 * coarse ones. */
enum { LK_ROT_TRIALS = 5 };

struct lk_rot_quantizer {
    int half, n_border, n_trial;
    bool fine;
    float reach, unit, magnitude[8], border[8];
    const float *trial; /* [n_trial], static */
};

struct lk_rot_quantizer lk_rot_quantizer(const struct lk_codec *codec);

/* Quantize a rotated mean [d] to int8: sets the codes [d] and replaces the mean by scale * code.
 * Returns the scale. */
float lk_rot_round_mean(float *mean, int d, int8_t *code);

/* Store and load the scale of the mean in the sign bits of the rows' scales [LK_TILE]. */
void lk_rot_store_mean_scale(uint16_t *scale, float mean_scale);
float lk_rot_load_mean_scale(const uint16_t *scale);

/* Scales of the rows [LK_TILE]. Their sign bits belong to the scale of the mean. */
static inline const uint16_t *lk_rot_scales(const struct lk_codec *codec, const void *head,
                                            int d_head) {
    return (const uint16_t *)((const char *)head + lk_bitplanes_bytes(codec->bits, d_head));
}

/* Codes of the mean [d_head]. */
static inline const int8_t *lk_rot_mean(const struct lk_codec *codec, const void *head,
                                        int d_head) {
    return (const int8_t *)(lk_rot_scales(codec, head, d_head) + LK_TILE);
}

/* Trellis-coded quantization for the codes of rot, 1 to 4 bits (Marcellin and Fischer 1990, with
 * the bit-shift trellis of QTIP, arXiv 2406.11235, section 3).
 *
 * The level of a code depends on its own bits and on the first bits of the codes after it. Codes
 * are chosen for a whole word, so that the levels together are closest to the values. At 2 bits a
 * code can take any of 64 levels, although only four at a time. The squared error of a Gaussian is
 * a fifth lower than with a Lloyd-Max codebook of as many bits.
 *
 * Words follow from the layout of codec/bitplanes.h: the four bytes of a 32-bit word of the plane
 * with the lowest bits. Symbol p of a word is the field p % (8 / w) of byte p / (8 / w), w being
 * the width of that plane, so it is bits w p .. w p + w - 1 of the little-endian word. Symbols
 * continue from the last one of a word with its first one, so that all bits of a word follow from
 * each other by rotation. At 2 and 3 bits a word has 16 tokens of one channel (V), or 4 tokens x 4
 * channels (K). Codes of several tokens depend on each other, so whole tiles are encoded.
 *
 *   index of the level, 6 bits:   bits    own code     next codes       symbols  states
 *                                  1       1            5 x 1 bit        32       32
 *                                  2       2            2 x 2 bits       16       16
 *                                  3       bits 0-1, 4  bits 2-3: two    16        4
 *                                                       low bits of one
 *                                  4       4            2 low bits        8        4
 *
 * At 1, 2 and 4 bits the index is the 6 bits of the word from the symbol on. At 3 bits it is 4 bits
 * of the word, and the code's highest bit, which is in another plane, above them. A lookup that
 * ignores the highest two bits of a byte, such as VPERMB, needs only a rotated word. */
enum {
    LK_TRELLIS_LEVELS = 64,
    LK_TRELLIS_MAX_SYMBOLS = 32,
    LK_TRELLIS_MAX_STATES = 32,
    LK_TRELLIS_TOP = 126, /* highest level */
};

/* Levels by index, 0 to LK_TRELLIS_TOP; those of 3 bits twice. */
extern const uint8_t lk_trellis_table[5][LK_TRELLIS_LEVELS];

struct lk_trellis {
    int bits, n_index, n_state, n_symbol;
    int next_shift;       /* bits of an index below those of the next codes */
    const uint8_t *table; /* of lk_trellis_table */
    /* A row is divided by a step before its codes are chosen: unit * rms of the row, or per_max *
     * its largest magnitude if that is not 0. Fine codes gain from the latter, because a short row
     * seldom has the largest values of a Gaussian. unit is the mean of step / rms in any case. */
    float unit, per_max;
};

/* Rows with a smaller step count as 0: 1 / step could overflow. */
#define LK_TRELLIS_MIN_STEP 1e-30f

/* bits: 1 to 4 */
static inline struct lk_trellis lk_trellis(int bits) {
    switch (bits) {
    case 1: return (struct lk_trellis){1, 64, 32, 32, 1, lk_trellis_table[1], 0.030462f, 0};
    case 2: return (struct lk_trellis){2, 64, 16, 16, 2, lk_trellis_table[2], 0.037251f, 0};
    case 3:
        return (struct lk_trellis){
            3, 32, 4, 16, 2, lk_trellis_table[3], 0.038697f, 0.038697f / 2.55f};
    default:
        return (struct lk_trellis){
            4, 64, 4, 8, 4, lk_trellis_table[4], 0.039980f, 0.039980f / 2.55f};
    }
}

/* The state between two symbols: the bits that their indices share. next_state is the one after the
 * symbol with this index, own_state the one before it. */
static inline int lk_trellis_next_state(const struct lk_trellis *t, int index) {
    return index >> t->next_shift & (t->n_state - 1);
}
static inline int lk_trellis_own_state(const struct lk_trellis *t, int index) {
    return index & (t->n_state - 1);
}
static inline int lk_trellis_code(const struct lk_trellis *t, int index) {
    return t->bits == 3 ? (index & 3) | (index >> 4 & 1) << 2 : index & ((1 << t->bits) - 1);
}

/* Place of symbol p of word `word` (0 to 7) of group `group` among a tile's cells [d_head][32] in
 * the order of codec/bitplanes.h. A tile has d_head * LK_TILE / n_symbol words. */
static inline int lk_trellis_place(const struct lk_trellis *t, int group, int word, int p) {
    int per_byte = t->n_symbol / 4;
    return (group * per_byte + p % per_byte) * 32 + 4 * word + p / per_byte;
}

/* Choose the indices [n_symbol] of a word whose levels are closest to value [n_symbol], in units of
 * levels: they minimize the sum of (value[p] - (level - LK_TRELLIS_TOP / 2))^2, nearly (the state
 * at which a word is cut open is the best one of a first pass). */
void lk_trellis_encode(const struct lk_trellis *t, const float *value, uint8_t *index);

/* Levels [d_head][32] of a tile's codes [d_head][32], both in the order of the cells. */
void lk_trellis_levels(const struct lk_trellis *t, int d_head, const uint8_t *code, uint8_t *level);

#endif
