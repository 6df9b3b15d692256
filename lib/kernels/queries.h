/* Queries of one KV head in the forms that kernels read: floats and quantized to 8 and 16 bits. */
#ifndef LK_KERNELS_QUERIES_H
#define LK_KERNELS_QUERIES_H

#include <stddef.h>
#include <stdint.h>

/* Largest magnitude of a 16-bit code. Its rounded high byte still fits into a signed byte. */
enum { LK_MAX_X16 = 127 * 256 + 127 };

/* Largest magnitude of a 16-bit code in a row of n channels. A dot product with n unsigned bytes
 * then fits into 32 bits: 255 n x16 <= 255 * 256 * LK_MAX_X16 < 2^31.
 *
 * The other sums of kernels over n <= LK_MAX_D_HEAD = 5,120 channels are smaller. With 8-bit codes
 * of queries they are at most 127 * 255 n < 2^28, with one plane of 16-bit codes 128 * 255 n <
 * 2^28, with means 127 n x16, and the sum of all codes of a query is n x16. Sums over values have
 * LK_TILE terms, whatever the width. */
static inline float lk_max_x16(int n) {
    return n <= 256 ? LK_MAX_X16 : (float)(LK_MAX_X16 * 256 / n);
}

/* The same for codes of at most 4 bits, which leave 16 times the room. */
static inline float lk_max_x16_nibbles(int n) { return lk_max_x16((n + 15) / 16); }

/* n_q queries in the codec's domain. lk_queries_prepare fills all fields. Kernels of half floats
 * read only n_q, d_head and q.
 *
 * Rows are quantized symmetrically, one scale per query, in two widths:
 *   8 bits   for codes of K of up to 4 bits, or 5 (max_bits_q8 of struct lk_kernels). Its relative
 *            error is about 0.6 % of q, or 4e-5 of the squared score, which is small compared with
 *            the error of such codes.
 *   16 bits  for finer codes, and for means. Also stored as two planes of signed bytes,
 *            q16 = 256 * high + low, for instructions that multiply bytes. */
struct lk_queries {
    int n_q, d_head;
    const float *q; /* [n_q][d_head], borrowed from the caller */
    float *scale8;  /* [n_q] q ~ scale8 * q8 */
    float *scale16; /* [n_q] q ~ scale16 * q16 */
    int32_t *sum8;  /* [n_q] sum of q8 over channels */
    int32_t *sum16; /* [n_q] sum of q16 over channels */
    int16_t *q16;   /* [n_q][d_pad], d_pad = d_head rounded up to 32, zero padded */
    int8_t *q8;     /* [n_q][d_pad], zero padded */
    int8_t *planes; /* [n_q][2][d_pad] high and low bytes of q16 */
};

static inline int8_t lk_high_byte(int16_t x16) { return (int8_t)((x16 + 128) >> 8); }
static inline int8_t lk_low_byte(int16_t x16) { return (int8_t)(uint8_t)x16; }

/* Channels of a padded row. */
static inline int lk_queries_pad(int d_head) { return (d_head + 31) / 32 * 32; }

/* Bytes of memory that lk_queries_prepare needs for n_q queries of d_head channels. */
size_t lk_queries_bytes(int n_q, int d_head);

/* Quantize q [n_q][d_head] into *out. mem: lk_queries_bytes, 64-byte aligned; *out points into it
 * and at q, so both must outlive it. A row with an infinity or a NaN gets codes 0 and a scale of
 * NaN. Its scores are NaN then, and other rows are not affected. */
void lk_queries_prepare(struct lk_queries *out, const float *q, int n_q, int d_head, void *mem);

/* Quantize row x [d_head] to the 8-bit form of query i of *out, whose arrays have room. */
void lk_queries_set8(const struct lk_queries *out, int i, const float *x);

/* A view of queries [i, i + n). Forms that are NULL in *q stay NULL. */
static inline struct lk_queries lk_queries_slice(const struct lk_queries *q, int i, int n) {
    size_t pad = (size_t)lk_queries_pad(q->d_head) * i;
    struct lk_queries slice = {.n_q = n, .d_head = q->d_head};
    if (q->q) slice.q = q->q + (size_t)q->d_head * i;
    if (q->q8) {
        slice.q8 = q->q8 + pad;
        slice.scale8 = q->scale8 + i;
        slice.sum8 = q->sum8 + i;
    }
    if (q->q16) {
        slice.q16 = q->q16 + pad;
        slice.planes = q->planes + 2 * pad;
        slice.scale16 = q->scale16 + i;
        slice.sum16 = q->sum16 + i;
    }
    return slice;
}

#endif
