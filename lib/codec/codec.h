/* Codecs: how rows of K or V are packed, and the slow, obviously right way to read them.
 *
 * A codec stores one side (K or V) of a layer in blocks. A block holds `block_rows` consecutive
 * tokens of every KV head, head after head:
 *
 *     block: | head 0: lk_codec_head_bytes | head 1 | ... | head n_head_kv - 1 |
 *
 * What a head's part looks like is drawn in the codec's own file (f16.h, int8.h, kivi.h, rot.h).
 * A row is never unpacked to be used. Every stage but the coding is linear, so it moves to the
 * query and to the output:
 *
 *   score      s[t] = <q, x_t> is computed as <T q, code_t> * scale_t + offsets, where T, applied
 *              once per query, undoes what was done to the rows (divide by sigma, rotate).
 *   accumulate o = sum_t p[t] x_t is computed in the coded domain and brought back once per output.
 *
 * "sigma" below is the per-channel equaliser of a KV head, [d_head], or NULL where unused.
 * Functions here cannot fail: shapes and descriptors are checked when a recipe meets a model. */
#ifndef LK_CODEC_CODEC_H
#define LK_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LK_TILE = 32 }; /* tokens that a kernel handles at once; blocks are multiples or shorter */
enum {
    LK_MAX_D_HEAD = 1024
}; /* channels of a row; heads have at most 256, latents of several heads more */

enum lk_side { LK_K, LK_V };

enum lk_coding {
    LK_F16,  /* half floats */
    LK_INT8, /* Selective: symmetric per token and head */
    LK_KIVI, /* KIVI: asymmetric; K per channel over `group` tokens, V per token over
                `group` channels */
    LK_ROT,  /* lowkey: centred, equalised, rotated, unbiased scale per token */
};

/* What is coded: a head's rows, or their latents in a basis that a sidecar holds (sidecar/basis.h). The
 * functions below see no difference: to them a group of heads with a latent of rank r is a head of
 * r channels. */
enum lk_projection {
    LK_ROWS,
    LK_LATENTS,     /* of V, or of K as attention uses it */
    LK_LATENTS_PRE, /* of K before RoPE, brought back tile by tile */
};

enum { LK_WHOLE = 100000 }; /* 100 per cent, in the units of lk_codec.share */

/* What the recipe says of one side of one level. */
struct lk_codec {
    uint8_t coding;     /* enum lk_coding */
    uint8_t bits;       /* per code: kivi 2 or 4, rot 1..8; 8 for int8, 16 for f16 */
    uint16_t group;     /* kivi only: 32, 64 or 128 */
    bool mean;          /* rot: subtract the block's mean */
    bool sigma;         /* rot: divide by sqrt of the channel's deviation */
    bool lloyd;         /* rot: Lloyd-Max levels instead of uniform ones */
    uint8_t projection; /* enum lk_projection */
    uint32_t share;     /* latents: the rank, in thousandths of a per cent of the
                        rows' width; 0: as the sidecar recommends */
};

/* Half floats. */
extern const struct lk_codec lk_exact;

/* Rows a block of this codec holds: the unit in which it can encode. Row-wise codecs hold LK_TILE
 * and accept rows one at a time; the others must be given a whole block at once. */
int lk_codec_block_rows(const struct lk_codec *codec, enum lk_side side);
bool lk_codec_row_wise(const struct lk_codec *codec, enum lk_side side);

/* Can rows arrive one at a time, without statistics of others? */
bool lk_codec_single_rows(const struct lk_codec *codec, enum lk_side side);

/* May rows of d_head channels be stored? NULL if so, else a reason ("kivi groups of 64 channels
 * need d_head to be a multiple of 64"), static. */
const char *lk_codec_refuses(const struct lk_codec *codec, enum lk_side side, int d_head);

/* Bytes of one head's part of a block, a multiple of 32; of these, bytes of scales, zero points
 * and means. block_rows: lk_codec_block_rows, or for f16 any number >= 1. */
size_t lk_codec_head_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                           int block_rows);
size_t lk_codec_head_scale_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                                 int block_rows);

/* Do Lloyd-Max levels gain something over uniform ones at this many bits? (2 to 4: KL about a fifth
 * lower, at the same bytes and speed.) The default of a recipe. */
bool lk_codec_lloyd(int bits);

/* Name as a recipe writes it ("rot3", "latent50%+kivi2(g64)") into buf. */
void lk_codec_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap);

/* Pack rows [row0, row0 + n) of one head's part. x: [n] rows, `stride` floats apart, of d_head.
 * Codecs that are not row-wise take row0 = 0 and n = block_rows. */
void lk_codec_encode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                     const float *sigma, void *head, int row0, int n, const float *x,
                     size_t stride);

/* Can a row of a full block give way to another? Where several rows share scales it cannot; a mean that
 * they share stays as it is. */
bool lk_codec_replaces(const struct lk_codec *codec, enum lk_side side);

/* Pack x [d_head] in place of row `row` of a block whose rows are all there. */
void lk_codec_replace(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                      const float *sigma, void *head, int row, const float *x);

/* Reference: unpack rows [row0, row0 + n) into x, laid out as above, in the original domain. */
void lk_codec_decode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                     const float *sigma, const void *head, int row0, int n, float *x,
                     size_t stride);

/* The query in the codec's domain: what kernels multiply with the codes.
 * q, out: [d_head]; may be the same. For rot: H (q * sigma); others: q. */
void lk_codec_query(const struct lk_codec *codec, int d_head, const float *sigma, const float *q,
                    float *out);

/* The output brought back from the codec's domain: out = sigma * (H^T acc) for rot; others: acc.
 * acc, out: [d_head]; may be the same. */
void lk_codec_output(const struct lk_codec *codec, int d_head, const float *sigma, const float *acc,
                     float *out);

/* Do both codecs have the same domain, so that one query and one sum of outputs serve both? */
bool lk_codec_same_domain(const struct lk_codec *a, const struct lk_codec *b);

#endif
