/* Attention over latents on a GPU: what a kernel's parts agree on. latent.h is the kernel.
 *
 * A block works on one (split, NH successive KV heads of a group, tile of NQ queries of each,
 * call). It has 8 K warps, which reconstruct keys and make scores, and 4 V warps, which make
 * weights and sums of V's latents. They take chunks of 4 tiles (128 rows, a segment of RoPE in
 * lib/cache/rope.h), and talk through barriers in shared memory:
 *
 *     K warp (half, i)   chunks half, half + 2, ...; of each tile the tokens i, i + 4, ..., all
 *                        heads of the block. These are word i of the 16-byte pieces of
 *                        codec/bitplanes.h, so codes become fragments of the matrix units without
 *                        any exchange
 *     V warp w           every chunk; softmax of columns w, w + 4, ..., then a quarter of the
 *                        channels
 *
 * Scores of a chunk, with q~ for the query rotated back by the chunk's first position:
 *
 *     fast pairs   k = up z in 8-bit integers, rotated by t * speed in floats, times q~ in f16
 *     slow pairs   sum over m < 4 of basis_m(t) <A_m, z>, A_m = up w_m: the fold of
 *                  attention/score_pre.h. A_m is computed once per chunk and query in 16-bit
 *                  integers, as two byte planes.
 *     means        X_j cos + Y_j sin for fast pairs, sum of basis_m(t) <w_m, mean> for slow ones
 *
 * Without the fold all pairs are fast. It pays for up to two queries of a KV head.
 *
 * Sums of up z start at the bits of 1.5 * 2^23, so that they are floats without a conversion: 1.5 *
 * 2^23 + x. The rotation takes the constant away. For cosine c and sine s of a pair,
 *
 *     c x_a - s x_b = c (C + x_a) - s (C + x_b) - C (c - s),   C = 1.5 * 2^23
 *     s x_a + c x_b = s (C + x_a) + c (C + x_b) - C (c + s)
 *
 * Both channels of a pair have one scale, which moves to the query, and are neighboring columns of
 * the product, so a lane has both. */
#ifndef LK_CUDA_LATENT_SHAPE_H
#define LK_CUDA_LATENT_SHAPE_H

#include "cuda/warp.h"
#include "device/commands.h"

/* D: channels of a head. R, KB: room for K's components, a multiple of 64, and bits. RV, VB: of V,
 * a multiple of 128. NH: KV heads of a block, 1, 2 or 4. NQ: queries of each, up to 8. FOLD: slow
 * pairs are folded. KST: chunks of K in flight, 1 or 2, in addition to the two in registers. VST:
 * of V. HALF: the table of the rotation is in f16. POST: latents of rotated keys, whose queries
 * latent_front has projected; nothing is reconstructed. */
template <int D_, int R_, int KB_, int RV_, int VB_, int NH_, int NQ_, bool FOLD_, int KST_,
          int VST_, bool HALF_, bool POST_ = false>
struct latent_shape {
    static constexpr int D = D_, R = R_, KB = KB_, RV = RV_, VB = VB_, NH = NH_, NQ = NQ_,
                         KST = KST_, VST = VST_;
    static constexpr bool FOLD = FOLD_, HALF = HALF_, POST = POST_;
    static constexpr int KS = R / 32, COLS = NH * NQ, SETS = (COLS + 3) / 4, NV = RV / 128;
    static constexpr int PAIRS = D / 2,
                         FAST = POST   ? 0
                                : FOLD ? PAIRS / 2
                                       : PAIRS,
                         SLOW = POST ? 0 : D - 2 * FAST;
    static constexpr int N2 = FAST / 8,
                         SL = SLOW / 32; /* steps: of 8 fast pairs, 32 slow channels */
    static constexpr int HP = NH < (R > 128 ? 2 : 4) ? NH : (R > 128 ? 2 : 4); /* heads of a pass */
    static constexpr int K_TILE = 4 * KB * R + 64, V_TILE = 4 * VB * RV + 64;  /* room for one */
    static constexpr int WEIGHT_STRIDE = 144, W_STRIDE = SLOW + 16, F_STRIDE = R + 16;

    /* a head of the packed up-projection: fragments of fast channels, of slow channels, start of
     * the sums, scales of pairs, bound of the slow rows */
    static constexpr int up_slow = 2 * N2 * KS * 256, up_start = up_slow + R / 16 * SL * 512,
                         up_scale = up_start + (KB == 4 ? 2 * N2 * 64 : 0),
                         up_norm = up_scale + PAIRS * 4, UP_HEAD = POST ? 0 : up_norm + 16;

    /* the packed tables of RoPE: cos and sin of a segment, functions of the fold, coefficients */
    static constexpr int ROPE_PAIR = HALF ? 4 : 8, rope_basis = FAST * 128 * ROPE_PAIR,
                         rope_fold = rope_basis + 4 * 128 * 4,
                         ROPE = FOLD ? rope_fold + PAIRS * 32 : rope_basis,
                         ROPE_SHARED =
                             FOLD ? rope_fold : rope_basis; /* coefficients are not copied */

    /* places in shared memory */
    static constexpr int up = 0, rope = POST ? COLS * (RV + 2) * 4 + SETS * 16 : NH * UP_HEAD,
                         k = rope + ROPE_SHARED, v = k + KST * 4 * K_TILE,
                         scores = v + VST * 4 * V_TILE, weights = scores + 2 * COLS * 512,
                         factors = weights + 2 * SETS * 8 * WEIGHT_STRIDE,
                         q = factors + 2 * SETS * 32, q_scale = q + COLS * PAIRS * 8,
                         q_back = q_scale + SETS * 16, q_mean = q_back + 2 * 2 * COLS * FAST * 4,
                         q_fold = q_mean + 2 * COLS * (FAST * 8 + 16),
                         folded = q_fold + (FOLD ? COLS * 48 : 0),
                         bars = folded + (POST   ? SETS * 8 * F_STRIDE
                                          : FOLD ? 2 * COLS * 8 * F_STRIDE
                                                 : 0),
                         BYTES = bars + 8 * 24;
    static constexpr int SUM = (RV + 2) * 4; /* bytes of a column's sums: [RV], max, sum */
    static constexpr int K_WARPS = 8, V_WARPS = 4, WARPS = 12;
    static_assert(COLS * SUM + SETS * 16 <= rope, "sums take the place of up");
    static_assert(W_STRIDE <= F_STRIDE, "w takes the place of its folded vectors");
    static_assert(R % 64 == 0 && RV % 128 == 0 && 2 * VST + 15 <= 24, "shape");
    static_assert(bars % 8 == 0 && k % 16 == 0 && v % 16 == 0 && folded % 16 == 0 && q % 16 == 0,
                  "alignment");
};

/* Barriers; of two: one per half of the K warps, or per buffer of scores. */
template <class sh> struct latent_bars {
    S up, rope, v_sync, k_full, k_empty, s_full, s_empty, ready, done, v_full, v_empty;
};
template <class sh> WF latent_bars<sh> latent_bars_at(S shared) {
    S base = shared + sh::bars;
    latent_bars<sh> b;
    b.up = base, b.rope = base + 8, b.v_sync = base + 16, b.k_full = base + 24;
    b.k_empty = base + 40, b.s_full = base + 56, b.s_empty = base + 72, b.ready = base + 88;
    b.done = base + 104, b.v_full = base + 120, b.v_empty = b.v_full + 8 * sh::VST;
    return b;
}
template <class sh> WF void latent_bars_init(const latent_bars<sh> &b) {
    barrier_init(b.up, 1);
    barrier_init(b.rope, 1);
    barrier_init(b.v_sync, sh::V_WARPS);
    for (int i = 0; i < 2; i++) {
        barrier_init(b.k_full + 8 * i, 1);
        barrier_init(b.k_empty + 8 * i, 4);
        barrier_init(b.s_full + 8 * i, 4);
        barrier_init(b.s_empty + 8 * i, sh::V_WARPS);
        barrier_init(b.ready + 8 * i, 4);
        barrier_init(b.done + 8 * i, 4);
    }
    for (int i = 0; i < sh::VST; i++) {
        barrier_init(b.v_full + 8 * i, 1);
        barrier_init(b.v_empty + 8 * i, sh::V_WARPS);
    }
    barrier_fence();
}

/* What the warps of a block know of their work. Chunk c of the segment has the rows
 * 128 (k.first / 128 + c) .. of K's table; chunks [from, to) are the block's. */
struct latent_work {
    const struct lk_device_latent *call;
    int head;        /* the block's first KV head */
    int col0, n_col; /* its first query of a KV head, and the number of those in the call */
    int from, to;    /* chunks */
    int skip;        /* rows of chunk 0 that are before the segment */
    int coarse;      /* number of the coarse angle of chunk 0 */
    int fine;        /* and of the fine one */
    uint32_t k_rank, v_rank, k_offset, v_offset;
};

/* Rows that column n of a KV head sees: [lo, hi), counted from chunk 0's first row. */
WF void latent_visible(const struct lk_device_latent_launch &a, const latent_work &w, int n,
                       int *lo, int *hi) {
    int token = (w.col0 + n) / a.group, last = w.call->segment.before + token,
        first = w.call->window > 0 ? last - w.call->window + 1 : 0;
    *hi = w.call->segment.n_row < last + 1 ? w.call->segment.n_row : last + 1;
    *lo = (first > 0 ? first : 0) + w.skip;
    *hi = (*hi > 0 ? *hi : 0) + w.skip;
}

#endif
