/* Kernels: attention scores and weighted sums, computed on packed blocks.
 *
 * There is one table of functions per instruction set. lk_kernels_choose selects one when a model
 * is opened. The reference table is plain C on top of the codecs' own decode and runs on every CPU.
 * Tests compare all other tables with it (tests/kernels/).
 *
 * score and accumulate work on a run of rows of one KV head, tile after tile. A tile is LK_TILE
 * consecutive rows of a block, or fewer at the end of the run. */
#ifndef LK_KERNELS_KERNELS_H
#define LK_KERNELS_KERNELS_H

#include "codec/codec.h"
#include "codec/ops.h"
#include "kernels/products.h"
#include "kernels/queries.h"

/* Memory to fetch into the second-level cache while rows are worked on. Each of the n_block blocks
 * has `n_piece` pieces of `bytes` bytes from `offset` on. Pieces are numbered block after block.
 * The last tile of the i-th block of rows fetches piece first + i. */
struct lk_prefetch {
    void *const *block; /* [n_block] */
    int64_t n_block;    /* 0: fetch nothing */
    int first, n_piece;
    size_t offset, bytes;
};

/* Tiles elsewhere that are fetched while rows are worked on, `bytes` bytes each: the i-th tile of
 * rows fetches tile[i], if i < n. */
struct lk_fetch {
    const void *const *tile; /* [n] */
    int n;
    size_t bytes;
};

/* A run of n rows of one head's part. Block 0 holds the first row. */
struct lk_rows {
    const struct lk_codec *codec;
    void *const *block; /* the blocks that hold the rows, in order */
    size_t offset;      /* bytes from the start of a block to the head's part */
    const float *sigma; /* [d_head] or NULL; only the reference reads it */
    int d_head, block_rows;
    int row0; /* first row in block[0], a multiple of LK_TILE, < block_rows */
    int n;    /* >= 1 */
    /* Exact rows of a prompt; the run starts with a chunk. Its tiles do not depend on how many
     * tokens the prompt has, so a kernel may let its rows share a scale. */
    bool aligned;
    struct lk_prefetch prefetch;
    struct lk_fetch fetch;
};

/* State of a thread before it called `enter`. */
struct lk_kernels_state {
    _Alignas(64) unsigned char amx_config[64]; /* AMX tile configuration, which ggml uses as well */
};

/* RoPE for the rows of a tile: pairs of channels are rotated by an angle that depends on the row.
 * cache/rope.h fills it. */
struct lk_rope_table {
    int n_pair; /* pairs are channels (2 j, 2 j + 1); those from 2 n_pair on are not rotated */
    /* [n_pair] cos and sin for each row, multiplied with the rotation's magnitude */
    const float (*cos_sin)[2][LK_TILE];
};

/* Keys of a tile before RoPE, as floats. Channels whose angles change slowly can be left out and
 * given as products with each query instead, one for every function of a small basis: they add the
 * sum over m < n_fold of basis[m][t] * (fold[m][t] + offset[m]) to the score of row t
 * (attention/score_pre.h). */
struct lk_rope_keys {
    const float *k;                   /* [d][LK_TILE], channel by channel */
    const float *mean;                /* [d] added to every row; NULL: 0 */
    int d;                            /* channels, without those that are left out */
    const struct lk_rope_table *rope; /* NULL: no rotation */
    int n_fold;                       /* 0: nothing is left out */
    const float *fold;                /* [n_q][n_fold][LK_TILE] */
    const float *offset;              /* [n_q][n_fold] */
    const float *basis;               /* [n_fold] rows of LK_TILE, basis_stride floats apart */
    size_t basis_stride;
};

/* Offsets of weights quantized in blocks (model/q4_1_split.h): one f16 value for LK_OFFSET_BLOCK
 * inputs of an output. They are read LK_OFFSET_TILE outputs at a time. Their layout is [tile of
 * outputs][n_in / LK_OFFSET_BLOCK][LK_OFFSET_TILE], so that a block of a tile is one cache line. */
enum { LK_OFFSET_BLOCK = 32, LK_OFFSET_TILE = 32 };

static inline size_t lk_offset_index(int64_t n_in, int64_t block, int64_t output) {
    int64_t tile = output / LK_OFFSET_TILE;
    return (size_t)((tile * (n_in / LK_OFFSET_BLOCK) + block) * LK_OFFSET_TILE +
                    output % LK_OFFSET_TILE);
}

/* Number of f16 values for n_out outputs. Padding after the last output is never read. */
static inline size_t lk_offset_count(int64_t n_in, int64_t n_out) {
    return lk_offset_index(n_in, 0, (n_out + LK_OFFSET_TILE - 1) / LK_OFFSET_TILE * LK_OFFSET_TILE);
}

struct lk_kernels;
struct lk_avx2_dots;
struct lk_avx512_unpack;

enum { LK_MAX_KERNEL_CHUNK = 512, LK_MAX_COMBINE = 512 };

/* Scores of K: s[i * stride + t] = <q_i, x_(row0 + t)> for i < q->n_q and t < rows->n, in the
 * codec's domain, before any scaling. The kernel may also overwrite s up to t = n rounded up to a
 * multiple of LK_TILE; the caller leaves room for that and ignores the values. */
typedef void lk_score_fn(const struct lk_kernels *kernels, const struct lk_rows *rows,
                         const struct lk_queries *q, float *s, size_t stride);

/* Weighted sums of V: acc[i * d_head + c] += sum over t < rows->n of p[i * stride + t] *
 * x_(row0 + t)[c], for i < n_q, in the codec's domain. 0 <= p <= 1; p is zero from t = n up to a
 * multiple of LK_TILE. acc is not aligned. */
typedef void lk_accumulate_fn(const struct lk_kernels *kernels, const struct lk_rows *rows,
                              const float *p, size_t stride, int n_q, float *acc);

/* Kernels of one codec: for the few queries of decoding (at most `few` of the table), and for
 * more. */
struct lk_coding_kernels {
    lk_score_fn *score_few, *score;
    lk_accumulate_fn *accumulate_few, *accumulate;
};

struct lk_kernels {
    const char *name; /* "reference", "avx2", "avxvnni", "avx512", "avx512vbmi", "amx", "neon" */

    /* Best number of positions per chunk when few queries attend: attention scores a chunk of K,
     * then sums the same chunk of V. A multiple of LK_TILE, <= LK_MAX_KERNEL_CHUNK; 0: no
     * preference. */
    int chunk;

    /* Codes of K of up to this many bits are multiplied with 8-bit queries, finer ones with 16-bit
     * queries (queries.h). The reference reads floats. */
    int max_bits_q8;

    /* A thread calls score and accumulate between these two. NULL if nothing needs to be done; call
     * them through lk_kernels_enter and lk_kernels_leave. */
    void (*enter)(struct lk_kernels_state *before);
    void (*leave)(const struct lk_kernels_state *before);

    /* By enum lk_coding. Call them through lk_kernels_score and lk_kernels_accumulate. */
    struct lk_coding_kernels coding[LK_N_CODING];
    int few;

    /* What the kernels of rot leave out of rows of asym without groups, whose codes have the
     * same place (codec/asym.h): s += zero points times the sums of the queries, acc += zero points
     * times the sums of the weights. fine: the scores were computed with 16-bit queries. The
     * reference has neither. */
    void (*add_score_offsets)(const struct lk_rows *rows, const struct lk_queries *q, bool fine,
                              float *s, size_t stride);
    void (*add_sum_offsets)(const struct lk_rows *rows, const float *p, size_t stride, int n_q,
                            float *acc);

    /* Steps that tables of one instruction set do differently; only its kernels read them. */
    const struct lk_avx2_dots *dots;
    const struct lk_avx512_unpack *unpack;

    /* Scores of whole tiles of K, in codec rot with means (attention/read.h): s[i * stride + t] =
     * <q_i, mean of tile t> + spread[i] * (mean of the squared scales of the tile's rows). rows->n
     * is a multiple of LK_TILE. */
    void (*score_tiles)(const struct lk_rows *rows, const struct lk_queries *q, const float *spread,
                        float *s, size_t stride);

    /* Scores of K rows that are stored before RoPE: s[i * stride + t] = <q_i, RoPE(k_t + mean)> for
     * t < LK_TILE, and what the channels that are left out add. q: [n_q] rows of d channels,
     * q_stride floats apart. (attention/score_pre.h; Palu, section 3.3) */
    void (*score_rope)(const struct lk_rope_keys *keys, const float *q, size_t q_stride, int n_q,
                       float *s, size_t stride);

    /* Combinations of prepared vectors: vector i of *out is the sum over j < x->n_q of
     * w[i * x->n_q + j] times vector j of *x, for i < n. Only the 8-bit forms are read and
     * written: out->q8 [n][pad], scale8 [n] and sum8 [n] have room. x->n_q <= LK_MAX_COMBINE.
     * w is rounded to 8 bits per row, or more. (attention/score_pre.h) */
    void (*combine_queries)(const struct lk_queries *x, const float *w, int n,
                            const struct lk_queries *out);

    /* Pack rows, and reconstruct them in the original domain. Same arguments and same bits as
     * lk_codec_encode and lk_codec_decode. */
    void (*encode)(const struct lk_part *part, void *head, int row0, int n, const float *x,
                   size_t stride);
    void (*decode)(const struct lk_part *part, const void *head, int row0, int n, float *x,
                   size_t stride);

    /* Maximum of s [n], n >= 1. */
    float (*max)(const float *s, int n);

    /* s[i] = exp(scale * s[i] - max) for i < n. Returns the sum of the results. */
    float (*exp_sum)(float *s, int n, float scale, float max);

    /* One layer of an MLP: y[o] = gelu(sum over i < n_in of x[i] w[i][o]), w [n_in][n_out] in f16,
     * x [n_in], y [n_out]; y must not overlap x.
     * gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as models are trained with it.
     * (absorb/less.h) */
    void (*gelu_layer)(const float *x, const uint16_t *w, int n_in, int n_out, float *y);

    /* One token of a head with the gated delta rule (kernels/recurrence.h). Row i of a state [d][d]
     * belongs to key channel i:
     *   change = beta (v - decay k^T from); to = decay from + k change; out = q^T to
     * q, k, v and out are [d], d is a multiple of 16. from and to are the same state, or two that
     * do not overlap. out overlaps nothing else. */
    void (*delta_step)(const float *from, float *to, int d, const float *q, const float *k,
                       const float *v, float decay, float beta, float *out);

    /* One token of a head of a state space model (kernels/recurrence.h): to [n][d] = decay from
     * + k (beta v)^T; out = q^T to. q and k are [n], v and out [d], d is a multiple of 16. from, to
     * and out as for delta_step. */
    void (*scan_step)(const float *from, float *to, int n, int d, const float *q, const float *k,
                      const float *v, float decay, float beta, float *out);

    /* The offsets' part of a matrix product (model/q4_1_split.h), for outputs [first, first + n):
     * y[t][o] += sum over blocks b of offset(b, o) * (sum of x[t][i] over the block's inputs),
     * x [n_tok][n_in], y [n_tok][n_out]. offset(b, o) is at lk_offset_index; first is a multiple of
     * LK_OFFSET_TILE. */
    void (*add_offsets)(const float *x, int n_tok, int n_in, const uint16_t *offset, int n_out,
                        int first, int n, float *y);

    /* Products of quantized weights with many tokens (products.h). NULL: ggml's are used. */
    lk_quantize_inputs_fn *quantize_inputs;
    lk_quantize_short_fn *quantize_short;
    lk_multiply_fn *multiply;
};

static inline void lk_kernels_enter(const struct lk_kernels *kernels,
                                    struct lk_kernels_state *before) {
    if (kernels->enter) kernels->enter(before);
}
static inline void lk_kernels_leave(const struct lk_kernels *kernels,
                                    const struct lk_kernels_state *before) {
    if (kernels->leave) kernels->leave(before);
}

static inline void lk_kernels_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                                    const struct lk_queries *q, float *s, size_t stride) {
    const struct lk_coding_kernels *coding = &kernels->coding[rows->codec->coding];
    (q->n_q <= kernels->few ? coding->score_few : coding->score)(kernels, rows, q, s, stride);
}
static inline void lk_kernels_accumulate(const struct lk_kernels *kernels,
                                         const struct lk_rows *rows, const float *p, size_t stride,
                                         int n_q, float *acc) {
    const struct lk_coding_kernels *coding = &kernels->coding[rows->codec->coding];
    (n_q <= kernels->few ? coding->accumulate_few : coding->accumulate)(kernels, rows, p, stride,
                                                                        n_q, acc);
}

/* Reference kernels (reference.c). */
extern const struct lk_kernels lk_kernels_reference;

/* The table called `name`, or NULL if this build or this CPU does not have it. name == NULL: the
 * fastest table that this CPU can run, never NULL. */
const struct lk_kernels *lk_kernels_choose(const char *name);

/* Names of the tables that this CPU can run into buf, the fastest first: "avx2, reference". */
void lk_kernels_names(char *buf, size_t cap);

/* If only the reference table runs here: a static message that says why. Otherwise NULL. */
const char *lk_kernels_slow_reason(void);

#endif
