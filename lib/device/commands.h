/* What the host tells a device to do, as kernels read it: plain data of fixed widths, in C and in
 * CUDA C++. Addresses in the memory of the device are uint64_t, 0 is none. The layout of blocks is
 * in the headers of lib/codec; a block's address is a multiple of 32. */
#ifndef LK_DEVICE_COMMANDS_H
#define LK_DEVICE_COMMANDS_H

#include <stdint.h>

/* ---- attention ---- */

enum {
    LK_DEVICE_SEGMENTS = 20,  /* of a call: levels of K and of V divide its rows */
    LK_DEVICE_TOKENS = 8,     /* query tokens of a sequence in a call */
    LK_DEVICE_MAX_HEAD = 512, /* channels of a head */
};

/* Codebooks of rot (codec/rot.h). */
enum { LK_DEVICE_UNIFORM, LK_DEVICE_LLOYD, LK_DEVICE_TRELLIS };

/* How kernels find the numbers of a part (a KV head) of a level's blocks. */
struct lk_device_coding {
    uint8_t coding;      /* enum lk_coding */
    uint8_t bits;        /* per code */
    uint8_t book;        /* rot: LK_DEVICE_UNIFORM, ... */
    uint8_t mean;        /* rot: tiles have a mean */
    uint8_t rotated;     /* rows were multiplied by the rotation of their order */
    uint8_t sigma;       /* and divided by the channel's sigma before */
    uint16_t group;      /* kivi: rows of K's blocks or channels of V's groups; asym: channels */
    uint32_t block_rows; /* rows of a block */
    uint32_t offset;     /* bytes from the start of a block to the part */
    uint32_t next;       /* bytes from a part to the next one; 0 in a table of parts */
};

/* The rows of a segment in K or in V. */
struct lk_device_rows {
    uint64_t table; /* address of the addresses of the level's blocks: uint64_t [] */
    uint64_t part;  /* address of struct lk_device_coding [n_head_kv] if heads differ; else 0 */
    struct lk_device_coding coding; /* of head 0 unless `part`; offset: of head 0 */
    uint32_t first; /* the segment's first row, counted from the table's first block */
    uint32_t reserved;
    uint64_t restore; /* struct lk_device_restore of the level, if K or V of the segment are latents
                         (then of both); else 0 */
};

/* Successive rows that are in one level of K and one level of V. */
struct lk_device_segment {
    struct lk_device_rows k, v;
    int32_t n_row;
    int32_t before;   /* rows from the segment's first one to the first query token's: token t sees
                          row i if i <= before + t, and i > before + t - window */
    int32_t distance; /* of positions, between the same two, for ALiBi */
    uint32_t shifted; /* scored with q_shifted */
    uint32_t fast, unused; /* of restored segments: the call's fast kernel takes it */
};

/* The rotation of an order (codec/hadamard.h). If the order is a power of two: Sylvester's matrix,
 * divided by the root of the order, of vectors whose signs are changed first. */
struct lk_device_rotation {
    uint64_t matrix;                        /* address of f32 [order][order]; 0: Sylvester's */
    uint32_t sign[LK_DEVICE_MAX_HEAD / 32]; /* bit c: channel c is negated */
};

/* What the fast kernel of a layer's latents reads besides rows, as struct lk_device_latent and its
 * launch have it. */
struct lk_device_fast_latents {
    uint64_t k_up, k_mean, v_up, v_mean, k_part, v_part, rope, fine, coarse;
    int64_t position; /* of the first query token */
    int32_t kernel;   /* number + 1; 0: there is none */
    int32_t k_heads, v_heads, k_rank, v_rank, n_pair, halves, post;
};

/* Attention of the newest tokens of one sequence over the rows of one layer. With latent attention
 * (d_rope > 0) a score is the product of the query's last d_rope channels and K's row, plus the
 * product of its first d_head channels and V's row. */
struct lk_device_attend {
    uint64_t q;           /* f32 [n_tok][n_head][d_head + d_rope] */
    uint64_t q_shifted;   /* the same, rotated back for sinks that shift (cache/rope.h), or 0 */
    uint64_t out;         /* f32 [n_tok][n_head][d_head], or 0 */
    uint64_t partial;     /* f32 [n_tok][n_head][d_head + 2], lk_attn's acc, m and l; with `out`: m
                           and l only, without `extra` and `sink`, or 0. With `out` and restored
                           segments: room for all of it */
    uint64_t extra;       /* f32 [n_extra] of such partials, which `out` includes */
    uint64_t k_sigma;     /* f32 [n_head_kv][channels]: of all rotated levels of K, or 0: of none */
    uint64_t v_sigma;     /* the same of V */
    uint64_t levels;      /* uint8_t [5][64]: lk_trellis_table (codec/rot.h); 0: no trellis codes */
    uint64_t sink;        /* f32 [n_head]: scores in the softmax of `out` whose value is 0, or 0 */
    uint64_t slope;       /* f32 [n_head]: of ALiBi, or 0 */
    int64_t extra_stride; /* floats from one of `extra` to the next one */
    int32_t n_tok, n_head, n_head_kv, d_head, d_rope, n_extra;
    int32_t window; /* rows that a token sees, itself included; 0: all before it */
    int32_t n_segment;
    int32_t tile_bytes, v_part; /* of restored segments: shared memory to decode a tile of any part
                                   (lk_device_tile_bytes), channels of V's widest part */
    float scale;                /* of q.k */
    float softcap;              /* scores become cap * tanh(score / cap) after scaling; 0: no cap */
    struct lk_device_fast_latents fast;
    struct lk_device_rotation k_rotation, v_rotation; /* of the orders of K's and V's rows */
    struct lk_device_segment segment[LK_DEVICE_SEGMENTS];
};

/* What all blocks of a launch read: the calls of a step in one layer. */
struct lk_device_attend_launch {
    uint64_t call;    /* address of struct lk_device_attend [n_call] */
    uint64_t scratch; /* f32 [n_call][n_head_kv][n_tile][clusters][columns][channels + 2], channels
                         and columns as the kernel has them; unused with one cluster */
    uint64_t ticket;  /* uint32_t [n_call][n_head_kv][n_tile][columns]; 0 before and after */
    int32_t n_call, n_head_kv;
    int32_t n_tile;  /* of columns: query heads of a KV head times query tokens */
    int32_t n_split; /* blocks that share the rows of a (call, KV head, tile of columns) */
};

/* ---- moves: rows are decoded at one place and encoded at another ----
 *
 * Commands of one launch run in any order and at the same time, so none of them may read what
 * another one writes, or write to the same tile of 32 rows. */

enum { LK_ROT_MAX_MAGNITUDE = 8, LK_ROT_MAX_TRIAL = 5, LK_ROT_LEVELS = 64 };

/* Codings of rows that lie one after another; other values are of enum lk_coding. */
enum { LK_ROWS_F32 = 64, LK_ROWS_F16 };

/* How the rows of one part (a head, or the latents of a group of heads) are packed, with all
 * numbers that a kernel needs: lk_device_packing_of (device/moves.h) derives it from a struct
 * lk_part, and lk_device_plain describes plain rows. The layouts are in lib/codec. */
struct lk_device_packing {
    uint8_t coding;  /* LK_F16, LK_INT8, LK_KIVI, LK_ROT or LK_ASYM; or LK_ROWS_ */
    uint8_t side;    /* enum lk_side */
    uint8_t bits;    /* per code */
    uint8_t mean;    /* rot: the block's mean is subtracted */
    uint8_t trellis; /* rot: trellis-coded levels */
    uint8_t rotates; /* rows are rotated before they are quantized */
    uint8_t fine;    /* rot: the guess of the step follows from the row's maximum */
    uint8_t n_trial; /* rot: steps that are tried */
    int32_t d;       /* channels of a row */
    int32_t group;   /* kivi: rows or channels that share a scale; asym: channels */
    int32_t block_rows;

    /* The rotation: H = (a small orthogonal matrix) (x) Sylvester's matrix of order `width`.
     * paley: 0 none, 1 or 2: the small matrix is Paley's of this kind for the prime `q`
     * (codec/hadamard.h). */
    int32_t paley, width, q;

    /* rot without a trellis: as in struct lk_rot_quantizer. n_border 0: a uniform codebook. */
    int32_t half, n_border;
    float reach, unit, trial[LK_ROT_MAX_TRIAL], magnitude[LK_ROT_MAX_MAGNITUDE];

    /* rot with a trellis: the step is unit * rms, or per_max * maximum if that is not 0. */
    float per_max;
    uint8_t level[LK_ROT_LEVELS]; /* by index */
};

/* One end of a move: rows of n_part parts, all of the same coding.
 *
 *   plain rows   part p of row r is at `at + offset + r * row_bytes + p * part_bytes`.
 *   levels       `at` is a table of block addresses, uint64_t [n_block], or 0: `block` has them.
 *                Row r is row r % block_rows of block r / block_rows, and part p starts `offset +
 *                p * part_bytes` bytes after the block's start.
 *
 * The i-th row of the move is row first + i, or, for part p, first + index[i * index_stride +
 * p * index_step] if there is an index; a negative entry leaves the row out. */
enum { LK_DEVICE_MOVE_BLOCKS = 5 };

struct lk_device_move_rows {
    uint64_t at, block[LK_DEVICE_MOVE_BLOCKS];
    uint64_t index; /* int32_t; 0: rows are consecutive */
    uint64_t sigma; /* float [n_part][sigma_stride] of codecs with sigma; 0: none */
    uint64_t row_bytes, part_bytes, offset;
    int64_t first;
    int32_t index_stride, index_step, sigma_stride;
    struct lk_device_packing coding;
};

/* How rows of a level become heads' rows again, if they are latents or stand next to latents. Parts
 * are decoded; latents z of a part become rows mean + up^T z (cache/project.h); keys from before
 * RoPE are rotated by their positions. */
struct lk_device_restore {
    uint64_t rows; /* struct lk_device_move_rows of the level from its first row on: [n_part], each
                       of one part, or if `uniform` one of all parts */
    uint64_t up; /* numbers of `type` [n_part][n_comp][n_head * d_head]; 0: parts are heads' rows */
    uint64_t scale; /* Q8: float [n_part][n_comp] */
    uint64_t mean;  /* float [n_part][n_head * d_head]; 0: none */
    uint64_t speed; /* double [n_pair] radians for each position; 0: rows are not rotated */
    uint64_t pos;   /* int32_t [][n_head_kv] positions of rows from row `skip` on; 0: consecutive */
    int64_t position; /* of the first row, if positions are consecutive */
    int32_t skip, uniform;
    int32_t n_head, n_comp; /* KV heads of a part; components of the basis */
    int32_t type;           /* enum lk_device_basis_type */
    int32_t n_pair, halves; /* as in struct lk_device_project */
    float magnitude;        /* by which rotated channels are multiplied */
};

/* How the rows arrive.
 *
 *   APPEND   the rows follow each other in the target. Codecs that are not row-wise
 *            (lk_codec_row_wise) get whole blocks: `first` and n_row are multiples of block_rows.
 *   REPLACE  row after row takes the place of the row that to.index names, as lk_codec_replace
 *            does. A negative entry leaves the row out. A later row may replace an earlier one.
 *
 * If the source has more channels than the target, the first ones are taken (latents of a lower
 * rank). Source and target do not overlap. */
enum lk_move_kind { LK_MOVE_APPEND, LK_MOVE_REPLACE };

struct lk_device_move {
    struct lk_device_move_rows from, to;
    int32_t kind, n_row, n_part;
    int32_t first_item; /* work items of the list before this move (lk_device_move_items) */
};

/* Projection of rows into a basis (cache/project.h): for part p, row r and component j < rank,
 *
 *   to[r][p][j] = sum over heads h < n_head of (dot(down[p][j][h], x[r][p * n_head + h]) - offset)
 *
 * x: float rows [n_row][n_part * n_head][d_head] with the given strides, already un-rotated. offset
 * is dot(down[p][j][h], mean[p][h]). The order of sums is lk_project_add's. */
enum lk_device_basis_type { LK_DEVICE_BASIS_F32, LK_DEVICE_BASIS_F16, LK_DEVICE_BASIS_Q8 };

struct lk_device_project {
    uint64_t from, to; /* float rows */
    uint64_t down;     /* [n_part][n_comp][n_head * d_head] numbers of `type` */
    uint64_t scale;    /* Q8: float [n_part][n_comp] */
    uint64_t mean;     /* float [n_part][n_head * d_head]; 0: none */
    uint64_t cos_sin;  /* float [n_row][n_pair][2]: keys are un-rotated by these first; 0: none */
    int32_t from_stride, to_stride, to_part; /* floats from row to row; from part to part in `to` */
    int32_t n_row, n_part, n_head, d_head, rank, n_comp, type;
    int32_t n_pair, halves; /* pairs (j, j + n_pair) instead of (2 j, 2 j + 1) */
    int32_t first_item;     /* as in lk_device_move */
};

/* Attention weights of rows, for policies: `score` [n_row][n_head_kv] += the weights that the rows
 * of a level of K get from the queries, summed over tokens and over the query heads of a KV head
 * (attention/attn_weights.h); of the KV heads [first_part, first_part + n_part). */
struct lk_device_weigh {
    uint64_t q; /* float [n_tok][n_head][d of v + d of k] */
    uint64_t
        partial;    /* float [n_range] of [n_tok][n_head][stride], lk_attn's; maximum and sum at */
    uint64_t sink;  /* float [n_head]: scores in the softmax without a row, or 0 */
    uint64_t slope; /* float [n_head]: of ALiBi, or 0 */
    uint64_t score;
    struct lk_device_move_rows k; /* of the KV heads first_part, ... */
    struct lk_device_move_rows v; /* latent attention: the same rows of V, which are keys too, to
                                     be multiplied with the query's first channels; else d is 0 */
    uint64_t restore;             /* struct lk_device_restore of a level of latents: its rows from
                                     k.first on become keys of k.coding.d channels; else 0 */
    int64_t range_stride;         /* floats from a range to the next one */
    int32_t stride, at;           /* floats of a partial, and before its maximum */
    int32_t n_range, n_row, n_tok, n_head, n_head_kv, first_part, n_part;
    int32_t before; /* rows from the first one to the first token's own: row i is seen by token t if
                       i <= before + t and, with a window, i > before + t - window */
    int32_t window; /* 0: none */
    int32_t distance; /* of positions, between the same two, for ALiBi */
    int32_t last;     /* only the newest token's weights, in place of the old scores */
    float scale, softcap;
    int32_t first_item; /* an item is 32 rows of a KV head (lk_device_weigh_items) */
    int32_t v_at;       /* bytes of shared memory before the tile of V, or before restored keys;
                           set with first_item */
    int32_t tile_bytes; /* with `restore`: as in struct lk_device_attend */
};

/* ---- LESS: sums that stand for evicted rows (absorb/less.h) ---- */

/* The networks of one layer, and the states of its KV heads. */
struct lk_device_less {
    uint64_t phi_w1, phi_w2, phi_bias; /* as in struct lk_less_maps */
    uint64_t psi_w1, psi_w2, psi_w3, psi_s1, psi_s2;
    uint64_t state;   /* float [n_head_kv][n_feature][d_head + 1] */
    uint64_t feature; /* float [n_row][n_head_kv][n_feature] scratch */
    int32_t n_head, n_head_kv, d_head, n_hidden, n_feature, n_phi, n_psi;

    /* Rows to add: float [n_row][n_head_kv][d_head]. */
    int32_t n_row;
    uint64_t k, v;

    /* Queries, float [n_tok][n_head][d_head], and their attention to the states: partials [n_tok]
     * [n_head][d_head + 2] as of lk_absorb_attend. */
    uint64_t q, partial;
    int32_t n_tok, unused;
};

/* ---- attention over latents (cache/project.h) ---- */

/* A group of KV heads that share latents: where its part of a block is. */
struct lk_device_latent_part {
    uint32_t offset; /* bytes from the start of a block */
    uint32_t rank;   /* components */
};

/* Attention of the newest tokens of a sequence over one segment whose K and V are latents. K's may
 * be from before RoPE. The result is a partial of heads' rows, which joins other segments' partials
 * (lk_device_attend.extra). */
struct lk_device_latent {
    uint64_t q;       /* f32 [n_tok][n_head][d_head], rotated */
    uint64_t partial; /* f32 [n_tok][n_head][d_head + 2]: acc, m, l */
    uint64_t k_up;    /* K's up-projection, packed (cuda/latent_pack.h): [n_head_kv] heads. Of
                         rotated keys: f16 [n_head_kv][d_head][k_rank] in the domain of K's codes */
    uint64_t k_query; /* of rotated keys: f32 [n_tok][n_head][k_rank], scratch; else 0 */
    uint64_t k_mean;  /* f32 [n_head_kv][d_head] of K's basis, packed; of rotated keys: as it is;
                         0: none */
    uint64_t v_up;    /* f16 [n_head_kv][v_rank][d_head] in the domain of V's codes */
    uint64_t v_mean;  /* f32 [n_head_kv][d_head], or 0 */
    uint64_t k_part;  /* struct lk_device_latent_part [n_head_kv / k_heads] */
    uint64_t v_part;  /* struct lk_device_latent_part [n_head_kv / v_heads] */
    struct lk_device_segment segment; /* `first` of K and V differ by a multiple of 32 */
    int64_t position;                 /* of the segment's first row */
    int32_t n_tok, window;            /* as in struct lk_device_attend */
};

/* What all blocks of a launch read. Kernels have columns for some KV heads and some queries of
 * each; `tile` is a set of such queries. */
struct lk_device_latent_launch {
    uint64_t call;    /* struct lk_device_latent [n_call] */
    uint64_t rope;    /* tables of a segment of 128 positions, packed (cuda/latent_pack.h) */
    uint64_t fine;    /* f32 [128][d_head / 2][2]: cos and sin of positions 0 to 127 */
    uint64_t coarse;  /* f32 [][d_head / 2][2]: of positions 0, 128, 256, ... */
    uint64_t sum;     /* f32 [n_call][n_head_kv][n_tile][queries][v_rank + 2] */
    uint64_t scratch; /* f32 [n_call][n_head_kv][n_tile][queries][v_rank / 32][clusters][34] */
    uint64_t ticket;  /* uint32_t [n_call][n_head_kv][n_tile][queries][v_rank / 32]; zero before and
                         after */
    int32_t n_call, n_head_kv;
    int32_t group;            /* query heads of a KV head */
    int32_t k_heads, v_heads; /* KV heads of a part */
    int32_t n_tile, n_split;
    int32_t k_rank, v_rank; /* of the widest parts */
    int32_t n_pair;         /* pairs that RoPE rotates; 0: nothing is rotated */
    int32_t halves;         /* pairs are (j, j + n_pair), not (2 j, 2 j + 1) */
    float scale;            /* of q.k */
};

#endif
