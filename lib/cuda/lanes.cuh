/* Work of a warp in phases of scalar code, for nvcc and for C++.
 *
 *     lanes([&](int lane) { ... });
 *
 * runs a phase in each of the 32 lanes and ends with a barrier of the warp. Within a phase lanes
 * branch as they like, and do not see what others write to memory. On the host a phase is a loop
 * over lanes. lanes_reversed makes it run backwards: what depends on the order of lanes then gives
 * other results, which tests find.
 *
 * Kernels that are bound by memory or tensor cores use cuda/warp.h, whose lanes are values. Those
 * that move rows are not: what counts here is that they round as the CPU does. So products and sums
 * are functions, which nvcc does not contract. */
#ifndef LK_CUDA_LANES_CUH
#define LK_CUDA_LANES_CUH

#include "cuda/launch.h"
#include "device/commands.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>

/* A function that is called from several places, and too long to be inlined in each. */
#define CALLED static __device__ __noinline__

/* The start of the block's shared memory, so that the compiler knows where it is. */
WF char *shared_memory(S) {
    extern __shared__ __align__(128) char shared[];
    return shared;
}

template <class Phase> WF void lanes(Phase phase) {
    phase((int)(threadIdx.x & 31));
    __syncwarp();
}

WF float add(float a, float b) { return __fadd_rn(a, b); }
WF float sub(float a, float b) { return __fsub_rn(a, b); }
WF float mul(float a, float b) { return __fmul_rn(a, b); }
WF float divide(float a, float b) { return __fdiv_rn(a, b); }
WF float root(float a) { return __fsqrt_rn(a); }
WF float from_bits(uint32_t x) { return __uint_as_float(x); }
WF uint32_t to_bits(float x) { return __float_as_uint(x); }
WF float float_of_half(uint16_t x) { return __half2float(__ushort_as_half(x)); }
WF uint16_t half_of_float(float x) { return __half_as_ushort(__float2half_rn(x)); }
WF int lowest_bit(uint32_t x) { return __ffs((int)x) - 1; }

#else
#include "codec/f16.h"

#define CALLED static inline

inline thread_local bool lanes_reversed = false;

WF char *shared_memory(S shared) { return shared; }

template <class Phase> WF void lanes(Phase phase) {
    for (int i = 0; i < 32; i++) phase(lanes_reversed ? 31 - i : i);
}

WF float add(float a, float b) { return a + b; }
WF float sub(float a, float b) { return a - b; }
WF float mul(float a, float b) { return a * b; }
WF float divide(float a, float b) { return a / b; }
WF float root(float a) { return sqrtf(a); }
WF float from_bits(uint32_t x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
WF uint32_t to_bits(float x) {
    uint32_t y;
    memcpy(&y, &x, sizeof y);
    return y;
}
WF float float_of_half(uint16_t x) { return lk_f16_to_f32(x); }
WF uint16_t half_of_float(float x) { return lk_f32_to_f16_ieee(x); }
WF int lowest_bit(uint32_t x) { return __builtin_ctz(x); }
#endif

/* As lk_f32_to_f16: saturates, and keeps NaN and its payload. */
WF uint16_t to_half(float x) {
    uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(0x7e00 | (bits >> 13 & 0x3ff) | (bits >> 16 & 0x8000));
    return half_of_float(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

/* As lk_f16_to_f32, which makes NaN quiet and keeps its payload. */
WF float from_half(uint16_t x) {
    if ((x & 0x7fff) > 0x7c00)
        return from_bits((uint32_t)(x & 0x8000) << 16 | 0x7fc00000u | (uint32_t)(x & 0x3ff) << 13);
    return float_of_half(x);
}

/* lk_clamp_finite and lk_round_half_away (codec/ops.h). */
WF float clamp_finite(float x) {
    const float max = 1e9f;
    if (!(x > -max)) return x != x ? 0.0f : -max;
    return x < max ? x : max;
}
WF float round_half_away(float x) { return (float)(int)(x < 0 ? sub(x, 0.5f) : add(x, 0.5f)); }

/* An address in global memory. */
template <class T> WF T *at(uint64_t address) { return (T *)(uintptr_t)address; }

/* The command of a list that has work item `item`: the last one with first_item <= item. */
template <class Command> WF int item_of(const Command *list, int n, int item) {
    int low = 0, high = n;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (list[middle].first_item <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
