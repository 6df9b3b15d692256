/* Codecs pack rows of K or V. This interface also has the slow reference for reading them back.
 *
 * A codec stores one side (K or V) of a layer in blocks. A block holds `block_rows` consecutive
 * tokens of every KV head, one head after the other:
 *
 *     block: | head 0: lk_codec_head_bytes | head 1 | ... | head n_head_kv - 1 |
 *
 * The header of each codec draws the layout of a head's part: f16.h, int8.h, kivi.h, rot.h, asym.h.
 *
 * Attention never unpacks rows. Every step of a codec except the rounding is linear, so it moves
 * to the query and to the output:
 *
 *   score       s[t] = <q, x_t> is computed as <T q, code_t> * scale_t + offsets. T is applied once
 *               per query and undoes what was done to the rows (divided by sigma, rotated).
 *   accumulate  o = sum_t p[t] x_t is computed in the codec's domain and transformed back once per
 *               output.
 *
 * "sigma" is the per-channel equalizer of a KV head, [d_head], or NULL if the codec does not use
 * one. Functions here cannot fail: shapes and descriptors are checked when a recipe is applied to a
 * model. */
#ifndef LK_CODEC_CODEC_H
#define LK_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LK_TILE = 32,        /* tokens per kernel step; a block is a multiple of this, or shorter */
    LK_MAX_D_HEAD = 5120 /* channels per row: heads have up to 512, latents of head groups more */
};

enum lk_side { LK_K, LK_V };

enum lk_coding {
    LK_F16,   /* half precision */
    LK_INT8,  /* Selective: symmetric, per token and head */
    LK_KIVI,  /* KIVI: asymmetric. K per channel over `group` tokens, V per token over `group`
                channels */
    LK_ROT,   /* lowkey: centered, equalized, rotated, with an unbiased scale per token */
    LK_ASYM,  /* Palu, Atom: a scale and a zero point per token, or per token and `group`
                channels */
    LK_ADDED, /* registered by the program (lowkey_codec.h, added.h) */
};

enum { LK_N_CODING = LK_ADDED + 1 };

/* What is quantized: the rows of a head, or their latents in a basis from a sidecar
 * (sidecar/basis.h). The functions below treat both alike: a group of heads whose latent has rank r
 * is one head of r channels. */
enum lk_projection {
    LK_PROJECTION_NONE,
    LK_PROJECTION_LATENT,     /* of V, or of K after RoPE */
    LK_PROJECTION_LATENT_PRE, /* of K before RoPE, reconstructed tile by tile */
};

enum { LK_FULL_RANK = 100000 }; /* 100 %, in the units of lk_codec.share */

/* The codec of one side of one age level, as given in a recipe. */
struct lk_codec {
    uint8_t coding;     /* enum lk_coding */
    uint8_t bits;       /* per code: kivi 2 or 4, rot 1 to 8, asym 2 to 8, int8 8, f16 16 */
    uint16_t group;     /* kivi: 32, 64 or 128; asym: the same, or 0 for the whole row; added: its
                           option */
    uint8_t added;      /* which codec that was added */
    bool mean;          /* rot: subtract the block's mean */
    bool sigma;         /* rot: divide by the square root of each channel's deviation */
    bool lloyd;         /* rot: Lloyd-Max codebook instead of a uniform one */
    bool trellis;       /* rot: trellis-coded levels instead (codec/rot.h) */
    bool hadamard;      /* asym: rotate the row first */
    uint8_t projection; /* enum lk_projection */
    uint8_t unused;     /* 0: codecs are compared with memcmp, and padding would not be defined */
    uint32_t share;     /* latents: rank in thousandths of a percent of the row width;
                           0: the rank that the sidecar recommends */
};

/* One head's part of a block. */
struct lk_part {
    const struct lk_codec *codec;
    enum lk_side side;
    int d_head, block_rows;
    const float *sigma; /* [d_head] or NULL */
};

/* Half precision, no projection. */
extern const struct lk_codec lk_codec_f16;

/* Rows per block, the unit of encoding. Row-wise codecs have LK_TILE rows per block and encode one
 * row at a time. The others encode only whole blocks. */
int lk_codec_block_rows(const struct lk_codec *codec, enum lk_side side);
bool lk_codec_row_wise(const struct lk_codec *codec, enum lk_side side);

/* Whether a single row can be encoded without statistics of other rows (row-wise, and no sigma). */
bool lk_codec_single_rows(const struct lk_codec *codec, enum lk_side side);

/* Channels that belong together, a divisor of d_head: 8, or those of a group with a scale. */
int lk_codec_unit(const struct lk_codec *codec, enum lk_side side);

/* Why rows of d_head channels cannot be stored ("kivi groups of 64 channels need d_head to be a
 * multiple of 64"), a static string; NULL if they can. */
const char *lk_codec_reject_reason(const struct lk_codec *codec, enum lk_side side, int d_head);

/* Bytes of one head's part of a block, a multiple of 32, and how many of them hold scales, zero
 * points and means. block_rows: lk_codec_block_rows; for f16 any number >= 1. */
size_t lk_codec_head_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                           int block_rows);
size_t lk_codec_head_scale_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                                 int block_rows);

/* Whether rot uses a Lloyd-Max codebook by default at this many bits. It does at 2 to 4 bits, where
 * KL is about a fifth lower than with a uniform codebook, at the same size and speed. */
static inline bool lk_codec_default_lloyd(int bits) { return bits >= 2 && bits <= 4; }

/* Write the name used in recipes ("rot3", "latent50%+kivi2(g64)") into buf [cap]. */
void lk_codec_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap);

/* Pack rows [row0, row0 + n) of `head`. x: [n] rows of d_head floats, `stride` floats apart. Codecs
 * that are not row-wise require row0 = 0 and n = block_rows. */
void lk_codec_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                     size_t stride);

/* Whether a row of a full block can be replaced. What the block's rows share (a mean, or scales)
 * stays as it is, so no other row changes. Codes of a trellis belong to several rows. */
bool lk_codec_can_replace(const struct lk_codec *codec, enum lk_side side);

/* Pack x [d_head] in place of row `row` of a full block. */
void lk_codec_replace(const struct lk_part *part, void *head, int row, const float *x);

/* Reference: unpack rows [row0, row0 + n) of `head` into x [n], rows `stride` floats apart. */
void lk_codec_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                     size_t stride);

/* Whether rows are rotated before they are quantized (codec/hadamard.h). */
static inline bool lk_codec_rotates(const struct lk_codec *codec) {
    return codec->coding == LK_ROT || codec->hadamard;
}

/* Transform a query into the codec's domain, where kernels multiply it with the codes:
 * out = H (q * sigma) if rows are rotated, else out = q. q, out: [d_head], may be the same
 * array. */
void lk_codec_transform_query(const struct lk_codec *codec, int d_head, const float *sigma,
                              const float *q, float *out);

/* Transform an output back from the codec's domain: out = sigma * (H^T acc) if rows are rotated,
 * else out = acc. acc, out: [d_head], may be the same array. */
void lk_codec_restore_output(const struct lk_codec *codec, int d_head, const float *sigma,
                             const float *acc, float *out);

/* Whether both codecs have the same domain, so that they can share a transformed query and a sum of
 * outputs. */
bool lk_codec_same_domain(const struct lk_codec *a, const struct lk_codec *b);

#endif
