/* One warp, written once, for a GPU and for the CPU.
 *
 * With nvcc a value of a lane is a scalar (warp_cuda.h). Elsewhere it is an array of 32 scalars
 * (warp_host.h), and the same source runs under gcc with its sanitizers: lanes are loops, the warps
 * of a cluster take turns, or are threads for ThreadSanitizer, and barriers are atomics whose
 * arrivals release and whose waits acquire. Nothing else orders two warps, so ThreadSanitizer finds
 * missing barriers as a GPU's racecheck would. A wrong phase or count of a barrier is a hang or a
 * wrong result.
 *
 * Control flow must be uniform in a warp; lanes choose with sel(). Lanes see each other's values
 * only through the functions here: shfl, the matrix units, shared memory between two sync_warp.
 *
 *   U, I, F     32 bits of a lane: unsigned, signed, float       M   its condition
 *   P           its address in global memory                    S   an address in shared memory,
 *   U2, U4, I4, F4   registers of a lane, v[i]                       the same for all lanes
 *
 * What the emulator does not see: launch bounds, alignment of vector accesses but of bulk copies,
 * bank conflicts, the scheduling of clusters, and time. */
#ifndef LK_CUDA_WARP_H
#define LK_CUDA_WARP_H

#include <stdint.h>
#include <string.h>

/* For tests of tests: which mistake a kernel makes on purpose. */
#ifdef LK_PLANT_MISTAKES
extern int lk_planted;
#else
enum { lk_planted = 0 };
#endif

#ifdef __CUDACC__
#include "cuda/warp_cuda.h"
#else
#include "cuda/warp_host.h"
#endif

struct F4 {
    F v[4];
};

WF I4 izero() {
    I4 r;
    for (int i = 0; i < 4; i++) r.v[i] = as_i(splat(0));
    return r;
}
WF F4 fzero() {
    F4 r;
    for (int i = 0; i < 4; i++) r.v[i] = splatf(0);
    return r;
}

/* Half i of a word as a float. */
WF F half_of(U x, int i) { return i ? h_hi(x) : h_lo(x); }

/* Sum and maximum over the lanes whose numbers differ in the bits from `first` on only. */
WF F sum_lanes(F x, int first = 1) {
    for (int m = first; m < 32; m *= 2) x = x + shfl_xorf(x, m);
    return x;
}
WF F max_lanes(F x, int first = 1) {
    for (int m = first; m < 32; m *= 2) x = max_(x, shfl_xorf(x, m));
    return x;
}

#endif
