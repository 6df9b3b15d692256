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
};

/* Successive rows that are in one level of K and one level of V. */
struct lk_device_segment {
    struct lk_device_rows k, v;
    int32_t n_row;
    int32_t before; /* rows from the segment's first one to that of the first query token: row i is
                         seen by token t if i <= before + t, and i > before + t - window */
    int32_t distance; /* of positions, between the same two, for ALiBi */
    uint32_t shifted; /* scored with q_shifted */
};

/* The rotation of an order (codec/hadamard.h). If the order is a power of two: Sylvester's matrix,
 * divided by the root of the order, of vectors whose signs are changed first. */
struct lk_device_rotation {
    uint64_t matrix;                        /* address of f32 [order][order]; 0: Sylvester's */
    uint32_t sign[LK_DEVICE_MAX_HEAD / 32]; /* bit c: channel c is negated */
};

/* Attention of the newest tokens of one sequence over the rows of one layer. With latent attention
 * (d_rope > 0) a score is that of the query's last d_rope channels and K's row, and of the first
 * d_head channels and V's row. */
struct lk_device_attend {
    uint64_t q;         /* f32 [n_tok][n_head][d_head + d_rope] */
    uint64_t q_shifted; /* the same, rotated back for sinks that shift (cache/rope.h), or 0 */
    uint64_t out;       /* f32 [n_tok][n_head][d_head], or 0 */
    uint64_t
        partial;    /* if there is no `out`: f32 [n_tok][n_head][d_head + 2], lk_attn's acc, m, l */
    uint64_t extra; /* more partials of that form, [n_extra] of them, that `out` includes; or 0 */
    uint64_t k_sigma, v_sigma; /* f32 [n_head_kv][channels], or 0 */
    uint64_t sink;  /* f32 [n_head]: scores in the softmax of `out` whose value is 0, or 0 */
    uint64_t slope; /* f32 [n_head]: of ALiBi, or 0 */
    int32_t n_tok, n_head, n_head_kv, d_head, d_rope, n_extra;
    int32_t window; /* rows that a token sees, itself included; 0: all before it */
    int32_t n_segment;
    float scale;   /* of q.k */
    float softcap; /* scores become cap * tanh(score / cap) after scaling; 0: no cap */
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

#endif
