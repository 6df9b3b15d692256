/* Codec kvquant (KVQuant; Hooper et al. 2024): K per channel, V per token, non-uniform levels of 2
 * to 4 bits, and about 1 % of the values kept apart as outliers (sections 3.1, 3.3 and 3.4).
 *
 * A vector is one channel of K over the LK_KVQUANT_ROWS rows of a block, or one row of V. Of a
 * vector of n values, max(1, round(n / 100)) are outliers: the largest and the smallest ones, as
 * many of each as leaves the smallest range to the others. An outlier is stored as its index and an
 * f16 value.
 *
 *   u = round(255 (x - min) / range)       of a vector's other values, 0 to 255
 *   code = that of the level nearest to u, x ~ min + range * level[code] / 255
 *
 * The levels of a block are the centers that k-means finds for all u of the block. The paper
 * computes them offline, per layer, and weights each value by Fisher information; scales and
 * thresholds of K are offline there, too. Here a block has its own: it needs no sidecar and no
 * calibration text, fits the rows at hand, and costs 2^bits bytes per block, next to which the
 * scales of 4 bytes per vector are what counts.
 *
 *   head: | tile 0 | ... | tile LK_KVQUANT_ROWS / LK_TILE - 1 |    codes, bitplanes.h
 *         | level: u8 [2^bits], padded to 16 |
 *         | range: f16 [n_vector] | min: f16 [n_vector] |
 *         | outlier value: f16 [n_vector][n_out] | outlier index: u16 [n_vector][n_out] |
 *
 * K before RoPE, as in the paper, is a recipe: 'latent100%(pre)+kvquant3' quantizes the channels
 * of the sidecar's basis. Encodes whole blocks only. */
#ifndef LK_CODEC_KVQUANT_H
#define LK_CODEC_KVQUANT_H

#include "codec/bitplanes.h"
#include "codec/ops.h"

enum { LK_KVQUANT_ROWS = 128, LK_KVQUANT_LEVELS = 16 };

extern const struct lk_codec_ops lk_kvquant_ops;

/* Vectors of a block, values of a vector, and outliers among them. */
static inline int lk_kvquant_vectors(enum lk_side side, int d_head) {
    return side == LK_K ? d_head : LK_KVQUANT_ROWS;
}
static inline int lk_kvquant_length(enum lk_side side, int d_head) {
    return side == LK_K ? LK_KVQUANT_ROWS : d_head;
}
static inline int lk_kvquant_outliers(enum lk_side side, int d_head) {
    int n = (lk_kvquant_length(side, d_head) + 50) / 100;
    return n > 1 ? n : 1;
}

/* The arrays of a block. */
struct lk_kvquant_block {
    const uint8_t *level;                          /* [2^bits] */
    const uint16_t *range, *min, *outlier, *index; /* [n_vector], [n_vector][n_out] */
    int n_vector, length, n_out;
};

static inline struct lk_kvquant_block lk_kvquant_arrays(const struct lk_part *part,
                                                        const void *head) {
    enum lk_side side = part->side;
    int d = part->d_head;
    struct lk_kvquant_block b = {.n_vector = lk_kvquant_vectors(side, d),
                                 .length = lk_kvquant_length(side, d),
                                 .n_out = lk_kvquant_outliers(side, d)};
    b.level = (const uint8_t *)head +
              LK_KVQUANT_ROWS / LK_TILE * lk_bitplanes_bytes(part->codec->bits, d);
    b.range = (const uint16_t *)(b.level + LK_KVQUANT_LEVELS);
    b.min = b.range + b.n_vector;
    b.outlier = b.min + b.n_vector;
    b.index = b.outlier + b.n_vector * b.n_out;
    return b;
}

/* The tile of codes that holds row `row` of a block. */
static inline const void *lk_kvquant_tile(const struct lk_codec *codec, const void *head,
                                          int d_head, int row) {
    return (const char *)head + row / LK_TILE * lk_bitplanes_bytes(codec->bits, d_head);
}

#endif
