/* Kernels: scores and weighted sums read straight from packed blocks.
 *
 * One table per instruction set, chosen once when a model is opened. The reference table, in plain
 * C over the codecs' own decode, is always there and judges the others in the tests.
 * A kernel works on a run of rows of one head's part of the blocks, tile after tile: LK_TILE consecutive
 * rows, or fewer at the end. */
#ifndef LK_KERNELS_KERNELS_H
#define LK_KERNELS_KERNELS_H

#include "codec/codec.h"

/* Where a run of rows lies. */
struct lk_rows {
    const struct lk_codec *codec;
    void *const *block; /* the blocks that the rows are in, the first row's first */
    size_t offset;      /* bytes from a block's beginning to the head's part */
    const float *sigma; /* [d_head] or NULL; only the reference reads it */
    int d_head, block_rows;
    int row0, n; /* n >= 1 rows from row0 of block[0] on; row0 a multiple of LK_TILE and
                                below block_rows */
    void *const *
        later; /* [n_later] blocks to be fetched from while those are worked on, a piece with the last tile
                                of each: piece later_first, counted from the first block's, and so on. A block has
                                later_pieces of them, later_bytes long, from later_offset on. */
    int64_t n_later;
    int later_first, later_pieces;
    size_t later_offset, later_bytes;
};

/* What the CPU held before a thread called `enter`. */
struct lk_kernels_state {
    _Alignas(64) unsigned char tiles[64]; /* shapes of AMX tiles, which ggml uses as well */
};

/* Queries of one KV head in the form a kernel wants: n_q rows in the codec's domain.
 * Laid out by `prepare`; the caller gives lk_queries_bytes() of memory, 64-byte aligned. For rows of
 * half floats n_q, d_head and q are enough.
 *
 * Two integer forms: 8 bits, whose error is small beside that of codes of up to 5 bits (a relative
 * error of about 0.6 % of q, that is 4e-5 of the squared score), and 16 bits for finer codes. The latter
 * also as two planes of signed bytes, q16 = 256 * high + low, for products of bytes. */
enum { LK_MAX_X16 = 127 * 256 + 127 }; /* largest magnitude of such a number */

/* The same where numbers of n channels are multiplied with codes of a byte and summed in 32 bits. */
static inline float lk_max_x16(int n) {
    return n <= 256 ? LK_MAX_X16 : (float)(LK_MAX_X16 * 256 / n);
}

struct lk_queries {
    int n_q, d_head;
    const float *q; /* [n_q][d_head] in the codec's domain, borrowed from the caller */
    float *scale8;  /* [n_q] q ~ scale8 * q8 */
    float *scale16; /* [n_q] q ~ scale16 * q16 */
    int32_t *sum8;  /* [n_q] sum of q8 over channels */
    int32_t *sum16; /* [n_q] sum of q16 over channels */
    int16_t *q16;   /* [n_q][d_pad], d_pad = d_head rounded up to 32, zero padded */
    int8_t *q8;     /* [n_q][d_pad] the same in 8 bits */
    int8_t *planes; /* [n_q][2][d_pad] high and low bytes of q16 */
};

static inline int8_t lk_high_byte(int16_t x16) { return (int8_t)((x16 + 128) >> 8); }
static inline int8_t lk_low_byte(int16_t x16) { return (int8_t)(uint8_t)x16; }

static inline int lk_queries_pad(int d_head) { return (d_head + 31) / 32 * 32; }

/* Memory that lk_queries_prepare needs behind n_q queries of d_head. */
size_t lk_queries_bytes(int n_q, int d_head);

/* Queries [i, i + n) of prepared ones, in those forms that are there. */
static inline struct lk_queries lk_queries_some(const struct lk_queries *q, int i, int n) {
    size_t pad = (size_t)lk_queries_pad(q->d_head) * i;
    struct lk_queries some = {.n_q = n, .d_head = q->d_head};
    if (q->q) some.q = q->q + (size_t)q->d_head * i;
    if (q->q8) {
        some.q8 = q->q8 + pad;
        some.scale8 = q->scale8 + i;
        some.sum8 = q->sum8 + i;
    }
    if (q->q16) {
        some.q16 = q->q16 + pad;
        some.planes = q->planes + 2 * pad;
        some.scale16 = q->scale16 + i;
        some.sum16 = q->sum16 + i;
    }
    return some;
}

/* Fill *out for q [n_q][d_head] (codec's domain) using mem (lk_queries_bytes, 64-byte aligned). */
void lk_queries_prepare(struct lk_queries *out, const float *q, int n_q, int d_head, void *mem);

/* A rotation of pairs of channels by an angle that grows from row to row of a tile (cache/rope.h makes it). */
struct lk_rope_table {
    int n_pair;  /* channels from 2 n_pair on are not rotated */
    bool halves; /* pairs are (j, j + n_pair), not (2 j, 2 j + 1) */
    const float (
        *turn)[2][LK_TILE]; /* [n_pair] cos and sin for each row, times the rotation's magnitude */
};

/* Channels of a pair. */
static inline int lk_turns_first(const struct lk_rope_table *turns, int pair) {
    return turns->halves ? pair : 2 * pair;
}
static inline int lk_turns_second(const struct lk_rope_table *turns, int pair) {
    return turns->halves ? pair + turns->n_pair : 2 * pair + 1;
}

enum { LK_OFFSET_BLOCK = 32, LK_OFFSET_TILE = 32 };

/* Offsets are read tile after tile of outputs, so they lie like that: [tile][n_in / LK_OFFSET_BLOCK][LK_OFFSET_TILE], a cache line
 * for a block. */
static inline size_t lk_offset_index(int64_t n_in, int64_t block, int64_t output) {
    int64_t tile = output / LK_OFFSET_TILE;
    return (size_t)((tile * (n_in / LK_OFFSET_BLOCK) + block) * LK_OFFSET_TILE +
                    output % LK_OFFSET_TILE);
}

/* Half floats that n_out outputs take; those behind the last output are not read. */
static inline size_t lk_offset_count(int64_t n_in, int64_t n_out) {
    return lk_offset_index(n_in, 0, (n_out + LK_OFFSET_TILE - 1) / LK_OFFSET_TILE * LK_OFFSET_TILE);
}

enum { LK_MAX_KERNEL_CHUNK = 512 };

struct lk_kernels {
    int chunk; /* positions whose scores of few queries (attn/attn.h) are best found before their values are summed, a multiple of
                  LK_TILE, at most LK_MAX_KERNEL_CHUNK; 0: whatever attention takes */
    const char *name; /* "reference", "avx2", "avxvnni", "avx512", "avx512vbmi", "amx", "neon" */

    /* A thread calls score and accumulate between these two; NULL where there is nothing to do (lk_kernels_enter). */
    void (*enter)(struct lk_kernels_state *before);
    void (*leave)(const struct lk_kernels_state *before);

    /* s[i * stride + t] = <q_i, x_(row0 + t)> for t < n; other entries of s stay untouched or are
     * written up to a multiple of LK_TILE in each row of s (the caller leaves room and ignores them). */
    void (*score)(const struct lk_rows *rows, const struct lk_queries *q, float *s, size_t stride);

    /* acc[i * d_head + c] += sum over t < n of p[i * stride + t] * x_(row0 + t)[c], in the codec's
     * domain, for i < n_q. p >= 0 and <= 1, entries past n up to a multiple of LK_TILE are zero. */
    void (*accumulate)(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                       float *acc);

    /* Scores of rows that lie there as floats, channel by channel, k [d][LK_TILE], and have to be turned first:
     * s[i * stride + t] = <q_i, k_t turned> for t < LK_TILE and q [n_q][d]. turns: NULL where nothing is turned.
     * (attn/pre.h, Palu section 3.3) */
    void (*score_turned)(const float *k, int d, const struct lk_rope_table *turns, const float *q,
                         int n_q, float *s, size_t stride);

    /* Rows in and out: lk_codec_encode and lk_codec_decode, and the same bits as theirs. */
    void (*encode)(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                   const float *sigma, void *head, int row0, int n, const float *x, size_t stride);
    void (*decode)(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                   const float *sigma, const void *head, int row0, int n, float *x, size_t stride);

    /* Largest of s [n], n >= 1. */
    float (*max)(const float *s, int n);

    /* s[i] = exp(scale * s[i] - max) for i < n; returns their sum. */
    float (*exp_sum)(float *s, int n, float scale, float max);

    /* A layer of a small network: y[o] = gelu(sum over i < n_in of x[i] w[i][o]) for w [n_in][n_out] of half floats, y [n_out],
     * which is not x. gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as models are trained with it. (absorb/less.h) */
    void (*gelu_layer)(const float *x, const uint16_t *w, int n_in, int n_out, float *y);

    /* A product with weights that are one half float for LK_OFFSET_BLOCK inputs (model/split.h), added to outputs [first, first + n):
     * y[t][o] += sum over blocks b of offset(b, o) (sum of x[t][i] over the block's inputs) for x [n_tok][n_in], y [n_tok][n_out];
     * offset (b, o) lies at lk_offset_index, first is a multiple of LK_OFFSET_TILE. */
    void (*add_offsets)(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                        int first, int n, float *y);
};

static inline void lk_kernels_enter(const struct lk_kernels *kernels,
                                    struct lk_kernels_state *before) {
    if (kernels->enter) kernels->enter(before);
}
static inline void lk_kernels_leave(const struct lk_kernels *kernels,
                                    const struct lk_kernels_state *before) {
    if (kernels->leave) kernels->leave(before);
}

extern const struct lk_kernels lk_kernels_reference;

/* The fastest table this CPU can run; never NULL. `name`: NULL for the fastest, or a table's name
 * (NULL returned where this build or CPU lacks it). */
const struct lk_kernels *lk_kernels_choose(const char *name);

/* Names of the tables this CPU can run, the fastest first, as "avx2, reference". */
void lk_kernels_names(char *buf, size_t cap);

/* Why the fastest table here is a slow one, a static text; NULL where it is not. */
const char *lk_kernels_lack(void);

#endif
